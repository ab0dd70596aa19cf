//! A TCP proxy that loses or delays the replies of any server.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::Fault;

/// A TCP proxy that runs until it is dropped.
#[derive(Debug)]
pub struct Lossy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: Mutex<SocketAddr>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    cuts: usize,
    cut: usize,
    held: bool,
}

impl Lossy {
    /// Starts a proxy in front of the server at `upstream`.
    pub fn start(upstream: SocketAddr) -> Result<Self, Fault> {
        let no_port = |error: io::Error| Fault::new(format!("the proxy got no port: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(no_port)?;
        let address = listener.local_addr().map_err(no_port)?;
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { upstream: Mutex::new(upstream), state, changed });
        let serving = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &serving));
        Ok(Self { address, shared })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends new connections to `upstream`.
    pub fn redirect(&self, upstream: SocketAddr) {
        *self.shared.upstream.lock().unwrap_or_else(PoisonError::into_inner) = upstream;
    }

    /// Closes the connection instead of forwarding a reply, for the next `times` replies.
    pub fn cut_replies(&self, times: usize) {
        self.shared.state().cuts = times;
    }

    /// Returns the number of replies lost.
    pub fn cut(&self) -> usize {
        self.shared.state().cut
    }

    /// Holds replies back, or forwards those that were held.
    pub fn hold_replies(&self, hold: bool) {
        self.shared.state().held = hold;
        self.shared.changed.notify_all();
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        (state.stopped, state.held) = (true, false);
        drop(state);
        self.shared.changed.notify_all();
        // A last connection wakes the accepting thread, which then sees the flag.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while replies are held. Returns whether to lose this one.
    fn loses(&self) -> bool {
        let state = self.changed.wait_while(self.state(), |state| state.held);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let loses = state.cuts > 0;
        if loses {
            state.cuts -= 1;
            state.cut += 1;
        }
        loses
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.state().stopped {
            return;
        }
        let Ok(client) = client else { continue };
        // The client handles a broken connection.
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

/// Forwards bytes until either side closes or `loses` returns true, then closes both.
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
