//! The protocols without their sockets, for the fuzzer in `fuzz/`. Only a build with `--cfg fuzzing` has it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::app::App;
use crate::grpc::GrpcService;
use crate::http::HttpService;
use crate::resp::RespService;
use crate::server::Protocol as _;

/// Serves `app` to one client of the Redis protocol.
pub async fn resp<S>(stream: S, app: Arc<App>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = Arc::new(RespService::new(app));
    service.serve(stream, None, Box::pin(std::future::pending())).await;
}

/// Returns the response to an HTTP request.
pub async fn http(app: Arc<App>, request: Request<Body>) -> Response<Body> {
    Arc::new(HttpService::new(app)).answer(request, None).await.map(Body::new)
}

/// Returns the response to a gRPC call.
pub async fn grpc(app: &Arc<App>, request: Request<Body>) -> Response<tonic::body::Body> {
    GrpcService::new(Arc::clone(app)).answer(request).await
}
