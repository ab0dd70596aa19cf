//! DynamoDB throttles one item or all of them, or answers late about one.

use std::time::Duration;

use tollgate_testkit::servers::dynamodb::Misbehaviour;
use tollgate_testkit::servers::{DynamoDb, eventually};

use super::{Assembled, lines, only};

/// Longer than an ask may take: three attempts and 1.5 s.
const LATE: Duration = Duration::from_secs(10);

/// The key of the item. The subject alone may also stand in the base64 of another item.
const HOT_KEY: &str = "open/hot";

fn start(dynamodb: &DynamoDb) -> Assembled {
    // On a busy machine every call is slow, which this test does not cover.
    let store = format!("{}attempt_timeout = \"2s\"\n", dynamodb.snippet());
    assert_eq!(Assembled::folder(&store).run("dynamodb create-table").code, 0);
    Assembled::start(&store)
}

/// Asks of the item's subject fail as contended, with `Retry-After`; every other subject is served.
#[test]
fn a_throttled_item_is_the_trouble_of_its_subject_alone() {
    let dynamodb = DynamoDb::start().expect("a server");
    let assembled = start(&dynamodb);
    assert_eq!(assembled.ask("open", "hot").0, 200);
    let throttled = Misbehaviour::Refuse("ThrottlingException".to_owned());
    dynamodb.proxy().always_about(Some((HOT_KEY, throttled)));
    let (hot, others) = assembled.crowd(8, || {
        for subject in ["one", "two"] {
            assembled.admits_five(subject);
            assert_eq!(assembled.ready().0, 200);
            // Long enough for asks of the item to have failed.
            assembled.is_contended();
        }
    });
    assert!(only(&hot, &[(503, "contended")]), "{hot:?}");
    assert!(only(&others, &[(200, "")]), "{others:?}");
    dynamodb.proxy().always_about(None);
    assert_eq!(assembled.ask("open", "hot").0, 200);
    let log = assembled.log();
    assert!(!log.contains("RateLimiterFallbackActivated"), "{log}");
    assert_eq!(lines(&log, "ERROR"), 0, "{log}");
}

/// A throttled item answers late; no other subject is affected, and no limit opens.
#[test]
fn a_late_item_is_the_trouble_of_its_subject_alone() {
    let dynamodb = DynamoDb::start().expect("a server");
    let assembled = start(&dynamodb);
    assert_eq!(assembled.ask("open", "hot").0, 200);
    dynamodb.proxy().always_about(Some((HOT_KEY, Misbehaviour::Delay(LATE))));
    let (hot, others) = assembled.crowd(8, || {
        for subject in ["one", "two"] {
            assembled.is_contended();
            assembled.admits_five(subject);
        }
    });
    assert!(only(&hot, &[(503, "contended")]), "{hot:?}");
    assert!(only(&others, &[(200, "")]), "{others:?}");
    let log = assembled.log();
    assert!(!log.contains("RateLimiterFallbackActivated"), "{log}");
}

/// When every item is throttled, the store has failed: each policy does what its `on_store_failure` says until a write goes
/// through again.
#[test]
fn a_throttled_table_is_a_failure_of_the_store() {
    let dynamodb = DynamoDb::start().expect("a server");
    let assembled = start(&dynamodb);
    assert_eq!(assembled.ask("closed", "alice").0, 200);
    let throttled = Misbehaviour::Refuse("ThrottlingException".to_owned());
    dynamodb.proxy().always(Some(("UpdateItem", throttled)));
    let (status, body) = assembled.ask("closed", "alice");
    assert_eq!((status, &body["kind"]), (503, &"unavailable".into()), "{body}");
    let (status, body) = assembled.ask("open", "alice");
    assert_eq!((status, &body["degraded"]), (200, &true.into()), "{body}");
    eventually(|| (assembled.ready().0 == 503).then_some(())).expect("it is not ready");
    dynamodb.proxy().always(None);
    let served = || (assembled.ask("closed", "alice").0 == 200).then_some(());
    eventually(served).expect("the store is asked again");
    eventually(|| (assembled.ready().0 == 200).then_some(())).expect("it is ready again");
    assembled.admits_five("one");
    let log = assembled.log();
    assert!(log.contains("RateLimiterFallbackActivated"), "{log}");
    assert!(log.contains("the store is available again"), "{log}");
}
