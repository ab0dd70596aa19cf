//! A broker as a gate, over gRPC, HTTP or the Redis protocol.
//!
//! The next transport is tried only if the first cannot have processed the call: there was no connection, or no such
//! service. A lost response is an error, and [`Resend`](tollgate::strategy::Resend) asks again with the same id.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Clock, Error, ErrorKind, Gate, Span};

use crate::grpc::GrpcGate;
use crate::http::HttpGate;
use crate::options::ClientOptions;
use crate::resp::RespGate;
use crate::target::is_not_served;

/// How long a transport that is not served is skipped.
pub const AWAY: Span = Span::from_secs(30);

/// A broker as a gate.
#[derive(Debug)]
pub struct Client {
    /// In order of preference.
    transports: Vec<Transport>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct Transport {
    name: &'static str,
    gate: Box<dyn Gate>,
    /// Until when it is skipped, in microseconds of the monotonic clock.
    away: AtomicU64,
}

impl Client {
    /// Creates a client. Nothing is sent before the first call.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a missing or invalid address, or certificates that cannot be used.
    ///
    /// ```
    /// use tollgate_client::{Client, ClientOptions};
    ///
    /// let options = ClientOptions::new().grpc("http://127.0.0.1:8081").http("http://127.0.0.1:8080");
    /// let gate = Client::new(&options)?;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn new(options: &ClientOptions) -> Result<Self, Error> {
        let mut tls = None;
        let mut transports = Vec::new();
        let mut add =
            |name, gate| transports.push(Transport { name, gate, away: AtomicU64::new(0) });
        if let Some(address) = &options.grpc {
            let target = options.target(address, "http://127.0.0.1:8081", &mut tls)?;
            add("gRPC", Box::new(GrpcGate::new(target)) as Box<dyn Gate>);
        }
        if let Some(address) = &options.http {
            let target = options.target(address, "http://127.0.0.1:8080", &mut tls)?;
            add("HTTP", Box::new(HttpGate::new(target)));
        }
        if let Some(address) = &options.resp {
            let target = options.target(address, "redis://127.0.0.1:6380", &mut tls)?;
            add("the Redis protocol", Box::new(RespGate::new(target)?));
        }
        if transports.is_empty() {
            let text = "the options name no broker; give them a grpc, an http or a resp address";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(Self { transports, clock: Arc::clone(&options.clock) })
    }

    /// The answer by the first transport that is served; the last one is always tried.
    async fn either(&self, operation: Operation<'_>) -> Result<Outcome, Error> {
        let now = self.clock.monotonic();
        let mut last = Error::new(ErrorKind::Invalid, "the options name no broker");
        for (place, Transport { name, gate, away }) in self.transports.iter().enumerate() {
            let is_last = place + 1 == self.transports.len();
            if !is_last && now.as_micros() < away.load(Ordering::Relaxed) {
                continue;
            }
            match gate.run(operation).await {
                Err(error) if !is_last && is_not_served(&error) => {
                    tracing::warn!(%error, "{name} is not served; the next is used for {AWAY}");
                    away.store(now.plus(AWAY).as_micros(), Ordering::Relaxed);
                    last = error;
                }
                answer => return answer,
            }
        }
        Err(last)
    }
}

impl Gate for Client {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(self.either(operation))
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
