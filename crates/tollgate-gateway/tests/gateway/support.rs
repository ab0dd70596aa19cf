//! A gateway over a store in memory, in front of fake providers, on a clock that is moved by hand.

use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate::clock::ManualClock;
use tollgate::policy::Policies;
use tollgate::{
    Clock, Gate, GateExt as _, Limit, Memory, Policy, RollingWindow, Span, Standing, TokenBucket,
};
use tollgate_gateway::{
    ChargeTemplate, Gateway, GatewayEvent, GatewayKey, GatewayObserver, GatewayOptions, Route,
    Upstream,
};
use tollgate_providers::Dialect;
use tollgate_server::keys::KeyHash;
use tollgate_server::{App, Drained, Listeners, run};
use tollgate_testkit::fakes::llm::{FakeLlm, Served, Settings};

pub(crate) const KEY: &str = "tg_caller";
pub(crate) const PROVIDER_KEY: &str = "sk-provider-secret";

/// Events as text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<String>>>);

impl GatewayObserver for Events {
    fn observe(&self, event: &GatewayEvent<'_>) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
}

impl Events {
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, name: &str) -> usize {
        self.all().iter().filter(|event| event.starts_with(name)).count()
    }
}

type Wrap = Box<dyn FnOnce(Arc<Memory>) -> Arc<dyn Gate>>;

/// What a test varies.
pub(crate) struct Setup {
    pub(crate) dialect: Dialect,
    pub(crate) policies: Vec<Policy>,
    pub(crate) options: GatewayOptions,
    pub(crate) fake: Settings,
    pub(crate) upstreams: usize,
    pub(crate) clock: Option<Arc<dyn Clock>>,
    /// Puts a gate around the store.
    pub(crate) wrap: Option<Wrap>,
}

pub(crate) fn per_minute(name: &str, requests: u64, tokens: u64) -> Policy {
    let rolling = |count| RollingWindow::new(count, Span::from_mins(1));
    let limits = [
        Limit::new("rpm", "requests", rolling(requests)),
        Limit::new("tpm", "tokens", TokenBucket::per_minute(tokens)),
    ];
    Policy::new(name, limits).unwrap()
}

/// Generous limits whose use does not fade while a test moves the clock.
pub(crate) fn lasting(name: &str) -> Policy {
    let day = |count| RollingWindow::new(count, Span::from_hours(24));
    let limits =
        [Limit::new("rpm", "requests", day(1_000)), Limit::new("tpm", "tokens", day(1_000_000))];
    Policy::new(name, limits).unwrap()
}

impl Setup {
    /// One upstream and one route for all models, which charges the user and the upstream generously.
    pub(crate) fn new(dialect: Dialect) -> Self {
        let mut options = GatewayOptions::default();
        options.routes.push(Route {
            name: "all".to_owned(),
            models: vec!["m-1".to_owned(), "*".to_owned()],
            upstreams: vec!["up-1".to_owned()],
            charges: vec![
                ChargeTemplate::new("user", "{key.subject}"),
                ChargeTemplate::new("provider", "{upstream}"),
            ],
            max_wait: std::time::Duration::from_secs(50),
        });
        options.keys.push(GatewayKey::new("caller", KeyHash::from_key(KEY)));
        Self {
            dialect,
            policies: vec![lasting("user"), lasting("provider")],
            options,
            fake: Settings::default(),
            upstreams: 1,
            clock: None,
            wrap: None,
        }
    }

    pub(crate) fn policy(mut self, policy: Policy) -> Self {
        self.policies.retain(|known| known.name() != policy.name());
        self.policies.push(policy);
        self
    }

    pub(crate) fn upstreams(mut self, count: usize) -> Self {
        self.upstreams = count;
        self.options.routes[0].upstreams = (1..=count).map(|n| format!("up-{n}")).collect();
        self
    }

    pub(crate) fn fake(mut self, fake: Settings) -> Self {
        self.fake = fake;
        self
    }

    pub(crate) fn route(mut self, change: impl FnOnce(&mut Route)) -> Self {
        change(&mut self.options.routes[0]);
        self
    }

    pub(crate) fn options(mut self, change: impl FnOnce(&mut GatewayOptions)) -> Self {
        change(&mut self.options);
        self
    }

    pub(crate) async fn start(mut self) -> Harness {
        let manual = ManualClock::new();
        let clock = self.clock.clone().unwrap_or_else(|| Arc::new(manual.clone()));
        let (mut fakes, mut served) = (Vec::new(), Vec::new());
        for number in 1..=self.upstreams {
            let fake = FakeLlm::new(Arc::clone(&clock), self.fake.clone());
            let address = fake.serve(0).await.unwrap();
            let name = format!("up-{number}");
            if self.options.upstreams.iter().all(|upstream| upstream.name != name) {
                let mut upstream = Upstream::new(name, self.dialect, PROVIDER_KEY);
                upstream.url = format!("{}/{}", address.url(), self.dialect);
                self.options.upstreams.push(upstream);
            }
            fakes.push(fake);
            served.push(address);
        }
        let gate = Arc::new(Memory::with(Arc::clone(&clock), 10_000));
        let policies = Policies::new(self.policies.clone()).unwrap();
        let wrapped: Arc<dyn Gate> = match self.wrap.take() {
            Some(wrap) => wrap(Arc::clone(&gate)),
            None => Arc::clone(&gate) as _,
        };
        let app = App::new(wrapped, policies, [7; 32], Arc::clone(&clock)).unwrap();
        let app = Arc::new(app);
        let events = Events::default();
        let gateway = Gateway::new(Arc::clone(&app), self.options.clone()).unwrap();
        let gateway = Arc::new(gateway.observed_by(Arc::new(events.clone())));
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = oneshot::channel::<()>();
        let listeners = Listeners::http(http).mount(listener, Arc::clone(&gateway) as _);
        let server = tokio::spawn(run(listeners, Arc::clone(&app), async {
            let _ = stopped.await;
        }));
        Harness {
            dialect: self.dialect,
            clock: manual,
            gate,
            app,
            gateway,
            events,
            fakes,
            _served: served,
            address,
            stop: Mutex::new(Some(stop)),
            server,
            options: self.options,
        }
    }
}

/// A running gateway.
pub(crate) struct Harness {
    pub(crate) dialect: Dialect,
    pub(crate) clock: ManualClock,
    pub(crate) gate: Arc<Memory>,
    pub(crate) app: Arc<App>,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) events: Events,
    pub(crate) fakes: Vec<FakeLlm>,
    _served: Vec<Served>,
    pub(crate) address: String,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    pub(crate) server: JoinHandle<Drained>,
    pub(crate) options: GatewayOptions,
}

/// A response that was read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

impl Harness {
    pub(crate) fn fake(&self) -> &FakeLlm {
        &self.fakes[0]
    }

    /// The path of a generation.
    pub(crate) fn path(&self, is_stream: bool) -> String {
        match (self.dialect, is_stream) {
            (Dialect::OpenAi, _) => "/openai/v1/chat/completions".to_owned(),
            (Dialect::Anthropic, _) => "/anthropic/v1/messages".to_owned(),
            (Dialect::Gemini, false) => "/gemini/v1beta/models/m-1:generateContent".to_owned(),
            (Dialect::Gemini, true) => {
                "/gemini/v1beta/models/m-1:streamGenerateContent?alt=sse".to_owned()
            }
        }
    }

    /// A generation of at most `output` tokens.
    pub(crate) fn request(&self, text: &str, output: u64, is_stream: bool) -> Value {
        let messages = json!([{"role": "user", "content": text}]);
        match self.dialect {
            Dialect::OpenAi => json!({
                "model": "m-1", "messages": messages, "max_completion_tokens": output, "stream": is_stream,
            }),
            Dialect::Anthropic => json!({
                "model": "m-1", "messages": messages, "max_tokens": output, "stream": is_stream,
            }),
            Dialect::Gemini => json!({
                "contents": [{"role": "user", "parts": [{"text": text}]}],
                "generationConfig": {"maxOutputTokens": output, "thinkingConfig": {"thinkingBudget": 0}},
            }),
        }
    }

    pub(crate) async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    pub(crate) fn build(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Request<Full<Bytes>> {
        let mut request = Request::post(path).header("host", "gateway");
        request = request.header("content-type", "application/json");
        if !headers
            .iter()
            .any(|(name, _)| ["authorization", "x-api-key", "x-goog-api-key"].contains(name))
        {
            request = request.header("authorization", format!("Bearer {KEY}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Full::new(body.to_string().into())).unwrap()
    }

    /// Sends a request and returns the head of its response.
    pub(crate) async fn open(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Response<Incoming> {
        let request = self.build(path, headers, body);
        self.connect().await.send_request(request).await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        read(self.open(path, headers, body).await).await
    }

    pub(crate) async fn generate(&self, text: &str, output: u64) -> Reply {
        self.post(&self.path(false), &[], &self.request(text, output, false)).await
    }

    pub(crate) async fn stream(&self, text: &str, output: u64) -> Reply {
        self.post(&self.path(true), &[], &self.request(text, output, true)).await
    }

    /// Starts a generation without waiting for it.
    pub(crate) fn spawn(self: &Arc<Self>, text: &str, output: u64) -> JoinHandle<Reply> {
        let (harness, text) = (Arc::clone(self), text.to_owned());
        tokio::spawn(async move { harness.generate(&text, output).await })
    }

    pub(crate) async fn standing(&self, policy: &str, subject: &str, limit: &str) -> Standing {
        let policies = self.app.policies();
        let standings = self.gate.standing(policies.get(policy).unwrap(), subject).await.unwrap();
        standings.into_iter().find(|standing| &*standing.name == limit).unwrap()
    }

    pub(crate) async fn used(&self, policy: &str, subject: &str, limit: &str) -> u64 {
        self.standing(policy, subject, limit).await.used
    }

    /// Waits until `is_done`, without moving the clock.
    pub(crate) async fn until(&self, is_done: impl Fn(&Self) -> bool) {
        for _ in 0..100_000 {
            if is_done(self) {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("it did not happen: {:?} {:?}", self.gateway.snapshot(), self.events.all());
    }

    /// Stops the server.
    pub(crate) fn stop(&self) {
        self.stop.lock().unwrap().take().unwrap().send(()).unwrap();
    }

    /// Waits until so many calls wait for admission.
    pub(crate) async fn waiting(&self, calls: usize) {
        self.until(|harness| harness.gateway.snapshot().waiting_calls == calls).await;
    }

    /// Waits until no call is in flight, so that everything is settled.
    pub(crate) async fn quiet(&self) {
        self.until(|harness| harness.gateway.snapshot().in_flight == 0).await;
    }
}

pub(crate) async fn read(response: Response<Incoming>) -> Reply {
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Reply { status: head.status, headers: head.headers, body }
}
