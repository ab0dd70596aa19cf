//! One server per test, and the smallest client that shows every byte of an answer.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate::clock::ManualClock;
use tollgate::policy::{Period, Policies};
use tollgate::{
    CalendarWindow, Clock, Concurrency, Gate, Limit, Memory, Policy, RollingWindow, Span,
    Timestamp, TokenBucket,
};
use tollgate_server::keys::Key;
use tollgate_server::{App, Drained, Listeners, Tls, run};

pub(crate) const KEY: [u8; 32] = [7; 32];

/// 2026-11-15T05:45:00Z: 2 h 15 min before midnight in Los Angeles.
pub(crate) const START: Timestamp = Timestamp::from_secs(1_794_721_500);

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) resp: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) clock: ManualClock,
    pub(crate) app: Arc<App>,
    stop: oneshot::Sender<()>,
    done: JoinHandle<Drained>,
}

/// The policies of every test: an LLM's limits, a bucket in shadow mode, and slots.
pub(crate) fn policies() -> Policies {
    let minute = Span::from_mins(1);
    let day = CalendarWindow::new(25, Period::Day).in_zone("America/Los_Angeles");
    let gemini = Policy::new(
        "gemini",
        [
            Limit::new("rpm", "requests", RollingWindow::new(5, minute)),
            Limit::new("tpm", "tokens", RollingWindow::new(250_000, minute)),
            Limit::new("rpd", "requests", day),
        ],
    );
    let bucket = TokenBucket::per_second(10).burst(2);
    let trial =
        Policy::builder("trial").shadow(true).limit(Limit::new("burst", "requests", bucket));
    let jobs = Policy::new("jobs", [Limit::new("slots", "requests", Concurrency::new(1, minute))]);
    Policies::new([gemini.unwrap(), trial.build().unwrap(), jobs.unwrap()]).unwrap()
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::around(|gate| gate).await
    }

    /// A server whose gate is what `wrap` makes of a store in memory.
    pub(crate) async fn around(wrap: impl FnOnce(Arc<dyn Gate>) -> Arc<dyn Gate>) -> Self {
        Self::with(|gate, _| wrap(gate), |app| app).await
    }

    /// The same on a clock that the gate may need too, serving what `finish` makes of it.
    pub(crate) async fn with(
        wrap: impl FnOnce(Arc<dyn Gate>, Arc<dyn Clock>) -> Arc<dyn Gate>,
        finish: impl FnOnce(App) -> App,
    ) -> Self {
        Self::of(wrap, finish, |listeners| listeners).await
    }

    /// A server of what `finish` makes of the app.
    pub(crate) async fn serving(finish: impl FnOnce(App) -> App) -> Self {
        Self::with(|gate, _| gate, finish).await
    }

    /// A server that lets in only who has one of `keys`.
    pub(crate) async fn guarded(keys: impl IntoIterator<Item = Key>) -> Self {
        let keys = keys.into_iter().collect();
        let guarded = |app: App| {
            app.replace_keys(Some(keys));
            app
        };
        Self::serving(guarded).await
    }

    /// A server that speaks TLS.
    pub(crate) async fn secured(tls: Tls) -> Self {
        Self::of(|gate, _| gate, |app| app, |listeners| listeners.tls(tls)).await
    }

    /// A server with room for `most` connections.
    pub(crate) async fn with_room(most: usize) -> Self {
        Self::of(|gate, _| gate, |app| app, |listeners| listeners.connections(most)).await
    }

    async fn of(
        wrap: impl FnOnce(Arc<dyn Gate>, Arc<dyn Clock>) -> Arc<dyn Gate>,
        finish: impl FnOnce(App) -> App,
        listen: impl FnOnce(Listeners) -> Listeners,
    ) -> Self {
        let clock = ManualClock::at(START);
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let gate = Arc::new(Memory::with(Arc::clone(&shared), 1_024));
        let gate = wrap(gate, Arc::clone(&shared));
        let app = Arc::new(finish(App::new(gate, policies(), KEY, shared).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let resp_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let resp = resp_listener.local_addr().unwrap();
        let grpc_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let grpc = grpc_listener.local_addr().unwrap();
        let listeners = Listeners::http(listener).resp(resp_listener).grpc(grpc_listener);
        let listeners = listen(listeners);
        let (stop, stopped) = oneshot::channel();
        let done = tokio::spawn(run(listeners, Arc::clone(&app), async {
            stopped.await.ok();
        }));
        Self { address, resp, grpc, clock, app, stop, done }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        self.send("POST", path, body).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        self.start_send(method, path, body).await.answer().await
    }

    /// Sends with the field `Authorization`.
    pub(crate) async fn send_as(&self, who: &str, method: &str, path: &str, body: &str) -> Answer {
        let fields = format!("authorization: {who}\r\n");
        self.start_with(method, path, &fields, body).await.answer().await
    }

    /// A request that is on its way.
    pub(crate) async fn start_send(&self, method: &str, path: &str, body: &str) -> Pending {
        self.start_with(method, path, "", body).await
    }

    async fn start_with(&self, method: &str, path: &str, more: &str, body: &str) -> Pending {
        let head = format!("{method} {path} HTTP/1.1\r\n{more}host: test\r\nconnection: close");
        let length = body.len();
        let fields = format!("content-type: application/json\r\ncontent-length: {length}");
        Pending::send(self.address, &format!("{head}\r\n{fields}\r\n\r\n{body}")).await
    }

    /// The permit of an admitted ask.
    pub(crate) async fn permit(&self, body: &str) -> String {
        let answer = self.post("/v1/acquire", body).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["permit"].as_str().unwrap().to_owned()
    }

    /// Tells the server to stop.
    pub(crate) fn stop(self) -> Stopping {
        self.stop.send(()).unwrap();
        Stopping { address: self.address, clock: self.clock, done: self.done }
    }
}

/// A server that is shutting down.
pub(crate) struct Stopping {
    pub(crate) address: SocketAddr,
    pub(crate) clock: ManualClock,
    pub(crate) done: JoinHandle<Drained>,
}

/// Waits until a timer of at most `span` is set on `clock`, and advances the clock past it.
pub(crate) async fn pass(clock: &ManualClock, span: Span) {
    let at = clock.now() + span;
    while clock.next_alarm().is_none_or(|alarm| at < alarm) {
        tokio::task::yield_now().await;
    }
    clock.advance(span);
}

/// A request that was sent.
pub(crate) struct Pending(TcpStream);

impl Pending {
    pub(crate) async fn send(address: SocketAddr, bytes: &str) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        Self(stream)
    }

    pub(crate) async fn answer(mut self) -> Answer {
        let mut bytes = Vec::new();
        self.0.read_to_end(&mut bytes).await.unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) =
            text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let (first, fields) = head.split_once("\r\n").unwrap();
        Answer {
            status: first.split(' ').nth(1).unwrap().parse().unwrap(),
            fields: fields.lines().map(str::to_owned).collect(),
            text: body.to_owned(),
        }
    }
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) status: u16,
    fields: Vec<String>,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn field<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.fields(name).next()
    }

    pub(crate) fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let fields = self.fields.iter().filter_map(|line| line.split_once(": "));
        fields.filter(move |(field, _)| *field == name).map(|(_, value)| value)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().filter_map(|line| line.split_once(": ")).map(|(name, _)| name)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).expect(&self.text)
    }
}
