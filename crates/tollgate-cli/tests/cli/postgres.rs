//! The commands on PostgreSQL: `[store] kind = "postgres"`, `tollgate postgres install` and `tollgate audit history`;
//! and a database that a newer program has migrated.

use serde_json::json;
use tollgate_testing::servers::Postgres;

use crate::running::Broker;
use crate::stores::on;

/// R004.10: the walk-through of `docs/postgres.md`, with the url in a variable or in a file.
#[test]
fn r004_10_a_quota_over_a_table_is_installed_and_looked_back_at() {
    let server = Postgres::start().expect("a server");
    let folder = on("[store]\nkind = \"postgres\"\nurl_file = \"secret.url\"\n");
    folder.write("secret.url", &format!("{}\n", server.url("postgres")));
    let psql = |sql: &str| server.psql("postgres", sql).expect("psql");
    psql("CREATE TABLE video_requests (user_id text NOT NULL, created_at timestamptz NOT NULL)");
    let (code, body) = folder.json("postgres install --table video_requests --limit 2");
    assert_eq!((code, &body["schema"]), (0, &"\"video_requests_quota\"".into()));
    for _ in 0..3 {
        psql("SELECT video_requests_quota.consume('alice')");
    }
    assert_eq!(psql("SELECT count(*) FROM video_requests"), "2");
    let (code, body) = folder.json("audit history video_requests_quota");
    assert_eq!(
        (code, &body[0]["user_id"], &body[0]["total_requests"]),
        (0, &"alice".into(), &2.into())
    );
    let wrong = folder.run("postgres install --table missing");
    assert_eq!(wrong.code, 2);
    assert!(wrong.err.contains("there is no table \"missing\""), "{}", wrong.err);
}

/// A role with the printed grants consumes and does nothing else, also after another install; on a table whose names are
/// quoted, from the command to the history.
#[test]
fn a_role_with_the_printed_grants_can_only_consume() {
    let server = Postgres::start().expect("a server");
    let folder = on("[store]\nkind = \"postgres\"\nurl_file = \"secret.url\"\n");
    folder.write("secret.url", &format!("{}\n", server.url("postgres")));
    let psql = |role: &str, sql: &str| server.psql_as(role, "postgres", sql);
    psql(
        "postgres",
        "CREATE ROLE shop; CREATE ROLE web LOGIN; CREATE SCHEMA app AUTHORIZATION shop; SET ROLE shop; \
         CREATE TABLE app.\"Orders\" (\"User\" text NOT NULL, created_at timestamptz NOT NULL)",
    )
    .expect("psql");
    let install = "postgres install --table app.\"Orders\" --user-column \"User\"";
    let (code, body) = folder.json(install);
    assert_eq!((code, &body["owner"], &body["warnings"]), (0, &"shop".into(), &json!([])));
    for statement in body["grants"]["consume"].as_array().expect("statements") {
        let statement = statement.as_str().expect("a statement").replace("my_role", "web");
        psql("postgres", &statement).expect("a grant");
    }
    let consume = "SELECT \"Orders_quota\".consume('alice') -> 'allowed'";
    for (limit, allowed) in [(2, "true"), (3, "true"), (3, "true"), (3, "false")] {
        let (code, _) = folder.json(&format!("{install} --limit {limit}"));
        assert_eq!((code, psql("web", consume).expect("a decision").as_str()), (0, allowed));
    }
    for sql in [
        "INSERT INTO app.\"Orders\" VALUES ('alice', now())",
        "SELECT \"Orders_quota\".consume_at('alice', NULL, '{}', now() + '3 days')",
        "DELETE FROM \"Orders_quota\".rejections",
        "SELECT \"Orders_quota\".clean_up('infinity')",
    ] {
        let denied = psql("web", sql).expect_err("a refusal").to_string();
        assert!(denied.contains("permission denied"), "{sql}: {denied}");
    }
    for schema in ["Orders_quota", "\"Orders_quota\""] {
        let (code, body) = folder.json(&format!("audit history {schema}"));
        assert_eq!((code, &body[0]["user_id"]), (0, &"alice".into()));
    }
    let text = folder.run(install).out;
    assert!(
        text.contains(
            "GRANT EXECUTE ON FUNCTION \"Orders_quota\".consume(text, text, jsonb) TO my_role;"
        ),
        "{text}"
    );
}

/// Upgrading: an older program does not start on a newer schema, and one that runs goes on.
#[test]
fn a_schema_of_a_newer_program_is_refused_at_the_start_only() {
    let server = Postgres::start().expect("a server");
    let folder = on(&server.snippet());
    let broker = Broker::start(&folder, "");
    server
        .psql("postgres", "INSERT INTO tollgate.migrations (version) VALUES (1000)")
        .expect("psql");
    let ask = "acquire video-requests alice";
    assert_eq!(folder.run(&format!("{ask} --server {}", broker.url)).code, 0);
    for words in [ask, "serve --http 127.0.0.1:0 --resp off --grpc off"] {
        let ran = folder.run(words);
        assert_eq!(ran.code, 2, "{words}");
        let what = "the schema \"tollgate\" is of version 1000, and this program knows";
        assert!(ran.err.contains(what), "{words}: {}", ran.err);
    }
}
