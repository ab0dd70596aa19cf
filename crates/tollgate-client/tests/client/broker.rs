//! Brokers on threads of their own, and a gate that tells them the policy of each call.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tollgate::clock::ManualClock;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::policy::Policies;
use tollgate::{Clock, Error, Gate, Memory, Policy, Span, Timestamp};
use tollgate_client::{Client, ClientOptions};
use tollgate_server::{App, Listeners, Tls, run};

const KEY: [u8; 32] = [7; 32];

/// A store that brokers share.
pub(crate) fn store(clock: &ManualClock) -> Arc<dyn Gate> {
    Arc::new(Memory::with(Arc::new(clock.clone()), 100_000))
}

/// A clock without alarms: the suite lets days pass between two calls, and a broker would close every connection that
/// was idle for so long just while the next call goes over it.
#[derive(Debug)]
struct Alarmless(ManualClock);

impl Clock for Alarmless {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn monotonic(&self) -> Span {
        self.0.monotonic()
    }

    fn sleep_until(&self, _: Timestamp) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// A broker that stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) app: Arc<App>,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) resp: SocketAddr,
    clock: ManualClock,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    pub(crate) fn start(gate: Arc<dyn Gate>, clock: &ManualClock) -> Self {
        Self::with(gate, clock, None)
    }

    /// The same, perhaps with TLS on every listener.
    pub(crate) fn with(gate: Arc<dyn Gate>, clock: &ManualClock, tls: Option<Tls>) -> Self {
        let app =
            App::new(gate, Policies::default(), KEY, Arc::new(Alarmless(clock.clone()))).unwrap();
        // As on one machine without keys, it answers to loopback names alone.
        let settings = tollgate_server::ServerOptions { is_loopback: true, ..Default::default() };
        let app = Arc::new(app.with_options(settings));
        let bound = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let address = listener.local_addr().unwrap();
            (listener, address)
        };
        let ((http_listener, http), (grpc_listener, grpc)) = (bound(), bound());
        let (resp_listener, resp) = bound();
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&app);
        let thread = std::thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let runtime = builder.worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(async {
                let mut listeners = Listeners::http(TcpListener::from_std(http_listener).unwrap())
                    .grpc(TcpListener::from_std(grpc_listener).unwrap())
                    .resp(TcpListener::from_std(resp_listener).unwrap());
                if let Some(tls) = tls {
                    listeners = listeners.tls(tls);
                }
                run(listeners, served, async {
                    stopped.await.ok();
                })
                .await;
            });
        });
        let (stop, thread) = (Some(stop), Some(thread));
        Self { app, http, grpc, resp, clock: clock.clone(), stop, thread }
    }

    /// Policies in force from now on.
    pub(crate) fn put(&self, policies: impl IntoIterator<Item = Policy>) {
        self.app.replace_policies(Policies::new(policies).unwrap()).unwrap();
    }

    pub(crate) fn settings(&self) -> ClientOptions {
        ClientOptions::new().clock(Arc::new(self.clock.clone()))
    }

    pub(crate) fn by_grpc(&self) -> Client {
        Client::new(&self.settings().grpc(format!("http://{}", self.grpc))).unwrap()
    }

    pub(crate) fn by_http(&self) -> Client {
        Client::new(&self.settings().http(format!("http://{}", self.http))).unwrap()
    }

    pub(crate) fn by_resp(&self) -> Client {
        Client::new(&self.settings().resp(format!("redis://{}", self.resp))).unwrap()
    }

    /// A client by each transport alone.
    pub(crate) fn by_each(&self) -> [Client; 3] {
        [self.by_grpc(), self.by_http(), self.by_resp()]
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Clients of several brokers, asked in turn. The suite makes up policies as it goes, and a broker only knows those that
/// it is told; so each call puts its policies in force first.
#[derive(Debug)]
pub(crate) struct InTurn {
    clients: Vec<(Client, Arc<App>)>,
    next: AtomicUsize,
    /// The newest policy of each name. Concurrent calls may be under others.
    policies: Mutex<BTreeMap<String, Policy>>,
}

impl InTurn {
    pub(crate) fn new<'a>(clients: impl IntoIterator<Item = (Client, &'a Broker)>) -> Self {
        let clients =
            clients.into_iter().map(|(client, broker)| (client, Arc::clone(&broker.app))).collect();
        Self { clients, next: AtomicUsize::new(0), policies: Mutex::default() }
    }

    fn told(&self, operation: &Operation<'_>) -> &Client {
        let place = self.next.fetch_add(1, Ordering::Relaxed) % self.clients.len();
        let (client, app) = &self.clients[place];
        let mut known = self.policies.lock().unwrap();
        for policy in policies_of(operation) {
            known.insert(policy.name().to_owned(), policy);
        }
        app.replace_policies(Policies::new(known.values().cloned()).unwrap()).unwrap();
        client
    }
}

fn policies_of(operation: &Operation<'_>) -> Vec<Policy> {
    match operation {
        Operation::Acquire(ask) | Operation::Charge(ask) => {
            ask.charges().map(|charge| charge.policy().clone()).collect()
        }
        Operation::Settle(permit, _) | Operation::Release(permit) | Operation::Renew(permit) => {
            permit.parts().map(|part| part.policy().clone()).collect()
        }
        other => vec![other.policy().clone()],
    }
}

impl Gate for InTurn {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        self.told(&operation).run(operation)
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
