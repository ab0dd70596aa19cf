//! Options of a connection.

use std::fmt;
use std::sync::Arc;

use tokio_postgres::Config;
use tollgate::clock::SystemClock;
use tollgate::observe::Observer;
use tollgate::{Clock, Error, ErrorKind, Span};

use crate::quote;

/// Default schema of the tables and functions.
pub const SCHEMA_DEFAULT: &str = "tollgate";

/// Default of [`Options::connections_max`].
pub const CONNECTIONS_DEFAULT: usize = 8;

/// Default of [`Options::reply_timeout`].
pub const REPLY_TIMEOUT_DEFAULT: Span = Span::from_secs(5);

/// Default of [`Options::lock_timeout`].
pub const LOCK_TIMEOUT_DEFAULT: Span = Span::from_secs(2);

/// The supported [formats](Options::format): versions of the schema, the newest last.
pub const FORMATS: [u8; 2] = [FORMAT_OLD, FORMAT_NEWEST];

/// The version of the schema of the program version before.
pub(crate) const FORMAT_OLD: u8 = 3;

/// The version of the schema that [`crate::migrate`] creates.
pub(crate) const FORMAT_NEWEST: u8 = 4;

/// Address of the server, and behaviour of the gate.
///
/// ```
/// use tollgate_postgres::Options;
///
/// let options = Options::new("postgresql://tollgate:secret@db.internal/quota?sslmode=require")?;
/// assert!(!format!("{options:?}").contains("secret"));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) config: Config,
    pub(crate) schema: String,
    pub(crate) connections_max: usize,
    pub(crate) reply_timeout: Span,
    pub(crate) lock_timeout: Span,
    pub(crate) pooling: Pooling,
    pub(crate) migrate: bool,
    pub(crate) format: u8,
    pub(crate) test_clock: Option<Arc<dyn Clock>>,
    pub(crate) timer: Arc<dyn Clock>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) authority: Option<Vec<u8>>,
}

/// Whether a connection keeps its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// Yes, so statements are prepared once.
    Session,
    /// No: a pooler such as pgbouncer assigns a session per transaction, so nothing is kept between them.
    Transaction,
}

impl Options {
    /// Names the server, as in `postgresql://user:password@host:5432/database?sslmode=require`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an invalid URL, which the message does not repeat, since it may hold a password.
    pub fn new(url: &str) -> Result<Self, Error> {
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            Error::new(
                ErrorKind::Invalid,
                format!(
                    "the url of the PostgreSQL server cannot be read ({error}); write it as in \
                     postgresql://user:password@host:5432/database?sslmode=require"
                ),
            )
        })?;
        if config.get_application_name().is_none() {
            config.application_name("tollgate");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(REPLY_TIMEOUT_DEFAULT.into());
        }
        Ok(Self {
            config,
            schema: SCHEMA_DEFAULT.to_owned(),
            connections_max: CONNECTIONS_DEFAULT,
            reply_timeout: REPLY_TIMEOUT_DEFAULT,
            lock_timeout: LOCK_TIMEOUT_DEFAULT,
            pooling: Pooling::Session,
            migrate: true,
            format: FORMAT_NEWEST,
            test_clock: None,
            timer: Arc::new(SystemClock),
            observer: None,
            authority: None,
        })
    }

    /// Sets the schema.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Sets the most connections, at least one.
    #[must_use]
    pub fn connections_max(mut self, connections: usize) -> Self {
        self.connections_max = connections.max(1);
        self
    }

    /// Sets the timeout of a call, from waiting for a connection to the last byte of the reply.
    #[must_use]
    pub fn reply_timeout(mut self, timeout: impl Into<Span>) -> Self {
        self.reply_timeout = timeout.into();
        self
    }

    /// Sets how long a statement waits for a locked row before it fails with [`Contended`](ErrorKind::Contended).
    #[must_use]
    pub fn lock_timeout(mut self, timeout: impl Into<Span>) -> Self {
        self.lock_timeout = timeout.into();
        self
    }

    /// Works behind a pooler that assigns a session per transaction, such as pgbouncer in transaction mode: statements are
    /// not prepared.
    #[must_use]
    pub const fn transaction_pooling(mut self) -> Self {
        self.pooling = Pooling::Transaction;
        self
    }

    /// Does not create or upgrade tables, so that the gate needs no right to.
    #[must_use]
    pub const fn without_migrations(mut self) -> Self {
        self.migrate = false;
        self
    }

    /// Keeps a schema of version `format` or newer. With 3, the gate shares a schema of version 3 with programs of the version
    /// before, at two round trips per call, and follows an upgrade by another program. The default is the newest, 4, to which
    /// older schemas are upgraded.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for any other number.
    pub fn format(mut self, format: u8) -> Result<Self, Error> {
        if !FORMATS.contains(&format) {
            let known = FORMATS.map(|known| known.to_string()).join(", ");
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("postgres: format {format} is not one of {known}"),
            ));
        }
        self.format = format;
        Ok(self)
    }

    /// Sends [`Event::Repaired`](tollgate::observe::Event::Repaired) to `observer` for rewritten rows from the future.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Decides by `clock` instead of the server's clock, for tests.
    #[must_use]
    pub fn test_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.test_clock = Some(clock);
        self
    }

    /// Trusts the certificates in `pem` instead of the system's.
    #[must_use]
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(pem.into());
        self
    }

    /// Returns the schema, quoted.
    pub(crate) fn quoted_schema(&self) -> Result<String, Error> {
        quote::name(&self.schema)
    }

    /// Sets the lock timeout of the session, or returns it to be sent with each call.
    pub(crate) fn with_lock_timeout(mut self) -> (Self, Option<String>) {
        let millis = self.lock_timeout.as_millis_ceil().max(1);
        if self.pooling == Pooling::Transaction {
            return (self, Some(format!("{millis}ms")));
        }
        let given = self.config.get_options().unwrap_or_default().to_owned();
        self.config.options(format!("{given} -c lock_timeout={millis}").trim_start());
        (self, None)
    }

    /// Returns host, port and database for messages, without credentials.
    pub(crate) fn place(&self) -> String {
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            tokio_postgres::config::Host::Tcp(host) => host.clone(),
            #[cfg(unix)]
            tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
        });
        let ports = self.config.get_ports();
        let port = ports.first().copied().unwrap_or(5_432);
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or("postgres");
        format!("{}:{port}/{database}", hosts.collect::<Vec<_>>().join(","))
    }
}

impl fmt::Debug for Options {
    /// Without credentials and certificates.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("server", &self.place())
            .field("schema", &self.schema)
            .field("connections_max", &self.connections_max)
            .field("reply_timeout", &self.reply_timeout)
            .field("lock_timeout", &self.lock_timeout)
            .field("pooling", &self.pooling)
            .finish_non_exhaustive()
    }
}
