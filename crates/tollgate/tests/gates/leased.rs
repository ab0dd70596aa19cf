//! The leased strategy: the shared suite, and what it adds. That it is never over is shown next door.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{
    Amounts, Ask, Atomic, BoxFuture, CalendarWindow, Clock, Concurrency, Costs, Decision, Error,
    ErrorKind, Event, Gate, Leased, LeasedOptions, Limit, ManualClock, Memory, Observer, Period,
    Permit, Policy, RollingWindow, Rule, Span, TokenBucket, Verdict, Wait,
};
use tollgate_testing::conformance::{Fixture, run_all};

use crate::memory;

const TTL: Span = Span::from_millis(100);

/// A gate that counts what reaches the store, and fails where told to.
#[derive(Debug)]
struct Counted {
    gate: Arc<Atomic<Memory>>,
    acquires: AtomicU64,
    settles: AtomicU64,
    charges: AtomicU64,
    /// How many answers to acquires get lost, from now on.
    lose: AtomicU64,
}

impl Counted {
    fn new(gate: Arc<Atomic<Memory>>) -> Arc<Self> {
        let [acquires, settles, charges, lose] = std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(Self { gate, acquires, settles, charges, lose })
    }

    fn writes(&self) -> u64 {
        [&self.acquires, &self.settles, &self.charges]
            .map(|n| n.load(Ordering::Relaxed))
            .iter()
            .sum()
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Gate for Counted {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        count(&self.acquires);
        Box::pin(async move {
            let answer = self.gate.acquire(ask).await;
            let less = |left: u64| left.checked_sub(1);
            if self.lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
                return Err(Error::new(ErrorKind::Unavailable, "the answer got lost"));
            }
            answer
        })
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        count(&self.settles);
        self.gate.settle(permit, actual)
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        count(&self.settles);
        self.gate.release(permit)
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        count(&self.charges);
        self.gate.charge(ask)
    }

    tollgate::pass_on!(gate: renew, close_until, standing, reset);
}

/// A store with counted writes, and instances around it.
struct Fleet {
    store: Arc<Counted>,
    clock: ManualClock,
}

impl Fleet {
    fn new() -> Self {
        let (gate, clock) = memory();
        Self { store: Counted::new(gate), clock }
    }

    fn instance(&self) -> Leased<Arc<Counted>> {
        self.with(LeasedOptions::default())
    }

    fn with(&self, options: LeasedOptions) -> Leased<Arc<Counted>> {
        Leased::new(Arc::clone(&self.store), options, Arc::new(self.clock.clone()))
    }

    /// Lets background tasks do what they can without time passing.
    async fn settle_down(&self) {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    async fn pass(&self, span: Span) {
        self.clock.advance(span);
        self.settle_down().await;
    }

    async fn used(&self, policy: &Policy) -> Vec<u64> {
        let standings = self.store.standing(policy, "alice").await.expect("it stands");
        standings.iter().map(|standing| standing.used).collect()
    }
}

fn leased(rule: impl Into<Rule>) -> Policy {
    leased_for(TTL, [Limit::new("only", "requests", rule)])
}

fn leased_for(ttl: Span, limits: impl IntoIterator<Item = Limit>) -> Policy {
    Policy::builder("test")
        .limits(limits)
        .block_ttl(ttl)
        .build()
        .expect("the numbers are in bounds")
}

async fn ask(gate: &impl Gate, policy: &Policy) -> Decision {
    gate.acquire(&Ask::new(policy, "alice")).await.expect("it decides")
}

/// Asks until the first denial, and returns the permits and the denial.
async fn drain(gate: &impl Gate, policy: &Policy) -> (Vec<Permit>, tollgate::Denial) {
    let mut permits = Vec::new();
    loop {
        match ask(gate, policy).await {
            Decision::Admitted(permit) => permits.push(permit),
            Decision::Denied(denial) => return (permits, denial),
        }
    }
}

#[test]
fn a_leased_gate_passes_the_suite() {
    let (gate, clock) = memory();
    let leased = Leased::new(gate, LeasedOptions::default(), Arc::new(clock.clone()));
    run_all(&Fixture::new(Arc::new(leased), clock)).unwrap();
}

/// R002.5: exact like atomic at a fraction of its writes. Blocks grow while they do not last.
#[tokio::test]
async fn blocks_grow_with_demand_and_shrink_when_it_fades() {
    let (fleet, policy) = (Fleet::new(), leased(TokenBucket::per_second(100_000)));
    let gate = fleet.instance();
    for _ in 0..5_000 {
        assert!(ask(&gate, &policy).await.is_admitted());
    }
    assert!(fleet.store.writes() < 20, "{} writes for 5,000 asks", fleet.store.writes());
    // Ten asks in the time of a block: the big ones end unspent, and the ones after them are small.
    for _ in 0..3 {
        for _ in 0..10 {
            assert!(ask(&gate, &policy).await.is_admitted());
        }
        fleet.pass(TTL).await;
    }
    fleet.pass(Span::from_secs(2)).await;
    assert!(ask(&gate, &policy).await.is_admitted());
    let [held] = fleet.used(&policy).await[..] else { panic!("one limit") };
    assert!(held <= 20, "a block of {held} although ten are asked for");
}

#[tokio::test]
async fn a_subject_that_is_seldom_asked_for_costs_one_write_and_holds_nothing() {
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(1_000, Span::from_mins(1))));
    let gate = fleet.instance();
    for asked in 1..=5 {
        let permit = ask(&gate, &policy).await.permit().unwrap();
        assert!(!permit.is_local(), "an ask on its own gets the store's own permit");
        assert_eq!((fleet.store.writes(), fleet.used(&policy).await), (asked, vec![asked]));
        fleet.pass(TTL).await;
    }
}

#[tokio::test]
async fn the_next_block_is_there_before_the_last_one_is_spent() {
    let (fleet, policy) = (Fleet::new(), leased(TokenBucket::per_second(100_000)));
    let gate = fleet.instance();
    for _ in 0..200 {
        ask(&gate, &policy).await;
    }
    for _ in 0..2_000 {
        let verdict = gate.try_acquire(&Ask::new(&policy, "alice")).unwrap();
        assert!(matches!(verdict, Some(Verdict::Admitted(_))), "{verdict:?}");
        tokio::task::yield_now().await;
    }
}

/// Without time passing one instance gets everything the store has to give, and a denial with its true wait.
#[tokio::test]
async fn down_to_the_last_token_and_then_the_wait_is_true() {
    let day = CalendarWindow::new(500, Period::Day);
    for rule in [Rule::from(RollingWindow::new(500, Span::from_secs(10))), day.into()] {
        let (fleet, policy) = (Fleet::new(), leased(rule));
        let gate = fleet.instance();
        let (permits, denial) = drain(&gate, &policy).await;
        assert_eq!(permits.len(), 500, "{policy:?}");
        let Wait::Until(until) = denial.wait else { panic!("never") };
        fleet.clock.set(until - Span::from_micros(1));
        let early = ask(&gate, &policy).await.denial().unwrap();
        assert_eq!(early.wait, Wait::Until(until));
        fleet.clock.set(until);
        assert!(ask(&gate, &policy).await.is_admitted(), "{policy:?}");
    }
}

/// Where a block is due soon, a refusal says when, and it is true.
/// A block that is refused ahead of time says nothing about those who come for less, where no whole block is due.
#[tokio::test]
async fn what_is_too_little_for_a_block_is_given_out_all_the_same() {
    let fleet = Fleet::new();
    let gate = fleet.instance();
    let policy = leased(RollingWindow::new(100, Span::from_hours(1)));
    let mut admitted = 0;
    while ask(&gate, &policy).await.is_admitted() {
        admitted += 1;
        fleet.settle_down().await;
    }
    assert_eq!(admitted, 100);
}

#[tokio::test]
async fn a_bucket_that_refills_fast_is_asked_once_per_lull() {
    let (fleet, policy) = (Fleet::new(), leased(TokenBucket::per_second(10_000)));
    let gate = fleet.instance();
    let (_, mut denial) = drain(&gate, &policy).await;
    for _ in 0..20 {
        let Wait::Until(until) = denial.wait else { panic!("never") };
        let before = fleet.store.writes();
        for _ in 0..100 {
            fleet.clock.set(until - Span::from_micros(1));
            let early = ask(&gate, &policy).await.denial().unwrap();
            assert_eq!(early.wait, Wait::Until(until));
        }
        assert_eq!(fleet.store.writes(), before, "a standing refusal costs no write");
        fleet.clock.set(until);
        let (permits, next) = drain(&gate, &policy).await;
        assert!(!permits.is_empty(), "the wait was not true");
        denial = next;
    }
}

#[tokio::test]
async fn one_instance_leaves_the_others_their_part() {
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(1_600, Span::from_mins(1))));
    let greedy = fleet.instance();
    for _ in 0..1_000 {
        ask(&greedy, &policy).await;
    }
    let [used] = fleet.used(&policy).await[..] else { panic!("one limit") };
    assert!(used <= 1_000 + 200, "{used} are taken for 1,000 asks; a block is at most 100");
    let late = fleet.instance();
    for _ in 0..300 {
        assert!(ask(&late, &policy).await.is_admitted(), "the second instance starves");
    }
}

#[tokio::test]
async fn several_limits_are_spent_together_or_not_at_all() {
    let minute = Span::from_mins(1);
    let limits = [
        Limit::new("rpm", "requests", RollingWindow::new(1_000, minute)),
        Limit::new("tpm", "tokens", RollingWindow::new(100_000, minute)),
        Limit::new("rpd", "requests", CalendarWindow::new(10_000, Period::Day)),
    ];
    let (fleet, policy) = (Fleet::new(), leased_for(TTL, limits));
    let gate = fleet.instance();
    let mut spent = [0, 0];
    for round in 0.. {
        let tokens = [100, 1_500, 700][round % 3];
        let decision =
            gate.acquire(&Ask::new(&policy, "alice").cost("tokens", tokens)).await.unwrap();
        match decision {
            Decision::Admitted(_) => spent = [spent[0] + 1, spent[1] + tokens],
            Decision::Denied(denial) => {
                assert_eq!(&*denial.limit, "tpm");
                break;
            }
        }
    }
    // What no ask fits into lies in blocks until they end.
    assert!(90_000 < spent[1] && spent[1] <= 100_000, "{spent:?}");
    gate.shutdown().await;
    assert_eq!(
        fleet.used(&policy).await,
        [spent[0], spent[1], spent[0]],
        "a limit was charged alone"
    );
}

#[tokio::test]
async fn what_is_left_goes_back_when_a_block_ends_and_at_shutdown() {
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(10_000, Span::from_mins(1))));
    let gate = fleet.instance();
    for _ in 0..300 {
        ask(&gate, &policy).await;
    }
    assert!(300 < fleet.used(&policy).await[0], "there is a block with something left");
    fleet.pass(TTL).await;
    assert_eq!(
        fleet.used(&policy).await,
        [300],
        "nobody settles single requests, so none is waited for"
    );
    for _ in 0..100 {
        ask(&gate, &policy).await;
    }
    gate.shutdown().await;
    assert_eq!(fleet.used(&policy).await, [400]);
    assert!(!ask(&gate, &policy).await.permit().unwrap().is_local(), "after it the store is asked");
}

/// Promise 6: a crash keeps what it held from everybody, until the rule restores it.
#[tokio::test]
async fn a_crash_under_issues_until_the_rule_restores_it() {
    let window = Span::from_secs(10);
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(1_000, window)));
    let gate = fleet.instance();
    for _ in 0..200 {
        ask(&gate, &policy).await;
    }
    let held = fleet.used(&policy).await[0];
    assert!(200 < held);
    drop(gate);
    fleet.pass(TTL).await;
    assert_eq!(fleet.used(&policy).await, [held], "nobody gives it back");
    fleet.pass(window).await;
    let (permits, _) = drain(&fleet.instance(), &policy).await;
    assert_eq!(permits.len(), 1_000, "nothing is lost");
}

/// Spends until a permit is a local one.
async fn local_permit(gate: &impl Gate, policy: &Policy, tokens: u64) -> Permit {
    loop {
        let ask = Ask::new(policy, "alice").cost("tokens", tokens);
        let permit = gate.acquire(&ask).await.expect("it decides").permit().expect("there is room");
        if permit.is_local() {
            return permit;
        }
    }
}

fn tokens_per_minute() -> Policy {
    leased_for(TTL, [Limit::new("tpm", "tokens", RollingWindow::new(100_000, Span::from_mins(1)))])
}

fn tokens(amount: u64) -> Costs {
    Costs::new().with("tokens", amount)
}

#[tokio::test]
async fn settling_for_less_leaves_it_to_spend_once() {
    let (fleet, policy) = (Fleet::new(), tokens_per_minute());
    let gate = fleet.instance();
    let permit = local_permit(&gate, &policy, 100).await;
    assert!(gate.settle(&permit, &tokens(40)).await.unwrap());
    assert!(!gate.settle(&permit, &tokens(0)).await.unwrap(), "the second time changes nothing");
    assert!(!gate.release(&permit).await.unwrap());
    let before = fleet.used(&policy).await[0];
    gate.shutdown().await;
    let asked = before - fleet.used(&policy).await[0];
    assert!(60 <= asked, "at least what was not used came back");
    // 100 for each ask so far, less the 60.
    assert_eq!((fleet.used(&policy).await[0] + 60) % 100, 0);
}

#[tokio::test]
async fn settling_after_the_block_ended_still_gives_back() {
    let (fleet, policy) = (Fleet::new(), tokens_per_minute());
    let gate = fleet.instance();
    // The block that gives the permit is spent whole, so it waits for its permits.
    let (mut permits, ask) = (Vec::new(), Ask::new(&policy, "alice").cost("tokens", 100));
    for _ in 0..60 {
        permits.push(gate.acquire(&ask).await.unwrap().permit().unwrap());
    }
    fleet.pass(TTL).await;
    let mut settled = 0;
    for permit in permits.iter().filter(|permit| permit.is_local()) {
        settled += u64::from(gate.settle(permit, &tokens(10)).await.unwrap());
    }
    fleet.pass(LeasedOptions::default().settle_wait).await;
    // Those of the last block keep their estimate: most of it was unspent, and went back when it ended.
    assert!(20 < settled, "{settled} were settled");
    assert_eq!(fleet.used(&policy).await, [60 * 100 - settled * 90]);
    for permit in permits.iter().filter(|permit| permit.is_local()) {
        assert!(!gate.settle(permit, &tokens(0)).await.unwrap(), "the blocks are gone");
    }
}

#[tokio::test]
async fn extra_cost_is_drawn_from_the_block_or_posted() {
    let (fleet, policy) = (Fleet::new(), tokens_per_minute());
    let gate = fleet.instance();
    let (small, large) = {
        for _ in 0..20 {
            local_permit(&gate, &policy, 100).await;
        }
        (local_permit(&gate, &policy, 100).await, local_permit(&gate, &policy, 100).await)
    };
    let used = fleet.used(&policy).await[0];
    assert!(gate.settle(&small, &tokens(101)).await.unwrap());
    assert_eq!(
        (fleet.used(&policy).await[0], fleet.store.charges.load(Ordering::Relaxed)),
        (used, 0)
    );
    assert!(gate.settle(&large, &tokens(50_100)).await.unwrap());
    assert_eq!(fleet.used(&policy).await, [used + 50_000], "posted before settle answered");
    assert!(!gate.settle(&large, &tokens(50_100)).await.unwrap());
    assert_eq!(fleet.used(&policy).await, [used + 50_000], "and posted once");
    let wrong = gate.settle(&small, &Costs::new().with("bananas", 1)).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Invalid);
}

/// A permit that comes to another instance, or to the store itself, gives nothing back.
#[tokio::test]
async fn a_permit_of_an_unknown_block_gives_nothing_back() {
    let (fleet, policy) = (Fleet::new(), tokens_per_minute());
    let gate = fleet.instance();
    let permit = local_permit(&gate, &policy, 100).await;
    let used = fleet.used(&policy).await;
    let other = fleet.instance();
    assert!(!other.release(&permit).await.unwrap());
    assert!(!other.settle(&permit, &tokens(1)).await.unwrap());
    assert!(!fleet.store.gate.release(&permit).await.unwrap());
    assert_eq!(fleet.used(&policy).await, used);
    for _ in 0..2 {
        other.settle(&permit, &tokens(150)).await.unwrap();
        assert_eq!(fleet.used(&policy).await, [used[0] + 50], "what it cost more is posted once");
    }
    assert_eq!(gate.renew(&permit).await.unwrap(), permit);
}

#[tokio::test]
async fn a_permit_says_until_when_it_is_to_be_used() {
    let margin = Span::from_secs(2);
    let limit = Limit::new("tpm", "tokens", RollingWindow::new(100_000, Span::from_mins(1)));
    let (fleet, policy) = (Fleet::new(), leased_for(TTL, [limit.margin(margin)]));
    let gate = fleet.instance();
    let first = local_permit(&gate, &policy, 10).await;
    fleet.clock.advance(Span::from_millis(30));
    let later = local_permit(&gate, &policy, 10).await;
    assert_eq!(first.use_by(), Some(first.grant().at + margin));
    assert_eq!(later.use_by(), Some(fleet.clock.now() + margin));
}

#[tokio::test]
async fn closing_stops_this_instance_at_once_and_the_others_within_the_ttl() {
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(10_000, Span::from_mins(1))));
    let (here, there) = (fleet.instance(), fleet.instance());
    for gate in [&here, &there] {
        for _ in 0..100 {
            ask(gate, &policy).await;
        }
    }
    let until = fleet.clock.now() + Span::from_secs(30);
    assert!(here.close_until(&Ask::new(&policy, "alice"), "only", until).await.unwrap());
    assert_eq!(ask(&here, &policy).await.denial().unwrap().wait, Wait::Until(until));
    fleet.pass(TTL).await;
    assert_eq!(ask(&there, &policy).await.denial().unwrap().wait, Wait::Until(until));
}

#[tokio::test]
async fn a_reset_forgets_the_blocks_too() {
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(1_000, Span::from_mins(1))));
    let gate = fleet.instance();
    for _ in 0..500 {
        ask(&gate, &policy).await;
    }
    assert!(gate.reset(&policy, "alice").await.unwrap());
    assert_eq!(fleet.used(&policy).await, [0]);
    let (permits, _) = drain(&gate, &policy).await;
    assert_eq!(permits.len(), 1_000, "no more than the limit after it");
}

#[tokio::test]
async fn asks_that_cannot_be_leased_go_to_the_store_as_they_are() {
    let minute = Span::from_mins(1);
    let jobs = Limit::new("jobs", "jobs", Concurrency::new(500, minute));
    let rate = || Limit::new("rate", "requests", RollingWindow::new(500, minute));
    let policies = [
        leased_for(TTL, [rate(), jobs]),
        leased(RollingWindow::new(5, minute)),
        Policy::new("test", [rate()]).unwrap(),
        Policy::builder("test").limit(rate()).block_ttl(TTL).shadow(true).build().unwrap(),
    ];
    for policy in policies {
        let fleet = Fleet::new();
        let gate = fleet.instance();
        for asked in 1..=5 {
            assert!(!ask(&gate, &policy).await.permit().unwrap().is_local());
            assert_eq!(fleet.used(&policy).await[0], asked, "{policy:?}");
        }
    }
    // With an id, a repeat is recognised at any instance.
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(500, minute)));
    let again = Ask::new(&policy, "alice").id("again");
    let (here, there) = (fleet.instance(), fleet.instance());
    let first = here.acquire(&again).await.unwrap().permit().unwrap();
    assert_eq!(there.acquire(&again).await.unwrap().permit().unwrap().grant(), first.grant());
}

/// Promise 5 for leases: the answer gets lost, the same lease is sent again, and it is charged once.
#[tokio::test]
async fn a_lost_answer_is_asked_for_again_and_charged_once() {
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(10_000, Span::from_mins(1))));
    let gate = fleet.instance();
    fleet.store.lose.store(1, Ordering::Relaxed);
    assert!(ask(&gate, &policy).await.is_admitted(), "one loss is not seen");
    fleet.store.lose.store(2, Ordering::Relaxed);
    let error = gate.acquire(&Ask::new(&policy, "alice")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(ask(&gate, &policy).await.is_admitted());
    gate.shutdown().await;
    assert_eq!(fleet.used(&policy).await, [2], "the lease that got lost was found again");
}

#[tokio::test]
async fn those_who_wait_for_a_lease_are_served_in_order_by_one_lease() {
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(10_000, Span::from_mins(1))));
    let gate = Arc::new(fleet.instance());
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let waiting: Vec<_> = (0..20)
        .map(|number| {
            let (gate, policy, order) = (Arc::clone(&gate), policy.clone(), Arc::clone(&order));
            tokio::spawn(async move {
                assert!(ask(&*gate, &policy).await.is_admitted());
                order.lock().unwrap().push(number);
            })
        })
        .collect();
    for task in waiting {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    assert!(fleet.store.writes() <= 3, "{} writes", fleet.store.writes());
}

#[tokio::test]
async fn changed_numbers_stop_the_blocks_of_the_old_ones() {
    let rule = |limit| leased(RollingWindow::new(limit, Span::from_mins(1)));
    let (fleet, old, new) = (Fleet::new(), rule(1_000), rule(400));
    let gate = fleet.instance();
    for _ in 0..400 {
        assert!(ask(&gate, &old).await.is_admitted());
    }
    assert!(ask(&gate, &new).await.denial().is_some(), "400 of 400 are spent");
}

#[tokio::test]
async fn more_subjects_than_there_is_room_for_go_to_the_store() {
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(1_000, Span::from_mins(1))));
    let gate = fleet.with(LeasedOptions { subjects_max: 1, ..LeasedOptions::default() });
    for _ in 0..20 {
        for subject in 0..100 {
            let ask = Ask::new(&policy, format!("subject-{subject}"));
            assert!(gate.acquire(&ask).await.unwrap().is_admitted());
        }
    }
}

#[tokio::test]
async fn an_observer_hears_of_every_block() {
    #[derive(Debug, Default)]
    struct Heard {
        asked: AtomicU64,
        taken: AtomicU64,
        unspent: AtomicU64,
    }
    impl Observer for Heard {
        fn observe(&self, event: &Event<'_>) {
            let requests = |amounts: &Amounts| amounts.at(0);
            match event {
                Event::BlockAsked { .. } => count(&self.asked),
                Event::BlockReturned { taken, unspent, .. } => {
                    self.taken.fetch_add(requests(taken), Ordering::Relaxed);
                    self.unspent.fetch_add(requests(unspent), Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(10_000, Span::from_mins(1))));
    let heard = Arc::new(Heard::default());
    let observer: Arc<dyn Observer> = heard.clone();
    let gate = fleet.with(LeasedOptions { observer: Some(observer), ..LeasedOptions::default() });
    let mut local = 0;
    for _ in 0..500 {
        local += u64::from(ask(&gate, &policy).await.permit().unwrap().is_local());
    }
    gate.shutdown().await;
    let [asked, taken, unspent] =
        [&heard.asked, &heard.taken, &heard.unspent].map(|number| number.load(Ordering::Relaxed));
    assert_eq!(asked, fleet.store.acquires.load(Ordering::Relaxed));
    assert_eq!(
        taken - unspent,
        local,
        "what was spent of the blocks is what was admitted from them"
    );
}
