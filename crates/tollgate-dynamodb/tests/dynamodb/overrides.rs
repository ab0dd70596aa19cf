//! The overrides on a table: what every keeper of them does, on connections of their own.

use std::sync::Arc;

use tollgate_conformance::overrides::check;
use tollgate_dynamodb::DynamoDb;

use crate::TestTable;

#[tokio::test(flavor = "multi_thread")]
async fn the_overrides_on_a_table_are_kept() {
    let table = TestTable::new().await;
    let one = DynamoDb::open(table.options()).await.unwrap();
    let other = DynamoDb::open(table.options()).await.unwrap();
    check(Arc::new(one), Arc::new(other)).await;
}
