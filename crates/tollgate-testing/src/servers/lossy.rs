//! A proxy in front of any server, that loses or holds back what the server answers.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::Fault;

/// A proxy that runs until it is dropped. It passes everything on, until it is told not to.
#[derive(Debug)]
pub struct Lossy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: Mutex<SocketAddr>,
    desk: Mutex<Desk>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Desk {
    stopped: bool,
    cuts: usize,
    cut: usize,
    held: bool,
}

impl Lossy {
    /// Starts a proxy in front of the server at `upstream`.
    ///
    /// # Errors
    /// If the machine gives no port.
    pub fn start(upstream: SocketAddr) -> Result<Self, Fault> {
        let no_port = |error: io::Error| Fault::new(format!("the proxy got no port: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(no_port)?;
        let address = listener.local_addr().map_err(no_port)?;
        let (desk, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { upstream: Mutex::new(upstream), desk, changed });
        let serving = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &serving));
        Ok(Self { address, shared })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects whoever comes from now on to `upstream`. Connections that there are stay where they are.
    pub fn redirect(&self, upstream: SocketAddr) {
        *self.shared.upstream.lock().unwrap_or_else(PoisonError::into_inner) = upstream;
    }

    /// Closes the connection instead of passing on the next reply, `times` times.
    pub fn cut_replies(&self, times: usize) {
        self.shared.desk().cuts = times;
    }

    /// How many replies were lost so far.
    #[must_use]
    pub fn cut(&self) -> usize {
        self.shared.desk().cut
    }

    /// Holds replies back, or passes on those that were held.
    pub fn hold_replies(&self, hold: bool) {
        self.shared.desk().held = hold;
        self.shared.changed.notify_all();
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        let mut desk = self.shared.desk();
        (desk.stopped, desk.held) = (true, false);
        drop(desk);
        self.shared.changed.notify_all();
        // One more connection wakes the thread that accepts, which then looks at the flag.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while replies are held; whether this one is to be lost.
    fn loses(&self) -> bool {
        let desk = self.changed.wait_while(self.desk(), |desk| desk.held);
        let mut desk = desk.unwrap_or_else(PoisonError::into_inner);
        let loses = desk.cuts > 0;
        if loses {
            desk.cuts -= 1;
            desk.cut += 1;
        }
        loses
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.desk().stopped {
            return;
        }
        let Ok(client) = client else { continue };
        // A connection that breaks is the business of its client.
        drop(join(client, shared));
    }
}

fn join(client: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    let upstream = *shared.upstream.lock().unwrap_or_else(PoisonError::into_inner);
    let server = TcpStream::connect(upstream)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (asks_from, asks_to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || pass(asks_from, asks_to, || false));
    let shared = Arc::clone(shared);
    thread::spawn(move || pass(server, client, || shared.loses()));
    Ok(())
}

/// Passes on what comes until either side ends or `loses` says so, and then ends both.
fn pass(mut from: TcpStream, mut to: TcpStream, loses: impl Fn() -> bool) {
    let mut bytes = vec![0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        if loses() || to.write_all(bytes.get(..length).unwrap_or_default()).is_err() {
            break;
        }
    }
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
}
