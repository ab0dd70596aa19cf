//! How to reach Redis, and every bound of this crate by name.

use std::fmt;
use std::sync::Arc;

use redis::IntoConnectionInfo as _;
use tollgate::{Clock, Error, ErrorKind, Observer, Span};

use crate::entry::{VERSION, VERSION_BEFORE};

/// How long one attempt may take before the answer is [`Unavailable`](tollgate::ErrorKind::Unavailable). Short on
/// purpose: a slow store is as bad as a dead one.
pub const ATTEMPT_TIMEOUT: Span = Span::from_millis(500);

/// How long it may take to get a connection, if an attempt may not take longer still. Reading the certificates of the machine
/// takes a while, and a call that waits for a connection gives up when its attempt is over.
pub const CONNECT_TIMEOUT: Span = Span::from_secs(10);

/// How often a call that may be repeated safely is sent when its connection is lost, unless told otherwise.
pub const ATTEMPTS_MAX: usize = 3;

/// A write may take this part of the attempt's timeout to reach as many replicas as [`Options::wait_replicas`] asks
/// for: a half.
pub const REPLICA_SHARE: u64 = 2;

/// How often an entry whose policy changed is decided again because somebody wrote in between. Then the answer is
/// [`Contended`](tollgate::ErrorKind::Contended).
pub const CARRIES_MAX: usize = 16;

/// How many attempts long an id lives that this crate gives to an ask without one, because the client of a cluster sends
/// what it has no answer to again, within one attempt.
pub const OWN_ID_ATTEMPTS: u64 = 2;

/// The [formats](Options::format) that are written, the newest last.
pub const FORMATS: [u8; 2] = [VERSION_BEFORE, VERSION];

/// [`CARRIES_MAX`] while entries are written in an [older format](Options::format), where every change takes this way.
pub const OLDER_TRIES_MAX: usize = 64;

/// How often the calendar windows are sent again because the server's clock is in another one.
pub const WINDOW_TRIES_MAX: usize = 4;

/// How long no other primary is looked for after the last look.
pub const RENEW_PAUSE: Span = Span::from_millis(100);

/// User and password.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// How the primary is found by Sentinel.
#[derive(Clone, Default)]
pub(crate) struct Sentinel {
    pub(crate) master: String,
    pub(crate) sentinels: Login,
    pub(crate) servers: Login,
    pub(crate) tls: bool,
    pub(crate) database: i64,
}

/// Where Redis is and how it is used.
#[derive(Clone)]
pub struct Options {
    /// With [`sentinel`](Self::sentinel), the addresses of the sentinels.
    pub(crate) urls: Vec<String>,
    pub(crate) sentinel: Option<Sentinel>,
    pub(crate) cluster: bool,
    pub(crate) prefix: String,
    pub(crate) attempt_timeout: Span,
    pub(crate) attempts_max: usize,
    pub(crate) wait_replicas: u32,
    pub(crate) format: u8,
    pub(crate) authority: Option<Vec<u8>>,
    pub(crate) told_time: Option<Arc<dyn Clock>>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
}

impl Options {
    /// A single server: `redis://[user:password@]host[:port][/database]`, or `rediss://` for TLS.
    #[must_use]
    pub fn single(url: impl Into<String>) -> Self {
        Self {
            urls: vec![url.into()],
            sentinel: None,
            cluster: false,
            prefix: "tg".to_owned(),
            attempt_timeout: ATTEMPT_TIMEOUT,
            attempts_max: ATTEMPTS_MAX,
            wait_replicas: 0,
            format: VERSION,
            authority: None,
            told_time: None,
            observer: None,
        }
    }

    /// A cluster, by some of its nodes.
    #[must_use]
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        let urls = urls.into_iter().map(Into::into).collect();
        Self { urls, cluster: true, ..Self::single("") }
    }

    /// The primary that the sentinels at these addresses (`host:port`) know as `master`. It is looked up again after a
    /// failover.
    #[must_use]
    pub fn sentinel<A: Into<String>>(
        addresses: impl IntoIterator<Item = A>,
        master: impl Into<String>,
    ) -> Self {
        let urls = addresses.into_iter().map(Into::into).collect();
        let sentinel = Some(Sentinel { master: master.into(), ..Sentinel::default() });
        Self { urls, sentinel, ..Self::single("") }
    }

    /// The user and password of the servers behind Sentinel. Elsewhere they are in the url.
    #[must_use]
    pub fn login(self, user: Option<String>, password: Option<String>) -> Self {
        self.with_sentinel(|sentinel| sentinel.servers = Login { user, password })
    }

    /// The user and password of the sentinels themselves.
    #[must_use]
    pub fn sentinel_login(self, user: Option<String>, password: Option<String>) -> Self {
        self.with_sentinel(|sentinel| sentinel.sentinels = Login { user, password })
    }

    /// The database of the servers behind Sentinel; 0 if nothing is set.
    #[must_use]
    pub fn database(self, database: u32) -> Self {
        self.with_sentinel(|sentinel| sentinel.database = database.into())
    }

    /// Connects to sentinels and to the servers behind them by TLS.
    #[must_use]
    pub fn tls(self) -> Self {
        self.with_sentinel(|sentinel| sentinel.tls = true)
    }

    fn with_sentinel(mut self, change: impl FnOnce(&mut Sentinel)) -> Self {
        if let Some(sentinel) = &mut self.sentinel {
            change(sentinel);
        }
        self
    }

    /// What every key begins with; `tg` if nothing is set. Braces would break the spread over a cluster and are dropped.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.replace(['{', '}'], "");
        self
    }

    /// How long one attempt may take; [`ATTEMPT_TIMEOUT`] if nothing is set.
    #[must_use]
    pub const fn attempt_timeout(mut self, timeout: Span) -> Self {
        self.attempt_timeout = timeout;
        self
    }

    /// Sends every call once, for a gate inside [`Resend`](tollgate::Resend), which sends it again.
    #[must_use]
    pub const fn once(mut self) -> Self {
        self.attempts_max = 1;
        self
    }

    /// Answers an admission only after so many replicas have it, within half the attempt's timeout; otherwise the answer is
    /// [`Unavailable`](tollgate::ErrorKind::Unavailable) although the charge was made. This narrows what a failover may
    /// forget, and does not close the gap: Redis may promote a replica that has not got it.
    #[must_use]
    pub const fn wait_replicas(mut self, replicas: u32) -> Self {
        self.wait_replicas = replicas;
        self
    }

    /// Writes entries in this format: 4, or 3 to share them with programs that know no later one. Both are read in any case, and
    /// an entry that is in format 4 already stays in it.
    ///
    /// In format 3 every change reads the entry, decides here and writes the entry back if nobody changed it meanwhile. It
    /// says of an entry what its programs do: a rolling window without a configured resolution has an exact log, and a token
    /// bucket gives back what has not refilled since the charge. Ids stay where this program keeps them, so an ask that is
    /// repeated to a program of the other kind is charged again.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for any other number.
    ///
    /// ```
    /// use tollgate_redis::Options;
    ///
    /// let options = Options::single("redis://127.0.0.1/").format(3)?;
    /// let error = options.format(2).unwrap_err();
    /// assert_eq!(error.to_string(), "redis: format 2 is not one of 3, 4");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn format(self, format: u8) -> Result<Self, Error> {
        if FORMATS.contains(&format) {
            return Ok(Self { format, ..self });
        }
        let text = format!("redis: format {format} is not one of {VERSION_BEFORE}, {VERSION}");
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Trusts the certificates in `pem` instead of the machine's own, for urls that begin with `rediss://`.
    #[must_use]
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(pem.into());
        self
    }

    /// Tells `observer` of entries from the future that were rewritten ([`Event::Mended`](tollgate::Event::Mended)).
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Decides at the time of `clock` instead of the server's, and lets no key expire. For tests.
    #[must_use]
    pub fn told_time(mut self, clock: Arc<dyn Clock>) -> Self {
        self.told_time = Some(clock);
        self
    }

    pub(crate) fn connect_timeout(&self) -> Span {
        self.attempt_timeout.max(CONNECT_TIMEOUT)
    }

    /// The servers without users and passwords, for messages.
    pub(crate) fn shown(&self) -> String {
        if self.sentinel.is_some() {
            return self.urls.join(", ");
        }
        self.urls.iter().map(|url| without_secrets(url)).collect::<Vec<_>>().join(", ")
    }
}

/// Checks that `url` names a Redis server, without connecting to it.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid), with what would be right and without secrets.
pub fn check_url(url: &str) -> Result<(), Error> {
    url.into_connection_info().map(drop).map_err(|_| {
        let text = format!(
            "{} is not the url of a Redis server; use redis://[user:password@]host:port/database, or rediss:// for TLS",
            without_secrets(url)
        );
        Error::new(ErrorKind::Invalid, text)
    })
}

/// Never the password.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("servers", &self.shown())
            .field("cluster", &self.cluster)
            .field("prefix", &self.prefix)
            .field("attempt_timeout", &self.attempt_timeout)
            .field("wait_replicas", &self.wait_replicas)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

/// A url without what stands before its last `@` and without its query: both may hold secrets.
fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "an unreadable url".to_owned() };
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    let place = place.split_once('?').map_or(place, |(place, _)| place);
    format!("{scheme}://{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        for (url, shown) in [
            ("redis://127.0.0.1:6379/", "redis://127.0.0.1:6379/"),
            ("redis://user:s3cret@db:6379/1", "redis://db:6379/1"),
            ("rediss://:p@ss@db/", "rediss://db/"),
            ("redis://db/?password=s3cret", "redis://db/"),
            ("s3cret", "an unreadable url"),
        ] {
            assert_eq!(without_secrets(url), shown);
            assert!(!format!("{:?}", Options::single(url)).contains("s3cret"), "{url}");
        }
    }
}
