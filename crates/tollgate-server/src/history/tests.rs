use tollgate::clock::ManualClock;
use tollgate::{Clock as _, Span, Standing};

use super::*;
use crate::bounds::{
    HISTORY_COARSE_BUCKETS_MAX, HISTORY_FINE_BUCKETS_MAX, WATCH_MAX, WATCHED_SUBJECTS_MAX,
};

const STEP: Span = HistoryStep::Fine.span();

/// A clock at the start of a fine and of a coarse bucket.
fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_794_721_500))
}

fn totals(name: &str, admitted: u64, refused: u64) -> PolicyTotals {
    PolicyTotals { name: name.to_owned(), admitted, refused, ..Default::default() }
}

fn fine(history: &History, clock: &ManualClock) -> HistoryResponse {
    history.read("b", None, Timestamp::EPOCH, HistoryStep::Fine, clock.now())
}

#[test]
fn counts_belong_to_the_bucket_in_which_they_were_made() {
    let clock = clock();
    let history = History::since(clock.now());
    clock.advance(Span::from_secs(4));
    history.sample(clock.now(), || vec![totals("api", 3, 0)]);
    clock.advance(Span::from_secs(6));
    history.sample(clock.now(), || vec![totals("api", 5, 1)]);
    clock.advance(STEP);
    history.sample(clock.now(), || vec![totals("api", 5, 4)]);
    let read = fine(&history, &clock);
    assert_eq!((read.start, read.buckets, read.step_secs), (read.since, 3, 10));
    assert_eq!(read.policies[0].admitted, [5, 0, 0]);
    assert_eq!(read.policies[0].refused, [1, 3, 0]);
    // A series without a count is left out.
    assert_eq!(read.policies[0].failed, [0; 0]);
}

#[test]
fn an_hour_is_kept_in_fine_buckets_and_a_day_in_coarse_ones() {
    let clock = clock();
    let history = History::since(clock.now());
    let steps = 3 * 8_640;
    for step in 1..=steps {
        clock.advance(STEP);
        history.sample(clock.now(), || vec![totals("api", step, 0)]);
    }
    let read = fine(&history, &clock);
    assert_eq!(read.buckets, HISTORY_FINE_BUCKETS_MAX);
    assert!(Span::from_hours(1) <= clock.now().since(read.start));
    assert_eq!(read.policies[0].admitted.iter().sum::<u64>(), read.buckets as u64 - 1);
    let coarse = history.read("b", None, Timestamp::EPOCH, HistoryStep::Coarse, clock.now());
    assert_eq!(coarse.buckets, HISTORY_COARSE_BUCKETS_MAX);
    assert!(Span::from_hours(24) <= clock.now().since(coarse.start));
    assert_eq!(
        coarse.policies[0].admitted[1..coarse.buckets - 1],
        [30; HISTORY_COARSE_BUCKETS_MAX - 2]
    );
    let state = history.state.lock().unwrap();
    let counts = &state.policies["api"].counts;
    assert!(counts.fine.len() <= HISTORY_FINE_BUCKETS_MAX);
    assert!(counts.coarse.len() <= HISTORY_COARSE_BUCKETS_MAX);
}

/// Ring buffers hold up to the next power of two.
#[test]
fn the_memory_is_bounded() {
    let fine = HISTORY_FINE_BUCKETS_MAX.next_power_of_two();
    let buckets = fine + HISTORY_COARSE_BUCKETS_MAX.next_power_of_two();
    let policy = buckets * size_of::<(ring::Bucket, Counts)>();
    let limit = buckets * size_of::<(ring::Bucket, u32)>();
    assert!(40 * (policy + limit) < 2 << 20);
    assert!(COUNTED_POLICIES_MAX * policy + HISTORY_LIMITS_MAX * limit < 40_000_000);
}

#[test]
fn a_policy_that_is_not_asked_takes_no_bucket() {
    let clock = clock();
    let history = History::since(clock.now());
    for _ in 0..100 {
        clock.advance(STEP);
        history.sample(clock.now(), || vec![totals("idle", 0, 0)]);
    }
    assert_eq!(history.state.lock().unwrap().policies["idle"].counts.fine.len(), 0);
    assert_eq!(fine(&history, &clock).policies[0].admitted, [0; 0]);
}

#[test]
fn waiting_asks_are_sampled_and_refusals_of_each_limit_are_counted() {
    let clock = clock();
    let history = History::since(clock.now());
    let sample = |waiting, rpm, tpm| PolicyTotals {
        waiting,
        refused: rpm + tpm,
        limits: vec![("rpm".to_owned(), rpm), ("tpm".to_owned(), tpm)],
        ..totals("llm", 0, 0)
    };
    history.sample(clock.now(), || vec![sample(7, 2, 0)]);
    history.sample(clock.now(), || vec![sample(3, 2, 0)]);
    clock.advance(STEP);
    history.sample(clock.now(), || vec![sample(0, 5, 0)]);
    let read = fine(&history, &clock).policies.remove(0);
    assert_eq!((read.waiting, read.refused), (vec![7, 0], vec![5, 0]));
    let rpm = LimitHistory { name: "rpm".to_owned(), refused: vec![5, 0] };
    assert_eq!(read.limits, [rpm]);
}

#[test]
fn the_number_of_limits_is_bounded() {
    let clock = clock();
    let history = History::since(clock.now());
    let names = (0..HISTORY_LIMITS_MAX + 5).map(|number| (format!("l{number:05}"), 1));
    let many = PolicyTotals { limits: names.collect(), ..totals("many", 0, 1) };
    history.sample(clock.now(), || vec![many]);
    assert_eq!(fine(&history, &clock).policies[0].limits.len(), HISTORY_LIMITS_MAX);
}

#[test]
fn a_query_is_of_one_policy_and_since_a_time() {
    let clock = clock();
    let history = History::since(clock.now());
    for step in 1..=6 {
        history.sample(clock.now(), || vec![totals("api", step, 0), totals("web", step, 0)]);
        clock.advance(STEP);
    }
    let since = clock.now() - STEP - STEP;
    let read = history.read("b", Some("web"), since, HistoryStep::Fine, clock.now());
    let names: Vec<_> = read.policies.iter().map(|policy| &*policy.name).collect();
    assert_eq!((names, read.start, read.buckets), (vec!["web"], since, 3));
    assert_eq!(read.policies[0].admitted, [1, 0, 0]);
    // A time in the future is the present.
    let ahead = history.read("b", None, Timestamp::MAX, HistoryStep::Fine, clock.now());
    assert_eq!(ahead.buckets, 1);
}

#[test]
fn a_clock_that_steps_back_starts_the_history_anew() {
    let clock = clock();
    let history = History::since(clock.now());
    clock.advance(Span::from_hours(1));
    history.sample(clock.now(), || vec![totals("api", 5, 0)]);
    clock.set(clock.now() - Span::from_mins(30));
    history.sample(clock.now(), || vec![totals("api", 9, 0)]);
    let read = fine(&history, &clock);
    assert_eq!(read.policies[0].admitted.iter().sum::<u64>(), 4);
    assert_eq!(read.policies[0].admitted.last(), Some(&4));
}

fn standing(used: u64) -> Standing {
    let policy = tollgate::Policy::new(
        "api",
        [tollgate::Limit::new("rpm", "requests", tollgate::RollingWindow::new(9, STEP))],
    );
    let memory = tollgate::Memory::new();
    let mut standing = memory.try_standing(&policy.unwrap(), "alice").unwrap().remove(0);
    standing.used = used;
    standing
}

#[test]
fn the_usage_of_a_watched_subject_is_kept() {
    let clock = clock();
    let watched = WatchedSubjects::default();
    let alice = ("api".to_owned(), "alice".to_owned());
    watched.record(&alice, clock.now(), &[standing(1)]);
    assert_eq!(watched.read("b", &alice, clock.now()), None);
    watched.look_at(&alice, clock.now());
    for used in [4, 2] {
        watched.record(&alice, clock.now(), &[standing(used)]);
    }
    clock.advance(STEP);
    clock.advance(STEP);
    watched.record(&alice, clock.now(), &[standing(9)]);
    let read = watched.read("b", &alice, clock.now()).unwrap();
    assert_eq!((&*read.limits[0].name, read.limits[0].limit, read.buckets), ("rpm", 9, 3));
    assert_eq!(read.limits[0].used, [Some(4), None, Some(9)]);
}

#[test]
fn the_subject_that_was_looked_at_longest_ago_is_forgotten_first() {
    let clock = clock();
    let watched = WatchedSubjects::default();
    let who = |number: usize| ("api".to_owned(), format!("s{number}"));
    for number in 0..WATCHED_SUBJECTS_MAX {
        watched.look_at(&who(number), clock.now());
        clock.advance(Span::from_secs(1));
    }
    watched.look_at(&who(0), clock.now());
    watched.look_at(&who(WATCHED_SUBJECTS_MAX), clock.now());
    let due = watched.due(clock.now());
    assert_eq!(due.len(), WATCHED_SUBJECTS_MAX);
    assert!(due.contains(&who(0)) && !due.contains(&who(1)));
    clock.advance(WATCH_MAX);
    assert_eq!(watched.due(clock.now()), []);
}
