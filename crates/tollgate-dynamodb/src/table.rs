//! The table: made on demand, paid by request, with its time to live switched on.

use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
    TableDescription, TableStatus, TimeToLiveSpecification,
};
use tollgate::{Error, ErrorKind};

use crate::client::{TableClient, pause};
use crate::item::{KEY, TTL};
use crate::options::Options;

/// How often a new table is looked at before giving up.
const LOOKS_MAX: u32 = 120;

/// Makes the table of `options` if it is missing: key `pk`, paid by request, with deletion by the attribute `ttl`. Says
/// whether it was made. Needs `dynamodb:CreateTable`, `DescribeTable` and `UpdateTimeToLive`, which a gate does not.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) with what is missing, [`Invalid`](ErrorKind::Invalid) for a wrong name.
pub async fn create_table(options: Options) -> Result<bool, Error> {
    let (client, _) = options.open().await?;
    let made = create(&client).await?;
    wait_until_active(&client).await?;
    switch_ttl_on(&client).await?;
    Ok(made)
}

async fn create(client: &TableClient) -> Result<bool, Error> {
    let key = AttributeDefinition::builder()
        .attribute_name(KEY)
        .attribute_type(ScalarAttributeType::S)
        .build()
        .map_err(build_failed)?;
    let schema = KeySchemaElement::builder()
        .attribute_name(KEY)
        .key_type(KeyType::Hash)
        .build()
        .map_err(build_failed)?;
    let request = client
        .client
        .create_table()
        .table_name(&client.target.table)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(key)
        .key_schema(schema);
    match request.send().await {
        Ok(_) => Ok(true),
        Err(error) => match error.as_service_error() {
            Some(CreateTableError::ResourceInUseException(_)) => Ok(false),
            _ => Err(client.target.classify("CreateTable", error).into_error()),
        },
    }
}

async fn wait_until_active(client: &TableClient) -> Result<(), Error> {
    for look in 0..LOOKS_MAX {
        let described =
            client.client.describe_table().table_name(&client.target.table).send().await;
        let described = described
            .map_err(|error| client.target.classify("DescribeTable", error).into_error())?;
        let table = described.table();
        if table.and_then(|table| table.table_status()) == Some(&TableStatus::Active) {
            let keys = table.map(TableDescription::key_schema).unwrap_or_default();
            return match keys {
                [only] if only.attribute_name() == KEY => Ok(()),
                _ => Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "dynamodb: table {:?} has another key than `pk`; name another table",
                        client.target.table
                    ),
                )),
            };
        }
        pause(look).await;
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        format!("dynamodb: table {:?} is not active yet; try again later", client.target.table),
    ))
}

async fn switch_ttl_on(client: &TableClient) -> Result<(), Error> {
    let setting = TimeToLiveSpecification::builder()
        .enabled(true)
        .attribute_name(TTL)
        .build()
        .map_err(build_failed)?;
    let request = client
        .client
        .update_time_to_live()
        .table_name(&client.target.table)
        .time_to_live_specification(setting);
    match request.send().await {
        Ok(_) => Ok(()),
        Err(error) => {
            let said = error.as_service_error().and_then(ProvideErrorMetadata::message);
            if said.is_some_and(|said| said.contains("already enabled")) {
                return Ok(());
            }
            Err(client.target.classify("UpdateTimeToLive", error).into_error())
        }
    }
}

fn build_failed(error: aws_sdk_dynamodb::error::BuildError) -> Error {
    Error::new(ErrorKind::Invalid, "dynamodb: the table cannot be described").caused_by(error)
}
