//! A quota over rows that were there before: R004, from `psql` alone and from Rust.

use serde_json::{Value, json};
use tollgate::{ErrorKind, Span, Timestamp};
use tollgate_postgres::rows::{Grants, Quota, Rows};

use super::TestDatabase;

pub(crate) const TABLE: &str = "CREATE TABLE video_requests (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, \
     user_id text NOT NULL, title text NOT NULL DEFAULT 'untitled', created_at timestamptz NOT NULL DEFAULT now())";

pub(crate) fn videos() -> Rows {
    Rows::new("video_requests", 5, Span::from_hours(24))
}

/// A database with the table and the quota on it.
pub(crate) async fn installed(rows: &Rows) -> TestDatabase {
    let database = TestDatabase::new();
    database.psql(TABLE);
    rows.install(&database.options()).await.unwrap();
    database
}

/// What `consume` answers at `at`, from `psql` alone.
fn consume(database: &TestDatabase, user: &str, at: &str) -> Value {
    json_of(
        &database.psql(&format!(
            "SELECT video_requests_quota.consume_at('{user}', NULL, '{{}}', '{at}')"
        )),
    )
}

pub(crate) fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn rows_of(database: &TestDatabase, user: &str) -> u32 {
    database
        .psql(&format!("SELECT count(*) FROM video_requests WHERE user_id = '{user}'"))
        .parse()
        .unwrap()
}

/// R004.1, conflict 33: below the limit a request passes, and `remaining` is what is left after it.
#[tokio::test]
async fn r004_1_within_the_quota() {
    let database = installed(&videos()).await;
    for (hour, left) in [(0, 4), (1, 3), (2, 2)] {
        let answer = consume(&database, "alice", &format!("2026-11-15 0{hour}:00Z"));
        assert_eq!((&answer["allowed"], &answer["remaining"]), (&json!(true), &json!(left)));
        assert_eq!((&answer["resetTime"], &answer["waitSeconds"]), (&json!(null), &json!(0)));
        assert_eq!(answer["row"]["title"], "untitled");
    }
    let check = "SELECT video_requests_quota.check_at('alice', '2026-11-15 03:00Z')";
    assert_eq!(json_of(&database.psql(check))["remaining"], 2);
    assert_eq!(rows_of(&database, "alice"), 3);
}

/// R004.2, R004.3, conflicts 31 and 32: at the limit it is refused without a row, until the n-th newest leaves the
/// window; a request one microsecond before that is refused and one at that time passes.
#[tokio::test]
async fn r004_2_r004_3_over_the_quota_until_the_promised_time() {
    let database = installed(&videos()).await;
    for hour in 0..5 {
        consume(&database, "bob", &format!("2026-11-14 1{hour}:30Z"));
    }
    let answer = consume(&database, "bob", "2026-11-15 08:15:00.5Z");
    let expected = json!({"allowed": false, "remaining": 0, "resetTime": "2026-11-15T10:30:00.000000Z", "waitSeconds": 8100});
    assert_eq!(answer, expected);
    assert_eq!(consume(&database, "bob", "2026-11-15 10:29:59.999999Z")["waitSeconds"], 1);
    assert_eq!(rows_of(&database, "bob"), 5);
    assert_eq!(consume(&database, "bob", "2026-11-15 10:30:00Z")["allowed"], true);
    assert_eq!(rows_of(&database, "bob"), 6);
    // Rows that came from elsewhere: eight are inside, so the fifth newest makes room and not the oldest.
    database.psql("INSERT INTO video_requests (user_id, created_at) SELECT 'eve', '2026-11-15 00:00Z'::timestamptz + n * interval '1 hour' FROM generate_series(1, 8) n");
    assert_eq!(
        consume(&database, "eve", "2026-11-15 09:00Z")["resetTime"],
        "2026-11-16T04:00:00.000000Z"
    );
}

/// R004.7, R004.8: looking consumes nothing; at the limit the reset is given for people too.
#[tokio::test]
async fn r004_7_r004_8_looking_consumes_nothing() {
    let database = installed(&videos()).await;
    let info = |at: &str| {
        json_of(&database.psql(&format!("SELECT video_requests_quota.info_at('carol', '{at}')")))
    };
    let expected = json!({"quotaUsed": 0, "quotaLimit": 5, "resetTime": null, "resetIn": null});
    assert_eq!(info("2026-11-15 12:00Z"), expected);
    for minute in 0..5 {
        consume(&database, "carol", &format!("2026-11-15 12:0{minute}Z"));
    }
    let expected = json!({
        "quotaUsed": 5, "quotaLimit": 5, "resetTime": "2026-11-16T12:00:00.000000Z", "resetIn": "2h 15m"
    });
    assert_eq!(info("2026-11-16 09:45:00.5Z"), expected);
    assert_eq!(rows_of(&database, "carol"), 5);
    let quota = Quota::open(database.options(), "video_requests_quota").await.unwrap();
    assert_eq!(quota.remaining("nobody").await.unwrap(), 5);
    assert_eq!(quota.consume("dan", None).await.unwrap()["remaining"], 4);
    assert_eq!(quota.remaining("dan").await.unwrap(), 4);
    assert_eq!(quota.check("dan").await.unwrap()["allowed"], true);
    assert_eq!(quota.info("dan").await.unwrap()["resetIn"], "1d");
    assert_eq!(database.psql("SELECT string_agg(video_requests_quota.for_people(s * interval '1 second'), ' ' ORDER BY s) FROM unnest(ARRAY[1, 59, 61, 3599, 3600, 3599.5, 90000, 0]::numeric[]) s"), "0s 1s 59s 1m 1s 59m 59s 1h 1h 1d 1h");
}

/// R004.9: a refusal is written down with who, how many, the oldest, the reset and the recent times, at level warn; in
/// the server's log too.
#[tokio::test]
async fn r004_9_rejections_are_written_down() {
    let database = installed(&videos()).await;
    for minute in 0..6 {
        consume(&database, "frank", &format!("2026-11-15 12:0{minute}Z"));
    }
    let written = database.psql("SELECT level, user_id, request_count, oldest_request_time AT TIME ZONE 'UTC', reset_time AT TIME ZONE 'UTC', cardinality(recent_requests) FROM video_requests_quota.rejections");
    assert_eq!(written, "warn|frank|5|2026-11-15 12:00:00|2026-11-16 12:00:00|5");
    assert_eq!(database.psql("SELECT video_requests_quota.clean_up('2027-01-01')"), "1");
}

/// R004.10: who reached the limit in any window, how much they asked for, and when they first had no more.
#[tokio::test]
async fn r004_10_history_finds_who_reached_the_limit() {
    let database = installed(&videos()).await;
    database.psql(
        "INSERT INTO video_requests (user_id, created_at) \
         SELECT 'busy', '2026-11-10 00:00Z'::timestamptz + n * interval '3 hours' FROM generate_series(0, 9) n UNION ALL \
         SELECT 'calm', '2026-11-10 00:00Z'::timestamptz + n * interval '6 hours' FROM generate_series(0, 9) n UNION ALL \
         SELECT 'late', '2026-11-12 00:00Z'::timestamptz + n * interval '1 minute' FROM generate_series(0, 4) n",
    );
    let quota = Quota::open(database.options(), "video_requests_quota").await.unwrap();
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let history = async |from: &str, to: &str| {
        let found = quota.history(at(from), at(to)).await.unwrap();
        let line = |one: &tollgate_postgres::rows::Limited| {
            format!("{} {} {}", one.user, one.total_requests, one.first_limited_at)
        };
        found.iter().map(line).collect::<Vec<_>>()
    };
    // Six hours apart the fifth is exactly 24 hours after the first, which has left by then.
    let all = history("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z").await;
    assert_eq!(all, ["busy 10 2026-11-10T12:00:00Z", "late 5 2026-11-12T00:04:00Z"]);
    // The window before the range counts, the requests before it do not.
    let part = history("2026-11-11T00:00:00Z", "2026-11-11T12:00:00Z").await;
    assert_eq!(part, ["busy 2 2026-11-11T00:00:00Z"]);
}

/// R004.11: neither the zone of a session nor the end of summer time changes a window of 24 hours.
#[tokio::test]
async fn r004_11_zones_and_summer_time_change_nothing() {
    let database = installed(&videos()).await;
    // Clocks go back in Los Angeles on 1 November 2026, so that day has 25 hours.
    let zoned = |at: &str| {
        let call = format!(
            "SET TIME ZONE 'America/Los_Angeles'; SELECT video_requests_quota.consume_at('gina', NULL, '{{}}', '{at}')"
        );
        json_of(&database.psql(&call))
    };
    for minute in 0..5 {
        assert_eq!(zoned(&format!("2026-10-31 20:0{minute}"))["allowed"], true);
    }
    let refused = zoned("2026-11-01 18:59:59");
    assert_eq!(
        (&refused["allowed"], &refused["resetTime"]),
        (&json!(false), &json!("2026-11-02T03:00:00.000000Z"))
    );
    assert_eq!(zoned("2026-11-01 19:00")["allowed"], true);
    assert_eq!(
        database.psql("SELECT pg_typeof(created_at) FROM video_requests LIMIT 1"),
        "timestamp with time zone"
    );
}

/// A repeated key is one row: in the table's own column, or in a table beside where it has none.
#[tokio::test]
async fn a_repeated_key_is_one_row() {
    for key_column in [None, Some("request_key")] {
        let database = TestDatabase::new();
        database.psql(TABLE);
        database.psql("ALTER TABLE video_requests ADD request_key uuid");
        let rows = match key_column {
            Some(column) => videos().key_column(column),
            None => videos(),
        };
        rows.install(&database.options()).await.unwrap();
        let quota = Quota::open(database.options(), rows.schema()).await.unwrap();
        let key = Some("6c54dd6a-2b1c-4a3c-9d5e-0c7d5a1b2c3d");
        let first = quota.consume("henry", key).await.unwrap();
        let again = quota.consume("henry", key).await.unwrap();
        assert_eq!((&first["remaining"], &again["remaining"]), (&json!(4), &json!(4)));
        assert_eq!((&first["duplicate"], &again["duplicate"]), (&Value::Null, &json!(true)));
        assert_eq!(rows_of(&database, "henry"), 1);
        assert_eq!(first["row"]["id"], 1);
        assert_eq!(first["row"], again["row"]);
        // At the limit too, and for its own user only.
        for _ in 0..4 {
            assert_eq!(quota.consume("henry", None).await.unwrap()["allowed"], true);
        }
        let again = quota.consume("henry", key).await.unwrap();
        assert_eq!((&again["allowed"], &again["remaining"]), (&json!(true), &json!(0)));
        assert_eq!(first["row"], again["row"]);
        assert_eq!(quota.consume("henry", None).await.unwrap()["allowed"], false);
        assert_eq!(quota.consume("ivy", key).await.unwrap()["row"]["user_id"], "ivy");
        assert_eq!(rows_of(&database, "henry"), 5);
    }
}

/// Names are quoted, other columns can be filled, and rows that do not count do not.
#[tokio::test]
async fn odd_names_further_columns_and_filters() {
    let database = TestDatabase::new();
    database.psql("CREATE SCHEMA \"my shop\"; CREATE TABLE \"my shop\".\"Order \"\" x\" (\"who's\" int NOT NULL, \"when\" timestamptz, state text DEFAULT 'new', note text)");
    let rows = Rows::new("my shop.Order \" x", 2, Span::from_mins(90))
        .user_column("who's")
        .time_column("when")
        .except("state", ["failed", "it's off"])
        .in_schema("q");
    let made = rows.install(&database.options()).await.unwrap();
    assert_eq!(made.indexes_made.len(), 1);
    assert!(rows.install(&database.options()).await.unwrap().indexes_made.is_empty());
    let consume =
        |more: &str| json_of(&database.psql(&format!("SELECT q.consume(7, NULL, '{more}')")));
    database.psql("INSERT INTO \"my shop\".\"Order \"\" x\" VALUES (7, now(), 'failed'), (7, now(), 'it''s off')");
    assert_eq!(consume(r#"{"state": "paid", "note": "n"}"#)["row"]["note"], "n");
    assert_eq!(consume("{}")["allowed"], true);
    assert_eq!(consume("{}")["allowed"], false);
    assert!(
        database
            .psql_fails("SELECT q.consume(8, NULL, '{\"who''s\": 9}')")
            .contains("more than once")
    );
}

/// The trigger refuses what others insert, many rows in one statement too, with a state of its own.
#[tokio::test]
async fn the_trigger_refuses_with_rl429() {
    let database = installed(&videos().with_trigger()).await;
    database.psql("INSERT INTO video_requests (user_id) SELECT 'ida' FROM generate_series(1, 5)");
    let refused = database.psql_fails("INSERT INTO video_requests (user_id) VALUES ('ida')");
    assert!(
        refused.contains("RL429")
            && refused.contains("\"allowed\": false")
            && refused.contains("1d"),
        "{refused}"
    );
    let refused = database
        .psql_fails("INSERT INTO video_requests (user_id) SELECT 'jim' FROM generate_series(1, 6)");
    assert!(refused.contains("RL429"), "{refused}");
    assert_eq!(rows_of(&database, "jim"), 0);
    // A time in the past would not be counted, so the time of a row is the time of its check.
    database.psql("INSERT INTO video_requests (user_id, created_at) VALUES ('kim', '2000-01-01')");
    assert_eq!(database.psql("SELECT video_requests_quota.remaining('kim')"), "4");
    videos().install(&database.options()).await.unwrap();
    database.psql("INSERT INTO video_requests (user_id) VALUES ('ida')");
}

/// Moving a row does not free a place: a row that counts keeps its user and time until it leaves the window.
#[tokio::test]
async fn the_trigger_refuses_updates_that_evade_the_quota() {
    let database = installed(&videos().with_trigger()).await;
    database.psql("INSERT INTO video_requests (user_id) SELECT 'ida' FROM generate_series(1, 5)");
    for set in [
        "user_id = 'elsewhere'",
        "created_at = created_at - interval '2 days'",
        "created_at = created_at + interval '1 second'",
        "created_at = '-infinity'",
        "user_id = 'jim', created_at = now() - interval '2 days'",
    ] {
        let refused = database.psql_fails(&format!("UPDATE video_requests SET {set} WHERE id = 1"));
        assert!(
            refused.contains("RL429") && refused.contains("a row of user ida counts until"),
            "{set}: {refused}"
        );
        assert!(
            refused.contains("\"allowed\": false") && refused.contains("Try again in 1d."),
            "{set}: {refused}"
        );
    }
    let merge = "INSERT INTO video_requests (id, user_id) OVERRIDING SYSTEM VALUE VALUES (1, 'new') \
                 ON CONFLICT (id) DO UPDATE SET user_id = excluded.user_id";
    assert!(database.psql_fails(merge).contains("RL429"));
    // What the quota does not look at may change.
    database.psql(
        "UPDATE video_requests SET title = 'other', user_id = user_id, created_at = created_at",
    );
    assert_eq!(rows_of(&database, "ida"), 5);
    // A row that has left the window is history. It moves where there is room, at its own time.
    let old = "ALTER TABLE video_requests DISABLE TRIGGER USER; \
         INSERT INTO video_requests (user_id, created_at) SELECT 'old', now() - interval '30 hours' FROM generate_series(1, 6); \
         INSERT INTO video_requests (user_id, created_at) SELECT 'full', now() - interval '31 hours' FROM generate_series(1, 5); \
         INSERT INTO video_requests (user_id, created_at) SELECT 'half', now() - interval '31 hours' FROM generate_series(1, 4); \
         ALTER TABLE video_requests ENABLE TRIGGER USER";
    database.psql(old);
    let moves = |set: &str| {
        format!(
            "UPDATE video_requests SET {set} WHERE id = (SELECT min(id) FROM video_requests WHERE user_id = 'old')"
        )
    };
    for set in [
        "user_id = 'full'",
        "user_id = 'ida', created_at = now()",
        "user_id = 'ida', created_at = now() + interval '23 hours'",
    ] {
        let refused = database.psql_fails(&moves(set));
        assert!(
            refused.contains("RL429") && refused.contains("has made 5 requests in 1d"),
            "{set}: {refused}"
        );
    }
    database.psql(&moves("user_id = 'half'"));
    assert!(database.psql_fails(&moves("user_id = 'half'")).contains("RL429"));
    // Five are at 31 hours and one moves away from itself by an hour: its own old place does not count against it.
    database.psql("UPDATE video_requests SET created_at = created_at - interval '1 hour' WHERE id = (SELECT min(id) FROM video_requests WHERE user_id = 'full')");
    database.psql(&moves("user_id = 'kim', created_at = now()"));
    assert_eq!(database.psql("SELECT video_requests_quota.remaining('kim')"), "4");
    let refused = database.psql_fails(&format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ; {}",
        moves("user_id = 'lea'")
    ));
    assert!(refused.contains("needs READ COMMITTED"), "{refused}");
}

/// A row that starts to count is admitted then, like one that is inserted; a row that no longer counts makes room.
#[tokio::test]
async fn the_trigger_sees_rows_that_start_to_count() {
    let database = TestDatabase::new();
    database.psql("CREATE TABLE jobs (id int, user_id text, created_at timestamptz, \"State\" text DEFAULT 'new')");
    let rows =
        Rows::new("jobs", 2, Span::from_hours(24)).except("\"State\"", ["failed"]).with_trigger();
    rows.install(&database.options()).await.unwrap();
    let set =
        |id: u32, state: &str| format!("UPDATE jobs SET \"State\" = '{state}' WHERE id = {id}");
    database.psql("INSERT INTO jobs VALUES (1, 'a'), (2, 'a')");
    database.psql(&set(1, "failed"));
    database.psql("INSERT INTO jobs VALUES (3, 'a')");
    let refused = database.psql_fails(&set(1, "new"));
    assert!(refused.contains("RL429"), "{refused}");
    database.psql(&set(2, "failed"));
    database.psql(&set(1, "done"));
    assert_eq!(database.psql("SELECT jobs_quota.remaining('a')"), "0");
}

/// Two quotas over one table keep their own triggers.
#[tokio::test]
async fn quotas_over_one_table_keep_their_own_triggers() {
    let database = installed(&videos().with_trigger()).await;
    let hourly = Rows::new("video_requests", 2, Span::from_hours(1)).in_schema("hourly");
    let triggers = || {
        database.psql("SELECT string_agg(tgname || ' ' || tgfoid::regproc, ', ' ORDER BY tgname) FROM pg_trigger WHERE tgrelid = 'video_requests'::regclass")
    };
    let daily = "tollgate_quota video_requests_quota.enforce";
    hourly.install(&database.options()).await.unwrap();
    assert_eq!(triggers(), daily);
    for _ in 0..2 {
        hourly.clone().with_trigger().install(&database.options()).await.unwrap();
        assert_eq!(triggers(), format!("{daily}, tollgate_quota_2 hourly.enforce"));
    }
    videos().install(&database.options()).await.unwrap();
    assert_eq!(triggers(), "tollgate_quota_2 hourly.enforce");
}

/// Names quoted as in SQL work for tables, columns, keys, filters and schemas, and mean the same as literal ones.
#[tokio::test]
async fn quoted_names_work_everywhere() {
    let database = TestDatabase::new();
    database.psql(
        "CREATE SCHEMA app; CREATE TABLE app.\"Orders\" (\"Id\" int GENERATED ALWAYS AS IDENTITY, \"User Id\" text, \
         \"Created.At\" timestamptz, \"Key\"\"\" text, \"State%\" text, \"a\nb\" int); CREATE TABLE app.orders (x int)",
    );
    let rows = Rows::new("app.\"Orders\"", 2, Span::from_hours(24))
        .user_column("\"User Id\"")
        .time_column("\"Created.At\"")
        .key_column("\"Key\"\"\"")
        .except("\"State%\"", ["failed"])
        .with_trigger();
    assert_eq!(rows.schema(), "Orders_quota");
    let made = rows.install(&database.options()).await.unwrap();
    assert_eq!((made.table.as_str(), made.schema.as_str()), ("app.\"Orders\"", "\"Orders_quota\""));
    assert_eq!(made.indexes_made, ["Orders_user_time_tollgate", "Orders_user_key_tollgate"]);
    assert!(made.grants.consume[1].contains("\"Orders_quota\".consume(text, text, jsonb)"));
    for statement in
        [&made.grants.consume, &made.grants.read, &made.grants.replay].into_iter().flatten()
    {
        database.psql(&statement.replace(Grants::ROLE, "postgres"));
    }
    for schema in ["Orders_quota", "\"Orders_quota\""] {
        let quota = Quota::open(database.options(), schema).await.unwrap();
        assert_eq!(quota.consume("alice", Some("k")).await.unwrap()["row"]["Id"], 1);
    }
    let consume = |row: &str| format!("SELECT \"Orders_quota\".consume('alice', NULL, '{row}')");
    let refused = database.psql_fails(&consume(r#"{"State%": "failed"}"#));
    assert!(
        refused.contains("a row with \"failed\" in column State% would not count"),
        "{refused}"
    );
    assert_eq!(json_of(&database.psql(&consume(r#"{"a\nb": 5}"#)))["row"]["a\nb"], 5);
    assert_eq!(json_of(&database.psql(&consume("{}")))["allowed"], false);
    let refused = database.psql_fails("UPDATE app.\"Orders\" SET \"User Id\" = 'bob'");
    assert!(
        refused.contains("RL429") && refused.contains("a row of user alice counts until"),
        "{refused}"
    );
    let refused = database.psql_fails("INSERT INTO app.\"Orders\" (\"User Id\") VALUES ('alice')");
    assert!(refused.contains("RL429"), "{refused}");
    assert_eq!(
        database.psql("SELECT user_id, total_requests FROM \"Orders_quota\".history()"),
        "alice|2"
    );
    let missing = Rows::new("app.\"orderS\"", 2, Span::from_hours(24))
        .install(&database.options())
        .await
        .unwrap_err();
    assert!(missing.to_string().contains(r#"there is no table "app"."orderS""#), "{missing}");
    // A line break in a name stays inside its quotes.
    database
        .psql("CREATE TABLE \"x\nCREATE TABLE evil ();--\" (user_id text, created_at timestamptz)");
    let rows =
        Rows::new("\"x\nCREATE TABLE evil ();--\"", 2, Span::from_hours(24)).in_schema("lines");
    rows.install(&database.options()).await.unwrap();
    assert_eq!(database.psql("SELECT to_regclass('evil') IS NULL"), "t");
}

/// What does not fit is refused before anything is installed, each with its own words.
#[tokio::test]
async fn what_does_not_fit_is_refused() {
    let database = TestDatabase::new();
    database.psql("CREATE TABLE t (user_id text, created_at timestamp, day date, at timestamptz)");
    let rows = |table: &str| Rows::new(table, 5, Span::from_hours(24));
    let refusals = [
        (rows("missing"), "there is no table \"missing\""),
        (
            rows("t").user_column("owner"),
            "has no column \"owner\"; it has user_id, created_at, day, at",
        ),
        (rows("t"), "TYPE timestamptz USING \"created_at\" AT TIME ZONE 'UTC'"),
        (rows("t").time_column("day"), "is of type date"),
        (rows("t").time_column("at").key_column("k"), "has no column \"k\""),
        (rows("t").time_column("at").only("k", ["x"]), "has no column \"k\""),
        (Rows::new("t", 0, Span::from_hours(24)), "limit 0"),
        (rows("t").time_column("at").in_schema("a$b"), "no $"),
    ];
    for (rows, words) in refusals {
        let error = rows.install(&database.options()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(words), "{error}");
    }
    assert_eq!(database.psql("SELECT count(*) FROM pg_namespace WHERE nspname = 't_quota'"), "0");
    let error = Quota::open(database.options(), "t_quota").await.unwrap_err();
    assert!(error.to_string().contains("there is no quota in the schema \"t_quota\""), "{error}");
    // A time without a zone that is known to be UTC is one, whatever the zone of the session.
    rows("t").times_are_utc().install(&database.options()).await.unwrap();
    let call = "SET TIME ZONE 'Asia/Tokyo'; SELECT t_quota.consume_at('u', NULL, '{}', '2026-11-15 12:00Z')";
    database.psql(call);
    assert_eq!(database.psql("SELECT created_at FROM t"), "2026-11-15 12:00:00");
    let info = "SET TIME ZONE 'Asia/Tokyo'; SELECT t_quota.info_at('u', '2026-11-15 13:00Z')";
    assert_eq!(json_of(&database.psql(info))["resetIn"], "23h");
}
