//! The commands on DynamoDB: `[store] kind = "dynamodb"`.

use tollgate_testkit::servers::DynamoDb;

use crate::stores::on;

/// What is missing is said with the next step, and no message shows a secret.
#[test]
fn a_missing_table_and_a_wrong_endpoint_are_said() {
    let server = DynamoDb::start().expect("a server");
    let snippet = format!("{}table = \"quotas\"\n", server.snippet());
    for (endpoint, words) in [
        (server.endpoint().as_str(), ["no table \"quotas\"", "tollgate dynamodb create-table"]),
        ("http://127.0.0.1:9", ["cannot be reached", "check endpoint, region and network"]),
    ] {
        let folder = on(&snippet.replace(&server.endpoint(), endpoint));
        let ran = folder.run("acquire llm p7");
        assert_eq!(ran.code, 2);
        for word in words {
            assert!(ran.err.contains(word), "{word:?} is not in: {}", ran.err);
        }
        assert!(!ran.err.contains("s3cret"), "{}", ran.err);
    }
}
