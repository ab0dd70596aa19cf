//! One broker as a gate: gRPC, and HTTP where gRPC is not served.
//!
//! Another transport is tried only when nothing can have happened on the first: there was no connection, or no such
//! service. An answer that was lost is an error, and [`Resend`](tollgate::Resend) asks again with the same id.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::Uri;
use hyper::header::HeaderValue;
use tollgate::{
    Ask, BoxFuture, Clock, Costs, Decision, Error, ErrorKind, Gate, Permit, Policy, Span, Standing,
    SystemClock, Timestamp,
};

use crate::call::{Caller, DEADLINE_DEFAULT, is_not_served};
use crate::grpc::GrpcGate;
use crate::http::HttpGate;

/// How long HTTP is used before gRPC is tried again.
pub const GRPC_AWAY: Span = Span::from_secs(30);

/// Where a broker is, and how it is called.
#[derive(Clone, Debug)]
pub struct Settings {
    grpc: Option<String>,
    http: Option<String>,
    key: Option<HeaderValue>,
    deadline: Span,
    clock: Arc<dyn Clock>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            grpc: None,
            http: None,
            key: None,
            deadline: DEADLINE_DEFAULT,
            clock: Arc::new(SystemClock),
        }
    }
}

impl Settings {
    /// Nowhere yet: name [`grpc`](Self::grpc), [`http`](Self::http) or both.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Where it serves gRPC, as in `http://127.0.0.1:8081`.
    #[must_use]
    pub fn grpc(mut self, address: impl Into<String>) -> Self {
        self.grpc = Some(address.into());
        self
    }

    /// Where it serves HTTP, as in `http://127.0.0.1:8080`.
    #[must_use]
    pub fn http(mut self, address: impl Into<String>) -> Self {
        self.http = Some(address.into());
        self
    }

    /// How long a call may take; the broker is told, too.
    #[must_use]
    pub const fn deadline(mut self, deadline: Span) -> Self {
        self.deadline = deadline;
        self
    }

    /// The API key, sent as `authorization: Bearer`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it has characters that no header field can have.
    pub fn key(mut self, key: &str) -> Result<Self, Error> {
        let mut value = HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| {
            Error::new(ErrorKind::Invalid, "the API key has characters that cannot be sent")
        })?;
        value.set_sensitive(true);
        self.key = Some(value);
        Ok(self)
    }

    /// The clock of deadlines.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    fn caller(&self, address: &str) -> Result<Caller, Error> {
        Ok(Caller {
            address: address_of(address)?,
            deadline: self.deadline,
            clock: Arc::clone(&self.clock),
            authorization: self.key.clone(),
        })
    }
}

fn address_of(text: &str) -> Result<Uri, Error> {
    let wrong = |why: &str| {
        let text = format!("{text:?} {why}; write an address as in http://127.0.0.1:8081");
        Error::new(ErrorKind::Invalid, text)
    };
    let uri: Uri = text.parse().map_err(|_| wrong("is no address"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err(wrong("asks for TLS, which this version does not speak")),
        _ => return Err(wrong("does not say the protocol")),
    }
    match uri.path() {
        "" | "/" => Ok(uri),
        _ => Err(wrong("has a path")),
    }
}

/// A broker as a gate.
#[derive(Debug)]
pub struct Client {
    grpc: Option<GrpcGate>,
    http: Option<HttpGate>,
    clock: Arc<dyn Clock>,
    /// Until when gRPC is not tried, in microseconds of the monotonic clock.
    grpc_away: AtomicU64,
}

impl Client {
    /// The broker that `settings` lead to. Nothing is sent before the first call.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if they name no address, or one that is none.
    ///
    /// ```
    /// use tollgate_client::{Client, Settings};
    ///
    /// let settings = Settings::new().grpc("http://127.0.0.1:8081").http("http://127.0.0.1:8080");
    /// let gate = Client::new(&settings)?;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn new(settings: &Settings) -> Result<Self, Error> {
        let caller = |address: &Option<String>| {
            address.as_deref().map(|address| settings.caller(address)).transpose()
        };
        let (grpc, http) = (caller(&settings.grpc)?, caller(&settings.http)?);
        if grpc.is_none() && http.is_none() {
            let text = "the settings name no broker; give them a grpc or an http address";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(Self {
            grpc: grpc.map(GrpcGate::new),
            http: http.map(HttpGate::new),
            clock: Arc::clone(&settings.clock),
            grpc_away: AtomicU64::new(0),
        })
    }

    async fn either<'a, T>(
        &'a self,
        call: impl Fn(&'a dyn Gate) -> BoxFuture<'a, Result<T, Error>>,
    ) -> Result<T, Error> {
        let now = self.clock.monotonic();
        let is_away = now.as_micros() < self.grpc_away.load(Ordering::Relaxed);
        match (&self.grpc, &self.http) {
            (Some(grpc), Some(http)) if !is_away => match call(grpc).await {
                Err(error) if is_not_served(&error) => {
                    tracing::warn!(%error, "gRPC is not served; HTTP is used for {GRPC_AWAY}");
                    let until = now.plus(GRPC_AWAY).as_micros();
                    self.grpc_away.store(until, Ordering::Relaxed);
                    call(http).await
                }
                answer => answer,
            },
            (_, Some(http)) => call(http).await,
            (Some(grpc), None) => call(grpc).await,
            (None, None) => Err(Error::new(ErrorKind::Invalid, "the settings name no broker")),
        }
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
