//! The conformance suite on every job store.

use std::sync::Arc;

use tollgate_testkit::servers::Postgres;
use tollgate_translate::job::{ChunkUpdate, EmbeddedJobs, JobStore, PostgresJobs};

use crate::job_store_suite::{
    LEASE, at, claimed, conforms, futures, gives_up_silent_workers, job, never_reserves_too_much,
    never_shares_a_chunk, run,
};

#[tokio::test]
async fn r003_5_jobs_in_memory_and_in_a_folder_keep_their_promises() {
    conforms(&EmbeddedJobs::in_memory().unwrap()).await;
    let folder = tempfile::tempdir().unwrap();
    conforms(&EmbeddedJobs::open(folder.path()).unwrap()).await;
    // Opened again, it is all there.
    let again = EmbeddedJobs::open(folder.path()).unwrap();
    assert_eq!(again.jobs().await.unwrap().len(), 2);
}

#[tokio::test]
async fn r003_5_one_process_at_a_time_works_on_a_job_in_a_folder_and_takes_back_what_was_under_way()
{
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedJobs::open(folder.path()).unwrap();
    store.create(&job("a", &[run(0, 4)]), at(0)).await.unwrap();
    let hold = store.lock("a").await.unwrap();
    let claim = claimed(store.claim("a", "w", at(0)).await.unwrap());
    store.update(&claim, &ChunkUpdate::Sent { cost: 9, most: None }).await.unwrap();
    let other = EmbeddedJobs::open(folder.path()).unwrap();
    let error = other.lock("a").await.unwrap_err().to_string();
    assert!(error.contains("another process works on the job"), "{error}");
    assert!(other.is_active("a", at(0)).await.unwrap());
    drop(hold);
    assert!(!other.is_active("a", at(0)).await.unwrap());
    let _hold = other.lock("a").await.unwrap();
    let claim = claimed(other.claim("a", "v", at(1)).await.unwrap());
    assert_eq!(
        (claim.calls, claim.spent),
        (1, 9),
        "a call whose outcome is unknown counts as paid"
    );
}

#[test]
fn many_that_open_a_new_folder_at_once_all_can() {
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    EmbeddedJobs::open(folder.path()).map(drop).unwrap();
                });
            }
        });
    }
}

#[tokio::test]
async fn a_file_of_another_program_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.sqlite");
    std::fs::write(&path, b"not a database, but somebody's notes").unwrap();
    let error = EmbeddedJobs::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("cannot be used"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"not a database, but somebody's notes");
}

#[tokio::test]
async fn r003_11_jobs_in_postgres_keep_their_promises() {
    let server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let store = PostgresJobs::open(&url, "tollgate").await.unwrap().by_callers_clock();
    conforms(&store).await;
    // Made again, by many at once, the tables are found.
    let opened = futures(8, || {
        let url = url.clone();
        async move { PostgresJobs::open(&url, "tollgate").await.map(drop) }
    });
    for opened in opened.await {
        opened.unwrap();
    }
    for wrong in ["", "Tollgate", "a b", "1a", "x;drop"] {
        let error = PostgresJobs::open(&url, wrong).await.unwrap_err().to_string();
        assert!(error.contains("invalid schema"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r003_3_money_is_reserved_once_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Arc::new(EmbeddedJobs::open(folder.path()).unwrap()) as Arc<dyn JobStore>;
    never_reserves_too_much([open(), open(), open(), open()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r003_3_money_is_reserved_once_in_postgres() {
    let server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let mut stores: Vec<Arc<dyn JobStore>> = Vec::new();
    for _ in 0..4 {
        let store = PostgresJobs::open(&url, "tollgate").await.unwrap();
        stores.push(Arc::new(store.by_callers_clock()));
    }
    never_reserves_too_much(stores.try_into().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn r003_11_a_lease_ends_by_itself_and_many_claimers_never_share_a_chunk() {
    let server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let mut stores: Vec<Arc<dyn JobStore>> = Vec::new();
    for _ in 0..8 {
        let store = PostgresJobs::open(&url, "tollgate").await.unwrap();
        stores.push(Arc::new(store.by_callers_clock().with_lease(LEASE)));
    }
    gives_up_silent_workers(&*stores[0]).await;
    never_shares_a_chunk(stores).await;
}
