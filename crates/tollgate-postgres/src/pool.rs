//! A connection pool.
//!
//! A call takes an idle connection or opens one, runs one statement, and returns it. After a timeout the connection is
//! closed, so that a late reply never meets another statement.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;
use tollgate::{Error, ErrorKind};

use crate::error::explain;
use crate::options::{Options, Pooling};
use crate::tls;

/// A parameter with its type.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

pub(crate) struct Pool {
    options: Options,
    place: String,
    tls: MakeRustlsConnect,
    room: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

struct Connection {
    client: Client,
    prepared: HashMap<usize, Statement>,
}

/// A transaction on its own connection. Dropping it closes the connection, which rolls back.
pub(crate) struct Transaction<'a> {
    pool: &'a Pool,
    connection: Connection,
    _room: Room<'a>,
}

/// A slot of the pool.
pub(crate) type Room<'a> = SemaphorePermit<'a>;

/// A statement, and the number under which it is prepared.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) number: usize,
    pub(crate) sql: String,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn new(options: Options) -> Result<Self, Error> {
        Ok(Self {
            place: options.place(),
            tls: tls::connector(options.authority.as_deref())?,
            room: Semaphore::new(options.connections_max),
            idle: Mutex::new(Vec::new()),
            options,
        })
    }

    pub(crate) const fn options(&self) -> &Options {
        &self.options
    }

    /// Runs `query`, and returns its only row.
    pub(crate) async fn ask(
        &self,
        query: &Query,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, Error> {
        only(self.rows(query, parameters).await?)
    }

    /// Runs `query`, and returns its rows.
    pub(crate) async fn rows(
        &self,
        query: &Query,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        self.in_time(async {
            let room = self.room().await?;
            self.send(&room, query, parameters).await
        })
        .await
    }

    /// Runs `query` with a slot that the caller holds.
    pub(crate) async fn run_in(
        &self,
        room: &Room<'_>,
        query: &Query,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        self.in_time(self.send(room, query, parameters)).await
    }

    async fn send(
        &self,
        _room: &Room<'_>,
        query: &Query,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        let mut connection = self.connection().await?;
        let answer = connection.ask(query, parameters, self.options.pooling).await;
        self.keep(connection, &answer);
        answer.map_err(|error| explain(&self.place, "could not decide", error))
    }

    /// Runs every statement in `sql`.
    pub(crate) async fn run(&self, sql: &str, doing: &str) -> Result<(), Error> {
        let _room = self.room().await?;
        let connection = self.connection().await?;
        let answer = connection.client.batch_execute(sql).await;
        // Closing the connection ends a failed transaction.
        if answer.is_ok() {
            self.keep(connection, &answer);
        }
        answer.map_err(|error| explain(&self.place, doing, error))
    }

    /// Begins a transaction with `lock_timeout`, or that of the session.
    pub(crate) async fn begin(&self, lock_timeout: Option<&str>) -> Result<Transaction<'_>, Error> {
        let mut sql = "BEGIN ISOLATION LEVEL READ COMMITTED".to_owned();
        if let Some(timeout) = lock_timeout {
            sql.push_str(&format!("; SET LOCAL lock_timeout = '{timeout}'"));
        }
        self.in_time(async {
            let room = self.room().await?;
            let connection = self.connection().await?;
            let begun = connection.client.batch_execute(&sql).await;
            begun.map_err(|error| explain(&self.place, "could not begin a transaction", error))?;
            Ok(Transaction { pool: self, connection, _room: room })
        })
        .await
    }

    /// Runs a statement without preparing it.
    pub(crate) async fn query(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
        doing: &str,
    ) -> Result<Vec<Row>, Error> {
        self.in_time(async {
            let _room = self.room().await?;
            let connection = self.connection().await?;
            let answer = connection.client.query_typed(sql, parameters).await;
            self.keep(connection, &answer);
            answer.map_err(|error| explain(&self.place, doing, error))
        })
        .await
    }

    /// Waits for a slot of the pool.
    pub(crate) async fn room(&self) -> Result<Room<'_>, Error> {
        self.room
            .acquire()
            .await
            .map_err(|_| Error::new(ErrorKind::Unavailable, "the pool is closed"))
    }

    /// Takes a slot of the pool, if one is free.
    pub(crate) fn free_room(&self) -> Option<Room<'_>> {
        self.room.try_acquire().ok()
    }

    async fn connection(&self) -> Result<Connection, Error> {
        loop {
            let idle = self.idle().pop();
            match idle {
                Some(connection) if connection.client.is_closed() => {}
                Some(connection) => return Ok(connection),
                None => break,
            }
        }
        let connected = self.options.config.connect(self.tls.clone()).await;
        let (client, driver) =
            connected.map_err(|error| explain(&self.place, "could not connect", error))?;
        // The task ends with its client.
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "a connection to postgres ended");
            }
        });
        Ok(Connection { client, prepared: HashMap::new() })
    }

    /// Returns a connection to the pool unless its last error ended it, or its session is read-only. A session stays
    /// read-only after the setting was changed or the standby was promoted, and so may the idle ones.
    fn keep<T>(&self, connection: Connection, answer: &Result<T, tokio_postgres::Error>) {
        let refusal = answer.as_ref().err().map(tokio_postgres::Error::as_db_error);
        let is_read_only = refusal
            .flatten()
            .is_some_and(|refusal| *refusal.code() == SqlState::READ_ONLY_SQL_TRANSACTION);
        if is_read_only {
            self.idle().clear();
            return;
        }
        let lives = refusal
            .is_none_or(|refusal| refusal.is_some_and(|refusal| refusal.severity() == "ERROR"));
        if lives && !connection.client.is_closed() {
            self.idle().push(connection);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bounds `answer` by the reply timeout. Dropping it closes its connection.
    pub(crate) async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Options { timer, reply_timeout, .. } = &self.options;
        tollgate::internal::timeout(&**timer, *reply_timeout, answer).await.unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::TimedOut,
                format!(
                    "postgres at {}: no reply within {reply_timeout}; the server is slow, or every connection is in use",
                    self.place
                ),
            ))
        })
    }
}

impl Transaction<'_> {
    /// Runs `query`, and returns its only row.
    pub(crate) async fn ask(
        &mut self,
        query: &Query,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, Error> {
        only(self.rows(query, parameters).await?)
    }

    /// Runs `query`, and returns its rows.
    pub(crate) async fn rows(
        &mut self,
        query: &Query,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        let Self { pool, connection, .. } = self;
        let rows = pool.in_time(async {
            let answer = connection.ask(query, parameters, pool.options.pooling).await;
            answer.map_err(|error| explain(&pool.place, "could not decide", error))
        });
        rows.await
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        self.end("COMMIT", "could not commit").await
    }

    pub(crate) async fn roll_back(self) -> Result<(), Error> {
        self.end("ROLLBACK", "could not roll back").await
    }

    async fn end(self, sql: &str, doing: &str) -> Result<(), Error> {
        let Self { pool, connection, .. } = self;
        pool.in_time(async {
            let answer = connection.client.batch_execute(sql).await;
            pool.keep(connection, &answer);
            answer.map_err(|error| explain(&pool.place, doing, error))
        })
        .await
    }
}

fn only(mut rows: Vec<Row>) -> Result<Row, Error> {
    let none = || Error::new(ErrorKind::Corrupt, "postgres: a statement returned no row");
    rows.pop().ok_or_else(none)
}

impl Connection {
    async fn ask(
        &mut self,
        query: &Query,
        parameters: &[Parameter<'_>],
        pooling: Pooling,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if pooling == Pooling::Transaction {
            // Parse, bind and execute of an unnamed statement are one round trip.
            return self.client.query_typed(&query.sql, parameters).await;
        }
        let statement = match self.prepared.get(&query.number) {
            Some(statement) => statement.clone(),
            None => {
                let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
                let statement = self.client.prepare_typed(&query.sql, &types).await?;
                self.prepared.insert(query.number, statement.clone());
                statement
            }
        };
        let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
        self.client.query(&statement, &values).await
    }
}
