//! The smallest upstream, for proxies to stand in front of.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// How many unread requests an upstream keeps.
const SEEN_MAX: usize = 100;

/// Answers `hi` to whatever comes, and shows the heads of the requests.
pub(crate) async fn upstream() -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, seen) = mpsc::channel(SEEN_MAX);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut request = [0; 4_096];
                let Ok(length @ 1..) = stream.read(&mut request).await else { return };
                sender.try_send(String::from_utf8_lossy(&request[..length]).into_owned()).ok();
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";
                stream.write_all(answer).await.ok();
            });
        }
    });
    (address, seen)
}
