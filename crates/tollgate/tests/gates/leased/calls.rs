//! Everything else that a gate is asked: closing, reset, what cannot be leased, lost answers, and whoever waits.

use super::*;
use tollgate::Timestamp;

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
    assert_eq!(ask(&here, &policy).await.into_denial().unwrap().wait, Wait::Until(until));
    fleet.pass(TTL).await;
    assert_eq!(ask(&there, &policy).await.into_denial().unwrap().wait, Wait::Until(until));
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
            assert!(!ask(&gate, &policy).await.into_permit().unwrap().is_local());
            assert_eq!(fleet.used(&policy).await[0], asked, "{policy:?}");
        }
    }
    // With an id, a repeat is recognised at any instance.
    let (fleet, policy) = (Fleet::new(), leased(RollingWindow::new(500, minute)));
    let again = Ask::new(&policy, "alice").id("again");
    let (here, there) = (fleet.instance(), fleet.instance());
    let first = here.acquire(&again).await.unwrap().into_permit().unwrap();
    assert_eq!(there.acquire(&again).await.unwrap().into_permit().unwrap().grant(), first.grant());
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
    gate.shutdown(Timestamp::MAX).await.unwrap();
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
    assert!(ask(&gate, &new).await.into_denial().is_some(), "400 of 400 are spent");
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
    let gate = fleet.instance().observer(observer);
    let mut local = 0;
    for _ in 0..500 {
        local += u64::from(ask(&gate, &policy).await.into_permit().unwrap().is_local());
    }
    gate.shutdown(Timestamp::MAX).await.unwrap();
    let [asked, taken, unspent] =
        [&heard.asked, &heard.taken, &heard.unspent].map(|number| number.load(Ordering::Relaxed));
    assert_eq!(asked, fleet.store.acquires.load(Ordering::Relaxed));
    assert_eq!(
        taken - unspent,
        local,
        "what was spent of the blocks is what was admitted from them"
    );
}
