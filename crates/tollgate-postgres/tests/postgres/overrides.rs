//! The overrides in a table: what every keeper of them does, on connections of their own.

use std::sync::Arc;

use tollgate_conformance::overrides::check;
use tollgate_postgres::Postgres;

use crate::TestDatabase;

#[tokio::test(flavor = "multi_thread")]
async fn the_overrides_in_a_table_are_kept() {
    let database = TestDatabase::new();
    let one = Postgres::open(database.options()).await.unwrap();
    let other = Postgres::open(database.options().connections_max(1)).await.unwrap();
    check(Arc::new(one), Arc::new(other)).await;
}
