//! Asks with several charges: leased ones from blocks, the others by the store, all or none.

use std::sync::Mutex;

use tollgate::clock::ManualClock;

use super::*;

fn party(name: &str, limit: u64, ttl: Span) -> Policy {
    let limits = [Limit::new("rph", "requests", RollingWindow::new(limit, Span::from_hours(1)))];
    Policy::builder(name).limits(limits).block_ttl(ttl).build().unwrap()
}

/// What happens to an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// Nothing.
    None,
    /// The store does not get it.
    Refused,
    /// The store runs it, and the reply is lost.
    Lost,
    /// The store runs it, and the reply takes so long.
    Slow(Span),
}

/// A store in memory whose replies to asks without an id, which leases have, get lost or are slow on command.
#[derive(Debug)]
struct Troubled {
    memory: Arc<Memory>,
    clock: ManualClock,
    trouble: Mutex<Trouble>,
    calls: AtomicU64,
    /// What was charged without a reply, by policy and subject.
    unanswered: Mutex<Vec<(String, String, u64)>>,
}

/// The charges of an admitted ask, which nobody knows of until it is disarmed.
struct Unanswered<'a> {
    store: &'a Troubled,
    charges: Vec<(String, String, u64)>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.store.unanswered.lock().unwrap().append(&mut self.charges);
    }
}

impl Troubled {
    fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn set(&self, trouble: Trouble) {
        *self.trouble.lock().unwrap() = trouble;
    }

    async fn used(&self, policy: &Policy, subject: &str) -> u64 {
        self.memory.standing(policy, subject).await.unwrap()[0].used
    }

    fn unanswered(&self, policy: &Policy, subject: &str) -> u64 {
        let all = self.unanswered.lock().unwrap();
        let own = all.iter().filter(|(name, of, _)| name == policy.name() && of == subject);
        own.map(|(.., amount)| amount).sum()
    }

    async fn acquire_in_trouble(&self, ask: &Ask<'_>, trouble: Trouble) -> Result<Decision, Error> {
        let lost = || Error::new(ErrorKind::Unavailable, "the answer got lost");
        if trouble == Trouble::Refused {
            return Err(lost());
        }
        let decision = self.memory.acquire(ask).await?;
        let charges = ask.charges().filter(|_| decision.is_admitted()).map(|charge| {
            let (policy, amount) = (charge.policy().name().to_owned(), charge.amounts().at(0));
            (policy, charge.subject().to_owned(), amount)
        });
        let mut unanswered = Unanswered { store: self, charges: charges.collect() };
        match trouble {
            Trouble::Lost => return Err(lost()),
            Trouble::Slow(span) => self.clock.sleep_until(self.clock.now() + span).await,
            Trouble::None | Trouble::Refused => {}
        }
        unanswered.charges.clear();
        Ok(decision)
    }
}

impl Gate for Troubled {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        count(&self.calls);
        let trouble = *self.trouble.lock().unwrap();
        match operation {
            Operation::Acquire(ask) if ask.id_text().is_none() => Box::pin(async move {
                self.acquire_in_trouble(ask, trouble).await.map(Outcome::Decided)
            }),
            other => self.memory.run(other),
        }
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

type Gated = Arc<Leased<Arc<Troubled>>>;

fn troubled() -> (Arc<Troubled>, Gated, ManualClock) {
    let (memory, clock) = memory();
    let store = Arc::new(Troubled {
        memory,
        clock: clock.clone(),
        trouble: Mutex::new(Trouble::None),
        calls: AtomicU64::new(0),
        unanswered: Mutex::default(),
    });
    let options = LeasedOptions { skew: std::time::Duration::ZERO, ..LeasedOptions::default() };
    let gate = Leased::new(Arc::clone(&store), options, Arc::new(clock.clone()));
    (store, Arc::new(gate), clock)
}

async fn rest() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// Asks for `policy` alone until its block has room for some asks.
async fn warm(gate: &Gated, policy: &Policy, subject: &str) -> u64 {
    for asked in 1..=40 {
        let ask = Ask::new(policy, subject);
        let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
        rest().await;
        if permit.is_local() && 20 <= asked {
            return asked;
        }
    }
    panic!("no block was leased")
}

async fn shut_down(gate: &Gated) {
    gate.shutdown(tollgate::Timestamp::MAX).await.unwrap();
}

const HOT: Span = TTL;

fn hot(name: &str) -> Policy {
    party(name, 10_000, HOT)
}

fn cold(name: &str, limit: u64) -> Policy {
    party(name, limit, Span::ZERO)
}

#[tokio::test]
async fn blocks_give_the_leased_charges_and_the_store_decides_the_others() {
    let (store, gate, _) = troubled();
    let (account, user) = (hot("account"), cold("user", 2));
    let mut admitted = warm(&gate, &account, "acme").await;
    let ask = Ask::new(&user, "u1").and(&account, "acme");
    assert!(gate.try_acquire(&ask).unwrap().is_none());
    for admits in [true, true, false] {
        let used = store.used(&account, "acme").await;
        let decision = gate.acquire(&ask).await.unwrap();
        assert_eq!(decision.is_admitted(), admits);
        assert_eq!(store.used(&account, "acme").await, used, "the store charged the user alone");
        admitted += u64::from(admits);
        if let Decision::Admitted(permit) = decision {
            let local: Vec<bool> = permit.parts().map(|part| part.is_local()).collect();
            assert_eq!(local, [false, true]);
        }
    }
    shut_down(&gate).await;
    let sums = [store.used(&user, "u1").await, store.used(&account, "acme").await];
    assert_eq!(sums, [2, admitted], "a refused ask took nothing");
}

#[tokio::test]
async fn charges_that_are_all_leased_need_no_store() {
    let (store, gate, _) = troubled();
    let (team, account) = (hot("team"), hot("account"));
    let sums = [warm(&gate, &team, "t7").await, warm(&gate, &account, "acme").await];
    let calls = store.calls();
    let ask = Ask::new(&team, "t7").and(&account, "acme");
    let outcome = gate.try_run(&Operation::Acquire(&ask)).expect("it is decided at once");
    let Ok(Outcome::Decided(Decision::Admitted(permit))) = outcome else { panic!("{outcome:?}") };
    assert!(permit.parts().all(|part| part.is_local()));
    assert_eq!(gate.renew(&permit).await.unwrap().parts().count(), 2);
    assert_eq!(store.calls(), calls);
    shut_down(&gate).await;
    let used = [store.used(&team, "t7").await, store.used(&account, "acme").await];
    assert_eq!(used, sums.map(|sum| sum + 1));
}

/// Only the store recognises a repeat, and a block of one subject says nothing about another.
#[tokio::test]
async fn an_id_or_a_missing_block_sends_the_whole_ask_to_the_store() {
    let (store, gate, _) = troubled();
    let (team, account) = (hot("team"), hot("account"));
    let admitted = warm(&gate, &account, "acme").await;
    let used = store.used(&account, "acme").await;
    let both = Ask::new(&team, "t7").and(&account, "acme");
    let permit = gate.acquire(&both).await.unwrap().into_permit().unwrap();
    assert!(!permit.parts().any(|part| part.is_local()), "the team has no block");
    let named = Ask::new(&account, "acme").and(&team, "t8").id("call-1");
    for _ in 0..2 {
        let permit = gate.acquire(&named).await.unwrap().into_permit().unwrap();
        assert!(!permit.parts().any(|part| part.is_local()));
    }
    assert_eq!(store.used(&account, "acme").await, used + 2);
    shut_down(&gate).await;
    assert_eq!(store.used(&account, "acme").await, admitted + 2);
}

/// A parent that is never asked for alone gets blocks all the same.
#[tokio::test]
async fn asks_that_miss_a_block_often_lease_one() {
    let (store, gate, _) = troubled();
    let (team, account) = (hot("team"), hot("account"));
    let ask = Ask::new(&team, "t7").and(&account, "acme");
    let mut local = 0;
    for _ in 0..500 {
        let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
        local += u64::from(permit.parts().all(|part| part.is_local()));
        rest().await;
    }
    assert!(400 < local, "{local} of 500 were local");
    assert!(store.calls() < 60, "{} calls", store.calls());
    shut_down(&gate).await;
    assert_eq!([store.used(&team, "t7").await, store.used(&account, "acme").await], [500, 500]);
}

/// A rare ask takes no block that would lie unspent.
#[tokio::test]
async fn asks_that_miss_a_block_rarely_lease_none() {
    let (store, gate, clock) = troubled();
    let (team, account) = (hot("team"), hot("account"));
    let ask = Ask::new(&team, "t7").and(&account, "acme");
    for _ in 0..20 {
        assert!(gate.acquire(&ask).await.unwrap().is_admitted());
        clock.advance(TTL);
        rest().await;
    }
    assert_eq!(store.calls(), 20);
}

#[tokio::test]
async fn a_failed_lost_or_cancelled_call_gives_the_blocks_back() {
    let slow = Trouble::Slow(Span::from_secs(1));
    for (trouble, doubtful) in [(Trouble::Refused, 0), (Trouble::Lost, 1), (slow, 1)] {
        let (store, gate, _) = troubled();
        let (account, user) = (hot("account"), cold("user", 10));
        let admitted = warm(&gate, &account, "acme").await;
        store.set(trouble);
        let ask = Ask::new(&user, "u1").and(&account, "acme").cost("requests", 3).into_owned();
        let asking = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.acquire(&ask).await }
        });
        rest().await;
        assert_eq!(asking.is_finished(), trouble != slow);
        asking.abort();
        rest().await;
        store.set(Trouble::None);
        shut_down(&gate).await;
        assert_eq!(store.used(&account, "acme").await, admitted, "{trouble:?}");
        assert_eq!(store.used(&user, "u1").await, 3 * doubtful, "{trouble:?}: the strict side");
    }
}

/// The block ends while the store decides about the user. Spending it then would be late, so the store decides about both.
#[tokio::test]
async fn a_block_that_ends_while_the_store_decides_is_not_spent() {
    let (store, gate, clock) = troubled();
    let (account, user) = (hot("account"), cold("user", 10));
    let admitted = warm(&gate, &account, "acme").await;
    store.set(Trouble::Slow(TTL));
    let ask = Ask::new(&user, "u1").and(&account, "acme").into_owned();
    let asking = tokio::spawn({
        let gate = Arc::clone(&gate);
        async move { gate.acquire(&ask).await }
    });
    rest().await;
    store.set(Trouble::None);
    clock.advance(TTL);
    let permit = asking.await.unwrap().unwrap().into_permit().unwrap();
    assert!(!permit.parts().any(|part| part.is_local()));
    shut_down(&gate).await;
    let sums = [store.used(&user, "u1").await, store.used(&account, "acme").await];
    assert_eq!(sums, [1, admitted + 1], "and the first permit of the store was released");
}

#[tokio::test]
async fn each_charge_is_settled_where_it_was_taken() {
    let tokens = |actual: u64| Costs::new().with("requests", actual);
    for (actual, expected) in [(Some(0), 0), (Some(1), 1), (Some(7), 7), (None, 0)] {
        let (store, gate, _) = troubled();
        let (account, user) = (hot("account"), cold("user", 100));
        let admitted = warm(&gate, &account, "acme").await;
        let ask = Ask::new(&account, "acme").and(&user, "u1").cost("requests", 5);
        let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
        assert!(permit.is_local(), "the first charge is");
        for changes in [true, false] {
            let changed = match actual {
                Some(actual) => gate.settle(&permit, &tokens(actual)).await.unwrap(),
                None => gate.release(&permit).await.unwrap(),
            };
            assert_eq!(changed, changes, "{actual:?}");
        }
        shut_down(&gate).await;
        let sums = [store.used(&user, "u1").await, store.used(&account, "acme").await];
        assert_eq!(sums, [expected, admitted + expected], "{actual:?}");
    }
}

/// The actual costs of the ask leave a charge with costs of its own alone, and its own settle leaves the others alone.
#[tokio::test]
async fn a_charge_with_costs_of_its_own_is_settled_by_its_own_permit() {
    let (store, gate, _) = troubled();
    let (account, user) = (hot("account"), cold("user", 100));
    let admitted = warm(&gate, &account, "acme").await;
    let own = Costs::new().with("requests", 9);
    let ask = Ask::new(&account, "acme").cost("requests", 4).and_costing(&user, "u1", &own);
    let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    let flags: Vec<bool> = permit.parts().map(|part| part.has_own_costs()).collect();
    assert_eq!(flags, [false, true]);
    let part = permit.parts().nth(1).unwrap().into_owned();
    assert!(gate.settle(&part, &Costs::new().with("requests", 6)).await.unwrap());
    assert!(gate.settle(&permit, &Costs::new().with("requests", 2)).await.unwrap());
    shut_down(&gate).await;
    let sums = [store.used(&user, "u1").await, store.used(&account, "acme").await];
    assert_eq!(sums, [6, admitted + 2]);
    let wrong = gate.settle(&permit, &Costs::new().with("bananas", 1)).await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Invalid);
}

/// Slots are the store's, and are renewed there; the order of the charges stays.
#[tokio::test]
async fn slots_beside_a_block_are_renewed_at_the_store() {
    let (_, gate, clock) = troubled();
    let slots = Limit::new("jobs", "jobs", Concurrency::new(2, Span::from_mins(1)));
    let jobs = Policy::new("jobs", [slots]).unwrap();
    let account = hot("account");
    warm(&gate, &account, "acme").await;
    let ask = Ask::new(&account, "acme").and(&jobs, "p7").cost("jobs", 1);
    let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    assert!(permit.is_local());
    clock.advance(Span::from_secs(30));
    let renewed = gate.renew(&permit).await.unwrap();
    assert_eq!(renewed.expires_at(), Some(clock.now() + Span::from_mins(1)));
    let subjects: Vec<String> = renewed.parts().map(|part| part.subject().to_owned()).collect();
    assert_eq!(subjects, ["acme", "p7"]);
}

/// The indexes of a denial are those of the ask, also if the store saw a part of it.
#[tokio::test]
async fn a_denial_names_the_charges_of_the_whole_ask() {
    let (_, gate, _) = troubled();
    let (account, user, team) = (hot("account"), cold("user", 1), cold("team", 1));
    warm(&gate, &account, "acme").await;
    for policy in [&user, &team] {
        assert!(gate.acquire(&Ask::new(policy, "x")).await.unwrap().is_admitted());
    }
    let one = Ask::new(&account, "acme").and(&user, "x");
    let two = Ask::new(&user, "x").and(&account, "acme").and(&team, "x");
    for (ask, refused, binding) in [(one, vec![1], 1), (two, vec![0, 2], 0)] {
        let denial = gate.acquire(&ask).await.unwrap().into_denial().unwrap();
        assert_eq!(denial.binding_charge(), Some(binding));
        let joint = denial.joint.unwrap();
        let got: Vec<usize> = joint.refused.iter().map(|limit| limit.charge).collect();
        assert_eq!(got, refused);
        let named: Vec<&str> = joint.charges.iter().map(|charge| &*charge.policy).collect();
        let asked: Vec<&str> = ask.charges().map(|charge| charge.policy().name()).collect();
        assert_eq!(named, asked);
        assert!(joint.charges.iter().all(|charge| charge.limits.len() == 1));
    }
}

const SEEDS: u64 = 40;
const STEPS: usize = 80;

/// One task's account of an ask: its charges, and what they cost in the end, if it was admitted.
type Accounts = Arc<Mutex<Vec<(String, String, u64)>>>;

/// Random asks of up to four charges, of which some replies are lost or slow and some callers go away, while blocks end and
/// come back. Whatever happens, the store has in the end exactly what was admitted, and what nobody was told of.
async fn is_conserved(seed: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let (store, gate, clock) = troubled();
    let parties = [
        (cold("user", 40), "u1"),
        (cold("user", 40), "u2"),
        (cold("project", 60), "p"),
        (party("team", 2_000, TTL), "t"),
        (party("account", 4_000, Span::from_millis(70)), "acme"),
    ];
    let accounts = Accounts::default();
    let mut tasks = Vec::new();
    for _ in 0..STEPS {
        let trouble = match random.u32(..10) {
            0 => Trouble::Refused,
            1 => Trouble::Lost,
            2 | 3 => Trouble::Slow(Span::from_millis(random.u64(1..150))),
            _ => Trouble::None,
        };
        store.set(trouble);
        for _ in 0..random.u32(1..8) {
            let mut order: Vec<usize> = (0..parties.len()).collect();
            random.shuffle(&mut order);
            order.truncate(random.usize(1..=4));
            if order.iter().all(|party| *party < 3) {
                order.push(4);
            }
            let party = |index: usize| &parties[order[index]];
            let first = Ask::new(&party(0).0, party(0).1);
            let ask = (1..order.len())
                .fold(first, |ask, index| ask.and(&party(index).0, party(index).1))
                .cost("requests", random.u64(1..=3))
                .into_owned();
            let (gate, accounts) = (Arc::clone(&gate), Arc::clone(&accounts));
            let actual = [None, None, Some(0), Some(random.u64(1..=4))][random.usize(..4)];
            tasks.push(tokio::spawn(one(gate, ask, actual, accounts)));
        }
        rest().await;
        if random.u32(..4) == 0 {
            tasks[random.usize(..) % tasks.len()].abort();
        }
        clock.advance(Span::from_millis(random.u64(0..40)));
        rest().await;
    }
    store.set(Trouble::None);
    for _ in 0..20 {
        clock.advance(Span::from_millis(50));
        rest().await;
    }
    shut_down(&gate).await;
    let accounts = accounts.lock().unwrap().clone();
    for (policy, subject) in &parties {
        let own = accounts.iter().filter(|(name, of, _)| name == policy.name() && of == subject);
        let admitted: u64 = own.map(|(.., amount)| amount).sum();
        let (used, doubtful) =
            (store.used(policy, subject).await, store.unanswered(policy, subject));
        assert_eq!(used, admitted + doubtful, "seed {seed}: {subject} of {}", policy.name());
    }
    accounts.len() as u64
}

/// Asks, and settles or releases at once. What is admitted goes into the accounts before anything else can happen.
async fn one(gate: Gated, ask: Ask<'static>, actual: Option<u64>, accounts: Accounts) {
    let Ok(Decision::Admitted(permit)) = gate.acquire(&ask).await else { return };
    let charged = |amount: u64| {
        let entry =
            |part: &Permit| (part.policy().name().to_owned(), part.subject().to_owned(), amount);
        permit.parts().map(|part| entry(&part)).collect::<Vec<_>>()
    };
    let estimate = ask.amounts().at(0);
    let changed = match actual {
        None => Ok(false),
        Some(0) => gate.release(&permit).await,
        Some(actual) => gate.settle(&permit, &Costs::new().with("requests", actual)).await,
    };
    let amount = if changed.unwrap() { actual.unwrap_or(0) } else { estimate };
    accounts.lock().unwrap().extend(charged(amount));
}

#[tokio::test]
async fn whatever_fails_the_store_has_what_was_admitted() {
    let mut admitted = 0;
    for seed in 0..SEEDS {
        admitted += is_conserved(seed).await;
    }
    assert!(SEEDS * 100 < admitted, "{admitted} charges were admitted");
}
