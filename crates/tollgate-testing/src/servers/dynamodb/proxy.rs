//! A proxy in front of a DynamoDB server: it counts what is asked, and misbehaves when told to.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::http::Message;
use crate::servers::Fault;

/// What happens to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misbehaviour {
    /// It is applied, and the connection is closed instead of replying.
    DropReply,
    /// It is kept on its way until [`Proxy::deliver_held`], and the connection is closed.
    Hold,
    /// It is not applied, and answered with `ProvisionedThroughputExceededException`.
    Throttle,
    /// It is not applied, and answered with this error code, as in `AccessDeniedException`.
    Refuse(String),
    /// It is not applied, and answered with status 503.
    Fail,
    /// It is applied at once, and the reply comes so much later.
    Delay(Duration),
    /// It is applied, and the reply carries this `Date`.
    Date(String),
}

/// How often each operation was asked for, and how many of those ended in a failed condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests by operation, as in `UpdateItem`.
    pub requests: BTreeMap<String, u64>,
    /// Writes whose condition did not hold.
    pub refused: u64,
}

impl Counts {
    /// The requests of `operation`.
    #[must_use]
    pub fn of(&self, operation: &str) -> u64 {
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
    desk: Mutex<Desk>,
}

#[derive(Debug, Default)]
struct Desk {
    counts: Counts,
    next: VecDeque<(String, Misbehaviour)>,
    always: Option<(String, Misbehaviour)>,
    about: Option<(String, Misbehaviour)>,
    date: Option<String>,
    held: Vec<Message>,
}

impl Proxy {
    /// Starts a proxy in front of the server at `upstream`.
    ///
    /// # Errors
    /// If the machine gives no port.
    pub fn start(upstream: SocketAddr) -> Result<Self, Fault> {
        let no_port = |error: io::Error| Fault::new(format!("the proxy got no port: {error}"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(no_port)?;
        let address = listener.local_addr().map_err(no_port)?;
        let (stopped, desk) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { upstream, stopped, desk });
        let serving = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &serving));
        Ok(Self { address, shared })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was asked so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.desk().counts.clone()
    }

    /// Counts from nothing.
    pub fn reset_counts(&self) {
        self.shared.desk().counts = Counts::default();
    }

    /// Misbehaves to the next `times` requests of `operation`, after those that were planned before.
    pub fn next(&self, operation: &str, times: usize, how: &Misbehaviour) {
        let mut desk = self.shared.desk();
        desk.next.extend((0..times).map(|_| (operation.to_owned(), how.clone())));
    }

    /// Lets what was held arrive, in order, and returns how many of those writes were applied.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn deliver_held(&self) -> io::Result<usize> {
        let held = std::mem::take(&mut self.shared.desk().held);
        let mut upstream = None;
        let mut applied = 0;
        for request in held {
            let reply = forward(&request, &mut upstream, self.shared.upstream)?;
            applied += usize::from(reply.is_some_and(|reply| reply.is_success()));
        }
        Ok(applied)
    }

    /// Misbehaves to every request of `operation` that nothing else was planned for; nothing ends that.
    pub fn always(&self, how: Option<(&str, Misbehaviour)>) {
        self.shared.desk().always = how.map(|(operation, how)| (operation.to_owned(), how));
    }

    /// Misbehaves to every request whose body has `text` in it, such as the key of an item; nothing ends that.
    pub fn always_about(&self, how: Option<(&str, Misbehaviour)>) {
        self.shared.desk().about = how.map(|(text, how)| (text.to_owned(), how));
    }
}

impl Proxy {
    /// Replies carry this `Date` from now on, unless something else was planned; `None` leaves them as they are.
    pub fn date_replies(&self, date: Option<String>) {
        self.shared.desk().date = date;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        // One more connection wakes the thread that accepts, which then looks at the flag.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request and says how to misbehave to it.
    fn count(&self, request: &Message) -> Option<Misbehaviour> {
        let operation = request.operation();
        let mut desk = self.desk();
        *desk.counts.requests.entry(operation.to_owned()).or_default() += 1;
        if let Some((_, how)) = desk.next.pop_front_if(|(planned, _)| planned == operation) {
            return Some(how);
        }
        if let Some((_, how)) = desk.about.as_ref().filter(|(text, _)| request.mentions(text)) {
            return Some(how.clone());
        }
        desk.always.as_ref().filter(|(always, _)| always == operation).map(|(_, how)| how.clone())
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.stopped.load(Ordering::Relaxed) {
            return;
        }
        let Ok(client) = client else { continue };
        let shared = Arc::clone(shared);
        // A connection that breaks is the business of its client.
        thread::spawn(move || drop(serve(&client, &shared)));
    }
}

fn serve(client: &TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut requests = BufReader::new(client);
    let mut upstream: Option<BufReader<TcpStream>> = None;
    while let Some(request) = Message::read(&mut requests)? {
        let how = shared.count(&request);
        if how == Some(Misbehaviour::Hold) {
            shared.desk().held.push(request);
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
            shared.desk().counts.refused += 1;
        }
        let reply = match how {
            Some(Misbehaviour::DropReply) => return Ok(()),
            Some(Misbehaviour::Delay(delay)) => {
                nap(delay);
                reply
            }
            Some(Misbehaviour::Date(date)) => reply.dated(&date),
            _ => match shared.desk().date.as_deref() {
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
