//! The gateway as a protocol of the server.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use tollgate::gate::BoxFuture;
use tollgate::{Error, Span};
use tollgate_server::{App, Connection, ConnectionOptions, MountedProtocol, serve_connection};

use crate::config::Config;
use crate::handler;
use crate::observe::{GatewayEvent, GatewayObserver};
use crate::options::GatewayOptions;
use crate::snapshot::GatewaySnapshot;
use crate::waiting_calls::WaitingCalls;

/// Serves the APIs of LLM providers: admits each call at `app`, forwards it and settles it.
///
/// Mount it with [`Listeners::mount`](tollgate_server::Listeners::mount).
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
}

/// What all calls share.
pub(crate) struct Shared {
    pub(crate) app: Arc<App>,
    observer: OnceLock<Arc<dyn GatewayObserver>>,
    config: RwLock<Arc<Config>>,
    /// Calls that wait for admission.
    pub(crate) waiting: WaitingCalls,
    /// Bytes of request bodies.
    pub(crate) held_bytes: AtomicUsize,
    /// Calls with a permit.
    pub(crate) in_flight: AtomicUsize,
}

impl Shared {
    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn observe(&self, event: &GatewayEvent<'_>) {
        if let Some(observer) = self.observer.get() {
            observer.observe(event);
        }
    }

    /// Resolves when the server closes.
    pub(crate) async fn closes(&self) {
        let mut closing = self.app.closing();
        // An error means that the server is gone, and so closed.
        let _ = closing.wait_for(|closing| *closing).await;
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("config", &self.config()).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Creates a gateway whose calls are admitted by `app`.
    ///
    /// # Errors
    /// [`Invalid`](tollgate::ErrorKind::Invalid) if `options` cannot work: a route names an unknown policy or upstream or mixes
    /// dialects, a money limit has no price, or a charge can never be filled.
    pub fn new(app: Arc<App>, options: GatewayOptions) -> Result<Self, Error> {
        let config = RwLock::new(Arc::new(Config::new(options, &app.policies(), None)?));
        let (observer, waiting, held_bytes, in_flight) = Default::default();
        let shared = Shared { app, observer, config, waiting, held_bytes, in_flight };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Reports events to `observer`; only the first one counts.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn GatewayObserver>) -> Self {
        let _first = self.shared.observer.get_or_init(|| observer);
        self
    }

    /// Replaces the configuration. Calls in progress finish under the old one; counts of upstreams and models that stay are
    /// kept.
    ///
    /// # Errors
    /// As [`new`](Self::new); then nothing changes.
    pub fn replace(&self, options: GatewayOptions) -> Result<(), Error> {
        let old = self.shared.config();
        let config = Arc::new(Config::new(options, &self.shared.app.policies(), Some(&old))?);
        *self.shared.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Checks `options` against the policies of `app` without making a gateway.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn check(app: &App, options: &GatewayOptions) -> Result<(), Error> {
        Config::new(options.clone(), &app.policies(), None).map(drop)
    }

    /// Returns the present state.
    #[must_use]
    pub fn snapshot(&self) -> GatewaySnapshot {
        let shared = &self.shared;
        let (config, now) = (shared.config(), shared.app.now());
        let (waiting_calls, oldest) = shared.waiting.read();
        GatewaySnapshot {
            waiting_calls,
            oldest_wait: oldest.map(|began| {
                let now = shared.app.clock().monotonic();
                Span::from_micros(now.as_micros().saturating_sub(began.as_micros()))
            }),
            held_bytes: shared.held_bytes.load(Ordering::Relaxed),
            in_flight: shared.in_flight.load(Ordering::Relaxed),
            deployments: config
                .deployments
                .iter()
                .map(|(dialect, deployment)| deployment.snapshot(dialect.name(), now))
                .collect(),
        }
    }
}

impl MountedProtocol for Gateway {
    fn serve(
        self: Arc<Self>,
        stream: Box<dyn Connection>,
        shutdown: BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, ()> {
        let (shared, app) = (Arc::clone(&self.shared), Arc::clone(&self.shared.app));
        // A client that closes its sending side is gone: its call is cancelled.
        let unread_max = Some(self.shared.config().limits.idle_timeout);
        let options = ConnectionOptions { half_close: false, writev: true, unread_max };
        let answer = move |request, busy| handler::answer(Arc::clone(&shared), request, busy);
        Box::pin(serve_connection(stream, app, options, answer, shutdown))
    }

    fn drain_max(&self) -> Span {
        self.shared.config().limits.drain
    }
}
