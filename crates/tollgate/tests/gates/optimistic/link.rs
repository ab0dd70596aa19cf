//! A network between an instance and the store: slow, lossy or down, driven by one seed; and two saboteurs who sit in it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tollgate::clock::ManualClock;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Ask, Clock, Error, ErrorKind, Gate, GateExt, Memory, Permit, Span};

/// What an instance that posts wrongly would do, done to its posts on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    None,
    /// Sends a post again under another id.
    NewIds,
    /// Takes a post that failed for done.
    DropsPosts,
}

/// How bad the network is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// The longest way to the store, and the longest way back.
    pub(super) delay_max: Span,
    /// How many of a hundred posts and settlements are lost on the way, and as many answers on the way back.
    pub(super) lost_percent: u64,
    pub(super) sabotage: Sabotage,
}

impl Weather {
    pub(super) const CALM: Self =
        Self { delay_max: Span::from_micros(0), lost_percent: 0, sabotage: Sabotage::None };
}

/// Numbers that follow from a seed.
#[derive(Debug)]
pub(super) struct Dice(Mutex<u64>);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(Mutex::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    /// A number below `sides`.
    pub(super) fn roll(&self, sides: u64) -> u64 {
        let mut state = self.0.lock().expect("nobody panicked");
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) % sides.max(1)
    }

    /// A place in a list of `len`.
    pub(super) fn pick(&self, len: usize) -> usize {
        usize::try_from(self.roll(len as u64)).expect("it is below a usize")
    }
}

#[derive(Debug)]
pub(super) struct Link {
    store: Arc<Memory>,
    clock: ManualClock,
    dice: Arc<Dice>,
    weather: Weather,
    /// Nothing gets through at all.
    pub(super) down: AtomicBool,
    /// Posts do not get through; everything else does.
    pub(super) posts_down: AtomicBool,
    /// How many posts the store was sent.
    pub(super) posts: AtomicU64,
}

impl Link {
    pub(super) fn new(
        store: &Arc<Memory>,
        clock: &ManualClock,
        dice: &Arc<Dice>,
        weather: Weather,
    ) -> Self {
        Self {
            store: Arc::clone(store),
            clock: clock.clone(),
            dice: Arc::clone(dice),
            weather,
            down: AtomicBool::new(false),
            posts_down: AtomicBool::new(false),
            posts: AtomicU64::new(0),
        }
    }

    async fn travel(&self, may_be_lost: bool) -> Result<(), Error> {
        let delay = self.dice.roll(self.weather.delay_max.as_micros() + 1);
        if 0 < delay {
            self.clock.sleep_until(self.clock.now() + Span::from_micros(delay)).await;
        }
        let lost = may_be_lost && self.dice.roll(100) < self.weather.lost_percent;
        if lost || self.down.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "the network is down"));
        }
        Ok(())
    }

    async fn call<T>(
        &self,
        may_be_lost: bool,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.travel(may_be_lost).await?;
        let answer = call.await;
        self.travel(may_be_lost).await?;
        answer
    }

    async fn post(&self, ask: &Ask<'_>) -> Result<Permit, Error> {
        if self.posts_down.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "posts do not get through"));
        }
        let sent = self.posts.fetch_add(1, Ordering::Relaxed);
        let renamed = ask.clone().id(format!("new-{sent}-{}", self.dice.roll(u64::MAX)));
        let ask = if self.weather.sabotage == Sabotage::NewIds { &renamed } else { ask };
        self.store.charge(ask).await
    }
}

impl Gate for Link {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        let Operation::Charge(ask) = operation else {
            let may_be_lost = !matches!(operation, Operation::Acquire(_));
            return Box::pin(self.call(may_be_lost, self.store.run(operation)));
        };
        Box::pin(async move {
            let answer = self.call(true, self.post(ask)).await;
            if self.weather.sabotage == Sabotage::DropsPosts && answer.is_err() {
                let grant = tollgate::core::Grant {
                    at: self.clock.now(),
                    stamp: 1,
                    use_by: None,
                    expires_at: None,
                };
                let limits = self.store.standing(ask.policy(), ask.subject()).await?;
                return Ok(Outcome::Permitted(Permit::for_ask(ask, grant, limits)));
            }
            answer.map(Outcome::Permitted)
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
