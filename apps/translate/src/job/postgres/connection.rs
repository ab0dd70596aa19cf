//! One connection to the server, reestablished when it is lost.
//!
//! A restart of the server, or a proxy that drops idle connections, delays a statement and does not fail it: the statement is sent
//! again, for as long as the [`OutageMonitor`] allows. Whether the server executed the first one is unknown, so every statement of
//! this store is idempotent. A connection without a response is dropped.

use std::error::Error as StdError;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row};
use tokio_postgres_rustls::MakeRustlsConnect;
use tollgate::clock::SystemClock;
use tollgate::retry::{Backoff, ErrorClass, Pause, Retry};
use tollgate::{Clock, Span};
use tollgate_transport::tls::ClientTls;

use crate::error::{Error, Result};
use crate::job::outage::{MAX_WAIT_DEFAULT, OutageMonitor};

/// The timeout of connecting and of a statement.
const TIMEOUT: Span = Span::from_secs(30);

/// The retries of a statement. The [`OutageMonitor`] ends them.
const RETRY: Retry = Retry::unlimited(Backoff {
    base: Span::from_millis(100),
    max: Span::from_secs(5),
    ..Backoff::CALL.clamped()
});

pub(super) struct Connection {
    config: Config,
    tls: MakeRustlsConnect,
    client: Mutex<Option<Arc<Client>>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) outages: OutageMonitor,
}

/// Why a statement failed.
enum Fault {
    /// The server is unreachable for the moment, or the connection broke.
    Transient(String),
    Permanent(String),
}

impl Connection {
    /// Returns a connection to the server at `url`, which connects on the first statement.
    pub(super) fn new(url: &str) -> Result<Self> {
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            Error::invalid(format!(
                "invalid url of the PostgreSQL server ({error}); write it as in \
                 postgresql://user:password@host:5432/database?sslmode=require"
            ))
        })?;
        if config.get_application_name().is_none() {
            config.application_name("tollgate-translate");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(TIMEOUT.into());
        }
        let tls =
            MakeRustlsConnect::new(rustls::ClientConfig::clone(&ClientTls::native().config()));
        let (client, clock) = (Mutex::new(None), Arc::new(SystemClock));
        Ok(Self { config, tls, client, clock, outages: OutageMonitor::default() })
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn client(&self) -> Result<Arc<Client>, Fault> {
        let current = self.current().clone();
        if let Some(client) = current.filter(|client| !client.is_closed()) {
            return Ok(client);
        }
        let (client, driver) =
            self.config.connect(self.tls.clone()).await.map_err(|error| classify(&error))?;
        // The driver ends with the client, and every statement reports its error.
        tokio::spawn(async move { drop(driver.await) });
        let client = Arc::new(client);
        *self.current() = Some(Arc::clone(&client));
        Ok(client)
    }

    /// Runs `statement` on a working connection, and waits for one if `waits`.
    async fn run<T, F: Future<Output = Result<T, tokio_postgres::Error>>>(
        &self,
        waits: bool,
        statement: impl Fn(Arc<Client>) -> F,
    ) -> Result<T> {
        let began = self.clock.now();
        let deadline = |max_wait: &watch::Receiver<Span>| began + *max_wait.borrow();
        let call = |_| async {
            let attempt = async { statement(self.client().await?).await.map_err(|e| classify(&e)) };
            tokio::select! {
                biased;
                result = attempt => result,
                timeout = self.timeout() => {
                    *self.current() = None;
                    Err(Fault::Transient(format!("no response within {timeout}")))
                }
            }
        };
        let classify = |fault: &Fault| match fault {
            Fault::Transient(_)
                if waits && self.clock.now() < deadline(&self.outages.max_wait()) =>
            {
                ErrorClass::Retryable
            }
            _ => ErrorClass::Fatal,
        };
        let pause = |pause: Pause<'_, Fault>| {
            // An idle connection that broke is replaced at once, and is no outage.
            if 1 < pause.attempts
                && let Fault::Transient(error) = pause.error
            {
                self.outages.begin(began, error);
            }
            let mut max_wait = self.outages.max_wait();
            let delay = self.clock.sleep_until(pause.until.min(deadline(&max_wait)));
            async move {
                tokio::select! {
                    () = delay => {}
                    _ = max_wait.changed() => {}
                }
            }
        };
        let result = RETRY.run_with_pause(&*self.clock, call, classify, pause).await;
        let result = result.map_err(|error| match error.last {
            Fault::Transient(error) => Error::unavailable(unusable(&error)),
            Fault::Permanent(error) => Error::store(unusable(&error)),
        })?;
        self.outages.end();
        Ok(result)
    }

    /// Resolves when a response takes too long, and returns the timeout.
    async fn timeout(&self) -> Span {
        let (began, mut max_wait) = (self.clock.now(), self.outages.max_wait());
        loop {
            let short = Some(*max_wait.borrow_and_update()).filter(|most| *most < MAX_WAIT_DEFAULT);
            let timeout = short.unwrap_or(TIMEOUT);
            tokio::select! {
                () = self.clock.sleep_until(began + timeout) => return timeout,
                _ = max_wait.changed() => {}
            }
        }
    }

    /// Runs the statements in `sql` on a first connection, without retries.
    pub(super) async fn begin(&self, sql: &str) -> Result<()> {
        self.run(false, async |client| client.batch_execute(sql).await).await
    }

    pub(super) async fn query(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        self.run(true, async |client| client.query(sql, values).await).await
    }
}

fn unusable(why: &str) -> String {
    format!("the jobs in PostgreSQL cannot be used: {why}")
}

fn classify(error: &tokio_postgres::Error) -> Fault {
    let transient = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::IDLE_SESSION_TIMEOUT,
        // After a restart every client connects at once, and after a failover the server may be a replica for a moment.
        SqlState::TOO_MANY_CONNECTIONS,
        SqlState::READ_ONLY_SQL_TRANSACTION,
    ];
    let (is_transient, text) = match error.as_db_error() {
        Some(error) => (transient.contains(error.code()), error.message().to_owned()),
        None => {
            let is_io = error.source().is_some_and(<dyn StdError>::is::<std::io::Error>);
            (error.is_closed() || is_io, error.to_string())
        }
    };
    if is_transient { Fault::Transient(text) } else { Fault::Permanent(text) }
}
