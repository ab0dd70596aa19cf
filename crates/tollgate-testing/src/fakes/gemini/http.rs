//! The fake on a port of loopback.

use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::FakeGemini;
use crate::servers::Fault;

/// The fake, answering on loopback until it is dropped.
#[derive(Debug)]
pub struct Served {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Served {
    /// The base URL for a client.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FakeGemini {
    /// Answers on `port` of loopback, or on a free one for 0, as a task of the current tokio runtime.
    ///
    /// # Errors
    /// If the port is taken.
    pub async fn serve(&self, port: u16) -> Result<Served, Fault> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .await
            .map_err(|error| Fault::new(format!("could not listen on port {port}: {error}")))?;
        let address = listener
            .local_addr()
            .map_err(|error| Fault::new(format!("could not tell the port: {error}")))?;
        let router = Router::new().fallback(answer).with_state(self.clone());
        let task = tokio::spawn(async move {
            // It only ends with the listener.
            drop(axum::serve(listener, router).await);
        });
        Ok(Served { address, task })
    }
}

async fn answer(
    State(fake): State<FakeGemini>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let key = headers
        .get("x-goog-api-key")
        .or_else(|| headers.get(header::AUTHORIZATION))
        .and_then(|value| value.to_str().ok())
        .map(|value| value.trim_start_matches("Bearer "));
    let (status, body) = fake.handle(uri.path(), key, &body).await;
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [(header::CONTENT_TYPE, "application/json; charset=UTF-8")], body).into_response()
}
