//! A load generator: one thread, prepared requests, and minimal checks of replies. The same one loads every server.
//!
//! In a closed loop, each connection sends the next request after a reply, which measures the rate. In an open loop, requests
//! are due at a fixed rate, and latency counts from the due time, so that stalls show.

mod grpc;
mod http;
mod resp;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub(crate) use grpc::Grpc;
pub(crate) use http::Http;
pub(crate) use resp::Resp;

/// The subjects that are asked for, at random.
pub(crate) const KEYS: u64 = 100_000;

/// The longest that nothing may be answered.
const STUCK: Duration = Duration::from_secs(10);

/// How one connection speaks.
pub(crate) trait Talk {
    /// What a connection begins with.
    fn begin(&self, _out: &mut Vec<u8>) {}

    /// Puts a request about `key` into `out`.
    fn ask(&mut self, key: u64, out: &mut Vec<u8>);

    /// Takes complete replies out of `input`, and returns their number; `out` gets protocol messages.
    fn take(&mut self, input: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<usize, String>;
}

/// When requests are sent.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    /// Each connection has so many on the way, always.
    Closed(usize),
    /// So many a second, whatever happens.
    Open(f64),
}

/// The results.
pub(crate) struct Figures {
    /// Answers a second.
    pub(crate) rate: f64,
    /// In microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

struct Connection {
    stream: TcpStream,
    talk: Box<dyn Talk>,
    input: Vec<u8>,
    out: Vec<u8>,
    /// When each request on the way was sent, or due.
    since: VecDeque<Instant>,
}

impl Connection {
    fn open(at: SocketAddr, talk: Box<dyn Talk>) -> Self {
        let stream = TcpStream::connect(at).expect("the server listens");
        stream.set_nodelay(true).expect("a socket");
        stream.set_nonblocking(true).expect("a socket");
        let mut out = Vec::new();
        talk.begin(&mut out);
        Self { stream, talk, input: Vec::new(), out, since: VecDeque::new() }
    }

    fn ask(&mut self, key: u64, since: Instant) {
        self.talk.ask(key, &mut self.out);
        self.since.push_back(since);
    }

    fn send(&mut self) {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                sent => drop(self.out.drain(..sent.expect("the server takes requests"))),
            }
        }
    }

    /// Reads available replies, and records their latencies.
    fn receive(&mut self, room: &mut [u8], latencies: &mut Vec<u32>) {
        let read = match self.stream.read(room) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            read => read.expect("the server answers"),
        };
        assert_ne!(read, 0, "the server closed a connection");
        self.input.extend_from_slice(&room[..read]);
        let answers = self.talk.take(&mut self.input, &mut self.out);
        let now = Instant::now();
        for _ in 0..answers.expect("a right answer") {
            let since = self.since.pop_front().expect("an answer to a request");
            latencies.push(u32::try_from((now - since).as_micros()).unwrap_or(u32::MAX));
        }
    }
}

/// Asks the server at `at` for `time`.
pub(crate) fn run(
    at: SocketAddr,
    talk: &dyn Fn() -> Box<dyn Talk>,
    connections: usize,
    pace: Pace,
    time: Duration,
) -> Figures {
    let mut connections: Vec<Connection> =
        (0..connections).map(|_| Connection::open(at, talk())).collect();
    let mut latencies = Vec::new();
    let mut room = vec![0; 1 << 16];
    let mut key = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next_key = || {
        key ^= key << 13;
        key ^= key >> 7;
        key ^= key << 17;
        key % KEYS
    };
    let began = Instant::now();
    let mut due = Due::new(pace, began);
    let mut last = (began, 0);
    loop {
        let now = Instant::now();
        if time <= now - began {
            break;
        }
        if last.1 < latencies.len() {
            last = (now, latencies.len());
        }
        assert!(now - last.0 < STUCK, "nothing was answered for {STUCK:?}");
        match pace {
            Pace::Closed(depth) => {
                for connection in &mut connections {
                    while connection.since.len() < depth {
                        connection.ask(next_key(), now);
                    }
                }
            }
            Pace::Open(_) => {
                due.pass(now);
                let mut free = connections.iter_mut().filter(|free| free.since.is_empty());
                while let (false, Some(free)) = (due.late.is_empty(), free.next()) {
                    free.ask(next_key(), due.late.pop_front().expect("not empty"));
                }
            }
        }
        connections.iter_mut().for_each(Connection::send);
        let ready = wait(&connections, due.wait(Instant::now()));
        for (connection, ready) in connections.iter_mut().zip(ready) {
            if ready {
                connection.receive(&mut room, &mut latencies);
            }
        }
    }
    let rate = latencies.len() as f64 / began.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |part: f64| {
        let place = (latencies.len() as f64 * part) as usize;
        latencies.get(place).map_or(f64::NAN, |micros| f64::from(*micros))
    };
    Figures { rate, p50: at(0.5), p99: at(0.99) }
}

/// Which connections have something to read, within `timeout`.
fn wait(connections: &[Connection], timeout: Duration) -> Vec<bool> {
    let mut places: Vec<PollFd<'_>> = connections
        .iter()
        .map(|connection| PollFd::new(&connection.stream, PollFlags::IN))
        .collect();
    let timeout = Timespec::try_from(timeout).expect("a short time");
    poll(&mut places, Some(&timeout)).expect("sockets can be waited for");
    places.iter().map(|place| !place.revents().is_empty()).collect()
}

/// Requests that are due.
struct Due {
    gap: Duration,
    next: Instant,
    late: VecDeque<Instant>,
}

impl Due {
    fn new(pace: Pace, began: Instant) -> Self {
        let gap = match pace {
            Pace::Closed(_) => Duration::from_millis(100),
            Pace::Open(rate) => Duration::from_secs_f64(1.0 / rate),
        };
        Self { gap, next: began, late: VecDeque::new() }
    }

    fn pass(&mut self, now: Instant) {
        while self.next <= now {
            self.late.push_back(self.next);
            self.next += self.gap;
        }
    }

    /// How long nothing is to be sent.
    fn wait(&self, now: Instant) -> Duration {
        if self.next <= now { self.gap } else { self.next - now }
    }
}
