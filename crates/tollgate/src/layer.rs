//! A gate in front of a tower service.
//!
//! Unlike tower's own rate limit it can be cloned, and clones share the limit: the state is in the gate, so a service
//! that is cloned per connection is still one service to the quota.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use tollgate_core::{Ask, Decision, Denial};
use tower::{Layer, Service};

use crate::error::Error;
use crate::gate::{BoxFuture, Gate, GateExt};

/// Puts a gate in front of services: a request goes through if its ask is admitted.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use tollgate::layer::GateLayer;
/// use tollgate::{Ask, Limit, Memory, Policy, TokenBucket};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// let policy = Policy::new("api", [Limit::new("burst", "requests", TokenBucket::per_minute(1))])?;
/// let layer = GateLayer::new(Arc::new(Memory::new()), move |user: &String| {
///     Ask::new(&policy, user.as_str()).into_owned()
/// });
/// let greet = service_fn(|user: String| async move { Ok::<_, std::io::Error>(format!("hello {user}")) });
/// let service = layer.layer(greet);
///
/// assert_eq!(service.clone().oneshot("ann".to_owned()).await?, "hello ann");
/// assert!(service.clone().oneshot("ann".to_owned()).await.is_err()); // the clone shares the limit
/// assert!(service.oneshot("bob".to_owned()).await.is_ok());
/// # Ok(()) }
/// ```
///
/// A request may be charged to several subjects, which are decided together: all are charged, or none.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::sync::Arc;
/// # use tollgate::layer::{GateLayer, GatedError};
/// # use tollgate::{Ask, GateExt, Limit, Memory, Policy, TokenBucket};
/// # use tower::{Layer, ServiceExt, service_fn};
/// let user = Policy::new("user", [Limit::new("rpm", "requests", TokenBucket::per_minute(10))])?;
/// let team = Policy::new("team", [Limit::new("tpm", "tokens", TokenBucket::per_minute(500))])?;
/// let gate = Arc::new(Memory::new());
/// let (of_user, of_team) = (user.clone(), team.clone());
/// let layer = GateLayer::new(gate.clone(), move |(name, tokens): &(String, u64)| {
///     Ask::new(&of_user, name.as_str()).and(&of_team, "t7").cost("tokens", *tokens).into_owned()
/// });
/// let service = layer.layer(service_fn(|_| async { Ok::<_, std::io::Error>("done") }));
///
/// assert_eq!(service.clone().oneshot(("ann".to_owned(), 400)).await?, "done");
/// let refused = service.oneshot(("bob".to_owned(), 400)).await;
/// assert!(matches!(refused, Err(GatedError::Denied(denial)) if &*denial.policy == "team"));
/// assert_eq!(gate.standing(&user, "bob").await?[0].used, 0); // the refusal took nothing from bob
/// # Ok(()) }
/// ```
pub struct GateLayer<F> {
    gate: Arc<dyn Gate>,
    ask: Arc<F>,
}

impl<F> GateLayer<F> {
    /// Asks `gate` what `ask` makes of each request.
    pub fn new(gate: Arc<dyn Gate>, ask: F) -> Self {
        Self { gate, ask: Arc::new(ask) }
    }
}

impl<F> Clone for GateLayer<F> {
    fn clone(&self) -> Self {
        Self { gate: Arc::clone(&self.gate), ask: Arc::clone(&self.ask) }
    }
}

impl<F> fmt::Debug for GateLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateLayer").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl<S, F> Layer<S> for GateLayer<F> {
    type Service = Gated<S, F>;

    fn layer(&self, inner: S) -> Gated<S, F> {
        Gated { layer: self.clone(), inner }
    }
}

/// A service behind a gate.
#[derive(Debug)]
pub struct Gated<S, F> {
    layer: GateLayer<F>,
    inner: S,
}

impl<S: Clone, F> Clone for Gated<S, F> {
    fn clone(&self) -> Self {
        Self { layer: self.layer.clone(), inner: self.inner.clone() }
    }
}

impl<S, F, R> Service<R> for Gated<S, F>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    F: Fn(&R) -> Ask<'static> + Send + Sync + 'static,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = GatedError<S::Error>;
    type Future = BoxFuture<'static, Result<S::Response, GatedError<S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // Readiness reserves nothing: the gate is asked with the request in hand.
        self.inner.poll_ready(context).map_err(GatedError::Inner)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let gate = Arc::clone(&self.layer.gate);
        let ask = (self.layer.ask)(&request);
        // The clone that is left behind has not been polled ready; the one that was goes into the future.
        let fresh = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, fresh);
        Box::pin(async move {
            if let Decision::Denied(denial) = gate.acquire(&ask).await.map_err(GatedError::Gate)? {
                return Err(GatedError::Denied(Box::new(denial)));
            }
            inner.call(request).await.map_err(GatedError::Inner)
        })
    }
}

/// Why a request did not get an answer from the service.
#[derive(Debug)]
pub enum GatedError<E> {
    /// The gate said no.
    Denied(Box<Denial>),
    /// The gate could not decide.
    Gate(Error),
    /// The service itself failed.
    Inner(E),
}

impl<E> fmt::Display for GatedError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(denial) => write!(f, "{denial}"),
            Self::Gate(_) => f.write_str("the gate could not decide"),
            Self::Inner(_) => f.write_str("the service failed"),
        }
    }
}

impl<E: StdError + 'static> StdError for GatedError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Denied(_) => None,
            Self::Gate(error) => Some(error),
            Self::Inner(error) => Some(error),
        }
    }
}
