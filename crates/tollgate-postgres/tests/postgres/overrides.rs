//! The overrides in a table: what every keeper of them does, on connections of their own.

use std::sync::Arc;

use tollgate_postgres::Postgres;
use tollgate_testing::overrides::check;

use crate::Desk;

#[tokio::test(flavor = "multi_thread")]
async fn the_overrides_in_a_table_are_kept() {
    let desk = Desk::new();
    let one = Postgres::open(desk.options()).await.unwrap();
    let other = Postgres::open(desk.options().connections_max(1)).await.unwrap();
    check(Arc::new(one), Arc::new(other)).await;
}
