//! The arguments of `tollgate plan`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use tollgate::Span;

/// The store of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlanStore {
    /// Redis or Valkey nearby
    Redis,
    /// DynamoDB in the same region
    Dynamodb,
    /// PostgreSQL nearby
    Postgres,
}

impl PlanStore {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Dynamodb => "dynamodb",
            Self::Postgres => "postgres",
        }
    }

    /// Returns the default round trip.
    pub(crate) const fn latency(self) -> Span {
        match self {
            Self::Redis => Span::from_millis(1),
            Self::Postgres => Span::from_millis(2),
            Self::Dynamodb => Span::from_millis(6),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PlanFlags {
    /// The policy to plan for, from the configuration
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: String,
    /// A shared parent that every ask is charged to as well, and its number of subjects (1 if omitted), as in team=20.
    /// Repeat it for several
    #[arg(long = "parent", value_name = "POLICY[=N]")]
    pub(crate) parents: Vec<String>,
    /// How many instances ask
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) instances: u64,
    /// Asks per second of all instances together, as in 200
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) rate: String,
    /// How many asks arrive together on average; 1 is a steady stream of independent callers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) burstiness: u64,
    /// Over how many subjects the asks are spread, evenly
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) subjects: u64,
    /// What one ask costs, as in tokens=3750. A unit that is not named costs 0, except requests, which costs 1
    #[arg(long = "cost", value_name = "UNIT=N")]
    pub(crate) costs: Vec<String>,
    /// The store
    #[arg(long, value_enum, default_value_t = PlanStore::Redis)]
    pub(crate) store: PlanStore,
    /// Its usual round trip; without it 1ms for redis, 2ms for postgres, 6ms for dynamodb
    #[arg(long, value_name = "TIME")]
    pub(crate) store_latency: Option<String>,
    /// How long to simulate; a busy fleet is cut to 60,000 asks
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) duration: String,
    /// How long the store is unavailable in the plan of an outage; at most a third of the simulated time
    #[arg(long, value_name = "TIME", default_value = "5s")]
    pub(crate) outage: String,
    /// What one instance may admit per subject before the store knows; by default the limit over twice the instances
    #[arg(long, value_name = "N")]
    pub(crate) unposted_max: Option<u64>,
    /// The headroom of the tuned optimistic strategy, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 20)]
    pub(crate) headroom: u8,
    /// How many brokers the fleet asks in the plan of a broker
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) brokers: u64,
    /// The usual round trip to a broker
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    pub(crate) broker_latency: String,
    /// The same seed gives the same plan
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Dollars per million writes on DynamoDB on demand (us-east-1, November 2024)
    #[arg(long, value_name = "DOLLARS", default_value_t = crate::plan::WRITE_DOLLARS_PER_MILLION)]
    pub(crate) price_write: f64,
    /// Dollars per million reads on DynamoDB on demand (us-east-1, November 2024)
    #[arg(long, value_name = "DOLLARS", default_value_t = crate::plan::READ_DOLLARS_PER_MILLION)]
    pub(crate) price_read: f64,
    /// Dollars per hour of the machine of one broker (t4g.small, us-east-1, November 2024)
    #[arg(long, value_name = "DOLLARS", default_value_t = crate::plan::BROKER_DOLLARS_PER_HOUR)]
    pub(crate) price_broker: f64,
    /// Also write a chart to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) svg: Option<PathBuf>,
    /// Also run the traffic for real, in processes on the configured store, and print both side by side
    #[arg(long)]
    pub(crate) measure: bool,
    /// How long to run for real, at most 60s
    #[arg(long, value_name = "TIME", default_value = "5s", requires = "measure")]
    pub(crate) measure_for: String,
}
