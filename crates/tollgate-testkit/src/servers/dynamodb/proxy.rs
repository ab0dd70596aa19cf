//! A proxy in front of a DynamoDB server that counts requests and injects faults.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::http::Message;
use crate::servers::Fault;

/// A fault of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// Applied; the connection is closed without a reply.
    DropReply,
    /// Delayed until [`Proxy::deliver_held`]; the connection is closed.
    Hold,
    /// Not applied; the reply is `ProvisionedThroughputExceededException`.
    Throttle,
    /// Not applied; the reply is this error code, as in `AccessDeniedException`.
    Refuse(String),
    /// Not applied; the reply is a 503.
    Fail,
    /// Applied at once; the reply is delayed.
    Delay(Duration),
    /// Applied; the reply carries this `Date`.
    Date(String),
}

/// Requests by operation, and failed conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests by operation, as in `UpdateItem`.
    pub requests: BTreeMap<String, u64>,
    /// Writes whose condition did not hold.
    pub refused: u64,
}

impl Counts {
    /// Returns the number of requests of `operation`.
    pub fn count(&self, operation: &str) -> u64 {
        self.requests.get(operation).copied().unwrap_or(0)
    }
}

/// A proxy that runs until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: SocketAddr,
    stopped: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counts: Counts,
    next: VecDeque<(String, Misbehaviour)>,
    always: Option<(String, Misbehaviour)>,
    about: Option<(String, Misbehaviour)>,
    date: Option<String>,
    held: Vec<Message>,
}

impl Proxy {
    /// Starts a proxy in front of the server at `upstream`.
    pub fn start(upstream: SocketAddr) -> Result<Self, Fault> {
        let no_port = |error: io::Error| Fault::new(format!("the proxy got no port: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(no_port)?;
        let address = listener.local_addr().map_err(no_port)?;
        let (stopped, state) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { upstream, stopped, state });
        let serving = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &serving));
        Ok(Self { address, shared })
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn counts(&self) -> Counts {
        self.shared.state().counts.clone()
    }

    pub fn reset_counts(&self) {
        self.shared.state().counts = Counts::default();
    }

    /// Injects a fault into the next `times` requests of `operation`, after those already planned.
    pub fn next(&self, operation: &str, times: usize, how: &Misbehaviour) {
        let mut state = self.shared.state();
        state.next.extend((0..times).map(|_| (operation.to_owned(), how.clone())));
    }

    /// Delivers the delayed requests in order. Returns how many writes were applied.
    pub fn deliver_held(&self) -> io::Result<usize> {
        let held = std::mem::take(&mut self.shared.state().held);
        let mut upstream = None;
        let mut applied = 0;
        for request in held {
            let reply = forward(&request, &mut upstream, self.shared.upstream)?;
            applied += usize::from(reply.is_some_and(|reply| reply.is_success()));
        }
        Ok(applied)
    }

    /// Injects a fault into every other request of `operation`; `None` stops.
    pub fn always(&self, how: Option<(&str, Misbehaviour)>) {
        self.shared.state().always = how.map(|(operation, how)| (operation.to_owned(), how));
    }

    /// Injects a fault into every request whose body contains the text; `None` stops.
    pub fn always_about(&self, how: Option<(&str, Misbehaviour)>) {
        self.shared.state().about = how.map(|(text, how)| (text.to_owned(), how));
    }

    /// Overwrites the `Date` of every reply; `None` stops.
    pub fn date_replies(&self, date: Option<String>) {
        self.shared.state().date = date;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // A last connection wakes the accepting thread, which then sees the flag.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request and returns its fault.
    fn record(&self, request: &Message) -> Option<Misbehaviour> {
        let operation = request.operation();
        let mut state = self.state();
        *state.counts.requests.entry(operation.to_owned()).or_default() += 1;
        if let Some((_, how)) = state.next.pop_front_if(|(planned, _)| planned == operation) {
            return Some(how);
        }
        if let Some((_, how)) = state.about.as_ref().filter(|(text, _)| request.mentions(text)) {
            return Some(how.clone());
        }
        state.always.as_ref().filter(|(always, _)| always == operation).map(|(_, how)| how.clone())
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.stopped.load(Ordering::Relaxed) {
            return;
        }
        let Ok(client) = client else { continue };
        let shared = Arc::clone(shared);
        // The client handles a broken connection.
        thread::spawn(move || drop(serve(&client, &shared)));
    }
}

fn serve(client: &TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut requests = BufReader::new(client);
    let mut upstream: Option<BufReader<TcpStream>> = None;
    while let Some(request) = Message::read(&mut requests)? {
        let how = shared.record(&request);
        if how == Some(Misbehaviour::Hold) {
            shared.state().held.push(request);
            return Ok(());
        }
        let reply = match &how {
            Some(Misbehaviour::Throttle) => refusal("ProvisionedThroughputExceededException"),
            Some(Misbehaviour::Refuse(code)) => refusal(code),
            Some(Misbehaviour::Fail) => Message::reply("503 Service Unavailable", "{}"),
            _ => match forward(&request, &mut upstream, shared.upstream)? {
                Some(reply) => reply,
                None => return Ok(()),
            },
        };
        if reply.is_refusal() {
            shared.state().counts.refused += 1;
        }
        let reply = match how {
            Some(Misbehaviour::DropReply) => return Ok(()),
            Some(Misbehaviour::Delay(delay)) => {
                nap(delay);
                reply
            }
            Some(Misbehaviour::Date(date)) => reply.dated(&date),
            _ => match shared.state().date.as_deref() {
                Some(date) => reply.dated(date),
                None => reply,
            },
        };
        let mut client = client;
        client.write_all(&reply.to_bytes())?;
    }
    Ok(())
}

fn forward(
    request: &Message,
    upstream: &mut Option<BufReader<TcpStream>>,
    address: SocketAddr,
) -> io::Result<Option<Message>> {
    let mut server = match upstream.take() {
        Some(server) => server,
        None => {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            BufReader::new(stream)
        }
    };
    server.get_mut().write_all(&request.to_bytes())?;
    let reply = Message::read(&mut server)?;
    *upstream = Some(server);
    Ok(reply)
}

fn refusal(code: &str) -> Message {
    let body =
        format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"planned"}}"#);
    Message::reply("400 Bad Request", &body)
}

#[expect(clippy::disallowed_methods, reason = "a slow server is slow in real time")]
fn nap(delay: Duration) {
    thread::sleep(delay);
}
