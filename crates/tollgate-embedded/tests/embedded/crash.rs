//! `kill -9` of a process that is acquiring, again and again.

use tollgate::Span;
use tollgate_embedded::{Options, RELAXED_LOSS_MAX};

use crate::child::{CALLERS, Child, Job, LIMIT, block_on};
use crate::{TestFolder, daily, used};

const RESTARTS: usize = 30;

/// What is used on the machine's clock, which is the child's.
fn used_by_children(folder: &TestFolder, limit: u64) -> u64 {
    let gate = folder.try_open(Options::new()).expect("the state always opens");
    block_on(used(&gate, &daily(limit), "p"))
}

fn count_admitted(lines: &[String]) -> u64 {
    lines.iter().map(|line| u64::from(line.starts_with("admitted "))).sum()
}

/// Promise 1 across crashes: in strict mode nothing that was answered is forgotten, so the limit holds over all lives
/// of the process together.
#[test]
fn strict_forgets_nothing_when_it_is_killed() {
    let folder = TestFolder::new();
    let (mut reported, mut cut) = (0, 0);
    for restart in 0..RESTARTS {
        let mut child = Child::start(Job::Strict, &folder.path());
        // On a busy machine its lives may be so long that they use up the limit before the last one; then it ends by itself.
        let mut lines: Vec<_> = (0..restart * 7 % 61).map_while(|_| child.line()).collect();
        lines.extend(child.kill());
        reported += count_admitted(&lines);
        cut += usize::from(lines.last().is_some_and(|line| line != "denied"));
        let used = used_by_children(&folder, LIMIT);
        let unreported_max = u64::try_from(CALLERS * (restart + 1)).unwrap();
        assert!(reported <= used, "reported {reported}, but only {used} used: some were forgotten");
        assert!(used <= reported + unreported_max, "reported {reported}, but {used} used");
        assert!(used <= LIMIT);
    }
    assert!(0 < cut, "no process was killed while acquiring");
    let last = Child::start(Job::Strict, &folder.path()).finish();
    reported += count_admitted(&last);
    assert_eq!(last.iter().filter(|line| *line == "denied").count(), CALLERS);
    assert_eq!(used_by_children(&folder, LIMIT), LIMIT);
    assert!(reported <= LIMIT, "{reported} admitted of {LIMIT}");
}

/// What a relaxed store forgets was admitted within the promised time, measured on its own clock.
#[test]
fn relaxed_forgets_no_more_than_it_says() {
    let folder = TestFolder::new();
    let limit = u64::from(u32::MAX);
    let mut forgetful = 0;
    for restart in 0..RESTARTS {
        let before = used_by_children(&folder, limit);
        let mut child = Child::start(Job::Relaxed, &folder.path());
        let mut lines: Vec<_> =
            (0..1 + restart * 997).map(|_| child.line().expect("too early")).collect();
        lines.extend(child.kill());
        let kept = used_by_children(&folder, limit) - before;
        let at: Vec<u64> =
            lines.iter().filter_map(|line| line.strip_prefix("admitted ")?.parse().ok()).collect();
        let forgotten = at.get(usize::try_from(kept).unwrap()..).unwrap_or_default();
        forgetful += usize::from(!forgotten.is_empty());
        if let [first, .., last] = forgotten {
            let span = Span::from_micros(last - first);
            assert!(span <= RELAXED_LOSS_MAX, "{} of {span} forgotten", forgotten.len());
        }
    }
    assert!(0 < forgetful, "nothing was ever forgotten, so nothing was checked");
}
