//! Jobs in DynamoDB keep the promises of every store of jobs, on a server that speaks DynamoDB.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper of a test fails by panicking"
)]

#[path = "../translate/job_store_suite.rs"]
mod job_store_suite;

use std::sync::Arc;

use job_store_suite::{
    LEASE, at, claimed, conforms, done, futures, gives_up_silent_workers, job, keeps_drafts,
    never_reserves_too_much, never_shares_a_chunk, run,
};
use tollgate_dynamodb::{Options, create_table};
use tollgate_telemetry::sinks::aws::{AwsOptions, Keys};
use tollgate_testkit::servers::DynamoDb;
use tollgate_testkit::servers::dynamodb::Misbehaviour;
use tollgate_translate::job::dynamodb::{DynamoDbJobs, SETTINGS_BYTES_MAX};
use tollgate_translate::job::{ChunkUpdate, ClaimOutcome, JobState, JobStore};

const TABLE: &str = "jobs";

fn place(server: &DynamoDb) -> AwsOptions {
    AwsOptions {
        region: Some("eu-central-1".to_owned()),
        endpoint: Some(server.endpoint()),
        keys: Some(Keys { id: "test".to_owned(), secret: "test".to_owned() }),
    }
}

async fn open(server: &DynamoDb) -> DynamoDbJobs {
    DynamoDbJobs::open(TABLE, &place(server)).await.unwrap().with_lease(LEASE)
}

async fn stores<const N: usize>(server: &DynamoDb) -> [Arc<dyn JobStore>; N] {
    let mut stores: Vec<Arc<dyn JobStore>> = Vec::new();
    for _ in 0..N {
        stores.push(Arc::new(open(server).await));
    }
    stores.try_into().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r003_11_jobs_in_dynamodb_keep_their_promises() {
    for server in [DynamoDb::start().unwrap(), DynamoDb::start_ministack().unwrap()] {
        // The table is made by one of many that find it missing.
        let place = place(&server);
        let opened = futures(8, || {
            let place = place.clone();
            async move { DynamoDbJobs::open(TABLE, &place).await.map(drop) }
        });
        for opened in opened.await {
            opened.unwrap();
        }
        conforms(&open(&server).await).await;
    }
}

#[tokio::test]
async fn r003_11_what_is_settled_of_a_chunk_stays_settled_in_dynamodb() {
    let server = DynamoDb::start().unwrap();
    keeps_drafts(&open(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r003_3_money_is_reserved_once_in_dynamodb() {
    let server = DynamoDb::start().unwrap();
    never_reserves_too_much(stores(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r003_11_in_dynamodb_a_lease_ends_by_itself_and_many_claimers_never_share_a_chunk() {
    let server = DynamoDb::start().unwrap();
    let stores: [Arc<dyn JobStore>; 8] = stores(&server).await;
    gives_up_silent_workers(&*stores[0]).await;
    never_shares_a_chunk(stores.into()).await;
}

/// A document and a translation that are larger than an item come back whole.
#[tokio::test]
async fn r003_5_texts_larger_than_an_item_are_kept_whole_in_dynamodb() {
    let server = DynamoDb::start().unwrap();
    let store = open(&server).await;
    let document: Vec<u8> = (0..1_300_000_u32).map(|place| (place % 251) as u8).collect();
    let mut large = job("large", &[run(0, 2), run(2, 3)]);
    large.document.clone_from(&document);
    assert!(store.create(&large, at(0)).await.unwrap());
    let again = open(&server).await;
    assert!(again.document("large").await.unwrap().unwrap() == document);
    let texts = ["ß".repeat(300_000), "y".repeat(450_000)];
    let claim = claimed(store.claim("large", "w", at(1)).await.unwrap());
    assert!(store.update(&claim, &done(&[&texts[0], &texts[1]])).await.unwrap());
    let chunks = again.chunks("large").await.unwrap();
    assert!(chunks[0].texts == texts && chunks[1].texts.is_empty());
    // What is too large for the cache is not kept, and no error.
    store.cache(&[2; 32], &texts, at(2)).await.unwrap();
    assert_eq!(store.cached(&[2; 32]).await.unwrap(), None);
    large.id = "wordy".to_owned();
    large.settings = "x".repeat(SETTINGS_BYTES_MAX + 1);
    let error = store.create(&large, at(0)).await.unwrap_err().to_string();
    assert!(error.contains("use a smaller glossary"), "{error}");
    assert_eq!(store.job("wordy").await.unwrap(), None);
}

/// Of two creators of one job one succeeds, and the other leaves its chunks alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_creators_of_a_job_one_succeeds() {
    let server = DynamoDb::start().unwrap();
    let stores: [Arc<dyn JobStore>; 8] = stores(&server).await;
    let all = std::sync::Mutex::new(stores.to_vec());
    let made = futures(8, || {
        let mut all = all.lock().unwrap();
        let store = all.pop().unwrap();
        let size = u32::try_from(all.len()).unwrap() + 1;
        async move { (store.create(&job("a", &[run(0, size)]), at(0)).await.unwrap(), size) }
    });
    let won: Vec<u32> =
        made.await.into_iter().filter(|(is_made, _)| *is_made).map(|(_, size)| size).collect();
    assert_eq!(won.len(), 1);
    let chunks = stores[0].chunks("a").await.unwrap();
    assert_eq!(chunks.iter().map(|chunk| chunk.run).collect::<Vec<_>>(), [run(0, won[0])]);
}

/// A reply that is lost after the change was made is no refusal: the chunk is the claimer's, and the translation is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r003_5_a_lost_reply_of_dynamodb_changes_nothing_twice() {
    let server = DynamoDb::start().unwrap();
    let store = open(&server).await;
    store.create(&job("a", &[run(0, 1), run(1, 2)]), at(0)).await.unwrap();
    let lost = Misbehaviour::DropReply;
    server.proxy().next("UpdateItem", 1, &lost);
    let first = claimed(store.claim("a", "w", at(1)).await.unwrap());
    assert_eq!(first.run, run(0, 1));
    let steps = [
        ("TransactWriteItems", ChunkUpdate::Sent { cost: 5, most: Some(20) }),
        ("UpdateItem", done(&["un"])),
    ];
    for (operation, step) in steps {
        server.proxy().next(operation, 1, &lost);
        assert!(store.update(&first, &step).await.unwrap(), "{step:?}");
    }
    let counts = store.counts("a").await.unwrap();
    assert_eq!((counts.calls, counts.cost, counts.done), (1, 7, 1));
    server.proxy().next("UpdateItem", 1, &lost);
    assert!(store.set_state("a", &JobState::Cancelled, at(2)).await.unwrap());
    assert!(matches!(store.claim("a", "w", at(3)).await.unwrap(), ClaimOutcome::Halted(_)));
}

#[tokio::test]
async fn a_table_that_cannot_be_used_is_named_with_what_to_do() {
    let server = DynamoDb::start().unwrap();
    let gate = Options::new("gate").region("eu-central-1").credentials("test", "test");
    create_table(gate.endpoint(server.endpoint())).await.unwrap();
    let error = DynamoDbJobs::open("gate", &place(&server)).await.unwrap_err().to_string();
    assert!(error.contains("has other keys than pk and sk"), "{error}");
    let store = open(&server).await;
    server.proxy().next("Query", 1, &Misbehaviour::Refuse("AccessDeniedException".to_owned()));
    let error = store.jobs().await.unwrap_err().to_string();
    assert!(
        error.contains("table \"jobs\"") && error.contains("allow dynamodb:GetItem"),
        "{error}"
    );
    let away = AwsOptions { endpoint: Some("http://127.0.0.1:9".to_owned()), ..place(&server) };
    let error = DynamoDbJobs::open(TABLE, &away).await.unwrap_err().to_string();
    assert!(error.contains("check endpoint, region and credentials"), "{error}");
}

/// A table that is throttled for a moment costs a moment: nothing fails, and nothing is done twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r003_11_a_throttled_table_is_asked_again() {
    let server = DynamoDb::start().unwrap();
    let store = open(&server).await;
    for operation in ["BatchWriteItem", "PutItem", "UpdateItem", "Query", "TransactWriteItems"] {
        server.proxy().next(operation, 2, &Misbehaviour::Throttle);
    }
    assert!(store.create(&job("a", &[run(0, 1), run(1, 2)]), at(0)).await.unwrap());
    let claim = claimed(store.claim("a", "w", at(1)).await.unwrap());
    let sent = ChunkUpdate::Sent { cost: 5, most: Some(20) };
    assert!(store.update(&claim, &sent).await.unwrap());
    assert!(store.update(&claim, &done(&["un"])).await.unwrap());
    let counts = store.counts("a").await.unwrap();
    assert_eq!((counts.calls, counts.cost, counts.done, counts.waiting), (1, 7, 1, 1));
}
