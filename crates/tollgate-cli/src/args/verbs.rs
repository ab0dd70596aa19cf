//! Asking, and what follows: `acquire`, `settle` and what names a permit or a subject.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Acquire {
    /// The name of the policy
    pub(crate) policy: String,
    /// For whom
    pub(crate) subject: String,
    /// What it costs, as in tokens=3750. A unit that is not named costs 0, except requests, which costs 1
    #[arg(long = "cost", value_name = "UNIT=N")]
    pub(crate) costs: Vec<String>,
    /// Makes a repeat recognisable: the same id within two minutes is charged once
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// Wait for room at most this long, as in 30s
    #[arg(long, value_name = "TIME")]
    pub(crate) wait: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Settle {
    /// The permit, as acquire printed it
    pub(crate) permit: String,
    /// What it really cost, as in tokens=3100
    #[arg(long = "actual", value_name = "UNIT=N")]
    pub(crate) actual: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct OfPermit {
    /// The permit, as acquire printed it
    pub(crate) permit: String,
}

#[derive(Debug, Args)]
pub(crate) struct OfSubject {
    /// The name of the policy
    pub(crate) policy: String,
    /// For whom
    pub(crate) subject: String,
}
