//! What one would write first: lock the row, read it, decide here, write it. Four round trips with prepared statements.

use std::sync::Arc;
use std::sync::Mutex;

use tokio::sync::Semaphore;
use tokio_postgres::{Client, NoTls, Statement};

use super::{CONNECTIONS, KEYS, Work, subject};

struct Connection {
    client: Client,
    read: Statement,
    write: Statement,
}

/// A pool of as many connections as the gate has.
pub(super) struct Peer {
    room: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

/// Connects and leaves the driver to the runtime.
pub(super) async fn client(url: &str) -> Client {
    let (client, driver) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(driver);
    client
}

impl Peer {
    pub(super) async fn open(url: &str) -> Self {
        let made = client(url).await;
        made.batch_execute(&format!(
            "CREATE TABLE naive (key text PRIMARY KEY, a bigint, b bigint, c bigint, at timestamptz); \
             INSERT INTO naive SELECT 's-' || n, 0, 0, 0, now() FROM generate_series(0, {KEYS} - 1) n"
        ))
        .await
        .unwrap();
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS {
            let client = client(url).await;
            let read = "SELECT a, b, c, at FROM naive WHERE key = $1 FOR UPDATE";
            let write = "UPDATE naive SET a = $2, b = $3, c = $4, at = now() WHERE key = $1";
            let (read, write) =
                (client.prepare(read).await.unwrap(), client.prepare(write).await.unwrap());
            idle.push(Connection { client, read, write });
        }
        Self { room: Semaphore::new(CONNECTIONS), idle: Mutex::new(idle) }
    }

    /// Asks that are all let through, or all refused.
    pub(super) fn asks(peer: &Arc<Self>, keys: usize, admits: bool) -> Work {
        let peer = Arc::clone(peer);
        Arc::new(move |caller, turn| {
            let peer = Arc::clone(&peer);
            Box::pin(async move { peer.ask(&subject(caller, turn, keys), admits).await })
        })
    }

    async fn ask(&self, key: &str, admits: bool) {
        let _room = self.room.acquire().await.unwrap();
        let Connection { client, read, write } = self.idle.lock().unwrap().pop().unwrap();
        client.batch_execute("BEGIN").await.unwrap();
        let row = client.query_one(&read, &[&key]).await.unwrap();
        let (a, b, c): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        if admits {
            client.execute(&write, &[&key, &(a + 1), &(b + 1), &(c + 10)]).await.unwrap();
        }
        client.batch_execute("COMMIT").await.unwrap();
        self.idle.lock().unwrap().push(Connection { client, read, write });
    }
}
