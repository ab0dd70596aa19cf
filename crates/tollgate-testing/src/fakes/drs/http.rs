//! The fake on a port of loopback.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tollgate::Timestamp;

use super::{Answer, FakeDrs, Reply};

/// A fake that listens until this value is dropped.
#[derive(Debug)]
pub struct Server {
    fake: Arc<FakeDrs>,
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Server {
    /// Serves `fake` on `port` of loopback; 0 takes a free one.
    ///
    /// # Errors
    /// If the port is taken.
    pub async fn start(fake: Arc<FakeDrs>, port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let address = listener.local_addr()?;
        let serving = tokio::spawn(serve(listener, Arc::clone(&fake)));
        Ok(Self { fake, address, serving })
    }

    /// The address to give to a client.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it serves.
    #[must_use]
    pub const fn fake(&self) -> &Arc<FakeDrs> {
        &self.fake
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, fake: Arc<FakeDrs>) {
    while let Ok((stream, _)) = listener.accept().await {
        let fake = Arc::clone(&fake);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(&fake, request));
            // A connection that ends badly is the caller's trouble, or a fault on command.
            drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn answer(fake: &FakeDrs, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
    let path = request.uri().path().trim_start_matches('/').to_owned();
    if path == "arrivals" {
        return response(Answer::new(200, arrivals(fake)));
    }
    let body = request.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
    match fake.handle(&path, &body) {
        Reply::Now(answer) => response(answer),
        Reply::Later(span, answer) => {
            let clock = fake.clock();
            clock.sleep_until(clock.now() + span).await;
            response(answer)
        }
        Reply::Never => std::future::pending().await,
        Reply::Cut => Err(io::Error::other("cut on command")),
    }
}

fn response(answer: Answer) -> io::Result<Response<Full<Bytes>>> {
    let mut response =
        Response::builder().status(answer.status).header("content-type", "application/json");
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    response.body(Full::new(Bytes::from(answer.body.to_string()))).map_err(io::Error::other)
}

/// What reached it, for people and other processes: `GET /arrivals`.
fn arrivals(fake: &FakeDrs) -> Value {
    let arrivals = fake.arrivals();
    let seconds = arrivals.by_second();
    let seconds = seconds.iter().map(|((second, operation), calls)| {
        json!({ "at": Timestamp::from_secs(*second).to_string(), "operation": operation, "calls": calls })
    });
    json!({ "calls": arrivals.all().len(), "active_jobs": fake.active_jobs(), "by_second": seconds.collect::<Vec<_>>() })
}
