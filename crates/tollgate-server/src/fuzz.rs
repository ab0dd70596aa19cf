//! The protocols without their sockets, for the fuzzer in `fuzz/`. Only a build with `--cfg fuzzing` has it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::app::App;
use crate::resp::Resp;
use crate::{grpc, http, resp, token};

/// Serves `app` to one client of the Redis protocol.
pub async fn resp<S: AsyncRead + AsyncWrite + Unpin>(stream: S, app: Arc<App>) {
    resp::serve(stream, None, Arc::new(Resp::new(app)), std::future::pending()).await;
}

/// The answer to a call over HTTP.
pub async fn http(app: Arc<App>, request: Request<Body>) -> Response<Body> {
    Arc::new(http::Calls::new(app)).answer(request, None).await.map(Body::new)
}

/// The answer to a call over gRPC.
pub async fn grpc(app: &Arc<App>, request: Request<Body>) -> Response<tonic::body::Body> {
    grpc::Calls::new(app).answer(request).await
}

/// `bytes`, a version of permits and what it stands for, under a seal that is right, as no client can make it.
pub fn sealed(bytes: &[u8], key: &token::Key) -> String {
    token::forged(bytes, key)
}
