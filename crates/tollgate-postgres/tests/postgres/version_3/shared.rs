//! Programs of both versions on one database, and an upgrade while they run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate::clock::ManualClock;
use tollgate::core::{ChargeRecord, Grant};
use tollgate::{Ask, Clock, Costs, ErrorKind, GateExt, Limit, Permit, Policy, Span, TokenBucket};
use tollgate_postgres::Postgres;

use super::super::{acquire, hourly, used};
use super::{TestDatabase, story};

/// A call of the function that a program of version 3 asks with, for one request under [`hourly`].
fn old_ask(policy: &Policy, limit: u64, id: &str, now: &str) -> String {
    let shape: String =
        policy.with_exact_logs().shape_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "tollgate.spend('hourly', 's', '\\x{shape}', ARRAY[3, 1, {limit}, 3600000000, 0, 0, 0, 0]::bigint[], \
         ARRAY[1]::bigint[], {id}, 120000000, {now}, NULL, true)"
    )
}

/// Asks of both versions in turns admit exactly the limit, and see each other's charges at once.
#[tokio::test]
async fn both_versions_in_turns_admit_exactly_the_limit() {
    let (database, clock) = (TestDatabase::empty_of_version_3(), ManualClock::new());
    let gate = database.gate_3_by(&clock).await;
    // A grid in this version, an exact log in the other.
    for limit in [7, 129] {
        let policy = hourly(limit);
        database.psql("DELETE FROM tollgate.entries");
        let mut admitted = 0;
        for turn in 0..limit + 3 {
            clock.advance(Span::from_millis(10));
            let goes = if turn % 2 == 0 {
                acquire(&gate, &policy, "s").await.is_admitted()
            } else {
                let now = clock.now().as_micros().to_string();
                database.psql(&format!("SELECT ({})[1]", old_ask(&policy, limit, "NULL", &now)))
                    == "1"
            };
            admitted += u64::from(goes);
            assert_eq!(used(&gate, &policy, "s").await, admitted);
        }
        assert_eq!(admitted, limit);
        assert_eq!(database.psql("SELECT revision - at_us < 0 FROM tollgate.entries"), "t");
    }
}

/// A repeat is recognised by the other version, whichever was asked first, and a release forgets the id for both.
#[tokio::test]
async fn ids_are_recognised_by_both_versions() {
    let (database, clock) = (TestDatabase::empty_of_version_3(), ManualClock::new());
    let (gate, policy) = (database.gate_3_by(&clock).await, hourly(100));
    let now = clock.now().as_micros().to_string();
    let old = |id: &str| {
        database.psql(&format!("SELECT ({})[1]", old_ask(&policy, 100, &format!("'{id}'"), &now)))
    };
    let ask = |id: &'static str| Ask::new(&policy, "s").id(id);
    let admit = async |id| gate.acquire(&ask(id)).await.unwrap().into_permit().unwrap();
    let ours: Permit = admit("ours").await;
    assert_eq!((old("ours").as_str(), old("theirs").as_str()), ("0", "1"));
    let theirs = admit("theirs").await;
    assert_eq!(used(&gate, &policy, "s").await, 2);
    let dearer = ask("theirs").cost("requests", 2);
    assert_eq!(gate.acquire(&dearer).await.unwrap_err().kind(), ErrorKind::Conflict);
    // A permit that another version sealed has no id.
    assert!(gate.release(&theirs.clone().with_id(None::<&str>)).await.unwrap());
    assert!(gate.release(&ours).await.unwrap());
    assert_eq!((old("ours").as_str(), used(&gate, &policy, "s").await), ("1", 1));
    assert_ne!(admit("theirs").await.grant(), theirs.grant());
    assert_eq!(used(&gate, &policy, "s").await, 2);

    // A row stays as long as its ids, and a permit without its id forgets it after an upgrade, too.
    let fast = Policy::new("fast", [Limit::new("only", "requests", TokenBucket::per_second(100))]);
    let fast = fast.unwrap();
    let ask = Ask::new(&fast, "s").id("one");
    let first = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    clock.advance(Span::from_secs(100));
    assert_eq!(gate.clean_up(100).await.unwrap(), 0);
    let again = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    assert_eq!(again.grant(), first.grant());
    database.gate_by(&clock).await;
    for _ in 0..2 {
        let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
        let again = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
        assert_eq!(again.grant(), permit.grant());
        assert!(gate.release(&permit.with_id(None::<&str>)).await.unwrap());
    }
    assert_eq!(database.psql("SELECT count(*) FROM tollgate.ids"), "0");
}

/// A row of version 3 holds 1,024 ids and 256 runs of settled permits: one id more is refused, and a run more drops the
/// oldest, up to which permits get nothing back.
#[tokio::test]
async fn a_row_holds_what_version_3_reads_and_no_more() {
    let (database, clock) = (TestDatabase::empty_of_version_3(), ManualClock::new());
    let (gate, policy) = (database.gate_3_by(&clock).await, hourly(100));
    let now = clock.now().as_micros();
    let mut permits = Vec::new();
    for id in ["one", "two", "three"] {
        let ask = Ask::new(&policy, "s").id(id);
        permits.push(gate.acquire(&ask).await.unwrap().into_permit().unwrap());
    }
    database.psql(&format!(
        "UPDATE tollgate.entries SET \
             ids = ids || ARRAY(SELECT 'id-' || k FROM generate_series(1, 1020) k), \
             id_numbers = id_numbers || ARRAY(SELECT n FROM generate_series(1, 1020) k, \
                 unnest(ARRAY[{now}, {now} - k, {now} + 1000000, 1]) WITH ORDINALITY u(n, o) ORDER BY k, o), \
             settled = ARRAY(SELECT n FROM generate_series(0, 255) k, \
                 unnest(ARRAY[{now} - 1000 + 2 * k, {now} - 1000 + 2 * k, {now}]) WITH ORDINALITY u(n, o) ORDER BY k, o)"
    ));
    let ids = async |id: &'static str| gate.acquire(&Ask::new(&policy, "s").id(id)).await;
    assert!(ids("the last").await.unwrap().is_admitted());
    let error = ids("one more").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
    assert!(error.to_string().contains("format = 3"), "{error}");
    assert_eq!(ids("one").await.unwrap().into_permit().unwrap().grant(), permits[0].grant());
    clock.advance(Span::from_secs(1));
    assert!(ids("one more").await.unwrap().is_admitted());
    assert_eq!(database.psql("SELECT cardinality(ids) FROM tollgate.entries"), "5");

    assert!(gate.settle(&permits[1], &Costs::new()).await.unwrap());
    let kept =
        database.psql("SELECT cardinality(settled) / 3, settled_floor FROM tollgate.entries");
    assert_eq!(kept, format!("256|{}", now - 1_000));
    let at = |stamp| {
        let ask = Ask::new(&policy, "s");
        let charge = ChargeRecord { at: permits[0].grant().at, stamp };
        Permit::new(&policy, "s", *ask.amounts(), Grant::new(charge, &policy, ask.amounts()))
    };
    assert_eq!(used(&gate, &policy, "s").await, 5);
    let too_old = gate.release(&at(now - 1_001)).await.unwrap_err();
    assert_eq!(too_old.kind(), ErrorKind::Expired);
    assert!(gate.release(&at(now - 999)).await.unwrap());
    assert_eq!(used(&gate, &policy, "s").await, 4);
}

/// Many asks of both versions at once on one row: all are answered, and exactly the limit is admitted. Two programs of version 3
/// hold the lock of the row in turns, so one that only raced them would lose every time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_row_serves_both_versions() {
    let (database, policy) = (TestDatabase::empty_of_version_3(), hourly(500));
    let (gate, other) = (Arc::new(database.gate_3().await), database.gate_3().await);
    database.psql("CREATE TABLE admitted (answer bigint)");
    let old = format!(
        "DO $$ BEGIN FOR i IN 1 .. 300 LOOP \
             INSERT INTO admitted SELECT ({})[1]; PERFORM pg_sleep(0.002); COMMIT; \
         END LOOP; END $$",
        old_ask(&policy, 500, "NULL", "NULL")
    );
    let (server, name) = (database.server.clone(), database.name.clone());
    let old = [old.clone(), old].map(|sql| {
        let (server, name) = (server.clone(), name.clone());
        tokio::task::spawn_blocking(move || server.psql(&name, &sql).unwrap())
    });
    let asks = |gate: Arc<Postgres>| {
        let policy = policy.clone();
        tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..40 {
                admitted += usize::from(acquire(&*gate, &policy, "s").await.is_admitted());
            }
            admitted
        })
    };
    let other = Arc::new(other);
    let tasks: Vec<_> =
        (0..8).map(|task| asks(Arc::clone(if task % 2 == 0 { &gate } else { &other }))).collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    for old in old {
        old.await.unwrap();
    }
    let theirs = database.psql("SELECT count(*) FROM admitted WHERE answer = 1");
    assert_eq!(admitted + theirs.parse::<usize>().unwrap(), 500, "theirs: {theirs}");
    assert_eq!(used(&*gate, &policy, "s").await, 500);
    assert_eq!(database.psql("SELECT count(*) FROM admitted WHERE answer NOT IN (0, 1)"), "0");
}

/// The tables are upgraded while a gate with `format = 3` is busy: its asks wait, or fail as contended where that takes a
/// busy machine too long, it goes on in the new tables, and both gates together admit exactly the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gate_goes_on_across_an_upgrade() {
    let (database, policy) = (TestDatabase::empty_of_version_3(), hourly(400));
    let old = Arc::new(database.gate_3().await);
    let (begun, enough) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Notify::new()));
    let asks = |gate: Arc<Postgres>, begun: Arc<AtomicUsize>, enough: Arc<tokio::sync::Notify>| {
        let policy = policy.clone();
        tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..100 {
                let decision = loop {
                    match gate.acquire(&Ask::new(&policy, "s")).await {
                        Err(error) if error.kind() == ErrorKind::Contended => {}
                        decided => break decided.unwrap(),
                    }
                };
                admitted += usize::from(decision.is_admitted());
                if begun.fetch_add(1, Ordering::Relaxed) == 100 {
                    enough.notify_one();
                }
            }
            admitted
        })
    };
    let mut tasks: Vec<_> =
        (0..4).map(|_| asks(Arc::clone(&old), Arc::clone(&begun), Arc::clone(&enough))).collect();
    enough.notified().await;
    assert_eq!(old.format(), 3);
    let newest = Arc::new(database.gate().await);
    tasks.push(asks(Arc::clone(&newest), begun, enough));
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    assert_eq!((admitted, old.format(), database.version().as_str()), (400, 4, "4"));
    assert_eq!(used(&*old, &policy, "s").await, 400);
    assert!(!acquire(&*old, &policy, "s").await.is_admitted());
}

/// What was used, closed and settled before an upgrade counts for a gate that runs across it; permits from before can be
/// settled once.
#[tokio::test]
async fn permits_from_before_an_upgrade_are_settled_once() {
    let (database, clock) = (TestDatabase::empty_of_version_3(), ManualClock::new());
    let gate = database.gate_3_by(&clock).await;
    story::tell(&gate, &clock).await;
    let policy = hourly(10);
    let permits = [acquire(&gate, &policy, "s").await, acquire(&gate, &policy, "s").await];
    let [settled, open] = permits.map(|decision| decision.into_permit().unwrap());
    assert!(gate.release(&settled).await.unwrap());
    let newest = database.gate_by(&clock).await;
    assert!(!gate.release(&settled).await.unwrap());
    assert!(newest.release(&open).await.unwrap());
    assert!(!gate.release(&open).await.unwrap());
    assert_eq!(used(&gate, &policy, "s").await, 0);
}
