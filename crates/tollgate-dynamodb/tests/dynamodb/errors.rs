//! What can be missing or wrong, each with its own message and next step.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use tollgate::{Ask, Error, GateExt};
use tollgate_dynamodb::{DynamoDb, Options, create_table};
use tollgate_testkit::servers::dynamodb::Misbehaviour;

use crate::child::{Child, Job};
use crate::{TestTable, coarse};

fn says(error: &Error, words: &[&str]) {
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
    assert!(error.is_unavailable(), "{error:?}");
}

#[tokio::test]
async fn a_missing_table_says_how_to_make_it() {
    let table = TestTable::new().await;
    let options = Options::new("another-table")
        .region("eu-central-1")
        .endpoint(table.server.endpoint())
        .credentials("test", "test")
        .skew_max(None);
    let error = DynamoDb::open(options.clone()).await.unwrap_err();
    says(&error, &["no table \"another-table\"", "tollgate dynamodb create-table"]);
    let gate = DynamoDb::new(options).await.unwrap();
    let error = gate.acquire(&Ask::new(&coarse(5), "p")).await.unwrap_err();
    says(&error, &["no table \"another-table\""]);
}

#[tokio::test]
async fn a_table_is_made_once() {
    let table = TestTable::new().await;
    assert!(!create_table(table.options()).await.unwrap(), "it was there");
    let described = table.client().describe_time_to_live().table_name(crate::TABLE).send().await;
    let ttl = described.unwrap().time_to_live_description().unwrap().clone();
    assert_eq!(ttl.attribute_name(), Some("ttl"));
}

#[tokio::test]
async fn a_missing_permission_is_named() {
    let table = TestTable::new().await;
    let gate = table.gate().await;
    let denied = Misbehaviour::Refuse("AccessDeniedException".to_owned());
    table.server.proxy().next("UpdateItem", 1, &denied);
    let error = gate.acquire(&Ask::new(&coarse(5), "p")).await.unwrap_err();
    says(&error, &["does not permit UpdateItem", "allow dynamodb:UpdateItem"]);
    table.server.proxy().next("GetItem", 1, &denied);
    let error = gate.standing(&coarse(5), "p").await.unwrap_err();
    says(&error, &["allow dynamodb:GetItem"]);
}

#[tokio::test]
async fn wrong_credentials_are_said() {
    let table = TestTable::new().await;
    let refused = Misbehaviour::Refuse("UnrecognizedClientException".to_owned());
    table.server.proxy().next("GetItem", 1, &refused);
    let error = DynamoDb::open(table.options()).await.unwrap_err();
    says(&error, &["does not accept the credentials", "renew them"]);
}

/// Without credentials anywhere; in a process of its own, because the environment is one of the places.
#[test]
fn missing_credentials_say_where_to_put_them() {
    let lines = Child::start(Job::NoCredentials, "http://127.0.0.1:9").finish();
    let text = lines.join("\n");
    assert!(text.contains("needs credentials") && text.contains("AWS_ACCESS_KEY_ID"), "{text}");
}

#[test]
fn a_missing_region_says_where_to_put_it() {
    let text = Child::start(Job::NoRegion, "").finish().join("\n");
    assert!(text.contains("no region is set") && text.contains("AWS_REGION"), "{text}");
}

#[tokio::test]
async fn an_unreachable_endpoint_is_named() {
    let options = Options::new("tollgate").region("eu-central-1").credentials("test", "test");
    let error = DynamoDb::open(options.endpoint("http://127.0.0.1:9")).await.unwrap_err();
    says(&error, &["http://127.0.0.1:9 cannot be reached", "check endpoint"]);
}

#[tokio::test]
async fn an_endpoint_of_something_else_is_said() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().take(3) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4_096]).unwrap();
            let reply =
                "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 6\r\n\r\n<html>";
            stream.write_all(reply.as_bytes()).unwrap();
        }
    });
    let options = Options::new("tollgate").region("eu-central-1").credentials("test", "test");
    let error = DynamoDb::open(options.endpoint(format!("http://{address}"))).await.unwrap_err();
    says(&error, &["check that endpoint is a DynamoDB endpoint"]);
}
