//! The fake on a port of loopback.

use std::io;
use std::sync::Arc;

use hyper::Request;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tollgate::Timestamp;

use super::{FakeDrs, Reply, Response};
use crate::fakes::http::{HttpResponse, Served, json as respond};

/// A fake that listens until it is dropped.
#[derive(Debug)]
pub struct Server {
    fake: Arc<FakeDrs>,
    served: Served,
}

impl Server {
    /// Serves `fake` on `port` of loopback, or on a free port for 0.
    pub async fn start(fake: Arc<FakeDrs>, port: u16) -> io::Result<Self> {
        let handler = Arc::clone(&fake);
        let served = Served::start(port, move |request| answer(Arc::clone(&handler), request));
        Ok(Self { served: served.await?, fake })
    }

    pub fn endpoint(&self) -> String {
        self.served.url()
    }

    pub const fn fake(&self) -> &Arc<FakeDrs> {
        &self.fake
    }
}

async fn answer(fake: Arc<FakeDrs>, request: Request<Bytes>) -> HttpResponse {
    let path = request.uri().path().trim_start_matches('/');
    if path == "arrivals" {
        return response(&Response::new(200, arrivals(&fake)));
    }
    match fake.handle(path, request.body()) {
        Reply::Now(answer) => response(&answer),
        Reply::Later(span, answer) => {
            let clock = fake.clock();
            clock.sleep_until(clock.now() + span).await;
            response(&answer)
        }
        Reply::Never => std::future::pending().await,
        Reply::Cut => Err(io::Error::other("cut on command")),
    }
}

fn response(answer: &Response) -> HttpResponse {
    respond(answer.status, &answer.headers, answer.body.to_string())
}

/// Returns the calls so far: `GET /arrivals`.
fn arrivals(fake: &FakeDrs) -> Value {
    let arrivals = fake.arrivals();
    let seconds = arrivals.by_second();
    let seconds = seconds.iter().map(|((second, operation), calls)| {
        json!({ "at": Timestamp::from_secs(*second).to_string(), "operation": operation, "calls": calls })
    });
    json!({ "calls": arrivals.all().len(), "active_jobs": fake.active_jobs(), "by_second": seconds.collect::<Vec<_>>() })
}
