//! A store that can be reached but does not serve the broker: only the operator can change that.

use serde_json::Value;
use tollgate_testkit::servers::dynamodb::Misbehaviour;
use tollgate_testkit::servers::{DynamoDb, Postgres, Redis, RedisCluster, eventually};

use super::Assembled;

/// Health, log and replies while the store rejects the broker's credentials, and the automatic recovery.
pub(super) fn refused(
    assembled: Assembled,
    break_it: impl FnOnce(),
    why: &str,
    mend: impl FnOnce(),
) {
    assert_eq!(assembled.ask("closed", "alice").0, 200);
    break_it();
    let mut last = Value::Null;
    let reported = || {
        let (status, body) = assembled.ask("closed", "alice");
        assert!([200, 503].contains(&status), "{body}");
        last = body;
        (status == 503 && last["kind"] == "misconfigured").then_some(())
    };
    let reported = eventually(reported);
    let body = last;
    assert!(reported.is_some(), "the health does not report it: {body}");
    let detail = body["detail"].as_str().expect("a text");
    assert!(detail.contains("the broker's log") && !detail.contains("127.0.0.1"), "{detail}");
    let (status, answer) = assembled.ask("open", "alice");
    assert_eq!((status, &answer["degraded"]), (200, &true.into()), "on_store_failure applies");
    let (status, answer) = assembled.ready();
    assert!(status == 503 && answer.contains("\"detail\":\"not ready\""), "{answer}");
    assert!(!answer.contains("misconfigured"), "{answer}");
    mend();
    let served = || (assembled.ask("closed", "alice").0 == 200).then_some(());
    eventually(served).expect("the store serves the broker again");
    eventually(|| (assembled.ready().0 == 200).then_some(())).expect("it is ready again");
    let Assembled { folder, broker } = assembled;
    let log = broker.end("-TERM").2;
    let line = log.lines().find(|line| line.contains("the store does not serve this broker"));
    assert!(line.is_some(), "no line for the operator: {log}");
    let line = line.unwrap_or_default();
    assert!(line.contains(" ERROR ") && line.contains(why), "{line}");
    let (_, incidents) = folder.json("audit incidents --since 1h");
    assert_eq!(incidents[0]["event"], "misconfigured", "{incidents}");
    assert!(incidents[0]["error"].to_string().contains(why), "{incidents}");
    assert_eq!(folder.json("audit incidents --policy closed").1, serde_json::json!([]));
    let table = folder.run("audit incidents").out;
    assert!(
        table.contains("the store did not serve the broker: ") && table.contains(why),
        "{table}"
    );
}

#[test]
fn a_changed_password_of_redis_is_for_the_operator() {
    let redis = Redis::start().expect("a server");
    let assembled = Assembled::start(&redis.snippet());
    refused(
        assembled,
        || {
            redis.command(&["CONFIG", "SET", "requirepass", "changed"]).expect("it is set");
            let kill = ["-a", "changed", "CLIENT", "KILL", "TYPE", "normal"];
            redis.command(&kill).expect("clients are cut off");
        },
        "the user name or the password is wrong",
        || {
            let reset = ["-a", "changed", "CONFIG", "SET", "requirepass", ""];
            redis.command(&reset).expect("it is set");
        },
    );
}

#[test]
fn a_missing_permission_of_redis_is_for_the_operator() {
    let redis = Redis::start().expect("a server");
    let assembled = Assembled::start(&redis.snippet());
    let permit = |what: &str| {
        redis.command(&["ACL", "SETUSER", "default", what]).expect("it is set");
    };
    refused(assembled, || permit("-evalsha"), "ACL SETUSER", || permit("+evalsha"));
}

/// A node of a cluster that is addressed as a server of its own, by commands.
#[test]
fn a_node_of_a_cluster_says_so_at_the_start() {
    let cluster = RedisCluster::start().expect("a cluster");
    let url = &cluster.urls()[0];
    let folder = Assembled::folder(&format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\n"));
    // Keys of two slots of three belong to other nodes.
    let ran: Vec<_> =
        (0..8).map(|number| folder.run(&format!("acquire closed alice-{number}"))).collect();
    let moved = ran.iter().find(|ran| ran.code == 2).expect("a key is elsewhere");
    assert!(moved.err.contains("Set cluster = true"), "{moved:?}");
}

/// The same by a broker, which reads the key of permits and the overrides before it serves: no node has both.
#[test]
fn a_broker_on_a_node_of_a_cluster_ends_at_the_start() {
    let cluster = RedisCluster::start().expect("a cluster");
    for url in cluster.urls() {
        let folder = Assembled::folder(&format!("[store]\nkind = \"redis\"\nurl = \"{url}\"\n"));
        let ran = folder.run("serve --http 127.0.0.1:0 --resp off --grpc off");
        assert!(ran.code == 2 && ran.err.contains("Set cluster = true"), "{ran:?}");
    }
}

/// The password is changed while the broker runs, and its connections are cut.
#[test]
fn a_changed_password_of_postgres_is_for_the_operator() {
    let postgres = Postgres::start().expect("a server");
    let run = |sql: &str| postgres.psql("postgres", sql).expect("it runs");
    run("CREATE ROLE app LOGIN PASSWORD 'first'; GRANT CREATE ON DATABASE postgres TO app");
    let hba = run("SHOW hba_file");
    std::fs::write(hba, "host all app all scram-sha-256\nhost all all all trust\n")
        .expect("a file");
    run("SELECT pg_reload_conf()");
    let url = postgres.url_as("app:first", "postgres");
    let wrong = postgres.url_as("app:wrong", "postgres");
    // The server reads its files again in its own time.
    let is_asked = || {
        let folder =
            Assembled::folder(&format!("[store]\nkind = \"postgres\"\nurl = \"{wrong}\"\n"));
        (folder.run("acquire closed alice").code == 2).then_some(())
    };
    eventually(is_asked).expect("the password is asked for");
    let change = |password: &str| drop(run(&format!("ALTER ROLE app PASSWORD '{password}'")));
    refused(
        Assembled::start(&format!("[store]\nkind = \"postgres\"\nurl = \"{url}\"\n")),
        || {
            change("second");
            run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'");
        },
        "does not accept the user or the password",
        || change("first"),
    );
}

#[test]
fn a_missing_schema_of_postgres_is_for_the_operator() {
    let postgres = Postgres::start().expect("a server");
    let assembled = Assembled::start(&postgres.snippet());
    let rename = |from: &str, to: &str| {
        let sql = format!("ALTER SCHEMA {from} RENAME TO {to}");
        postgres.psql("postgres", &sql).expect("it is renamed");
    };
    refused(
        assembled,
        || rename("tollgate", "gone"),
        "tollgate postgres install",
        || rename("gone", "tollgate"),
    );
}

#[test]
fn a_role_of_postgres_that_may_not_is_for_the_operator() {
    let postgres = Postgres::start().expect("a server");
    postgres
        .psql("postgres", "CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app")
        .expect("a role");
    let url = postgres.url_as("app", "postgres");
    let assembled = Assembled::start(&format!("[store]\nkind = \"postgres\"\nurl = \"{url}\"\n"));
    let run = |sql: &str| drop(postgres.psql("postgres", sql).expect("it runs"));
    refused(
        assembled,
        || run("ALTER SCHEMA tollgate OWNER TO postgres; REVOKE ALL ON SCHEMA tollgate FROM app"),
        "GRANT USAGE on the schema",
        || run("GRANT USAGE ON SCHEMA tollgate TO app"),
    );
}

#[test]
fn credentials_that_dynamodb_refuses_are_for_the_operator() {
    let dynamodb = DynamoDb::start().expect("a server");
    let store = dynamodb.snippet();
    for (code, why) in [
        ("AccessDeniedException", "allow dynamodb:UpdateItem"),
        ("UnrecognizedClientException", "does not accept the credentials"),
        ("ExpiredTokenException", "does not accept the credentials"),
        ("ResourceNotFoundException", "tollgate dynamodb create-table"),
    ] {
        assert_eq!(Assembled::folder(&store).run("dynamodb create-table").code, 0);
        refused(
            Assembled::start(&store),
            || dynamodb.proxy().always(Some(("UpdateItem", Misbehaviour::Refuse(code.to_owned())))),
            why,
            || dynamodb.proxy().always(None),
        );
    }
}
