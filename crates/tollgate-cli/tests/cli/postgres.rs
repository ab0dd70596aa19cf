//! The commands on PostgreSQL: `[store] kind = "postgres"`, `tollgate postgres install` and `tollgate audit history`;
//! and a database that a newer program has migrated.

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
