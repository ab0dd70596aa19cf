//! A server of the Redis protocol with a constant reply: the upper bound for a client without pipelining.

use std::net::SocketAddr;
use std::thread;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

/// What an admission by `CL.THROTTLE` looks like.
const ANSWER: &[u8] = b"*5\r\n:0\r\n:1000001\r\n:1000000\r\n:-1\r\n:1\r\n";

/// Starts it where this thread runs. It ends with the process.
pub(crate) fn start() -> SocketAddr {
    let runtime = Builder::new_current_thread().enable_io().build().expect("a runtime");
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
    let at = listener.local_addr().expect("an address");
    thread::spawn(move || {
        runtime.block_on(async {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
    });
    at
}

async fn answer(mut stream: TcpStream) {
    let mut room = vec![0; 1 << 16];
    let _ = stream.set_nodelay(true);
    while let Ok(length @ 1..) = stream.read(&mut room).await {
        // Every request is an array, and no word of a benchmark has a star.
        let requests = room[..length].iter().filter(|byte| **byte == b'*').count();
        if stream.write_all(&ANSWER.repeat(requests)).await.is_err() {
            return;
        }
    }
}
