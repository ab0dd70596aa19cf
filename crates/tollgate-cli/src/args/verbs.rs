//! The arguments of calls: `acquire`, `settle`, and commands on a permit or a subject.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Acquire {
    /// The policy and the subject, as in api alice; or several as POLICY:SUBJECT, as in user:u1 team:t7, which are
    /// decided together: all are charged, or none
    #[arg(value_name = "POLICY SUBJECT | POLICY:SUBJECT", required = true)]
    pub(crate) subjects: Vec<String>,
    /// The cost, as in tokens=3750. A unit that is not named costs 0, except requests, which costs 1
    #[arg(long = "cost", value_name = "UNIT=N")]
    pub(crate) costs: Vec<String>,
    /// An idempotency key: the same id within two minutes is charged once
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// Wait for room at most this long, as in 30s
    #[arg(long, value_name = "TIME")]
    pub(crate) wait: Option<String>,
    /// The tenant that takes the turn of the ask at a broker where others wait for the same limit; by default the subject
    /// of the first charge. The key must allow it
    #[arg(long)]
    pub(crate) tenant: Option<String>,
    /// While waiting, retry after delays that double from BASE to MAX, 2s..8s by default, and never before the promised
    /// time; "off" overrides [backoff] of the configuration
    #[arg(
        long,
        value_name = "BASE..MAX",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        requires = "wait"
    )]
    pub(crate) backoff: Option<String>,
    /// The most random jitter that is added to each delay of --backoff, in percent; 25 by default
    #[arg(long, value_name = "PERCENT", requires = "backoff")]
    pub(crate) jitter: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Settle {
    /// The permit, as acquire printed it
    pub(crate) permit: String,
    /// The actual cost, as in tokens=3100; of one charge of several, counted from 0, as in 1:tokens=3100
    #[arg(long = "actual", value_name = "UNIT=N")]
    pub(crate) actual: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PermitArgs {
    /// The permit, as acquire printed it
    pub(crate) permit: String,
}

#[derive(Debug, Args)]
pub(crate) struct SubjectArgs {
    /// The name of the policy
    pub(crate) policy: String,
    /// The subject
    pub(crate) subject: String,
}
