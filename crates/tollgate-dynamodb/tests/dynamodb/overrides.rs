//! The overrides on a table: what every keeper of them does, on connections of their own.

use std::sync::Arc;

use tollgate_dynamodb::DynamoDb;
use tollgate_testing::overrides::check;

use crate::Desk;

#[tokio::test(flavor = "multi_thread")]
async fn the_overrides_on_a_table_are_kept() {
    let desk = Desk::new().await;
    let one = DynamoDb::connect(desk.options()).await.unwrap();
    let other = DynamoDb::connect(desk.options()).await.unwrap();
    check(Arc::new(one), Arc::new(other)).await;
}
