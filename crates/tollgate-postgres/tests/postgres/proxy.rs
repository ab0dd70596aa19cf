//! Faults between a gate and its server: replies that get lost, and a pooler that gives each
//! transaction another session.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollgate::{Ask, ErrorKind, GateExt, Span};
use tollgate_postgres::{Options, Postgres};

use super::{TestDatabase, acquire, hourly, used};

/// `url` with the address of a proxy instead of the server's, and no attempt at TLS.
fn through(url: &str, proxy: SocketAddr) -> String {
    let (start, rest) = url.split_once('@').unwrap();
    let (_, database) = rest.split_once('/').unwrap();
    format!("{start}@{proxy}/{database}?sslmode=disable")
}

fn server_of(url: &str) -> String {
    url.split_once('@').unwrap().1.split_once('/').unwrap().0.to_owned()
}

/// Passes everything on, except replies while `mute` is set.
async fn lossy(server: String, mute: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let upstream = TcpStream::connect(&server).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = upstream.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            let mute = Arc::clone(&mute);
            tokio::spawn(async move {
                let mut bytes = vec![0; 65_536];
                while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
                    if !mute.load(Ordering::SeqCst)
                        && to_client.write_all(&bytes[..length]).await.is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Promise 5: an ask whose reply got lost is asked again with its id and charged once (R000.12).
#[tokio::test]
async fn a_lost_reply_is_charged_once() {
    let (database, mute) = (TestDatabase::new(), Arc::new(AtomicBool::new(false)));
    let proxy = lossy(server_of(&database.url()), Arc::clone(&mute)).await;
    let options = Options::new(&through(&database.url(), proxy)).unwrap();
    let gate = Postgres::open(options.reply_timeout(Span::from_secs(3))).await.unwrap();
    let policy = hourly(5);
    let ask = Ask::new(&policy, "lost").id("once");
    acquire(&gate, &policy, "warm").await;
    mute.store(true, Ordering::SeqCst);
    let error = gate.acquire(&ask).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("no reply within"), "{error}");
    mute.store(false, Ordering::SeqCst);
    assert_eq!(used(&database.gate().await, &policy, "lost").await, 1);
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    assert_eq!(used(&gate, &policy, "lost").await, 1);
}

/// Passes each transaction to the other of two sessions, as pgbouncer does in transaction mode.
async fn pooler(server: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = server.clone();
            tokio::spawn(async move { pool(client, &server).await });
        }
    });
    address
}

async fn pool(mut client: TcpStream, server: &str) -> Option<()> {
    let length = client.read_u32().await.ok()?;
    let mut startup = length.to_be_bytes().to_vec();
    startup.resize(length as usize, 0);
    client.read_exact(&mut startup[4..]).await.ok()?;
    let mut sessions = Vec::new();
    for number in 0..2 {
        let mut session = TcpStream::connect(server).await.ok()?;
        session.write_all(&startup).await.ok()?;
        let greeting = until_ready(&mut session).await?;
        if number == 0 {
            client.write_all(&greeting).await.ok()?;
        }
        sessions.push(session);
    }
    for turn in 0.. {
        let session = &mut sessions[turn % 2];
        loop {
            let (kind, message) = message(&mut client).await?;
            session.write_all(&message).await.ok()?;
            if matches!(kind, b'S' | b'Q') {
                break;
            }
        }
        let answer = until_ready(session).await?;
        client.write_all(&answer).await.ok()?;
    }
    None
}

async fn message(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let kind = stream.read_u8().await.ok()?;
    let length = stream.read_u32().await.ok()?;
    let mut bytes = vec![kind];
    bytes.extend(length.to_be_bytes());
    bytes.resize(1 + length as usize, 0);
    stream.read_exact(&mut bytes[5..]).await.ok()?;
    Some((kind, bytes))
}

async fn until_ready(session: &mut TcpStream) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let (kind, bytes) = message(session).await?;
        all.extend(bytes);
        if kind == b'Z' {
            return Some(all);
        }
    }
}

/// Behind a pooler in transaction mode nothing may be kept in a session. A gate that prepares its statements is the
/// sabotaged variant: it fails here.
#[tokio::test]
async fn works_behind_a_pooler_in_transaction_mode() {
    let (database, policy) = (TestDatabase::new(), hourly(2));
    let proxy = pooler(server_of(&database.url())).await;
    let options = Options::new(&through(&database.url(), proxy)).unwrap();
    let gate = Postgres::open(options.clone().transaction_pooling()).await.unwrap();
    let mut admitted = Vec::new();
    for _ in 0..4 {
        admitted.push(acquire(&gate, &policy, "pooled").await.is_admitted());
    }
    assert_eq!(admitted, [true, true, false, false]);
    let preparing = Postgres::open(options).await.unwrap();
    let error = preparing.acquire(&Ask::new(&policy, "pooled")).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("prepared statement"), "{error}");
    assert!(text.contains("set transaction_pooling = true in [store]"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
}
