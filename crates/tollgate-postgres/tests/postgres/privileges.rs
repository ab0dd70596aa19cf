//! Who may do what to a quota over rows: roles that may only consume, owners, and installs over earlier installs.

use serde_json::json;
use tollgate::{ErrorKind, Span, Timestamp};
use tollgate_postgres::Options;
use tollgate_postgres::rows::{FailOpen, Grants, Installed, Quota, Rows};

use super::TestDatabase;
use super::quota::{TABLE, json_of, videos};

/// A database with two roles of its own: one that owns the table, and one without any privilege.
struct Roles {
    database: TestDatabase,
    owner: String,
    consumer: String,
}

impl Roles {
    fn new() -> Self {
        let database = TestDatabase::new();
        let (owner, consumer) =
            (format!("owner_{}", database.name), format!("consumer_{}", database.name));
        database.psql(&format!(
            "CREATE ROLE {owner} LOGIN; CREATE ROLE {consumer} LOGIN; \
             GRANT CREATE ON DATABASE {} TO {owner}; GRANT CREATE ON SCHEMA public TO {owner}",
            database.name
        ));
        let roles = Self { database, owner, consumer };
        roles.by(&roles.owner, TABLE);
        roles
    }

    /// What `psql` prints for `sql` as `role`.
    fn by(&self, role: &str, sql: &str) -> String {
        self.database.server.psql_as(role, &self.database.name, sql).unwrap()
    }

    /// What `psql` complains about when `role` runs `sql`.
    fn denied(&self, role: &str, sql: &str) -> String {
        self.database.server.psql_as(role, &self.database.name, sql).unwrap_err().to_string()
    }

    fn options(&self, role: &str) -> Options {
        Options::new(&self.database.server.url_as(role, &self.database.name)).unwrap()
    }

    async fn install(&self, role: &str, rows: &Rows) -> Installed {
        let installed = rows.install(&self.options(role)).await.unwrap();
        assert_eq!(installed.owner, self.owner);
        installed
    }

    /// Runs statements that an install printed, for the consumer.
    fn grant(&self, statements: &[String]) {
        let text = statements.join(" ").replace(Grants::ROLE, &self.consumer);
        self.by(&self.owner, &text);
    }

    /// A quota that its consumer may consume.
    async fn granted(rows: &Rows) -> Self {
        let roles = Self::new();
        let installed = roles.install(&roles.owner, rows).await;
        roles.grant(&installed.grants.consume);
        roles
    }

    /// Functions of the quota that `role` may call, in order.
    fn callable(&self, role: &str) -> String {
        self.database.psql(&format!(
            "SELECT coalesce(string_agg(proname, ' ' ORDER BY proname), '') FROM pg_proc \
             WHERE pronamespace = 'video_requests_quota'::regnamespace AND has_function_privilege('{role}', oid, 'EXECUTE')"
        ))
    }
}

const CONSUME: &str = "SELECT video_requests_quota.consume('alice') -> 'allowed'";

/// A role with the printed grants, and nothing else, gets decisions, and every other way to the rows is closed.
#[tokio::test]
async fn a_consumer_can_consume_and_nothing_else() {
    let roles = Roles::granted(&videos()).await;
    let consumer = &roles.consumer;
    for expected in ["true", "true", "true", "true", "true", "false"] {
        assert_eq!(roles.by(consumer, CONSUME), expected);
    }
    assert_eq!(roles.callable(consumer), "consume");
    let quota = Quota::open(roles.options(consumer), "video_requests_quota").await.unwrap();
    assert_eq!(quota.consume("bob", Some("k")).await.unwrap()["row"]["user_id"], "bob");
    for sql in [
        "INSERT INTO video_requests (user_id) VALUES ('alice')",
        "SELECT * FROM video_requests",
        "UPDATE video_requests SET user_id = 'x'",
        "DELETE FROM video_requests",
        "TRUNCATE video_requests",
        "SELECT * FROM video_requests_quota.rejections",
        "DELETE FROM video_requests_quota.rejections",
        "TRUNCATE video_requests_quota.rejections",
        "INSERT INTO video_requests_quota.ids VALUES ('alice', 'k', now())",
        "DELETE FROM video_requests_quota.ids",
        "SELECT video_requests_quota.consume_at('alice', NULL, '{}', now() + '3 days')",
        "SELECT video_requests_quota.insert_row('alice', NULL, '{}', now())",
        "SELECT video_requests_quota.replay('alice', 'k', now())",
        "SELECT video_requests_quota.check_at('alice', now())",
        "SELECT video_requests_quota.info_at('alice', now())",
        "SELECT video_requests_quota.recent('alice', now())",
        "SELECT video_requests_quota.remaining('alice')",
        "SELECT video_requests_quota.lock_user('alice')",
        "SELECT video_requests_quota.clean_up(now() + '3 days')",
        "SELECT * FROM video_requests_quota.history()",
        "CREATE FUNCTION video_requests_quota.recent(text, timestamptz, int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TEMP TABLE t (user_id text, created_at timestamptz); \
         CREATE TRIGGER t BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION video_requests_quota.enforce()",
        &format!("SET ROLE {}", roles.owner),
        &format!("ALTER FUNCTION video_requests_quota.consume OWNER TO {consumer}"),
    ] {
        let denied = roles.denied(consumer, sql);
        assert!(
            denied.contains("permission denied") || denied.contains("must be"),
            "{sql}: {denied}"
        );
    }
    assert_eq!(
        roles.database.psql("SELECT count(*) FROM video_requests WHERE user_id = 'alice'"),
        "5"
    );
    assert_eq!(roles.database.psql("SELECT count(*) FROM video_requests_quota.rejections"), "1");
    // A third role has not even that.
    roles.database.psql(&format!("CREATE ROLE other_{} LOGIN", roles.database.name));
    assert_eq!(roles.callable(&format!("other_{}", roles.database.name)), "");
    let denied = Quota::open(
        roles.options(&format!("other_{}", roles.database.name)),
        "video_requests_quota",
    );
    let denied = denied.await.unwrap().consume("bob", None).await.unwrap_err();
    assert!(denied.to_string().contains("permission denied for schema"), "{denied}");
    assert!(denied.to_string().contains("tollgate postgres install"), "{denied}");
}

/// Every function is SECURITY DEFINER with the pinned settings, runs as the owner of the table, and is closed to PUBLIC.
#[tokio::test]
async fn every_function_is_pinned_and_closed_to_public() {
    let roles = Roles::granted(&videos().with_trigger()).await;
    let open = roles.database.psql(&format!(
        "SELECT string_agg(proname, ' ') FROM pg_proc p WHERE pronamespace = 'video_requests_quota'::regnamespace AND NOT ( \
         prosecdef AND proowner = '{}'::regrole AND proacl IS NOT NULL \
         AND proconfig @> ARRAY['search_path=pg_catalog, pg_temp', 'row_security=off'] \
         AND NOT EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee = 0))",
        roles.owner
    ));
    assert_eq!(open, "");
    let all = roles.callable(&roles.owner);
    assert_eq!(
        all,
        "check check_at clean_up consume consume_at enforce for_people history info info_at insert_row lock_user \
         need_read_committed recent remaining replay says utc"
    );
}

/// A caller controls its session: search_path, temporary tables, operators and functions that match better, and settings
/// that change texts. None of them changes a decision, and nothing of the caller's runs with the rights of the owner.
#[tokio::test]
async fn a_consumer_cannot_steer_the_functions() {
    let roles = Roles::granted(&videos()).await;
    let consumer = &roles.consumer;
    // As in databases of before PostgreSQL 15, every role may create in public.
    roles.database.psql("GRANT CREATE ON SCHEMA public TO PUBLIC");
    roles.by(
        consumer,
        "CREATE TABLE public.ran (by text); GRANT ALL ON public.ran TO PUBLIC; \
         CREATE FUNCTION public.cardinality(timestamptz[]) RETURNS int LANGUAGE plpgsql AS \
             $f$ BEGIN INSERT INTO public.ran VALUES (current_user); RETURN 0; END $f$; \
         CREATE FUNCTION public.later(timestamptz, timestamptz) RETURNS boolean LANGUAGE plpgsql AS \
             $f$ BEGIN INSERT INTO public.ran VALUES (current_user); RETURN false; END $f$; \
         CREATE FUNCTION public.same(text, text) RETURNS boolean LANGUAGE plpgsql AS \
             $f$ BEGIN INSERT INTO public.ran VALUES (current_user); RETURN false; END $f$; \
         CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT now() + interval ''3 days'''; \
         CREATE FUNCTION public.to_jsonb(public.video_requests) RETURNS jsonb LANGUAGE plpgsql AS \
             $f$ BEGIN INSERT INTO public.ran VALUES (current_user); RETURN '{}'; END $f$; \
         CREATE OPERATOR public.> (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = public.later); \
         CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.same)",
    );
    // In a schema that others may create functions in, none of theirs matches better.
    roles.by(&roles.owner, &format!("GRANT CREATE ON SCHEMA video_requests_quota TO {consumer}"));
    for arguments in [
        "check_at(text, text)",
        "info_at(text, text)",
        "consume_at(text, text, jsonb, text)",
        "recent(text, timestamp)",
        "utc(text)",
        "says(boolean, text, timestamptz)",
    ] {
        roles.by(
            consumer,
            &format!(
                "CREATE FUNCTION video_requests_quota.{arguments} RETURNS jsonb LANGUAGE plpgsql AS \
                 $f$ BEGIN INSERT INTO public.ran VALUES (current_user); RETURN '{{}}'; END $f$"
            ),
        );
    }
    let session = "SET search_path = pg_temp, public, pg_catalog; SET row_security = off; SET bytea_output = escape; \
         SET standard_conforming_strings = off; SET timezone = 'Asia/Tokyo'; SET intervalstyle = sql_standard; \
         CREATE TEMP TABLE video_requests (user_id text, created_at timestamptz); \
         CREATE TEMP TABLE rejections (LIKE video_requests); CREATE TEMP TABLE text (a int); CREATE TEMP TABLE jsonb (a int)";
    for expected in ["true", "true", "true", "true", "true", "false", "false"] {
        assert_eq!(roles.by(consumer, &format!("{session}; {CONSUME}")), expected);
    }
    assert_eq!(roles.database.psql("SELECT count(*) FROM public.video_requests"), "5");
    assert_eq!(roles.database.psql("SELECT count(*) FROM public.ran"), "0");
}

/// Callers cannot choose to be unlimited: neither by a value that the filter leaves out, nor by a null user.
#[tokio::test]
async fn a_consumer_cannot_insert_rows_that_do_not_count() {
    let long = "s".repeat(63);
    let rows = Rows::new("jobs", 2, Span::from_hours(24)).only(&long, ["new", "done"]);
    let roles = Roles::new();
    roles.by(
        &roles.owner,
        &format!("CREATE TABLE jobs (user_id text, created_at timestamptz, note text, {long} text DEFAULT 'new')"),
    );
    let grants = roles.install(&roles.owner, &rows).await.grants;
    roles.grant(&grants.consume);
    let consume = |row: &str| format!("SELECT jobs_quota.consume('alice', NULL, '{row}')");
    for state in ["\"failed\"", "null"] {
        let denied = roles.denied(&roles.consumer, &consume(&format!("{{\"{long}\": {state}}}")));
        assert!(denied.contains("22023") && denied.contains("would not count"), "{denied}");
    }
    // PostgreSQL would cut the name to that of the column.
    let denied = roles.denied(&roles.consumer, &consume(&format!("{{\"{long}x\": \"new\"}}")));
    assert!(denied.contains("would not count"), "{denied}");
    let denied = roles.denied(&roles.consumer, "SELECT jobs_quota.consume(NULL)");
    assert!(denied.contains("22004") && denied.contains("must not be null"), "{denied}");
    for row in ["[1]", "\"x\"", "null"] {
        let denied = roles.denied(&roles.consumer, &consume(row));
        assert!(denied.contains("22023") && denied.contains("must be a JSON object"), "{denied}");
    }
    for column in ["user_id", "created_at"] {
        let denied = roles.denied(&roles.consumer, &consume(&format!("{{\"{column}\": null}}")));
        assert!(denied.contains("more than once"), "{denied}");
    }
    assert_eq!(roles.database.psql("SELECT count(*) FROM jobs"), "0");
    let row =
        roles.by(&roles.consumer, &consume(&format!("{{\"{long}\": \"done\", \"note\": \"n\"}}")));
    assert_eq!(
        (&json_of(&row)["row"]["note"], &json_of(&row)["remaining"]),
        (&json!("n"), &json!(1))
    );
}

/// Reading and replaying are granted apart. A replayed request counts at its own time and never later than now; without
/// the grant an open quota is refused when it is made, and not when the database is back.
#[tokio::test]
async fn reading_and_replaying_are_granted_apart() {
    let roles = Roles::new();
    let grants = roles.install(&roles.owner, &videos()).await.grants;
    roles.grant(&grants.consume);
    roles.grant(&grants.read);
    assert_eq!(roles.callable(&roles.consumer), "check consume info remaining");
    let quota =
        async || Quota::open(roles.options(&roles.consumer), "video_requests_quota").await.unwrap();
    assert_eq!(quota().await.remaining("alice").await.unwrap(), 5);
    assert_eq!(quota().await.info("alice").await.unwrap()["quotaUsed"], 0);
    let refused = FailOpen::new(quota().await, 3).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(
        refused.to_string().contains("may not call \"video_requests_quota\".replay"),
        "{refused}"
    );
    roles.grant(&grants.replay);
    FailOpen::new(quota().await, 3).unwrap();
    let replay = |key: &str, at: &str| {
        roles.by(
            &roles.consumer,
            &format!("SELECT video_requests_quota.replay('alice', '{key}', {at}) -> 'id'"),
        )
    };
    assert_eq!(replay("a", "now() - interval '1 hour'"), "1");
    assert_eq!(replay("a", "now() - interval '1 hour'"), "1", "a repeat");
    assert_eq!(replay("b", "now() + interval '3 days'"), "2");
    let times = "SELECT bool_and(created_at <= now()), min(created_at) < now() - interval '59 minutes' FROM video_requests";
    assert_eq!(roles.database.psql(times), "t|t");
    for key in ["c", "d", "e", "beyond the limit"] {
        replay(key, "now()");
    }
    assert_eq!(roles.database.psql("SELECT count(*) FROM video_requests"), "6");
    assert_eq!(roles.database.psql("SELECT count(*) FROM video_requests_quota.rejections"), "0");
    for arguments in ["'alice', NULL, now()", "'alice', 'k', NULL", "NULL, 'k', now()"] {
        let sql = format!("SELECT video_requests_quota.replay({arguments})");
        assert!(roles.denied(&roles.consumer, &sql).contains("22004"), "{sql}");
    }
}

/// Whatever was granted survives another install, by the owner or by a superuser, with other numbers and another type of
/// the user column; the functions stay with the owner of the table.
#[tokio::test]
async fn grants_survive_a_reinstall() {
    let roles = Roles::granted(&videos()).await;
    let consumer = &roles.consumer;
    assert_eq!(roles.by(consumer, CONSUME), "true");
    roles.install(&roles.owner, &Rows::new("video_requests", 2, Span::from_hours(1))).await;
    assert_eq!(roles.by(consumer, CONSUME), "true");
    assert_eq!(roles.by(consumer, CONSUME), "false");
    roles.install("postgres", &videos().with_trigger()).await;
    assert_eq!(roles.by(consumer, CONSUME), "true");
    // PUBLIC is revoked by every install.
    roles.by(&roles.owner, "GRANT EXECUTE ON FUNCTION video_requests_quota.consume_at TO PUBLIC");
    let history = format!(
        "GRANT EXECUTE ON FUNCTION video_requests_quota.history TO {consumer} WITH GRANT OPTION"
    );
    roles.by(&roles.owner, &history);
    roles.install("postgres", &videos()).await;
    assert_eq!(roles.callable(consumer), "consume history");
    // Another type makes other functions. The new ones have the grants, and nothing is left of the old.
    roles.by(
        &roles.owner,
        "TRUNCATE video_requests; ALTER TABLE video_requests ALTER user_id TYPE int USING 7",
    );
    let error = videos().install(&roles.options(&roles.owner)).await.unwrap_err();
    assert!(
        error.to_string().contains("users in video_requests_quota.rejections do not convert"),
        "{error}"
    );
    roles.by(&roles.owner, "DELETE FROM video_requests_quota.rejections");
    for installer in [&*roles.owner, "postgres"] {
        roles.install(installer, &videos()).await;
        assert_eq!(roles.callable(consumer), "consume history");
    }
    assert_eq!(
        roles
            .database
            .psql("SELECT proacl::text LIKE '%X*%' FROM pg_proc WHERE proname = 'history'"),
        "t"
    );
    let denied = roles.denied(consumer, CONSUME);
    assert!(denied.contains("invalid input syntax for type integer"), "{denied}");
    let consume = "SELECT video_requests_quota.consume(7, 'k') -> 'allowed'";
    assert_eq!(roles.by(consumer, &format!("{consume}; {consume}")), "true\ntrue");
    assert_eq!(roles.database.psql("SELECT user_id + 1 FROM video_requests_quota.ids"), "8");
    let quota = Quota::open(roles.options(consumer), "video_requests_quota").await.unwrap();
    assert_eq!(quota.consume("7", Some("k")).await.unwrap()["duplicate"], true);
    assert_eq!(quota.history(Timestamp::EPOCH, Timestamp::from_micros(1)).await.unwrap(), []);
}

/// A role that is neither the owner nor a member of it changes nothing; a member installs for the owner.
#[tokio::test]
async fn another_role_installs_only_for_the_owner() {
    let roles = Roles::granted(&videos()).await;
    let definitions = || {
        roles.database.psql(
            "SELECT string_agg(p.oid::regprocedure || proowner::regrole::text || proacl::text || prosrc, ' ' ORDER BY p.oid) \
               FROM pg_proc p WHERE pronamespace = 'video_requests_quota'::regnamespace",
        )
    };
    let before = definitions();
    let stranger = format!("stranger_{}", roles.database.name);
    roles.database.psql(&format!("CREATE ROLE {stranger} LOGIN; GRANT CREATE ON DATABASE {} TO {stranger}; \
        GRANT ALL ON video_requests TO {stranger}; GRANT ALL ON SCHEMA video_requests_quota TO {stranger}", roles.database.name));
    let error = videos().install(&roles.options(&stranger)).await.unwrap_err();
    assert!(error.to_string().contains("must be owner of"), "{error}");
    assert!(error.to_string().contains("let the owner run `tollgate postgres install`"), "{error}");
    assert_eq!(definitions(), before);
    roles.database.psql(&format!("GRANT {} TO {stranger}", roles.owner));
    let new = Rows::new("video_requests", 3, Span::from_hours(24));
    roles.install(&stranger, &new).await;
    assert_ne!(definitions(), before);
    assert_eq!(roles.by(&roles.consumer, CONSUME), "true");
}

/// Objects that another role created in the schema beforehand are neither taken over, with triggers and grants of their
/// own, nor taken for functions of an earlier install.
#[tokio::test]
async fn objects_of_other_roles_do_not_become_part_of_the_quota() {
    let roles = Roles::new();
    let consumer = &roles.consumer;
    let friend = format!("friend_{}", roles.database.name);
    roles.database.psql(&format!("CREATE ROLE {friend}"));
    roles.by(
        &roles.owner,
        &format!("CREATE SCHEMA shared; GRANT ALL ON SCHEMA shared TO {consumer}"),
    );
    let rows = videos().in_schema("shared");
    for object in [
        "TABLE shared.ids (user_id text, id text, consumed_at timestamptz, PRIMARY KEY (user_id, id))",
        "FUNCTION shared.utc(p_time timestamptz) RETURNS text LANGUAGE sql AS 'SELECT 1'",
    ] {
        roles.by(consumer, &format!("CREATE {object}"));
        for (installer, words) in
            [("postgres", "drop it, or name another schema"), (&roles.owner, "must be owner")]
        {
            let error = rows.install(&roles.options(installer)).await.unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
        roles.by(consumer, "DROP TABLE IF EXISTS shared.ids; DROP FUNCTION IF EXISTS shared.utc");
    }
    roles.by(
        consumer,
        &format!(
            "CREATE FUNCTION shared.consume_at(p_user int, p_key text) RETURNS int LANGUAGE sql AS 'SELECT 1'; \
             GRANT EXECUTE ON FUNCTION shared.consume_at TO {friend}"
        ),
    );
    roles.install("postgres", &rows).await;
    let callable = format!(
        "SELECT string_agg(p.oid::regprocedure::text, ' ') FROM pg_proc p WHERE pronamespace = 'shared'::regnamespace \
         AND has_function_privilege('{friend}', p.oid, 'EXECUTE')"
    );
    assert_eq!(roles.database.psql(&callable), "shared.consume_at(integer,text)");
}

/// A superuser installs for the owner of the table, from the first time on: triggers of that table and domains of its
/// columns, which its owner may change, do not run with the rights of a superuser.
#[tokio::test]
async fn a_superuser_does_not_lend_its_rights() {
    let roles = Roles::new();
    let grants = roles.install("postgres", &videos().with_trigger()).await.grants;
    roles.grant(&grants.consume);
    roles.by(
        &roles.owner,
        "CREATE TABLE ran (by text); \
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS \
             $f$ BEGIN INSERT INTO public.ran VALUES (current_user); RETURN NEW; END $f$; \
         CREATE TRIGGER a BEFORE INSERT ON video_requests FOR EACH ROW EXECUTE FUNCTION note()",
    );
    for _ in 0..6 {
        roles.by(&roles.consumer, CONSUME);
    }
    roles.by(
        &roles.owner,
        "CREATE FUNCTION noted(text) RETURNS boolean LANGUAGE plpgsql AS \
             $f$ BEGIN INSERT INTO public.ran VALUES (current_user); RETURN true; END $f$; \
         CREATE DOMAIN person AS text NOT NULL CHECK (noted(VALUE)); ALTER TABLE video_requests ALTER user_id TYPE person",
    );
    roles.install("postgres", &videos().with_trigger()).await;
    assert_eq!(roles.database.psql("SELECT DISTINCT by FROM ran"), roles.owner);
    assert_eq!(roles.by(&roles.owner, CONSUME), "false");
}

/// Default privileges of the owner, as many databases have them, give nothing on a new quota. What they gave on one that
/// was there is kept like any grant, and named.
#[tokio::test]
async fn privileges_that_bypass_the_quota_are_named() {
    let roles = Roles::new();
    let consumer = &roles.consumer;
    let defaults = format!(
        "ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO {consumer}; \
         ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {consumer}"
    );
    roles.by(&roles.owner, &defaults);
    let installed = roles.install(&roles.owner, &videos()).await;
    assert_eq!((roles.callable(consumer).as_str(), &*installed.warnings), ("", &[] as &[String]));
    roles.by(
        &roles.owner,
        &format!(
            "GRANT EXECUTE ON FUNCTION video_requests_quota.consume_at, video_requests_quota.consume TO {consumer}; \
             GRANT INSERT, SELECT ON video_requests TO {consumer}; GRANT DELETE ON video_requests TO PUBLIC; \
             GRANT SELECT, DELETE ON video_requests_quota.rejections TO {consumer}; \
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; \
             CREATE TRIGGER a AFTER INSERT ON video_requests FOR EACH ROW EXECUTE FUNCTION note(); \
             CREATE TRIGGER b AFTER DELETE ON video_requests FOR EACH ROW EXECUTE FUNCTION note()"
        ),
    );
    let what = async |rows: Rows| {
        let warnings = roles.install("postgres", &rows).await.warnings;
        let start = |text: &String| text.split([',', ';']).next().unwrap_or_default().to_owned();
        warnings.iter().map(start).collect::<Vec<_>>()
    };
    let trigger =
        "the trigger a on video_requests runs inside consume with search_path = pg_catalog";
    assert_eq!(
        what(videos()).await,
        [
            "PUBLIC has DELETE on public.video_requests".to_owned(),
            format!("{consumer} has DELETE on video_requests_quota.rejections"),
            format!("{consumer} has EXECUTE on video_requests_quota.consume_at"),
            format!("{consumer} has INSERT on public.video_requests"),
            trigger.to_owned(),
        ]
    );
    roles.by(&roles.owner, "ALTER FUNCTION note() SET search_path = public, pg_temp");
    roles.database.psql(&format!("ALTER SCHEMA video_requests_quota OWNER TO {consumer}"));
    let owned = what(videos()).await;
    assert_eq!(owned[4], format!("the schema video_requests_quota belongs to {consumer}"));
    roles.database.psql(&format!("ALTER SCHEMA video_requests_quota OWNER TO {}", roles.owner));
    let with_trigger = what(videos().with_trigger()).await;
    assert_eq!(with_trigger.len(), 3, "inserts are checked by the trigger: {with_trigger:?}");
}

/// Functions that ran with the rights of their caller, installed by a superuser and open to PUBLIC, become safe ones. What
/// operators granted is kept, rejections and keys too, and the trigger sees updates.
#[tokio::test]
async fn an_install_of_an_earlier_version_is_upgraded() {
    for installer in ["postgres", "owner"] {
        let roles = Roles::new();
        let installer = if installer == "owner" { &*roles.owner } else { installer };
        roles.by(installer, include_str!("invoker_quota.sql"));
        let consumer = &roles.consumer;
        roles.by(
            installer,
            &format!(
                "GRANT USAGE ON SCHEMA video_requests_quota TO {consumer}; \
                 GRANT EXECUTE ON FUNCTION video_requests_quota.consume, video_requests_quota.check TO {consumer}; \
                 SELECT video_requests_quota.consume('alice', 'k') FROM generate_series(1, 1); \
                 INSERT INTO video_requests (user_id) SELECT 'bob' FROM generate_series(1, 5); \
                 SELECT video_requests_quota.consume('bob')"
            ),
        );
        let old = Quota::open(roles.options(installer), "video_requests_quota").await.unwrap();
        let refused = FailOpen::new(old, 1).unwrap_err();
        assert!(refused.to_string().contains("run `tollgate postgres install` again"), "{refused}");
        roles.install(installer, &videos().with_trigger()).await;
        assert_eq!(roles.callable(consumer), "check consume");
        assert_eq!(roles.by(consumer, CONSUME), "true");
        let repeat =
            json_of(&roles.by(consumer, "SELECT video_requests_quota.consume('alice', 'k')"));
        assert_eq!((&repeat["duplicate"], &repeat["remaining"]), (&json!(true), &json!(3)));
        assert_eq!(
            roles.database.psql("SELECT user_id FROM video_requests_quota.rejections"),
            "bob"
        );
        let moved = roles
            .denied(&roles.owner, "UPDATE video_requests SET user_id = 'x' WHERE user_id = 'bob'");
        assert!(moved.contains("RL429"), "{moved}");
        let triggers = "SELECT string_agg(tgname, ' ') FROM pg_trigger WHERE tgrelid = 'video_requests'::regclass";
        assert_eq!(roles.database.psql(triggers), "tollgate_quota");
    }
}

/// Values of a type of an extension compare by its own operator, though its schema is on no search path of the functions;
/// and equal values share a lock, however they are written.
#[tokio::test]
async fn equal_users_are_one_user_for_counting_and_locking() {
    let roles = Roles::new();
    roles.database.psql("CREATE EXTENSION citext");
    roles.database.psql("CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)");
    for (kind, one, other, session) in [
        ("public.citext", "alice", "ALICE", ""),
        ("text COLLATE caseless", "alice", "ALICE", ""),
        ("numeric", "1.0", "1.00", ""),
        ("bytea", "\\x41ff", "\\x41ff", "SET bytea_output = escape; "),
    ] {
        roles.by(
            &roles.owner,
            &format!(
                "CREATE TABLE q (user_id {kind}, created_at timestamptz, state public.citext DEFAULT 'New', \"Key\" public.citext)"
            ),
        );
        let rows = Rows::new("q", 2, Span::from_hours(24)).lock_timeout(Span::from_millis(50));
        let rows = rows.only("state", ["NEW", "old"]).key_column("Key").with_trigger();
        let grants = roles.install(&roles.owner, &rows).await.grants;
        roles.grant(&grants.consume);
        let consume = |user: &str, key: &str| {
            format!("{session}SELECT q_quota.consume('{user}', '{key}') ->> 'allowed'")
        };
        assert_eq!(roles.by(&roles.consumer, &consume(one, "a")), "true", "{kind}");
        let (holder, driver) =
            tokio_postgres::connect(&roles.database.url(), tokio_postgres::NoTls).await.unwrap();
        let driver = tokio::spawn(driver);
        holder
            .batch_execute(&format!("BEGIN; {}", consume(one, "b").replace(session, "")))
            .await
            .unwrap();
        let waits = roles.denied(&roles.consumer, &consume(other, "c"));
        assert!(waits.contains("lock timeout"), "{kind}: {waits}");
        holder.batch_execute("COMMIT").await.unwrap();
        drop(holder);
        driver.await.unwrap().unwrap();
        assert_eq!(roles.by(&roles.consumer, &consume(other, "c")), "false", "{kind}");
        assert_eq!(roles.by(&roles.consumer, &consume(other, "B")), "true", "{kind}: a repeat");
        roles.by(&roles.owner, &format!("UPDATE q SET user_id = '{other}', state = 'OLD'"));
        roles.by(&roles.owner, "DROP TABLE q; DROP SCHEMA q_quota CASCADE");
    }
}

/// Rows that row-level security hides from the owner would not be counted, so such a quota is not installed; and a policy
/// that comes later makes counting fail rather than admit.
#[tokio::test]
async fn rows_hidden_by_row_level_security_are_not_taken_for_absent() {
    let roles = Roles::granted(&videos()).await;
    let hide = "ALTER TABLE video_requests ENABLE ROW LEVEL SECURITY";
    roles.by(&roles.owner, hide);
    assert_eq!(roles.by(&roles.consumer, CONSUME), "true", "the owner sees every row");
    roles.by(&roles.owner, "ALTER TABLE video_requests FORCE ROW LEVEL SECURITY");
    assert!(roles.denied(&roles.consumer, CONSUME).contains("row-level security"));
    let error = videos().install(&roles.options(&roles.owner)).await.unwrap_err();
    assert!(error.to_string().contains("row-level security"), "{error}");
}
