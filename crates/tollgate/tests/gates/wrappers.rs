//! Guards, shadow mode, overrides and observers.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tollgate::core::Wait;
use tollgate::gate::{AcquireError, BoxFuture, Operation, Outcome};
use tollgate::observe::{Event, Observed, Observer};
use tollgate::{
    Ask, Concurrency, Costs, Decision, Error, Gate, GateExt, Guard, Limit, Memory, Policy, Span,
    TokenBucket,
};

use crate::{memory, policy};

#[tokio::test]
async fn a_guard_releases_on_drop_settles_once_and_can_be_taken_apart() {
    let (memory, _clock) = memory();
    let gate: Arc<dyn Gate> = memory;
    let jobs = policy(Concurrency::new(2, Span::from_mins(5)));
    let ask = Ask::new(&jobs, "region");
    let free = || async { gate.standing(&jobs, "region").await.unwrap()[0].remaining };
    let first = Guard::acquire(&gate, &ask).await.unwrap();
    let second = Guard::acquire(&gate, &ask).await.unwrap();
    let denied = Guard::acquire(&gate, &ask).await.unwrap_err();
    assert!(matches!(denied, AcquireError::Denied(denial) if denial.asked == 1));
    drop(first);
    assert_eq!(free().await, 1, "dropping gave the slot back at once");
    second.settle(&Costs::new()).await.unwrap();
    assert_eq!(free().await, 2);
    let permit = Guard::acquire(&gate, &ask).await.unwrap().into_permit().unwrap();
    assert_eq!(free().await, 1, "a permit that was taken out is not released");
    Guard::new(&gate, permit).release().await.unwrap();
    assert_eq!(free().await, 2);
}

/// A gate whose operations wait for a message, and which reports that they are done.
#[derive(Debug)]
struct Delayed {
    memory: Arc<Memory>,
    start: Mutex<Option<tokio::sync::oneshot::Receiver<()>>>,
    done: mpsc::Sender<Outcome>,
}

impl Gate for Delayed {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        let start = self.start.lock().unwrap().take().expect("one operation");
        Box::pin(async move {
            start.await.expect("the sender is kept");
            let outcome = self.memory.run(operation).await?;
            self.done.send(outcome.clone()).expect("the receiver is kept");
            Ok(outcome)
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

#[test]
fn a_guard_releases_on_drop_without_a_runtime() {
    let (memory, _clock) = memory();
    let jobs = policy(Concurrency::new(2, Span::from_mins(5)));
    let acquired = memory.try_run(&Operation::Acquire(&Ask::new(&jobs, "region")));
    let Some(Ok(Outcome::Decided(Decision::Admitted(permit)))) = acquired else {
        unreachable!("there is room: {acquired:?}")
    };
    let ((start, started), (done, finished)) = (tokio::sync::oneshot::channel(), mpsc::channel());
    let start_once = Mutex::new(Some(started));
    let gate: Arc<dyn Gate> = Arc::new(Delayed { memory: memory.clone(), start: start_once, done });
    drop(Guard::new(&gate, permit));
    assert_eq!(memory.try_standing(&jobs, "region").unwrap()[0].used, 1, "the release waits");
    start.send(()).unwrap();
    let outcome = finished.recv_timeout(Duration::from_secs(60)).expect("the release finishes");
    assert_eq!(outcome, Outcome::Changed(true));
    assert_eq!(memory.try_standing(&jobs, "region").unwrap()[0].used, 0);
}

#[tokio::test]
async fn shadow_mode_admits_says_what_it_would_have_done_and_charges_nothing_for_it() {
    let (gate, _clock) = memory();
    let shadow = Policy::builder("new-limit")
        .limit(Limit::new("rate", "requests", TokenBucket::per_minute(2)))
        .shadow(true)
        .build()
        .unwrap();
    let ask = Ask::new(&shadow, "alice");
    for _ in 0..2 {
        let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
        assert!(permit.is_charged() && permit.shadow_denied.is_none());
    }
    let permit =
        gate.acquire(&ask).await.unwrap().into_permit().expect("shadow mode never refuses");
    let denial = permit.shadow_denied.as_ref().expect("it says what it would have done");
    assert!(matches!(denial.wait, Wait::Until(_)) && !permit.is_charged());
    let before = gate.standing(&shadow, "alice").await.unwrap();
    assert!(!gate.release(&permit).await.unwrap(), "nothing was charged, so nothing comes back");
    assert_eq!(gate.standing(&shadow, "alice").await.unwrap(), before);
}

#[tokio::test]
async fn an_override_applies_at_run_time_without_a_free_burst() {
    let (gate, _clock) = memory();
    let of = |capacity| vec![Limit::new("rate", "requests", TokenBucket::per_minute(capacity))];
    let plain = Policy::new("api", of(10)).unwrap();
    assert!(
        gate.acquire(&Ask::new(&plain, "vip").cost("requests", 10)).await.unwrap().is_admitted()
    );
    let raised = plain.with_override("vip", Some(of(15))).unwrap();
    let remaining = |policy: Policy, subject: &'static str| {
        let gate = Arc::clone(&gate);
        async move { gate.standing(&policy, subject).await.unwrap()[0].remaining }
    };
    assert_eq!(remaining(raised.clone(), "vip").await, 5, "what was used stays used");
    assert_eq!(remaining(raised.clone(), "other").await, 10);
    let six = Ask::new(&raised, "vip").cost("requests", 6);
    assert!(gate.acquire(&six).await.unwrap().into_denial().is_some());
    let removed = raised.with_override("vip", None).unwrap();
    assert_eq!(remaining(removed, "vip").await, 0);
    let wrong = plain
        .with_override("vip", Some(vec![Limit::new("x", "requests", TokenBucket::per_minute(1))]));
    assert!(wrong.unwrap_err().to_string().contains("must have the policy's own limits (rate)"));
}

#[tokio::test]
async fn an_observer_sees_everything_and_changes_nothing() {
    #[derive(Debug, Default)]
    struct Seen(Mutex<Vec<&'static str>>);
    impl Observer for Seen {
        fn observe(&self, event: &Event<'_>) {
            self.0.lock().unwrap().push(match event {
                Event::Admitted { .. } => "admitted",
                Event::Denied { .. } => "denied",
                Event::Settled { first: true, .. } => "settled",
                Event::Settled { first: false, .. } => "settled again",
                Event::Released { .. } => "released",
                Event::Renewed { .. } => "renewed",
                Event::Charged { .. } => "charged",
                Event::Closed { .. } => "closed",
                Event::Reset { .. } => "reset",
                Event::Failed { .. } => "failed",
                _ => "unknown",
            });
        }
    }
    let (memory, clock) = memory();
    let seen = Arc::new(Seen::default());
    let gate = Observed::new(memory, seen.clone(), Arc::new(clock.clone()));
    let policy = policy(TokenBucket::per_minute(1));
    let ask = Ask::new(&policy, "alice");
    let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    assert!(gate.acquire(&ask).await.unwrap().into_denial().is_some());
    assert!(matches!(
        gate.try_run(&Operation::Acquire(&ask)),
        Some(Ok(Outcome::Decided(Decision::Denied(_))))
    ));
    gate.settle(&permit, &Costs::new()).await.unwrap();
    gate.settle(&permit, &Costs::new()).await.unwrap();
    gate.release(&permit).await.unwrap();
    gate.renew(&permit).await.unwrap();
    gate.charge(&ask).await.unwrap();
    gate.close_until(&ask, "only", tollgate::Timestamp::MAX).await.unwrap();
    gate.reset(&policy, "alice").await.unwrap();
    assert!(gate.acquire(&ask.clone().cost("bananas", 1)).await.is_err());
    let expected = [
        "admitted",
        "denied",
        "denied",
        "settled",
        "settled again",
        "released",
        "renewed",
        "charged",
        "closed",
        "reset",
        "failed",
    ];
    assert_eq!(*seen.0.lock().unwrap(), expected);
}
