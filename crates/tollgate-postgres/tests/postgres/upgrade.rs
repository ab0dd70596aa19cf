//! A database of the version before, brought to this one in place.

use tollgate::clock::ManualClock;
use tollgate::core::{ChargeRecord, Grant};
use tollgate::{Ask, Clock, GateExt, Limit, Permit, Policy, RollingWindow, Span, TokenBucket};
use tollgate_postgres::{Options, Postgres};

use super::{TestDatabase, used};

/// The functions that a broker of version 3 calls.
const FUNCTIONS_3: [&str; 8] = [
    "look(text, text, bigint)",
    "spend(text, text, bytea, bigint[], bigint[], text, bigint, bigint, text, boolean)",
    "spend_all(text[], text[], bytea[], bigint[], int[], bigint[], int[], text[], bigint[], bigint[], boolean[], text)",
    "settle(text, text, bytea, bigint[], bigint[], bigint[], bigint, bigint, bigint[], boolean, boolean, bigint, text)",
    "renew(text, text, bytea, bigint[], bigint[], bigint, bigint, text)",
    "close(text, text, bytea, bigint[], bigint[], bigint, bigint, bigint, text)",
    "reset(text, text, bytea, bigint[], bigint[], bigint, text)",
    "swap(text, text, bigint, bytea, bigint, bigint, bigint[], text[], bigint[], bigint[], bigint, bigint[], bigint[], \
     bigint, text)",
];

fn one(name: &str, rule: impl Into<tollgate::policy::Rule>) -> Policy {
    Policy::new(name, [Limit::new("only", "requests", rule)]).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The shape that version 3 wrote for a window of 64 slots by default: one without a resolution.
fn without_resolution(shape: &[u8]) -> Vec<u8> {
    let slots = shape.windows(2).position(|pair| pair == [1, 64]).unwrap();
    [&shape[..slots], &[0], &shape[slots + 2..]].concat()
}

/// What an entry of version 3 counted is counted, what was settled stays settled, and rights on its tables hold for the new
/// ones. A broker of version 3 finds none of its functions, so it gets an error and changes nothing.
#[tokio::test]
async fn entries_of_version_3_count_after_an_upgrade() {
    let (database, clock) = (TestDatabase::empty_of_version_3(), ManualClock::new());
    let now = clock.now().as_micros();
    let bucket = one("bucket", TokenBucket::per_second(1).burst(100));
    let window = one("window", RollingWindow::new(20_000, Span::from_secs(10)));
    let role = format!("upgraded_{}", database.name);
    for function in FUNCTIONS_3 {
        let found =
            database.psql(&format!("SELECT to_regprocedure('tollgate.{function}') IS NULL"));
        assert_eq!(found, "f", "{function}");
    }
    database.psql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA tollgate TO {role}; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tollgate TO {role}"
    ));
    let far = now + 3_600_000_000;
    database.psql(&format!(
        "INSERT INTO tollgate.entries VALUES \
         ('bucket', 's', '\\x{}', {now}, {now}, {now} + 9, '{{0,1,40000000}}', '{{one}}', \
          '{{{now},{now},{far},1}}', ARRAY[{now}, {now} + 3, {now}, {now} + 5, {now} + 5, {now}], {now} - 1, '{{}}', '{{}}', {far}), \
         ('window', 's', '\\x{}', {now}, {now}, {now} + 3, \
          ARRAY[1, 7, 600, {now} - 2000000, 100, {now} - 1000000, 200, {now}, 300], '{{}}', '{{}}', '{{}}', 0, '{{}}', '{{}}', {far})",
        hex(bucket.shape_bytes()),
        hex(&without_resolution(window.shape_bytes())),
    ));
    let gate = database.gate_by(&clock).await;
    assert_eq!(database.psql("SELECT max(version) FROM tollgate.migrations"), "4");
    assert_eq!(used(&gate, &bucket, "s").await, 40);
    assert_eq!(used(&gate, &window, "s").await, 600);
    let permit = |stamp| {
        let charge = ChargeRecord { at: clock.now(), stamp };
        let ask = Ask::new(&bucket, "s");
        let grant = Grant::new(charge, &bucket, ask.amounts());
        Permit::new(&bucket, "s", *ask.amounts(), grant)
    };
    for (stamp, settles) in [(now + 2, false), (now + 4, true), (now + 4, false), (now + 5, false)]
    {
        assert_eq!(gate.release(&permit(stamp)).await.unwrap(), settles, "{}", stamp - now);
    }
    assert_eq!(database.psql("SELECT first - last, settled_runs FROM tollgate.settled JOIN tollgate.entries USING (policy, subject)"), "-5|1");
    // Without a record of lows nothing is given back, which is the strict side.
    assert_eq!(used(&gate, &bucket, "s").await, 40);
    let options = Options::new(&database.url().replace("postgres@", &format!("{role}@"))).unwrap();
    let least =
        Postgres::open(options.test_clock(std::sync::Arc::new(clock.clone()))).await.unwrap();
    for policy in [&bucket, &window] {
        let ask = Ask::new(policy, "s").id("one");
        let permit = least.acquire(&ask).await.unwrap().into_permit().unwrap();
        assert!(least.release(&permit).await.unwrap());
        assert!(least.acquire(&ask).await.unwrap().is_admitted());
    }
    assert_eq!(used(&gate, &bucket, "s").await, 41);
    assert_eq!(used(&gate, &window, "s").await, 601);
    // The slot that the newest amount is in ends at most 10 s / 64 later.
    clock.advance(Span::from_millis(10_157));
    assert_eq!(used(&gate, &window, "s").await, 0);
    for function in FUNCTIONS_3 {
        let found = database.psql(&format!("SELECT to_regprocedure('tollgate.{function}')"));
        assert_eq!(found, "", "a broker of version 3 can still call it");
    }
}
