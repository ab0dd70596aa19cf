//! The tower layer: clones share the limit, and a denial never reaches the service.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::layer::{GateLayer, GatedError};
use tollgate::{Ask, GateExt, Limit, Policy, Span, TokenBucket};
use tower::{Layer, ServiceExt, service_fn};

use crate::{memory, policy};

#[tokio::test]
async fn clones_share_the_limit_and_denials_never_reach_the_service() {
    let (gate, clock) = memory();
    let limit = policy(TokenBucket::per_minute(5));
    let layer = GateLayer::new(gate, move |subject: &String| {
        Ask::new(&limit, subject.as_str()).into_owned()
    });
    let reached = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&reached);
    let service = layer.layer(service_fn(move |subject: String| {
        counter.fetch_add(1, Ordering::Relaxed);
        async move { Ok::<_, Infallible>(subject) }
    }));
    let calls = (0..64).map(|_| tokio::spawn(service.clone().oneshot("alice".to_owned())));
    let mut denied = 0;
    for call in calls.collect::<Vec<_>>() {
        match call.await.unwrap() {
            Ok(answer) => assert_eq!(answer, "alice"),
            Err(GatedError::Denied(denial)) => {
                assert_eq!(denial.retry_after(), Some(Span::from_secs(12)));
                denied += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((reached.load(Ordering::Relaxed), denied), (5, 59));
    let error = service.clone().oneshot("alice".to_owned()).await.unwrap_err();
    assert_eq!(error.to_string(), "denied by limit \"only\" of policy \"test\"; try again in 12s");
    clock.advance(Span::from_secs(12));
    assert!(service.oneshot("alice".to_owned()).await.is_ok());
}

#[tokio::test]
async fn what_the_gate_cannot_decide_and_what_the_service_fails_are_told_apart() {
    let (gate, _clock) = memory();
    let limit = policy(TokenBucket::per_minute(5));
    let layer = GateLayer::new(gate, move |subject: &String| {
        Ask::new(&limit, subject.clone()).into_owned()
    });
    let service =
        layer.layer(service_fn(|_: String| async { Err::<(), _>(std::io::Error::other("down")) }));
    assert!(matches!(service.clone().oneshot(String::new()).await, Err(GatedError::Gate(_))));
    assert!(matches!(service.oneshot("alice".to_owned()).await, Err(GatedError::Inner(_))));
}

/// Requests of two users of one team, in many tasks: the team's limit binds, and a refused request takes nothing from its user.
#[tokio::test]
async fn a_request_with_several_charges_takes_all_or_nothing() {
    let (gate, _clock) = memory();
    let limit = |name: &str, most| {
        let rule = TokenBucket::per_minute(1).burst(most);
        Policy::new(name, [Limit::new("rate", "requests", rule)]).unwrap()
    };
    let (user, team) = (limit("user", 100), limit("team", 7));
    let policies = (user.clone(), team.clone());
    let layer = GateLayer::new(gate.clone(), move |name: &String| {
        Ask::new(&policies.0, name.as_str()).and(&policies.1, "t7").into_owned()
    });
    let service = layer.layer(service_fn(|name: String| async { Ok::<_, Infallible>(name) }));
    let calls = (0..40).map(|call| {
        let name = if call % 2 == 0 { "ann" } else { "bob" };
        tokio::spawn(service.clone().oneshot(name.to_owned()))
    });
    let mut admitted = 0;
    for call in calls.collect::<Vec<_>>() {
        match call.await.unwrap() {
            Ok(_) => admitted += 1,
            Err(GatedError::Denied(denial)) => assert_eq!(denial.binding_charge(), Some(1)),
            Err(other) => panic!("{other}"),
        }
    }
    let used = async |policy, subject| gate.standing(policy, subject).await.unwrap()[0].used;
    let users = used(&user, "ann").await + used(&user, "bob").await;
    assert_eq!((admitted, users, used(&team, "t7").await), (7, 7, 7));
}
