//! `CL.THROTTLE` beside a model of redis-cell, and `DEL` of its keys.

use tollgate::core::bounds::SUBJECT_BYTES_MAX;
use tollgate::{Ask, GateExt, Limit, Policy, Span, TokenBucket};
use tollgate_testkit::redis_cell::compare;

use crate::client::Server;
use crate::resp::{Line, numbers, request};

/// Whatever numbers follow each other on a key, all five integers are redis-cell's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changing_numbers_are_answered_as_redis_cell_answers_them() {
    let server = Server::start().await;
    for seed in 0..20 {
        let (address, clock) = (server.resp, server.clock.clone());
        let compared = tokio::task::spawn_blocking(move || compare(address, &clock, seed, 500));
        compared.await.expect("the answers are equal").expect("the server answers");
    }
}

/// The table of redis-cell's own tests.
#[tokio::test]
async fn constant_numbers_are_answered_as_the_table_of_redis_cell_says() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    for (after_ms, quantity, answer) in [
        (0, "6", [1, 5, 5, -1, 0]),
        (0, "1", [0, 5, 4, -1, 1]),
        (0, "1", [0, 5, 3, -1, 2]),
        (0, "1", [0, 5, 2, -1, 3]),
        (0, "1", [0, 5, 1, -1, 4]),
        (0, "1", [0, 5, 0, -1, 5]),
        (0, "1", [1, 5, 0, 1, 5]),
        (3_000, "1", [0, 5, 2, -1, 3]),
        (100, "1", [0, 5, 1, -1, 4]),
        (900, "1", [0, 5, 1, -1, 4]),
        (4_000, "1", [0, 5, 4, -1, 1]),
        (1_500, "1", [0, 5, 4, -1, 1]),
        (0, "0", [0, 5, 4, -1, 1]),
        (0, "2", [0, 5, 2, -1, 3]),
        (0, "5", [1, 5, 2, 3, 3]),
    ] {
        server.clock.advance(Span::from_millis(after_ms));
        line.says(&request(&["CL.THROTTLE", "foo", "4", "1", "1", quantity]), &numbers(answer))
            .await;
    }
}

/// A key that other numbers have used beyond this tolerance is limited even for a quantity of 0.
#[tokio::test]
async fn a_quantity_of_0_is_limited_where_other_numbers_used_more() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    line.says(&request(&["CL.THROTTLE", "k", "9", "1", "60", "10"]), &numbers([0, 10, 0, -1, 600]))
        .await;
    line.says(&request(&["CL.THROTTLE", "k", "0", "1", "1", "0"]), &numbers([1, 1, 0, 599, 600]))
        .await;
    server.clock.advance(Span::from_secs(599));
    line.says(&request(&["CL.THROTTLE", "k", "0", "1", "1", "0"]), &numbers([0, 1, 0, -1, 1]))
        .await;
}

/// The tolerance may be years, counted in microseconds then, and the key keeps its TAT when it changes to less.
#[tokio::test]
async fn tolerances_of_years_keep_what_was_taken() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    let (day, year) = (86_400, 31_536_000);
    let yearly =
        |quantity: &str| request(&["CL.THROTTLE", "k", "364", "365", "31536000", quantity]);
    line.says(&yearly("5"), &numbers([0, 365, 360, -1, 5 * day])).await;
    let daily = request(&["CL.THROTTLE", "k", "9", "1", "86400"]);
    line.says(&daily, &numbers([0, 10, 4, -1, 6 * day])).await;
    line.says(&yearly("359"), &numbers([0, 365, 0, -1, year])).await;
    line.says(&yearly("1"), &numbers([1, 365, 0, day, year])).await;
    server.clock.advance(Span::from_secs(day.unsigned_abs()));
    let mut line = Line::to(&server).await;
    line.says(&yearly("1"), &numbers([0, 365, 0, -1, year])).await;
    let never = ["CL.THROTTLE", "k", "99", "1", "316224000"];
    let answer = line.ask(&never).await;
    assert!(answer.starts_with("-INVALID (max_burst + 1) × period ÷ count must be"), "{answer}");
}

/// Entries of versions that counted requests keep the time at which all is back.
#[tokio::test]
async fn entries_in_requests_keep_their_tat() {
    let mut store = None;
    let server = Server::around(|gate| store.insert(gate).clone()).await;
    let bucket = TokenBucket::per(30, Span::from_mins(1)).burst(16);
    let old = Policy::new("cl.throttle", [Limit::new("throttle", "requests", bucket)]).unwrap();
    let ask = Ask::new(&old, "k").cost("requests", 5);
    assert!(store.unwrap().acquire(&ask).await.unwrap().is_admitted());
    let mut line = Line::to(&server).await;
    let call = |quantity: &str| request(&["CL.THROTTLE", "k", "15", "30", "60", quantity]);
    line.says(&call("0"), &numbers([0, 16, 11, -1, 10])).await;
    line.says(&call("1"), &numbers([0, 16, 10, -1, 12])).await;
}

/// Intervals below a microsecond are exact, where redis-cell divides by zero to tell how many are left.
#[tokio::test]
async fn intervals_below_a_microsecond_are_exact() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    let call =
        |quantity: &str| request(&["CL.THROTTLE", "k", "9999999", "10000000", "1", quantity]);
    line.says(&call("1"), &numbers([0, 10_000_000, 9_999_999, -1, 0])).await;
    line.says(&call("9999999"), &numbers([0, 10_000_000, 0, -1, 1])).await;
    line.says(&call("1"), &numbers([1, 10_000_000, 0, 0, 1])).await;
    server.clock.advance(Span::from_micros(1));
    line.says(&call("11"), &numbers([1, 10_000_000, 10, 0, 1])).await;
    line.says(&call("10"), &numbers([0, 10_000_000, 0, -1, 1])).await;
    let answer = line.ask(&["CL.THROTTLE", "k", "1", "2000000000", "1"]).await;
    assert!(answer.starts_with("-INVALID count per period must be at most one per"), "{answer}");
}

/// A key that is refused is called a key, as the caller does.
#[tokio::test]
async fn a_key_that_is_too_long_is_refused_as_a_key() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    let key = "k".repeat(SUBJECT_BYTES_MAX + 1);
    for (key, length) in [(&*key, key.len()), ("", 0)] {
        let answer = line.ask(&["CL.THROTTLE", key, "1", "10", "1"]).await;
        let words =
            format!("-INVALID a key must be 1 to {SUBJECT_BYTES_MAX} bytes long, not {length}");
        assert!(answer.starts_with(&words), "{answer}");
    }
}

/// A deleted key starts afresh; what is no key counts for nothing, and a bad one changes nothing.
#[tokio::test]
async fn del_deletes_keys_of_cl_throttle() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    let call = |key: &str| request(&["CL.THROTTLE", key, "0", "1", "60"]);
    for key in ["a", "b", "c"] {
        line.says(&call(key), &numbers([0, 1, 0, -1, 60])).await;
    }
    line.says(&call("a"), &numbers([1, 1, 0, 60, 60])).await;
    let answer = line.ask(&["DEL", "a", ""]).await;
    assert!(answer.starts_with("-INVALID ") && answer.contains("subject"), "{answer}");
    line.says(&call("a"), &numbers([1, 1, 0, 60, 60])).await;
    line.says(&request(&["del", "a", "a", "none", "b"]), ":2\r\n").await;
    line.says(&call("a"), &numbers([0, 1, 0, -1, 60])).await;
    line.says(&call("c"), &numbers([1, 1, 0, 60, 60])).await;
    server.clock.advance(Span::from_secs(60));
    line.says(&request(&["DEL", "c"]), ":0\r\n").await;
}

/// The audit says how many were asked for, not for how long.
#[tokio::test]
async fn the_audit_counts_requests_of_cl_throttle() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    line.says(&request(&["CL.THROTTLE", "k", "1", "1", "60", "3"]), &numbers([1, 2, 2, -1, 0]))
        .await;
    let audit = server.get("/v1/audit?policy=cl.throttle").await.json();
    let record = &audit["records"][0];
    assert_eq!((&record["asked"], &record["unit"]), (&3.into(), &"requests".into()), "{audit}");
}
