//! Concurrent callers in rounds; the rounds of all cases alternate, so that other load affects all of them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::measure::median;

/// Duration and number of rounds.
const ROUND: Duration = Duration::from_millis(400);
const ROUNDS: usize = 9;

/// One call, by caller and number of earlier calls.
pub(crate) type Work =
    Arc<dyn Fn(usize, usize) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A name and the work of its callers.
pub(crate) struct Case<'a> {
    name: &'a str,
    work: Work,
}

impl<'a> Case<'a> {
    pub(crate) fn new<F: Future<Output = ()> + Send + 'static>(
        name: &'a str,
        work: impl Fn(usize, usize) -> F + Send + Sync + 'static,
    ) -> Self {
        Self { name, work: Arc::new(move |caller, done| Box::pin(work(caller, done))) }
    }

    pub(crate) const fn name(&self) -> &str {
        self.name
    }

    /// Runs `calls` calls in each of `callers` callers.
    pub(crate) async fn turns(&self, callers: usize, calls: usize) {
        callers_until(callers, &self.work, move |done| done < calls).await;
    }
}

/// The least ratio of a case to another.
pub(crate) struct Bound<'a> {
    pub(crate) case: &'a str,
    pub(crate) peer: &'a str,
    pub(crate) least: f64,
}

/// Alternates all cases with `callers` callers, and prints their rates and ratios to `peers`.
pub(crate) fn compare(
    runtime: &Runtime,
    callers: usize,
    cases: &[Case<'_>],
    peers: &[&str],
    bounds: &[Bound<'_>],
) {
    let mut rates = vec![Vec::with_capacity(ROUNDS); cases.len()];
    // The first round warms everything up.
    for round in 0..=ROUNDS {
        for (case, rates) in cases.iter().zip(&mut rates) {
            let rate = runtime.block_on(rate(callers, &case.work));
            if 0 < round {
                rates.push(rate);
            }
        }
    }
    let ratio = |case: usize, peer: &str| {
        let peer = cases.iter().position(|case| case.name == peer).expect("a peer is a case");
        median(rates[case].iter().zip(&rates[peer]).map(|(rate, peer)| rate / peer).collect())
    };
    for (place, case) in cases.iter().enumerate() {
        print!("  {:<34} {:>8.0} /s", case.name, median(rates[place].clone()));
        for peer in peers {
            print!("   {:>5.2} of {peer}", ratio(place, peer));
        }
        for bound in bounds.iter().filter(|bound| bound.case == case.name) {
            let verdict = if bound.least <= ratio(place, bound.peer) { "ok" } else { "MISSED" };
            print!("   >= {:.1} of {}: {verdict}", bound.least, bound.peer);
        }
        println!();
    }
}

async fn rate(callers: usize, work: &Work) -> f64 {
    let begun = Instant::now();
    let done = callers_until(callers, work, move |_| begun.elapsed() < ROUND).await;
    done as f64 / begun.elapsed().as_secs_f64()
}

/// Runs concurrent callers while `goes_on` returns true for their number of calls. Returns the calls made.
async fn callers_until(
    callers: usize,
    work: &Work,
    goes_on: impl Fn(usize) -> bool + Copy + Send + 'static,
) -> usize {
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let work = Arc::clone(work);
            tokio::spawn(async move {
                let mut done = 0;
                while goes_on(done) {
                    work(caller, done).await;
                    done += 1;
                }
                done
            })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.expect("no caller fails");
    }
    done
}

/// Runs `calls` calls in sequence and prints their latency; `p99_max` bounds the 99th percentile.
pub(crate) fn latency(runtime: &Runtime, calls: usize, case: &Case<'_>, p99_max: Duration) {
    let mut times = Vec::with_capacity(calls);
    runtime.block_on(async {
        for done in 0..calls / 10 + calls {
            let begun = Instant::now();
            (case.work)(0, done).await;
            if calls / 10 <= done {
                times.push(begun.elapsed());
            }
        }
    });
    times.sort();
    let at = |percent: usize| times[times.len() * percent / 100];
    let verdict = if at(99) < p99_max { "ok" } else { "MISSED" };
    println!(
        "  {:<34} p50 {:>9.2?}   p95 {:>9.2?}   p99 {:>9.2?}   < {p99_max:?}: {verdict}",
        case.name,
        at(50),
        at(95),
        at(99)
    );
}

/// A runtime with two threads.
pub(crate) fn runtime() -> Runtime {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime of two threads")
}

/// Returns one of `keys` subjects, evenly spread.
pub(crate) fn subject(keys: usize, caller: usize, done: usize) -> String {
    format!("k{}", (done * 7_919 + caller * 104_729) % keys)
}

/// Returns a new id.
pub(crate) fn fresh_id() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed).to_string()
}

/// Prints a count and its bound.
pub(crate) fn counted(what: &str, found: f64, expected: f64) {
    let verdict = if found <= expected { "ok" } else { "MISSED" };
    println!("  {what:<60} {found:>6.3}   <= {expected}: {verdict}");
}
