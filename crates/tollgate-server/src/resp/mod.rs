//! The Redis protocol (RESP2 and RESP3), for which every language has a client.
//!
//! The requests of a connection are processed in order; replies to requests that arrived together are written together.
//! [`commands`] has the table of commands: `CL.THROTTLE` and `DEL` are compatible with redis-cell, `TG.*` are the calls
//! of the HTTP API.

mod args;
mod commands;
mod connection;
mod frame;
mod read_deadline;
mod replies;
mod serialize;

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tollgate::gate::BoxFuture;

use crate::access::Certificate;
use crate::app::App;
use crate::server::Protocol;
use commands::throttle::Throttles;

pub use commands::throttle::POLICY as THROTTLE_POLICY;

/// Serves the Redis protocol; shared by all connections.
#[derive(Debug)]
pub(crate) struct RespService {
    app: Arc<App>,
    throttles: Throttles,
}

impl RespService {
    pub(crate) fn new(app: Arc<App>) -> Self {
        let throttles = Throttles::new(app.options().throttle_subjects_max);
        Self { app, throttles }
    }
}

impl Protocol for RespService {
    async fn serve<S>(
        self: Arc<Self>,
        stream: S,
        certificate: Option<Arc<Certificate>>,
        shutdown: BoxFuture<'static, ()>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        connection::serve(stream, certificate, self, shutdown).await;
    }
}
