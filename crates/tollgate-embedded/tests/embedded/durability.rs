//! What was admitted stays admitted: across reopening, under concurrency, with ids, in both durabilities.

use std::sync::Arc;

use tokio::sync::Barrier;
use tollgate::clock::ManualClock;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{
    Ask, Costs, Decision, Error, Gate, GateExt, Limit, Policy, RollingWindow, Span, Timestamp,
};
use tollgate_embedded::{Durability, Embedded};

use crate::{TestFolder, admitted, bucket, daily, pass, standing, used};

#[tokio::test]
async fn r004_5_state_survives_reopening() {
    let folder = TestFolder::new();
    let policy = daily(5);
    for round in 1..=5 {
        let gate = folder.open();
        assert!(admitted(&gate, &policy, "u1").await);
        assert_eq!(used(&gate, &policy, "u1").await, round);
        assert_eq!(used(&gate, &policy, "u2").await, 0, "another subject");
    }
    let gate = folder.open();
    let denial = gate.acquire(&Ask::new(&policy, "u1")).await.unwrap().into_denial().unwrap();
    drop(gate);
    let gate = folder.open();
    let again = gate.acquire(&Ask::new(&policy, "u1")).await.unwrap().into_denial().unwrap();
    assert_eq!(denial, again, "the same wait before and after");
    pass(&folder, denial.retry_after().unwrap());
    assert!(admitted(&gate, &policy, "u1").await);
}

/// 10,000 tokens, 3,750 taken by many callers at once, exactly 6,250 left, also after reopening.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r000_8_ten_thousand_less_3750_is_6250() {
    let folder = TestFolder::new();
    let rule = RollingWindow::new(10_000, Span::from_mins(1));
    let policy = Policy::new("tokens", [Limit::new("tpm", "tokens", rule)]).unwrap();
    let gate = Arc::new(folder.open());
    let asks = (0..75).map(|_| {
        let (gate, policy) = (Arc::clone(&gate), policy.clone());
        tokio::spawn(async move {
            let ask = Ask::new(&policy, "p7").cost("tokens", 50);
            assert!(gate.acquire(&ask).await.unwrap().is_admitted());
        })
    });
    for ask in asks.collect::<Vec<_>>() {
        ask.await.unwrap();
    }
    assert_eq!(standing(&*gate, &policy, "p7").await.remaining, 6_250);
    drop(gate);
    let gate = folder.open();
    assert_eq!(standing(&gate, &policy, "p7").await.remaining, 6_250);
    assert_eq!(used(&gate, &policy, "p7").await, 3_750);
}

/// How many of 4 × 64 asks on one key a store admits when 64 tasks ask at once.
async fn admissions<S: Gate>(store: S, policy: &Policy) -> usize {
    let gate = Arc::new(store);
    let tasks = (0..64).map(|_| {
        let (gate, policy) = (Arc::clone(&gate), policy.clone());
        tokio::spawn(async move {
            let mut count = 0;
            for _ in 0..4 {
                count += usize::from(admitted(&*gate, &policy, "p").await);
            }
            count
        })
    });
    let mut count = 0;
    for task in tasks.collect::<Vec<_>>() {
        count += task.await.unwrap();
    }
    count
}

/// The store as it would be without the lock: it reads, the others read too, and then each writes what it decided.
#[derive(Debug)]
struct Unlocked(Embedded, Barrier);

impl Gate for Unlocked {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let Operation::Acquire(ask) = operation else {
                return self.0.run(operation).await;
            };
            let (policy, subject) = (ask.policy(), ask.subject());
            let read = self.0.run(Operation::Standing { policy, subject }).await?;
            self.1.wait().await;
            match read {
                Outcome::Standings(standings) if 0 < standings[0].remaining => {
                    match self.0.run(Operation::Charge(ask)).await? {
                        Outcome::Permitted(permit) => {
                            Ok(Outcome::Decided(Decision::Admitted(permit)))
                        }
                        other => Ok(other),
                    }
                }
                _ => self.0.run(operation).await,
            }
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_tasks_on_one_key_admit_exactly_the_limit() {
    let policy = daily(50);
    for durability in [Durability::Strict, Durability::Relaxed] {
        let folder = TestFolder::new();
        let store =
            Embedded::open(&folder.path(), folder.options().durability(durability)).unwrap();
        assert_eq!(admissions(store, &policy).await, 50, "{durability:?}");
        assert_eq!(used(&folder.open(), &policy, "p").await, 50, "{durability:?}");
    }
    let folder = TestFolder::new();
    let store = Embedded::open(&folder.path(), folder.options()).unwrap();
    let sabotaged = admissions(Unlocked(store, Barrier::new(64)), &policy).await;
    assert!(50 < sabotaged, "the check would not notice a store without its lock");
}

/// Many keys with room for few in memory: what is forgotten there is loaded again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_keys_at_once_with_little_memory() {
    let folder = TestFolder::new();
    let policy = daily(3);
    let store = Embedded::open_with(&folder.path(), folder.options(), 64).unwrap();
    let gate = Arc::new(store);
    // Tasks that began with the same subject would go on together, and none would be loaded again.
    let tasks = (0..16).map(|task| {
        let (gate, policy) = (Arc::clone(&gate), policy.clone());
        tokio::spawn(async move {
            let mut count = 0;
            for subject in (0..300).map(|step| (step + 20 * task) % 300) {
                count += u32::from(admitted(&*gate, &policy, &format!("s{subject}")).await);
            }
            count
        })
    });
    let mut count = 0;
    for task in tasks.collect::<Vec<_>>() {
        count += task.await.unwrap();
    }
    assert_eq!(count, 900);
    let stats = gate.stats();
    assert!(stats.entries_cached <= 64 + 64, "{stats:?}");
    assert!(stats.commits <= stats.rows && stats.rows <= 900, "{stats:?}");
    assert!(300 < stats.loads, "nothing was ever forgotten: {stats:?}");
    drop(gate);
    assert_eq!(folder.rows(), 300);
}

#[tokio::test]
async fn r000_8_an_id_is_charged_once_across_a_restart() {
    let folder = TestFolder::new();
    let policy = daily(10);
    let ask = Ask::new(&policy, "p").cost("requests", 4).id("order-1");
    let first = folder.open().acquire(&ask).await.unwrap().into_permit().unwrap();
    let gate = folder.open();
    let second = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    assert_eq!(first.grant(), second.grant());
    assert_eq!(used(&gate, &policy, "p").await, 4);
    let other = Ask::new(&policy, "p").cost("requests", 5).id("order-1");
    let error = gate.acquire(&other).await.unwrap_err();
    assert_eq!(error.kind(), tollgate::ErrorKind::Conflict);
}

#[tokio::test]
async fn a_permit_is_settled_once_across_a_restart() {
    let folder = TestFolder::new();
    let policy = daily(10);
    let ask = Ask::new(&policy, "p").cost("requests", 8);
    let permit = folder.open().acquire(&ask).await.unwrap().into_permit().unwrap();
    let actual = Costs::new().with("requests", 3);
    assert!(folder.open().settle(&permit, &actual).await.unwrap());
    let gate = folder.open();
    assert!(!gate.settle(&permit, &actual).await.unwrap());
    assert!(!gate.release(&permit).await.unwrap());
    assert_eq!(used(&gate, &policy, "p").await, 3);
}

#[tokio::test]
async fn a_reset_entry_is_gone_at_once_and_after_reopening() {
    let folder = TestFolder::new();
    let policy = bucket();
    let gate = folder.open();
    assert!(!gate.reset(&policy, "p").await.unwrap(), "there was nothing");
    assert!(admitted(&gate, &policy, "p").await);
    assert!(gate.reset(&policy, "p").await.unwrap());
    assert!(!gate.reset(&policy, "p").await.unwrap());
    assert_eq!(used(&gate, &policy, "p").await, 0);
    drop(gate);
    let gate = folder.open();
    assert_eq!(used(&gate, &policy, "p").await, 0);
    assert!(!gate.reset(&policy, "p").await.unwrap());
    assert!(admitted(&gate, &policy, "p").await);
    assert_eq!(used(&gate, &policy, "p").await, 1);
}

#[tokio::test]
async fn closing_and_dropping_write_what_is_not_written() {
    for close in [true, false] {
        let folder = TestFolder::new();
        let policy = daily(100);
        let gate = folder.try_open(folder.options().durability(Durability::Relaxed)).unwrap();
        for _ in 0..50 {
            assert!(admitted(&gate, &policy, "p").await);
        }
        if close {
            gate.shutdown(Timestamp::MAX).await.unwrap();
            // The folder is free although the store still exists.
            assert_eq!(used(&folder.open(), &policy, "p").await, 50);
        }
        drop(gate);
        assert_eq!(used(&folder.open(), &policy, "p").await, 50);
    }
}

/// Enough rows for several checkpoints, which run beside the commits: the log is copied into the database file, and
/// nothing is missing.
#[tokio::test]
async fn a_long_log_is_copied_while_decisions_go_on() {
    let folder = TestFolder::new();
    let policy = daily(1);
    let gate = folder.try_open(folder.options().durability(Durability::Relaxed)).unwrap();
    for subject in 0..40_000 {
        assert!(admitted(&gate, &policy, &format!("{subject:0>250}")).await);
    }
    gate.shutdown(Timestamp::MAX).await.unwrap();
    assert_eq!(folder.rows(), 40_000);
    let bytes = std::fs::metadata(folder.file("entries.sqlite")).unwrap().len();
    assert!(40_000 * 250 / 2 < bytes, "only {bytes} bytes were copied");
    let gate = folder.open();
    for subject in (0..40_000).step_by(997) {
        assert!(!admitted(&gate, &policy, &format!("{subject:0>250}")).await);
    }
}

#[tokio::test]
async fn the_permit_key_is_made_once_per_folder() {
    let (folder, other) = (TestFolder::new(), TestFolder::new());
    let key = folder.open().permit_key();
    assert_eq!(folder.open().permit_key(), key);
    assert_ne!(other.open().permit_key(), key);
    assert_ne!(key, [0; 32]);
    let shown = format!("{:?}", folder.open());
    assert!(!shown.contains("permit_key"), "{shown}");
}

/// The store needs no runtime: a plain executor drives it.
#[test]
fn answers_need_no_runtime() {
    let folder = TestFolder { clock: ManualClock::new(), root: tempfile::tempdir().unwrap() };
    let gate = folder.open();
    let policy = daily(1);
    assert!(crate::child::block_on(admitted(&gate, &policy, "p")));
    assert!(!crate::child::block_on(admitted(&gate, &policy, "p")));
}

/// Ids are rows of their own: thousands of one subject are recognised, also by the next process, and go when they expire.
#[tokio::test]
async fn thousands_of_ids_of_one_subject_are_recognised_and_expire() {
    let (folder, policy) = (TestFolder::new(), daily(100_000));
    let gate = folder.open();
    let ask = |number: u32| Ask::new(&policy, "u1").id(format!("id-{number}"));
    let mut asked = tokio::task::JoinSet::new();
    let gate = Arc::new(gate);
    for number in 0..3_000 {
        let (gate, ask) = (Arc::clone(&gate), ask(number).into_owned());
        asked.spawn(async move { gate.acquire(&ask).await.unwrap().is_admitted() });
    }
    assert!(asked.join_all().await.into_iter().all(|admitted| admitted));
    assert_eq!(used(&gate, &policy, "u1").await, 3_000);
    gate.shutdown(Timestamp::MAX).await.unwrap();
    drop(gate);
    let gate = folder.open();
    for number in (0..3_000).step_by(37) {
        assert!(gate.acquire(&ask(number)).await.unwrap().is_admitted());
    }
    assert_eq!(used(&gate, &policy, "u1").await, 3_000, "nothing is charged twice");
    pass(&folder, Span::from_secs(121));
    for number in 0..1_500 {
        assert!(gate.acquire(&ask(10_000 + number)).await.unwrap().is_admitted());
    }
    gate.shutdown(Timestamp::MAX).await.unwrap();
    let ids: u32 =
        folder.database().query_row("SELECT count(*) FROM ids", [], |row| row.get(0)).unwrap();
    assert_eq!(ids, 1_500, "each commit removes twice as many expired ones as it writes");
}

/// In any order of settling each permit in flight gives back what it should, once.
#[tokio::test]
async fn a_hundred_thousand_permits_in_flight_settle_exactly() {
    let folder = TestFolder::new();
    let rule = RollingWindow::new(10_000_000, Span::from_hours(1));
    let policy = Policy::new("hot", [Limit::new("rph", "requests", rule)]).unwrap();
    let gate = folder.try_open(folder.options().durability(Durability::Relaxed)).unwrap();
    let ask = Ask::new(&policy, "u1").cost("requests", 10);
    let mut permits = Vec::new();
    for _ in 0..100_000 {
        permits.push(gate.acquire(&ask).await.unwrap().into_permit().unwrap());
    }
    for step in 0..permits.len() {
        let number = step * 7_919 % permits.len();
        let actual = Costs::new().with("requests", if number % 2 == 0 { 0 } else { 15 });
        assert!(gate.settle(&permits[number], &actual).await.unwrap(), "{number}");
    }
    assert_eq!(used(&gate, &policy, "u1").await, 50_000 * 15);
    gate.shutdown(Timestamp::MAX).await.unwrap();
    assert!(!folder.open().release(&permits[7]).await.unwrap(), "it is settled");
}
