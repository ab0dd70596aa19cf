//! One broker as a gate: gRPC, HTTP where gRPC is not served, and the Redis protocol where neither is.
//!
//! Another transport is tried only when nothing can have happened on the first: there was no connection, or no such
//! service. An answer that was lost is an error, and [`Resend`](tollgate::Resend) asks again with the same id.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{
    Ask, BoxFuture, Clock, Costs, Decision, Error, ErrorKind, Gate, Permit, Policy, Span, Standing,
    Timestamp,
};

use crate::call::is_not_served;
use crate::grpc::GrpcGate;
use crate::http::HttpGate;
use crate::resp::RespGate;
use crate::settings::Settings;

/// How long a transport that is not served is left alone before it is tried again.
pub const AWAY: Span = Span::from_secs(30);

/// A broker as a gate.
#[derive(Debug)]
pub struct Client {
    /// In the order in which they are tried.
    transports: Vec<Transport>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
struct Transport {
    name: &'static str,
    gate: Box<dyn Gate>,
    /// Until when it is not tried, in microseconds of the monotonic clock.
    away: AtomicU64,
}

impl Client {
    /// The broker that `settings` lead to. Nothing is sent before the first call.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if they name no address, or one that is none, or certificates that cannot be used.
    ///
    /// ```
    /// use tollgate_client::{Client, Settings};
    ///
    /// let settings = Settings::new().grpc("http://127.0.0.1:8081").http("http://127.0.0.1:8080");
    /// let gate = Client::new(&settings)?;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn new(settings: &Settings) -> Result<Self, Error> {
        let mut tls = None;
        let mut transports = Vec::new();
        let mut add =
            |name, gate| transports.push(Transport { name, gate, away: AtomicU64::new(0) });
        if let Some(address) = &settings.grpc {
            let caller = settings.caller(address, "http://127.0.0.1:8081", &mut tls)?;
            add("gRPC", Box::new(GrpcGate::new(caller)?) as Box<dyn Gate>);
        }
        if let Some(address) = &settings.http {
            let caller = settings.caller(address, "http://127.0.0.1:8080", &mut tls)?;
            add("HTTP", Box::new(HttpGate::new(caller)?));
        }
        if let Some(address) = &settings.resp {
            let caller = settings.caller(address, "redis://127.0.0.1:6380", &mut tls)?;
            add("the Redis protocol", Box::new(RespGate::new(caller)?));
        }
        if transports.is_empty() {
            let text = "the settings name no broker; give them a grpc, an http or a resp address";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(Self { transports, clock: Arc::clone(&settings.clock) })
    }

    /// The answer by the first transport that is served; the last one is always tried.
    async fn either<'a, T>(
        &'a self,
        call: impl Fn(&'a dyn Gate) -> BoxFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        let now = self.clock.monotonic();
        let mut last = Error::new(ErrorKind::Invalid, "the settings name no broker");
        for (place, Transport { name, gate, away }) in self.transports.iter().enumerate() {
            let is_last = place + 1 == self.transports.len();
            if !is_last && now.as_micros() < away.load(Ordering::Relaxed) {
                continue;
            }
            match call(&**gate).await {
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
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(self.either(move |gate| gate.acquire(ask)))
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.either(move |gate| gate.settle(permit, actual)))
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.either(move |gate| gate.release(permit)))
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(self.either(move |gate| gate.renew(permit)))
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(self.either(move |gate| gate.charge(ask)))
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.either(move |gate| gate.close_until(ask, limit, until)))
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        Box::pin(self.either(move |gate| gate.standing(policy, subject)))
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.either(move |gate| gate.reset(policy, subject)))
    }
}
