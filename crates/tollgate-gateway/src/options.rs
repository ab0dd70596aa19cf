//! The configuration of a gateway: upstreams, routes and keys.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tollgate::{Costs, Timestamp};
use tollgate_providers::{Dialect, Prices, UsageMap};
use tollgate_server::keys::KeyHash;

use crate::bounds;

/// Everything that a [`Gateway`](crate::Gateway) is configured with.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// The credentials at providers.
    pub upstreams: Vec<Upstream>,
    /// Which calls go where, and what they are charged to. The first route that matches a call decides.
    pub routes: Vec<Route>,
    /// The keys of callers. Without a key no call is accepted.
    pub keys: Vec<GatewayKey>,
    /// Prices per model, for limits in `usd_micros`.
    pub prices: Prices,
    /// The largest request body.
    pub body_bytes_max: usize,
    /// The most calls that wait for admission; further ones are refused.
    pub queue_calls_max: usize,
    /// The most bytes of request bodies that the gateway holds at once; further calls are refused.
    pub queue_bytes_max: usize,
    /// The most calls that are at upstreams at once; further ones are refused.
    pub in_flight_max: usize,
    /// How long a connection to an upstream may take to open, TLS included.
    pub connect_timeout: Duration,
    /// How long an upstream may take to send the head of its response.
    pub first_byte_timeout: Duration,
    /// How long an upstream may be silent within a response.
    pub idle_timeout: Duration,
    /// How long calls in flight may take to finish at shutdown.
    pub drain: Duration,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            upstreams: Vec::new(),
            routes: Vec::new(),
            keys: Vec::new(),
            prices: Prices::built_in(),
            body_bytes_max: bounds::BODY_BYTES_MAX,
            queue_calls_max: bounds::QUEUE_CALLS_MAX,
            queue_bytes_max: bounds::QUEUE_BYTES_MAX,
            in_flight_max: bounds::IN_FLIGHT_MAX,
            connect_timeout: bounds::CONNECT_TIMEOUT.into(),
            first_byte_timeout: bounds::FIRST_BYTE_TIMEOUT.into(),
            idle_timeout: bounds::IDLE_TIMEOUT.into(),
            drain: bounds::DRAIN.into(),
        }
    }
}

/// One credential at one provider.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Its name in routes, subjects, metrics and logs.
    pub name: String,
    /// The API that it speaks.
    pub dialect: Dialect,
    /// Its base URL, such as `https://api.openai.com`; the path of a call below the dialect's prefix is appended.
    pub url: String,
    /// The API key of the provider.
    pub key: Secret,
    /// Which fields of the provider's usage count into which unit.
    pub usage: UsageMap,
    /// Whether usage is requested for streams whose client did not; the extra events are removed again.
    pub inject_usage: bool,
    /// Names of models at this upstream, by the name that clients use.
    pub models: BTreeMap<String, String>,
    /// The authorities to trust instead of those of the operating system, as PEM.
    pub authority: Option<Vec<u8>>,
}

impl Upstream {
    /// Creates an upstream with the default URL and usage map of `dialect`.
    #[must_use]
    pub fn new(name: impl Into<String>, dialect: Dialect, key: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            dialect,
            url: dialect.url().to_owned(),
            key: Secret::new(key),
            usage: dialect.usage_map(),
            inject_usage: true,
            models: BTreeMap::new(),
            authority: None,
        }
    }
}

/// Which calls go to which upstreams, and what they are charged to.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its name, which keys are bound to.
    pub name: String,
    /// The models that it serves, with `*` as a wildcard.
    pub models: Vec<String>,
    /// The names of its upstreams, all of one dialect: the first that admits now, else the one that admits soonest.
    pub upstreams: Vec<String>,
    /// The charges of a call. The subject of the first is the tenant that takes turns with others in the queue.
    pub charges: Vec<ChargeTemplate>,
    /// How long a call may wait for admission.
    pub max_wait: Duration,
}

/// A charge of a call: a policy, and a subject with placeholders.
///
/// Placeholders are `{key.subject}`, `{key.team}`, `{key.name}`, `{upstream}`, `{model}` and `{header.NAME}`; the last is filled
/// only for trusted keys.
#[derive(Clone, Debug)]
pub struct ChargeTemplate {
    /// The name of the policy.
    pub policy: String,
    /// The subject, with placeholders.
    pub subject: String,
    /// Costs of this charge alone, instead of those of the call.
    pub costs: Option<Costs>,
}

impl ChargeTemplate {
    /// Creates a charge with the costs of the call.
    #[must_use]
    pub fn new(policy: impl Into<String>, subject: impl Into<String>) -> Self {
        Self { policy: policy.into(), subject: subject.into(), costs: None }
    }
}

/// A key of a caller.
#[derive(Clone, Debug)]
pub struct GatewayKey {
    /// Its name in the audit, metrics and logs.
    pub name: String,
    /// Its hash.
    pub hash: KeyHash,
    /// The value of `{key.subject}`.
    pub subject: String,
    /// The value of `{key.team}`; a route that charges a team refuses a key without one.
    pub team: Option<String>,
    /// The names of the routes that it may use; empty for all.
    pub routes: Vec<String>,
    /// Whether its requests may fill `{header.NAME}`.
    pub trusted: bool,
    /// When it expires.
    pub expires: Option<Timestamp>,
}

impl GatewayKey {
    /// Creates a key for every route that does not expire. Its subject is its name.
    #[must_use]
    pub fn new(name: impl Into<String>, hash: KeyHash) -> Self {
        let name = name.into();
        Self {
            subject: name.clone(),
            name,
            hash,
            team: None,
            routes: Vec::new(),
            trusted: false,
            expires: None,
        }
    }
}

/// A text that is not shown, such as the API key of a provider.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

/// Omits the text.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
