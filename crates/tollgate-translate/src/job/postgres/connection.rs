//! One connection to the server, made anew when it is lost.
//!
//! A server that restarts, or a proxy that drops what was idle, costs a moment and no run: a statement that lost its connection is
//! asked again, for as long as the [`Patience`] says. Whether the server had done it is unknown, so every statement of these jobs
//! says the same when it is asked twice. A connection on which no answer comes is given up.

use std::error::Error as StdError;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row};
use tokio_postgres_rustls::MakeRustlsConnect;
use tollgate::{Backoff, Clock, Span, SystemClock, edge};

use crate::error::Error;
use crate::job::patience::{self, Patience};
use crate::provider::tls_config;

/// How long a connection, or the answer to a statement, may take.
const REPLY_TIMEOUT: Span = Span::from_secs(30);

const BACKOFF: Backoff = Backoff {
    base: Span::from_millis(100),
    max: Span::from_secs(5),
    jitter_low: 500,
    jitter_high: 1_500,
    clamp: true,
};

pub(super) struct Connection {
    config: Config,
    tls: MakeRustlsConnect,
    client: Mutex<Option<Arc<Client>>>,
    pub(super) timer: Arc<dyn Clock>,
    pub(super) patience: Patience,
}

/// Why a statement has no answer.
enum Fault {
    /// The server cannot be reached for the moment, or the connection broke.
    Lost(String),
    /// Something that is so the next time too.
    Lasting(String),
}

impl Connection {
    /// A connection to the server that `url` names; nothing is connected yet.
    pub(super) fn new(url: &str) -> Result<Self, Error> {
        let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            Error::invalid(format!(
                "the url of the PostgreSQL server cannot be read ({error}); write it as in \
                 postgresql://user:password@host:5432/database?sslmode=require"
            ))
        })?;
        if config.get_application_name().is_none() {
            config.application_name("tollgate-translate");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(REPLY_TIMEOUT.into());
        }
        let tls = MakeRustlsConnect::new(tls_config()?);
        let (client, timer) = (Mutex::new(None), Arc::new(SystemClock));
        Ok(Self { config, tls, client, timer, patience: Patience::default() })
    }

    fn kept(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn client(&self) -> Result<Arc<Client>, Fault> {
        let kept = self.kept().clone();
        if let Some(client) = kept.filter(|client| !client.is_closed()) {
            return Ok(client);
        }
        let (client, driver) =
            self.config.connect(self.tls.clone()).await.map_err(|error| fault(&error))?;
        // It ends with the client, and what it failed with every statement says too.
        tokio::spawn(async move { drop(driver.await) });
        let client = Arc::new(client);
        *self.kept() = Some(Arc::clone(&client));
        Ok(client)
    }

    /// Runs `ask` on a connection that works, and waits for one if `waits`.
    async fn asked<T, F: Future<Output = Result<T, tokio_postgres::Error>>>(
        &self,
        waits: bool,
        ask: impl Fn(Arc<Client>) -> F,
    ) -> Result<T, Error> {
        let (began, mut longest) = (self.timer.now(), self.patience.longest());
        let mut tries = 0;
        loop {
            let answer = tokio::select! {
                biased;
                answer = async { ask(self.client().await?).await.map_err(|error| fault(&error)) } => answer,
                most = self.too_late(&mut longest) => {
                    *self.kept() = None;
                    Err(Fault::Lost(format!("no answer within {most}")))
                }
            };
            let text = match answer {
                Ok(answer) => {
                    self.patience.answered();
                    return Ok(answer);
                }
                Err(Fault::Lasting(text)) => return Err(Error::store(unusable(&text))),
                Err(Fault::Lost(text)) => text,
            };
            let (most, waited) = (*longest.borrow_and_update(), self.timer.now().since(began));
            if !waits || most <= waited {
                return Err(Error::unavailable(unusable(&text)));
            }
            // A connection that broke while it was idle is replaced at once, and is no outage.
            if 0 < tries {
                self.patience.lost(began, &text);
            }
            let wait = BACKOFF
                .delay(tries, edge::random())
                .min(Span::from_micros(most.as_micros().saturating_sub(waited.as_micros())));
            tries += 1;
            tokio::select! {
                () = self.timer.sleep_until(self.timer.now() + wait) => {}
                _ = longest.changed() => {}
            }
        }
    }

    /// Resolves when an answer has taken too long, and returns how long that is.
    async fn too_late(&self, longest: &mut watch::Receiver<Span>) -> Span {
        let began = self.timer.now();
        loop {
            let most = Some(*longest.borrow_and_update()).filter(|most| *most < patience::SHORT);
            let most = most.unwrap_or(REPLY_TIMEOUT);
            tokio::select! {
                () = self.timer.sleep_until(began + most) => return most,
                _ = longest.changed() => {}
            }
        }
    }

    /// Runs every statement in `sql` on a first connection, whose failure is told at once.
    pub(super) async fn begin(&self, sql: &str) -> Result<(), Error> {
        self.asked(false, async |client| client.batch_execute(sql).await).await
    }

    pub(super) async fn query(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.asked(true, async |client| client.query(sql, values).await).await
    }

    pub(super) async fn execute(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        self.asked(true, async |client| client.execute(sql, values).await).await
    }
}

fn unusable(why: &str) -> String {
    format!("the jobs in PostgreSQL cannot be used: {why}")
}

fn fault(error: &tokio_postgres::Error) -> Fault {
    let Some(said) = error.as_db_error() else {
        // It hung up, or nobody listens.
        let is_io = error.source().is_some_and(<dyn StdError>::is::<std::io::Error>);
        let text = error.to_string();
        return if error.is_closed() || is_io { Fault::Lost(text) } else { Fault::Lasting(text) };
    };
    let leaving = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::IDLE_SESSION_TIMEOUT,
        // A server that comes back is asked by everybody at once, and one that fails over may be a replica for a moment.
        SqlState::TOO_MANY_CONNECTIONS,
        SqlState::READ_ONLY_SQL_TRANSACTION,
    ];
    let text = said.message().to_owned();
    if leaving.contains(said.code()) { Fault::Lost(text) } else { Fault::Lasting(text) }
}
