//! An HTTP proxy that opens tunnels: what `HTTPS_PROXY` names.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::Fault;

/// A proxy for `CONNECT`. Every host is this machine, so names need not exist.
#[derive(Debug)]
pub struct ConnectProxy {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl ConnectProxy {
    /// Starts a proxy whose tunnels all lead to `upstream`, or which refuses with a status such as `"407 No"`.
    pub fn start(upstream: Result<SocketAddr, &'static str>) -> Result<Self, Fault> {
        let no_port = |error: io::Error| Fault::new(format!("the proxy got no port: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(no_port)?;
        let address = listener.local_addr().map_err(no_port)?;
        let heads = Arc::default();
        let seen = Arc::clone(&heads);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let seen = Arc::clone(&seen);
                thread::spawn(move || drop(tunnel(client, upstream, &seen)));
            }
        });
        Ok(Self { address, heads })
    }

    /// Returns the value of `HTTPS_PROXY`, with credentials.
    pub fn url(&self) -> String {
        format!("http://user:word@{}", self.address)
    }

    /// Returns the heads of the requests so far.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn tunnel(
    client: TcpStream,
    upstream: Result<SocketAddr, &'static str>,
    seen: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(head);
    let mut client = client;
    let server = match upstream {
        Ok(upstream) => TcpStream::connect(upstream)?,
        Err(status) => {
            return client.write_all(
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    .as_bytes(),
            );
        }
    };
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    let (mut back_from, mut back_to) = (server.try_clone()?, client);
    thread::spawn(move || {
        drop(io::copy(&mut back_from, &mut back_to));
        drop(back_to.shutdown(Shutdown::Write));
    });
    let mut server = server;
    io::copy(&mut reader, &mut server)?;
    server.shutdown(Shutdown::Write)
}
