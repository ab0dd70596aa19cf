//! How a gate reaches its server, and what it does when the server is slow.

use std::fmt;
use std::sync::Arc;

use tokio_postgres::Config;
use tollgate::{Clock, Error, ErrorKind, Observer, Span, SystemClock};

use crate::quote;

/// The schema that the tables and functions are in.
pub const SCHEMA_DEFAULT: &str = "tollgate";

/// The most connections that one gate opens.
pub const CONNECTIONS_DEFAULT: usize = 8;

/// How long a call may take from asking for a connection to the last byte of the answer.
pub const REPLY_TIMEOUT_DEFAULT: Span = Span::from_secs(5);

/// How long a statement waits for a row that somebody else holds.
pub const LOCK_TIMEOUT_DEFAULT: Span = Span::from_secs(2);

/// The [formats](Options::format) that a gate works with: versions of the schema, the newest last.
pub const FORMATS: [u8; 2] = [FORMAT_OLD, FORMAT_NEWEST];

/// The version of the schema that programs of the version before know.
pub(crate) const FORMAT_OLD: u8 = 3;

/// The version of the schema that [`crate::migrate`] makes.
pub(crate) const FORMAT_NEWEST: u8 = 4;

/// How to reach the server.
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
    pub(crate) decides_by: Option<Arc<dyn Clock>>,
    pub(crate) timer: Arc<dyn Clock>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) authority: Option<Vec<u8>>,
}

/// Whether a connection stays with one session of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// It does, so statements are prepared once.
    Session,
    /// A pooler such as pgbouncer gives each transaction another one, so nothing is kept between them.
    Transaction,
}

impl Options {
    /// The server that `url` names, as in `postgresql://user:password@host:5432/database?sslmode=require`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it cannot be read. The text does not repeat the URL, which may hold a password.
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
            decides_by: None,
            timer: Arc::new(SystemClock),
            observer: None,
            authority: None,
        })
    }

    /// The same server with the tables in another schema.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// The same server with at most so many connections, and at least one.
    #[must_use]
    pub fn connections_max(mut self, connections: usize) -> Self {
        self.connections_max = connections.max(1);
        self
    }

    /// The same server, given up on when a call takes longer than this.
    #[must_use]
    pub const fn reply_timeout(mut self, timeout: Span) -> Self {
        self.reply_timeout = timeout;
        self
    }

    /// The same server, where a statement waits for a row at most this long and is then answered
    /// [`Contended`](ErrorKind::Contended).
    #[must_use]
    pub const fn lock_timeout(mut self, timeout: Span) -> Self {
        self.lock_timeout = timeout;
        self
    }

    /// The same server behind a pooler that gives each transaction another session, such as pgbouncer in transaction
    /// mode: no statement is prepared beforehand.
    #[must_use]
    pub const fn transaction_pooling(mut self) -> Self {
        self.pooling = Pooling::Transaction;
        self
    }

    /// The same server, whose tables somebody else makes: the gate needs no right to create anything.
    #[must_use]
    pub const fn without_migrations(mut self) -> Self {
        self.migrate = false;
        self
    }

    /// The same server, whose schema is left as it is if it is of version `format` or newer. With 3, the gate shares a schema of
    /// version 3 with programs that know no other, at two round trips for each call; once another program has upgraded
    /// the schema, it goes on with the new one. The default is the newest, 4, to which older schemas are upgraded.
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

    /// Tells `observer` of rows from the future that were rewritten ([`Event::Mended`](tollgate::Event::Mended)).
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Decides by this clock instead of the server's, for tests.
    #[must_use]
    pub fn decide_by(mut self, clock: Arc<dyn Clock>) -> Self {
        self.decides_by = Some(clock);
        self
    }

    /// Trusts the certificates in `pem` instead of the machine's own.
    #[must_use]
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(pem.into());
        self
    }

    /// The schema, quoted.
    pub(crate) fn quoted_schema(&self) -> Result<String, Error> {
        quote::name(&self.schema)
    }

    /// The same options with the session told how long to wait for a lock, or what to tell each call instead.
    pub(crate) fn with_lock_timeout(mut self) -> (Self, Option<String>) {
        let millis = self.lock_timeout.as_millis_ceil().max(1);
        if self.pooling == Pooling::Transaction {
            return (self, Some(format!("{millis}ms")));
        }
        let given = self.config.get_options().unwrap_or_default().to_owned();
        self.config.options(format!("{given} -c lock_timeout={millis}").trim_start());
        (self, None)
    }

    /// Where the server is, for people: host, port and database, no user and no password.
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
    /// Everything but the user, the password and the certificates.
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
