//! Many processes at once on one subject.

use super::{TestDatabase, child, hourly, used};

/// Promise 1: 64 tasks in 8 processes that ask 320 times admit exactly the limit of 100 (R000.3, R000.8). They all
/// start on an empty database, so they also race for the tables and for the row.
#[tokio::test]
async fn eight_processes_admit_exactly_the_limit() {
    let database = TestDatabase::new();
    let children: Vec<_> = (0..8).map(|_| child::spawn(&database.url())).collect();
    let admitted: Vec<u64> = children.into_iter().map(child::admitted).collect();
    assert_eq!(admitted.iter().sum::<u64>(), child::LIMIT, "{admitted:?}");
    let gate = database.gate().await;
    assert_eq!(used(&gate, &hourly(child::LIMIT), "shared").await, child::LIMIT);
    assert_eq!(database.psql("SELECT count(*) FROM tollgate.migrations"), "4");
}
