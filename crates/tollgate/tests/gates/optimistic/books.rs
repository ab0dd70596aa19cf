//! Nothing admitted is lost from the store's account and nothing is charged twice, whatever the network does to the posts.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use tollgate::clock::ManualClock;
use tollgate::observe::{Event, Observer};
use tollgate::strategy::{Optimistic, OptimisticOptions};
use tollgate::{
    Ask, Clock, Costs, Decision, ErrorKind, GateExt, Limit, Permit, Policy, RollingWindow, Span,
};

use super::fleet::settle_down;
use super::link::{Dice, Link, Sabotage, Weather};
use crate::memory;

/// Nothing leaves this window while a test runs, so what the store has is everything it was ever charged.
fn policy() -> Policy {
    let limit =
        |name, unit| Limit::new(name, unit, RollingWindow::new(100_000, Span::from_hours(24)));
    Policy::new("books", [limit("rpd", "requests"), limit("tpd", "tokens")])
        .expect("the numbers are in bounds")
}

struct Desk {
    gate: Arc<Optimistic<Arc<Link>>>,
    link: Arc<Link>,
    store: Arc<tollgate::Memory>,
    clock: ManualClock,
    dice: Arc<Dice>,
}

impl Desk {
    fn new(seed: u64, weather: Weather, options: OptimisticOptions) -> Self {
        let (store, clock) = memory();
        let dice = Arc::new(Dice::new(seed));
        let link = Arc::new(Link::new(&store, &clock, &dice, weather));
        let gate = Optimistic::new(Arc::clone(&link), options, Arc::new(clock.clone()));
        Self { gate: Arc::new(gate), link, store, clock, dice }
    }

    /// Lets time pass until `done`.
    async fn wait_for<T>(&self, done: impl Future<Output = T> + Send + 'static) -> T
    where
        T: Send + 'static,
    {
        let waiting = tokio::spawn(done);
        while !waiting.is_finished() {
            settle_down().await;
            self.clock.advance(Span::from_millis(10));
        }
        waiting.await.expect("it ends")
    }

    async fn acquire(&self, costs: &Costs) -> Option<Permit> {
        let (gate, costs) = (Arc::clone(&self.gate), costs.clone());
        let ask =
            async move { gate.acquire(&Ask::new(&policy(), "alice").with_costs(&costs)).await };
        self.wait_for(ask).await.ok().and_then(Decision::into_permit)
    }

    async fn shutdown(&self, within: Span) -> Result<(), tollgate::Error> {
        let (gate, deadline) = (Arc::clone(&self.gate), self.clock.now() + within);
        self.wait_for(async move { gate.shutdown(deadline).await }).await
    }

    /// What the store has been charged, in requests and tokens.
    async fn charged(&self) -> [u64; 2] {
        let limits = self.store.standing(&policy(), "alice").await.expect("it is in memory");
        [limits[0].used, limits[1].used]
    }
}

fn cost(requests: u64, tokens: u64) -> Costs {
    Costs::new().with("requests", requests).with("tokens", tokens)
}

fn options() -> OptimisticOptions {
    OptimisticOptions {
        unposted_max_of: Costs::new().with("tokens", 1_000),
        ..OptimisticOptions::new(20)
    }
}

/// Random asks, settlements and releases over a network that loses posts and answers; what was really spent and what
/// the store has in the end.
async fn story(seed: u64, sabotage: Sabotage) -> ([u64; 2], [u64; 2]) {
    let weather = Weather { delay_max: Span::from_millis(20), lost_percent: 30, sabotage };
    let desk = Desk::new(seed, weather, options());
    let mut spent = [0, 0];
    let mut held: Vec<(Permit, [u64; 2])> = Vec::new();
    for _ in 0..150 {
        let (requests, tokens) = (1 + desk.dice.roll(3), desk.dice.roll(200));
        if let Some(permit) = desk.acquire(&cost(requests, tokens)).await {
            held.push((permit, [requests, tokens]));
        }
        if desk.dice.roll(3) == 0 {
            desk.clock.advance(Span::from_millis(desk.dice.roll(400)));
            settle_down().await;
        }
        while 0 < desk.dice.roll(3) && !held.is_empty() {
            let at = desk.dice.pick(held.len());
            let (permit, estimate) = held.swap_remove(at);
            let actual = finish(&desk, permit, estimate).await;
            (spent[0], spent[1]) = (spent[0] + actual[0], spent[1] + actual[1]);
        }
    }
    for (permit, estimate) in held {
        let actual = finish(&desk, permit, estimate).await;
        (spent[0], spent[1]) = (spent[0] + actual[0], spent[1] + actual[1]);
    }
    desk.shutdown(Span::from_hours(1)).await.expect("an hour is enough");
    (spent, desk.charged().await)
}

/// Settles or releases a permit, twice, as often as it takes; what it cost in the end.
async fn finish(desk: &Desk, permit: Permit, estimate: [u64; 2]) -> [u64; 2] {
    let actual = match desk.dice.roll(4) {
        0 => None,
        1 => Some(estimate),
        _ => Some([estimate[0], desk.dice.roll(400)]),
    };
    let gate = Arc::clone(&desk.gate);
    let costs = actual.map(|[requests, tokens]| cost(requests, tokens));
    let settling = async move {
        let mut done = 0;
        while done < 2 {
            let answer = match &costs {
                Some(costs) => gate.settle(&permit, costs).await,
                None => gate.release(&permit).await,
            };
            match answer {
                Ok(_) => done += 1,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    };
    desk.wait_for(settling).await;
    actual.unwrap_or_default()
}

/// R000.12: lost posts and lost answers are sent again and charged once; settlements and releases come out even.
#[tokio::test]
async fn r000_12_the_books_balance_over_a_lossy_network() {
    for seed in 0..12 {
        let (spent, charged) = story(seed, Sabotage::None).await;
        assert_eq!(spent, charged, "seed {seed}");
    }
}

/// The same stories catch an instance that sends again under a new id, and one that takes a failed post for done.
#[tokio::test]
async fn the_books_do_not_balance_for_a_saboteur() {
    for sabotage in [Sabotage::NewIds, Sabotage::DropsPosts] {
        let mut caught = false;
        for seed in 0..3 {
            let (spent, charged) = story(seed, sabotage).await;
            caught |= match sabotage {
                Sabotage::NewIds => spent[0] < charged[0],
                _ => charged[0] < spent[0],
            };
        }
        assert!(caught, "{sabotage:?}");
    }
}

/// R002.1: through an outage an instance admits up to `unposted_max`, then passes the store's error on, and when the
/// store is back posts everything.
#[tokio::test]
async fn r002_1_what_was_admitted_in_an_outage_is_posted_after_it() {
    let desk = Desk::new(1, Weather::CALM, options());
    assert!(desk.acquire(&cost(1, 0)).await.is_some());
    desk.link.down.store(true, Ordering::Relaxed);
    let mut admitted = 1;
    while desk.acquire(&cost(1, 0)).await.is_some() {
        admitted += 1;
    }
    assert_eq!(admitted, 21, "one at the store and unposted_max here");
    let refused = desk.gate.acquire(&Ask::new(&policy(), "alice")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    desk.clock.advance(Span::from_hours(2));
    settle_down().await;
    assert_eq!(desk.gate.unposted(&policy(), "alice").get("requests"), Some(20));
    assert_eq!(desk.charged().await, [1, 0], "the store heard of nothing else");
    desk.link.down.store(false, Ordering::Relaxed);
    assert!(desk.acquire(&cost(1, 0)).await.is_some());
    desk.shutdown(Span::from_secs(10)).await.unwrap();
    assert_eq!(desk.charged().await, [22, 0]);
}

/// R002.1: shutdown posts what is left, says so if it cannot, and from then on every ask goes to the store.
#[tokio::test]
async fn r002_1_shutdown_drains() {
    let desk = Desk::new(1, Weather::CALM, options());
    for _ in 0..10 {
        assert!(desk.acquire(&cost(1, 5)).await.is_some());
    }
    desk.link.down.store(true, Ordering::Relaxed);
    let error = desk.shutdown(Span::from_secs(3)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("1 subjects"), "{error}");
    desk.link.down.store(false, Ordering::Relaxed);
    desk.shutdown(Span::from_secs(30)).await.unwrap();
    assert_eq!(desk.charged().await, [10, 50]);
    assert!(desk.acquire(&cost(1, 5)).await.is_some());
    assert_eq!(desk.charged().await, [11, 55], "charged before it was answered");
}

/// R002.1: what was given back of a batch whose other asks nobody settled reaches the store at the end.
#[tokio::test]
async fn r002_1_shutdown_gives_back_what_was_gathered() {
    let (store, clock) = memory();
    let gate = Optimistic::new(store, options(), Arc::new(clock.clone()));
    let policy = policy();
    let mut last = None;
    for _ in 0..4 {
        last = gate.acquire(&Ask::new(&policy, "alice")).await.unwrap().into_permit();
    }
    assert!(gate.flush(&policy, "alice").await.unwrap());
    assert!(gate.release(&last.expect("all fit")).await.unwrap());
    gate.shutdown(clock.now() + Span::from_secs(30)).await.unwrap();
    let standing = gate.inner().standing(&policy, "alice").await.unwrap();
    assert_eq!(standing[0].used, 3);
}

/// R002.1: what is unposted is told to the observer, with its bound.
#[tokio::test]
async fn r002_1_the_observer_is_told_what_is_unposted() {
    #[derive(Debug, Default)]
    struct Seen(Mutex<Vec<(u64, u64)>>);
    impl Observer for Seen {
        fn observe(&self, event: &Event<'_>) {
            if let Event::Unposted { unposted, unposted_max, .. } = event {
                self.0.lock().expect("nobody panicked").push((*unposted, *unposted_max));
            }
        }
    }
    let (store, clock) = memory();
    let seen = Arc::new(Seen::default());
    let gate = Optimistic::new(store, options(), Arc::new(clock.clone())).observer(seen.clone());
    let policy = policy();
    for _ in 0..4 {
        assert!(gate.acquire(&Ask::new(&policy, "alice")).await.unwrap().is_admitted());
    }
    assert!(gate.flush(&policy, "alice").await.unwrap());
    assert_eq!(*seen.0.lock().expect("nobody panicked"), [(3, 20), (0, 20)]);
}
