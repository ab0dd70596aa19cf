//! The options of the store, and every bound of this crate.

use std::fmt;
use std::sync::Arc;

use redis::IntoConnectionInfo as _;
use tollgate::observe::Observer;
use tollgate::{Clock, Error, ErrorKind, Span};

use crate::entry::{VERSION, VERSION_BEFORE};

/// Default timeout of one attempt, after which the error is [`TimedOut`](tollgate::ErrorKind::TimedOut).
pub const ATTEMPT_TIMEOUT: Span = Span::from_millis(500);

/// Timeout of a connection attempt, unless attempts may take longer. Reading the system's certificates takes a while; a call
/// that waits for a connection gives up after its own timeout.
pub const CONNECT_TIMEOUT: Span = Span::from_secs(10);

/// Default number of attempts of an idempotent call whose connection is lost.
pub const ATTEMPTS_MAX: usize = 3;

/// The divisor of the attempt's timeout that a write may take to reach [`Options::wait_replicas`]: a half.
pub const REPLICA_SHARE: u64 = 2;

/// The most compare-and-swap attempts on an entry whose policy changed, after which the error is
/// [`Contended`](tollgate::ErrorKind::Contended).
pub const CARRIES_MAX: usize = 16;

/// Lifetime, in attempts, of the id that an ask without one gets on a cluster, whose client repeats calls without a reply.
pub const OWN_ID_ATTEMPTS: u64 = 2;

/// The [formats](Options::format) that are written, the newest last.
pub const FORMATS: [u8; 2] = [VERSION_BEFORE, VERSION];

/// [`CARRIES_MAX`] for entries in an [older format](Options::format), where every change is a compare-and-swap.
pub const OLDER_TRIES_MAX: usize = 64;

/// The most attempts to match the calendar window of the server's clock.
pub const WINDOW_TRIES_MAX: usize = 4;

/// The most attempts to take the charges of an ask one after the other, where they are in several slots of a cluster.
pub const PARTS_TRIES_MAX: usize = 4;

/// The most bytes of a [slot tag](Options::slot_tag).
pub const SLOT_TAG_BYTES_MAX: usize = 64;

/// The pause between two searches for the primary.
pub const RENEW_PAUSE: Span = Span::from_millis(100);

/// User and password.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// The settings of Sentinel.
#[derive(Clone, Default)]
pub(crate) struct Sentinel {
    pub(crate) master: String,
    pub(crate) sentinels: Login,
    pub(crate) servers: Login,
    pub(crate) tls: bool,
    pub(crate) database: i64,
}

/// Address and behaviour of a Redis store.
#[derive(Clone)]
pub struct Options {
    /// With [`sentinel`](Self::sentinel), the addresses of the sentinels.
    pub(crate) urls: Vec<String>,
    pub(crate) sentinel: Option<Sentinel>,
    pub(crate) cluster: bool,
    pub(crate) prefix: String,
    /// In braces; empty if there is none.
    pub(crate) slot_tag: String,
    pub(crate) attempt_timeout: Span,
    pub(crate) attempts_max: usize,
    pub(crate) wait_replicas: u32,
    pub(crate) format: u8,
    pub(crate) authority: Option<Vec<u8>>,
    pub(crate) test_clock: Option<Arc<dyn Clock>>,
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
            slot_tag: String::new(),
            attempt_timeout: ATTEMPT_TIMEOUT,
            attempts_max: ATTEMPTS_MAX,
            wait_replicas: 0,
            format: VERSION,
            authority: None,
            test_clock: None,
            observer: None,
        }
    }

    /// A cluster, by some of its nodes.
    #[must_use]
    pub fn cluster<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> Self {
        let urls = urls.into_iter().map(Into::into).collect();
        Self { urls, cluster: true, ..Self::single("") }
    }

    /// The primary that the sentinels at these addresses (`host:port`) know as `master`, also after a failover.
    #[must_use]
    pub fn sentinel<A: Into<String>>(
        addresses: impl IntoIterator<Item = A>,
        master: impl Into<String>,
    ) -> Self {
        let urls = addresses.into_iter().map(Into::into).collect();
        let sentinel = Some(Sentinel { master: master.into(), ..Sentinel::default() });
        Self { urls, sentinel, ..Self::single("") }
    }

    /// Sets the credentials of the servers behind Sentinel. Otherwise they are in the URL.
    #[must_use]
    pub fn login(self, user: Option<String>, password: Option<String>) -> Self {
        self.with_sentinel(|sentinel| sentinel.servers = Login { user, password })
    }

    /// Sets the credentials of the sentinels.
    #[must_use]
    pub fn sentinel_login(self, user: Option<String>, password: Option<String>) -> Self {
        self.with_sentinel(|sentinel| sentinel.sentinels = Login { user, password })
    }

    /// Sets the database of the servers behind Sentinel; the default is 0.
    #[must_use]
    pub fn database(self, database: u32) -> Self {
        self.with_sentinel(|sentinel| sentinel.database = database.into())
    }

    /// Uses TLS for the sentinels and the servers behind them.
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

    /// Sets the prefix of every key; the default is `tg`. Braces are dropped, since they select the slot of a cluster.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.replace(['{', '}'], "");
        self
    }

    /// Puts every entry into the cluster slot of `tag`, which is written without braces. Asks with several charges are then
    /// atomic on a cluster too, and one node has all the load of this store. The tag is a part of every key, so entries under
    /// another tag, or without one, are others.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a tag that is empty, longer than [`SLOT_TAG_BYTES_MAX`] or has a brace.
    ///
    /// ```
    /// use tollgate_redis::Options;
    ///
    /// let options = Options::cluster(["redis://127.0.0.1/"]).slot_tag("tenant-a")?;
    /// assert!(options.slot_tag("{tenant-a}").is_err());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn slot_tag(mut self, tag: &str) -> Result<Self, Error> {
        check_slot_tag(tag)?;
        self.slot_tag = format!("{{{tag}}}");
        Ok(self)
    }

    /// Sets the timeout of one attempt; the default is [`ATTEMPT_TIMEOUT`].
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: impl Into<Span>) -> Self {
        self.attempt_timeout = timeout.into();
        self
    }

    /// Sends every call once, for a gate inside [`Resend`](tollgate::strategy::Resend), which retries.
    #[must_use]
    pub const fn once(mut self) -> Self {
        self.attempts_max = 1;
        self
    }

    /// Waits until so many replicas have an admission, within half the attempt's timeout; otherwise the error is
    /// [`Unavailable`](tollgate::ErrorKind::Unavailable) although the charge was made. This reduces what a failover may lose,
    /// but Redis may still promote a replica without it.
    #[must_use]
    pub const fn wait_replicas(mut self, replicas: u32) -> Self {
        self.wait_replicas = replicas;
        self
    }

    /// Writes entries in this format: 4, or 3 to share them with programs of the version before. Both are read in any case,
    /// and an entry in format 4 stays in it.
    ///
    /// In format 3 every change is a read, a decision here and a compare-and-swap. Entries mean what they mean to programs of
    /// that version: a rolling window without a configured resolution has an exact log, and a token bucket credits what has
    /// not refilled since the charge. Ids are not shared, so an ask that is repeated to a program of the other version is
    /// charged again.
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

    /// Trusts the certificates in `pem` instead of the system's, for URLs with `rediss://`.
    #[must_use]
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(pem.into());
        self
    }

    /// Sends [`Event::Repaired`](tollgate::observe::Event::Repaired) to `observer` for rewritten entries from the future.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Decides by `clock` instead of the server's clock, without expiry of keys. For tests.
    #[must_use]
    pub fn test_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.test_clock = Some(clock);
        self
    }

    pub(crate) fn connect_timeout(&self) -> Span {
        self.attempt_timeout.max(CONNECT_TIMEOUT)
    }

    /// Returns the servers without credentials, for messages.
    pub(crate) fn shown(&self) -> String {
        if self.sentinel.is_some() {
            return self.urls.join(", ");
        }
        self.urls.iter().map(|url| without_secrets(url)).collect::<Vec<_>>().join(", ")
    }
}

/// Checks a [slot tag](Options::slot_tag).
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid).
pub fn check_slot_tag(tag: &str) -> Result<(), Error> {
    if tag.is_empty() || SLOT_TAG_BYTES_MAX < tag.len() || tag.contains(['{', '}']) {
        let text = format!(
            "slot_tag {tag:?} must be 1 to {SLOT_TAG_BYTES_MAX} bytes without braces, as in \"tenant-a\""
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

/// Checks the syntax of `url`.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid), without secrets.
pub fn check_url(url: &str) -> Result<(), Error> {
    url.into_connection_info().map(drop).map_err(|_| {
        let text = format!(
            "{} is not the url of a Redis server; use redis://[user:password@]host:port/database, or rediss:// for TLS",
            without_secrets(url)
        );
        Error::new(ErrorKind::Invalid, text)
    })
}

/// Without credentials.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("servers", &self.shown())
            .field("cluster", &self.cluster)
            .field("prefix", &self.prefix)
            .field("slot_tag", &self.slot_tag)
            .field("attempt_timeout", &self.attempt_timeout)
            .field("wait_replicas", &self.wait_replicas)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}

/// Returns `url` without the part before its last `@` and without its query, which may hold secrets.
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
