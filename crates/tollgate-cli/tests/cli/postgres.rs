//! The commands on PostgreSQL: `[store] kind = "postgres"`, `tollgate postgres install` and `tollgate audit history`;
//! and a database that a newer program has migrated.

use serde_json::json;
use tollgate_testkit::servers::Postgres;

use crate::folder::Folder;
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

/// R004.6: `--print` needs no database. The script makes the quota that an install makes, on a table whose names are
/// quoted and that has a column which must be given; it can be run again, and by the owner of the table.
#[test]
fn r004_6_a_printed_quota_is_the_installed_one() {
    let server = Postgres::start().expect("a server");
    let folder = Folder::new();
    let psql = |role: &str, sql: &str| server.psql_as(role, "postgres", sql).expect("psql");
    psql(
        "postgres",
        "CREATE ROLE shop LOGIN; GRANT CREATE ON DATABASE postgres TO shop; CREATE SCHEMA app AUTHORIZATION shop; \
         SET ROLE shop; CREATE TABLE app.\"Orders\" (\"User\" uuid NOT NULL, created_at timestamptz NOT NULL, \
         \"Key\" text, state text, \"Title\" text NOT NULL)",
    );
    let quota = "postgres install --table app.\"Orders\" --user-column \"User\" --key-column Key --limit 2 --trigger \
                 --except state=failed";
    let print = folder.run(&format!("{quota} --print --user-type uuid"));
    assert_eq!((print.code, print.err.as_str()), (0, ""));
    folder.write("quota.sql", &print.out);
    let file = folder.path().join("quota.sql");
    for role in ["shop", "postgres"] {
        server.psql_file(role, "postgres", &file).expect("the script runs");
    }
    // An install leaves out quotes that a name does not need.
    let functions = "SELECT string_agg(replace(pg_get_functiondef(oid), '\"app\".', 'app.') || proowner::regrole::text, '' \
                     ORDER BY proname) FROM pg_proc WHERE pronamespace = '\"Orders_quota\"'::regnamespace";
    let consume = |key: &str, title: &str| {
        format!(
            "SELECT \"Orders_quota\".consume('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{key}', '{{\"Title\": \"{title}\"}}') -> 'remaining'"
        )
    };
    assert_eq!(psql("shop", &consume("k", "one")), "1");
    assert_eq!(psql("shop", &consume("k", "one")), "1", "a repeat");
    let printed = psql("postgres", functions);
    let indexes = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'app'";
    assert_eq!(psql("postgres", indexes), "2");
    let connected = on("[store]\nkind = \"postgres\"\nurl_file = \"secret.url\"\n");
    connected.write("secret.url", &server.url("postgres"));
    let (code, body) = connected.json(quota);
    assert_eq!((code, &body["indexes_made"], &body["owner"]), (0, &json!([]), &"shop".into()));
    assert_eq!(psql("postgres", functions), printed);
    assert_eq!(psql("shop", &consume("k", "one")), "1", "the key is still known");
    assert_eq!(psql("shop", &consume("l", "two")), "0");
}

/// R004.6: a printed script that does not fit the table says what does not, and changes nothing; one that cannot be
/// printed says why.
#[test]
fn r004_6_a_printed_quota_that_does_not_fit_changes_nothing() {
    let server = Postgres::start().expect("a server");
    let folder = Folder::new();
    let psql = |sql: &str| server.psql("postgres", sql).expect("psql");
    psql("CREATE TABLE jobs (user_id bigint, created_at timestamptz, at timestamp)");
    let file = folder.path().join("quota.sql");
    for (flags, what) in [
        (
            "--table jobs",
            "column user_id of public.jobs is of type bigint, and this script is for text",
        ),
        (
            "--table jobs --user-type bigint --time-column made_at",
            "table public.jobs has no column made_at",
        ),
        (
            "--table jobs --user-type bigint --time-column at",
            "is of type timestamp without time zone",
        ),
        (
            "--table jobs --user-type bigint --only state=done",
            "table public.jobs has no column state",
        ),
        ("--table app.jobs", "there is no table \"app\".\"jobs\""),
    ] {
        let print = folder.run(&format!("postgres install --print {flags}"));
        assert_eq!(print.code, 0, "{flags}: {}", print.err);
        folder.write("quota.sql", &print.out);
        let refused = server.psql_file("postgres", "postgres", &file).expect_err("a refusal");
        assert!(refused.to_string().contains(what), "{flags}: {refused}");
        assert_eq!(psql("SELECT count(*) FROM pg_namespace WHERE nspname = 'jobs_quota'"), "0");
    }
    let fits = folder
        .run("postgres install --print --table jobs --user-type bigint --time-column at --utc");
    folder.write("quota.sql", &fits.out);
    server.psql_file("postgres", "postgres", &file).expect("it runs");
    assert_eq!(psql("SELECT jobs_quota.consume(7) -> 'remaining'"), "4");
    for (flags, what) in [
        (
            "--table jobs --user-type citext",
            "text, varchar, uuid, smallint, integer or bigint, not \"citext\"",
        ),
        ("--table jobs --limit 0", "limit 0 must be between 1 and 100000"),
    ] {
        let refused = folder.run(&format!("postgres install --print {flags}"));
        assert_eq!(refused.code, 2, "{flags}");
        assert!(refused.err.contains(what), "{flags}: {}", refused.err);
    }
}

/// The printed tables of the store are those that a broker finds ready.
#[test]
fn a_printed_store_is_the_installed_one() {
    let server = Postgres::start().expect("a server");
    let folder = on(&server.snippet());
    let print = folder.run("postgres install --print");
    assert_eq!((print.code, print.err.as_str()), (0, ""));
    let exists = "SELECT to_regnamespace('tollgate') IS NOT NULL";
    assert_eq!(server.psql("postgres", exists).expect("psql"), "f", "it connects to nothing");
    folder.write("store.sql", &print.out);
    let file = folder.path().join("store.sql");
    server.psql_file("postgres", "postgres", &file).expect("the script runs");
    let (code, body) = folder.json("postgres install");
    assert_eq!((code, body), (0, json!({"ready": true, "version": 4})));
    let made = "SELECT count(DISTINCT made_at) FROM tollgate.migrations";
    assert_eq!(server.psql("postgres", made).expect("psql"), "1", "by the script alone");
    assert_eq!(folder.run("acquire video-requests alice").code, 0);
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
        let what = "the schema \"tollgate\" has version 1000, and this program supports";
        assert!(ran.err.contains(what), "{words}: {}", ran.err);
    }
}
