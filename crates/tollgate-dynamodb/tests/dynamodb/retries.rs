//! R000.15: what an observer hears of the requests behind each call.

use std::sync::{Arc, Mutex};

use tollgate::observe::{AttemptResult, Event, Observer};
use tollgate::{Ask, Costs, GateExt, TokenBucket};
use tollgate_testkit::servers::dynamodb::Misbehaviour;

use crate::{Dynamo, TestTable, admit, connect, deny, remaining, single};

#[derive(Debug, Default)]
struct Heard(Mutex<Vec<(u32, AttemptResult)>>);

impl Heard {
    fn take(&self) -> Vec<(u32, AttemptResult)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Observer for Heard {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Tried { policy, attempt, result, .. } = event {
            assert_eq!(policy.name(), "single");
            self.0.lock().unwrap().push((*attempt, *result));
        }
    }
}

async fn watched(table: &TestTable) -> (Dynamo, Arc<Heard>) {
    let heard = Arc::new(Heard::default());
    (connect(table.options().observer(heard.clone())).await, heard)
}

/// Every request is heard of, numbered within its call: answers (a denial is one), throttling, failures, lost races.
#[tokio::test]
async fn r000_15_every_request_is_heard_of() {
    use AttemptResult::{Answered, Failed, Raced, Throttled};
    let table = TestTable::new().await;
    let policy = single(TokenBucket::per_minute(2));
    let (gate, heard) = watched(&table).await;
    assert_eq!(heard.take(), [], "no policy asked for the first read");
    let ask = Ask::new(&policy, "p");
    table.server.proxy().next("UpdateItem", 1, &Misbehaviour::Throttle);
    table.server.proxy().next("UpdateItem", 1, &Misbehaviour::Fail);
    let permit = admit(&gate, &ask).await;
    assert_eq!(heard.take(), [(1, Throttled), (2, Failed), (3, Answered)]);

    // Another instance knows nothing of the item, so its first guess is wrong.
    let (other, other_heard) = watched(&table).await;
    admit(&other, &ask).await;
    assert_eq!(other_heard.take(), [(1, Raced), (2, Answered)]);
    deny(&other, &ask).await;
    assert_eq!(other_heard.take(), [(1, Answered)]);

    // The first has not seen that, so its swap comes too late once.
    assert!(gate.settle(&permit, &Costs::new()).await.unwrap());
    assert_eq!(heard.take(), [(1, Raced), (2, Answered)]);
    remaining(&gate, &policy, "p").await;
    assert_eq!(heard.take(), [(1, Answered)]);

    // A reply is lost after the write was applied: the second request finds that out.
    table.server.proxy().next("UpdateItem", 1, &Misbehaviour::DropReply);
    admit(&gate, &Ask::new(&policy, "q")).await;
    assert_eq!(heard.take(), [(1, Failed), (2, Answered)]);
    table.server.proxy().always(Some(("UpdateItem", Misbehaviour::Throttle)));
    gate.acquire(&Ask::new(&policy, "q")).await.unwrap_err();
    assert_eq!(heard.take(), (1..=6).map(|attempt| (attempt, Throttled)).collect::<Vec<_>>());
}
