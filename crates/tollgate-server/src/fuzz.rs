//! The protocols without their sockets, for the fuzzer in `fuzz/`. Only a build with `--cfg fuzzing` has it.

use std::sync::Arc;

use axum::Router;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::app::App;
use crate::resp::Resp;
use crate::{grpc, http, resp, token};

/// Serves `app` to one client of the Redis protocol.
pub async fn resp<S: AsyncRead + AsyncWrite + Unpin>(stream: S, app: Arc<App>) {
    let closing = app.closing();
    resp::serve(stream, Arc::new(Resp::new(app)), closing).await;
}

/// Every call over HTTP.
pub fn http(app: Arc<App>) -> Router {
    http::router(app)
}

/// Every call over gRPC.
pub fn grpc(app: &Arc<App>) -> Router {
    grpc::router(app)
}

/// `bytes`, a version of permits and what it stands for, under a seal that is right, as no client can make it.
pub fn sealed(bytes: &[u8], key: &[u8; token::KEY_BYTES]) -> String {
    token::sealed(bytes, key)
}
