//! `tollgate dynamodb create-table`: creates the table of the configured store.

use std::path::Path;

use serde::Serialize;
use tollgate::ErrorKind;
use tollgate_dynamodb::create_table;

use crate::config;
use tollgate_config::StoreConfig;
use tollgate_config::open;
use tollgate_terminal::Failure;
use tollgate_terminal::output::{self, OutputFormat};

/// Creates the table of the configured store, if it is missing.
pub(crate) async fn create(config: Option<&Path>, format: OutputFormat) -> Result<(), Failure> {
    let StoreConfig::DynamoDb(config) = config::load(config)?.store else {
        return Err(Failure::new(
            ErrorKind::Invalid,
            "the configured store is not DynamoDB; name a file that has [store] kind = \"dynamodb\" with --config",
        ));
    };
    let created = create_table(open::dynamodb_options(&config)?).await?;
    #[derive(Serialize)]
    struct Made<'a> {
        table: &'a str,
        created: bool,
    }
    let table = &config.table;
    output::print(format, &Made { table, created }, || {
        let what = if created { "made" } else { "there already" };
        format!(
            "table {table}: {what}; paid by request, items are deleted 7 days after their last use"
        )
    })
}
