//! A few connections, each used by one call at a time.
//!
//! A call takes an idle connection or opens one, asks one question, and puts it back. A connection whose answer did not
//! come in time is thrown away, so that a late answer never meets another question.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};
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

/// A transaction on a connection of its own. Dropping it closes the connection, and with it ends the transaction.
pub(crate) struct Transaction<'a> {
    pool: &'a Pool,
    connection: Connection,
    _room: Room<'a>,
}

/// The right to use one connection.
pub(crate) type Room<'a> = SemaphorePermit<'a>;

/// A statement, and the number it is prepared under.
#[derive(Clone, Debug)]
pub(crate) struct Question {
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

    /// Asks `question` and returns the one row that answers it.
    pub(crate) async fn ask(
        &self,
        question: &Question,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, Error> {
        let rows = self.in_time(async {
            let room = self.room().await?;
            self.send(&room, question, parameters).await
        });
        only(rows.await?)
    }

    /// Asks `question` in a room that the caller has, and returns the rows that answer it.
    pub(crate) async fn ask_in(
        &self,
        room: &Room<'_>,
        question: &Question,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        self.in_time(self.send(room, question, parameters)).await
    }

    async fn send(
        &self,
        _room: &Room<'_>,
        question: &Question,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        let mut connection = self.connection().await?;
        let answer = connection.ask(question, parameters, self.options.pooling).await;
        self.keep(connection, &answer);
        answer.map_err(|error| explain(&self.place, "could not decide", error))
    }

    /// Runs every statement in `sql`, one after the other, in one transaction if it says so.
    pub(crate) async fn run(&self, sql: &str, doing: &str) -> Result<(), Error> {
        let _room = self.room().await?;
        let connection = self.connection().await?;
        let answer = connection.client.batch_execute(sql).await;
        // A transaction that failed half way is over with its connection.
        if answer.is_ok() {
            self.keep(connection, &answer);
        }
        answer.map_err(|error| explain(&self.place, doing, error))
    }

    /// Begins a transaction in which statements wait for a row at most `lock_timeout`, or as long as the session says.
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

    /// Asks one statement that is not worth preparing.
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

    /// Waits for the right to use a connection.
    pub(crate) async fn room(&self) -> Result<Room<'_>, Error> {
        self.room
            .acquire()
            .await
            .map_err(|_| Error::new(ErrorKind::Unavailable, "the pool is closed"))
    }

    /// The right to use a connection, if one is free.
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

    /// Keeps a connection unless its last answer says that it is at its end.
    fn keep<T>(&self, connection: Connection, answer: &Result<T, tokio_postgres::Error>) {
        let lives = match answer {
            Ok(_) => true,
            Err(error) => error.as_db_error().is_some_and(|refusal| refusal.severity() == "ERROR"),
        };
        if lives && !connection.client.is_closed() {
            self.idle().push(connection);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Dropping `answer` drops the connection that it waits on.
    pub(crate) async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let Options { timer, reply_timeout, .. } = &self.options;
        tollgate::within(&**timer, *reply_timeout, answer).await.unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::TimedOut,
                format!(
                    "postgres at {}: no answer within {reply_timeout}; the server is slow, or every connection is in use",
                    self.place
                ),
            ))
        })
    }
}

impl Transaction<'_> {
    /// Asks `question` and returns the one row that answers it.
    pub(crate) async fn ask(
        &mut self,
        question: &Question,
        parameters: &[Parameter<'_>],
    ) -> Result<Row, Error> {
        let Self { pool, connection, .. } = self;
        let rows = pool.in_time(async {
            let answer = connection.ask(question, parameters, pool.options.pooling).await;
            answer.map_err(|error| explain(&pool.place, "could not decide", error))
        });
        only(rows.await?)
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        let Self { pool, connection, .. } = self;
        pool.in_time(async {
            let answer = connection.client.batch_execute("COMMIT").await;
            pool.keep(connection, &answer);
            answer.map_err(|error| explain(&pool.place, "could not commit", error))
        })
        .await
    }
}

fn only(mut rows: Vec<Row>) -> Result<Row, Error> {
    let none = || Error::new(ErrorKind::Corrupt, "postgres: a statement answered no row");
    rows.pop().ok_or_else(none)
}

impl Connection {
    async fn ask(
        &mut self,
        question: &Question,
        parameters: &[Parameter<'_>],
        pooling: Pooling,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if pooling == Pooling::Transaction {
            // Parse, bind and execute travel together, under no name: still one round trip.
            return self.client.query_typed(&question.sql, parameters).await;
        }
        let statement = match self.prepared.get(&question.number) {
            Some(statement) => statement.clone(),
            None => {
                let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
                let statement = self.client.prepare_typed(&question.sql, &types).await?;
                self.prepared.insert(question.number, statement.clone());
                statement
            }
        };
        let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
        self.client.query(&statement, &values).await
    }
}
