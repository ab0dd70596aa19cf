//! Settled segments of a chunk stay settled.

use tollgate_testkit::servers::Postgres;
use tollgate_translate::job::{EmbeddedJobs, PostgresJobs};

use crate::job_store_suite::keeps_drafts;

#[tokio::test]
async fn r003_5_what_is_settled_of_a_chunk_stays_settled_in_memory() {
    keeps_drafts(&EmbeddedJobs::in_memory().unwrap()).await;
}

#[tokio::test]
async fn r003_11_what_is_settled_of_a_chunk_stays_settled_in_postgres() {
    let server = Postgres::start().unwrap();
    let url = server.url(&server.database().unwrap());
    let store = PostgresJobs::open(&url, "tollgate").await.unwrap().by_callers_clock();
    keeps_drafts(&store).await;
}
