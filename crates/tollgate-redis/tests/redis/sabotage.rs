//! A store that is wrong in the way that most are: it reads, decides, and writes.

use std::fmt;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tollgate::clock::SystemClock;
use tollgate::core::{Change, Entry, Known, Operation, Outcome, apply, codec};
use tollgate::gate::BoxFuture;
use tollgate::{Clock, Error, Gate};

/// The core on the client's side, without a condition on the write.
pub(crate) struct ReadThenWrite(MultiplexedConnection);

impl ReadThenWrite {
    pub(crate) async fn connect(url: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        Self(client.get_multiplexed_async_connection().await.unwrap())
    }
}

impl fmt::Debug for ReadThenWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadThenWrite")
    }
}

impl Gate for ReadThenWrite {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let mut connection = self.0.clone();
            let key = format!("{}/{}", operation.policy().name(), operation.subject());
            let stored: Option<Vec<u8>> = connection.get(&key).await.unwrap();
            let mut entry = match stored {
                Some(bytes) => codec::decode(&bytes, operation.policy())?,
                None => Entry::fresh(operation.policy(), SystemClock.now()),
            };
            let applied = apply(&operation, &mut entry, Known::New, SystemClock.now())?;
            if applied.change == Change::Entry {
                let mut bytes = Vec::new();
                codec::encode(&entry, &mut bytes);
                let () = connection.set(&key, bytes).await.unwrap();
            }
            Ok(applied.outcome)
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
