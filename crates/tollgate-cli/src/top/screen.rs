//! What `tollgate top` shows, as lines of text: a pure function of what the broker said.

use tollgate::Span;
use tollgate_server::wire::{PolicyCounts, StatsResponse};

use super::Snapshot;
use crate::audit;
use crate::show::plain;

/// The room on the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) lines: usize,
}

impl Size {
    /// No terminal at all, but a pipe.
    pub(super) const ENDLESS: Self = Self { columns: usize::MAX, lines: usize::MAX };
}

/// Which list the arrows move through, and how far they went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Focus {
    list: usize,
    skipped: usize,
}

impl Focus {
    pub(super) const fn next(self) -> Self {
        Self { list: (self.list + 1) % 3, skipped: 0 }
    }

    pub(super) const fn up(self) -> Self {
        Self { skipped: self.skipped.saturating_sub(1), ..self }
    }

    pub(super) const fn down(self) -> Self {
        Self { skipped: self.skipped.saturating_add(1), ..self }
    }
}

/// The whole screen, without a line break at the end.
pub(super) fn draw(now: &Snapshot, before: Option<&Snapshot>, focus: Focus, size: Size) -> String {
    let mut lines = head(&now.stats);
    let lists = [
        ("POLICIES", policies(&now.stats, before.map(|before| &before.stats))),
        ("MOST LIMITED", limited(now)),
        ("RECENT", audit::rows(&now.recent.records)),
    ];
    // Each list gets its share of what the head left, and its title and a blank line of that.
    let rest = size.lines.saturating_sub(lines.len() + 1);
    let share = (rest / lists.len()).saturating_sub(2);
    for (place, (title, rows)) in lists.into_iter().enumerate() {
        let is_focused = focus.list == place && size != Size::ENDLESS;
        let mark = if is_focused { " ◂" } else { "" };
        lines.push(String::new());
        lines.push(format!("{title}{mark}"));
        let (head, rows) =
            rows.split_first().map_or((None, &[][..]), |(head, rows)| (Some(head), rows));
        lines.extend(head.cloned());
        let room = share.saturating_sub(usize::from(head.is_some()));
        let skipped =
            if is_focused { focus.skipped.min(rows.len().saturating_sub(room)) } else { 0 };
        lines.extend(rows.iter().skip(skipped).take(room).cloned());
    }
    if size != Size::ENDLESS {
        lines.truncate(size.lines.saturating_sub(1));
        lines.resize(size.lines.saturating_sub(1), String::new());
        lines.push("q quit   tab next list   ↑ ↓ move".to_owned());
    }
    let cut = |line: String| line.chars().take(size.columns).collect::<String>();
    lines.into_iter().map(cut).collect::<Vec<_>>().join("\n")
}

/// `text` with `notice` in place of its first line.
pub(super) fn with_notice(text: &str, notice: &str, size: Size) -> String {
    let notice: String = plain(notice).chars().take(size.columns).collect();
    match text.split_once('\n') {
        Some((_, rest)) => format!("{notice}\n{rest}"),
        None => notice,
    }
}

fn head(stats: &StatsResponse) -> Vec<String> {
    let store = &stats.store;
    let state = match (store.degraded, store.degraded_since) {
        (false, _) => "answers".to_owned(),
        (true, Some(since)) => format!("DEGRADED since {since}"),
        (true, None) => "DEGRADED".to_owned(),
    };
    let owing = match store.owing {
        0 => String::new(),
        owing => format!(", {owing} subjects owe it"),
    };
    let latency = match stats.latency.decisions {
        0 => "no decisions of late".to_owned(),
        _ => format!(
            "p50 {}   p99 {}",
            Span::from_micros(stats.latency.p50_us),
            Span::from_micros(stats.latency.p99_us)
        ),
    };
    let since = stats.since.map(|at| format!("   since {at}")).unwrap_or_default();
    let dropped = match stats.audit.dropped {
        0 => String::new(),
        dropped => format!("   {dropped} records dropped"),
    };
    vec![
        format!("tollgate{since}"),
        format!("store {} {state}{owing}   {latency}{dropped}", store.kind),
    ]
}

fn policies(now: &StatsResponse, before: Option<&StatsResponse>) -> Vec<String> {
    let head = format!(
        "{:<24} {:>12} {:>12} {:>14} {:>14} {:>10} {:>10}",
        "policy", "admitted/s", "refused/s", "admitted", "refused", "failed", "degraded"
    );
    let passed = before.and_then(|before| now.now?.since(before.now?).as_micros().into());
    let lines = now.policies.iter().map(|counts| {
        let last =
            before.and_then(|before| before.policies.iter().find(|one| one.name == counts.name));
        let per_second = |of: fn(&PolicyCounts) -> u64| match (passed, last) {
            (Some(micros), Some(last)) if 0 < micros => {
                rate(of(counts).saturating_sub(of(last)), micros)
            }
            _ => "-".to_owned(),
        };
        format!(
            "{:<24} {:>12} {:>12} {:>14} {:>14} {:>10} {:>10}",
            counts.name,
            per_second(|counts| counts.admitted),
            per_second(|counts| counts.refused),
            counts.admitted,
            counts.refused,
            counts.failed,
            counts.degraded
        )
    });
    std::iter::once(head).chain(lines).collect()
}

/// `count` in so many microseconds, per second with one digit behind the point.
fn rate(count: u64, micros: u64) -> String {
    let tenths = u128::from(count) * 10_000_000 / u128::from(micros);
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn limited(now: &Snapshot) -> Vec<String> {
    let head = format!("{:<40} {:<24} {:>10}", "subject", "policy", "times");
    let lines = now.top.subjects.iter().map(|one| {
        let sure = if one.error == 0 {
            String::new()
        } else {
            format!(" (at least {})", one.count - one.error)
        };
        format!("{:<40} {:<24} {:>10}{sure}", plain(&one.subject), one.policy, one.count)
    });
    std::iter::once(head).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::Timestamp;
    use tollgate_server::wire::{AuditResponse, LimitedSubject, StoreHealth, TopResponse};

    fn snapshot(secs: u64, admitted: u64) -> Snapshot {
        let counts =
            PolicyCounts { name: "api".to_owned(), admitted, refused: 7, ..Default::default() };
        let at = Some(Timestamp::from_secs(secs));
        let subjects = (0..50).map(|place| LimitedSubject {
            policy: "api".to_owned(),
            subject: format!("s{place}"),
            count: 50 - place,
            error: place % 2,
        });
        Snapshot {
            stats: StatsResponse {
                since: at,
                now: at,
                policies: vec![counts],
                latency: Default::default(),
                store: StoreHealth {
                    kind: "redis".to_owned(),
                    degraded: true,
                    degraded_since: at,
                    owing: 3,
                },
                audit: Default::default(),
            },
            top: TopResponse { since: at, subjects: subjects.collect() },
            recent: AuditResponse { records: Vec::new(), next: None, partial: false },
        }
    }

    #[test]
    fn rates_are_per_second_of_the_broker() {
        let (before, now) = (snapshot(10, 100), snapshot(14, 150));
        let text = draw(&now, Some(&before), Focus::default(), Size::ENDLESS);
        let row: Vec<&str> = text
            .lines()
            .find(|line| line.starts_with("api "))
            .unwrap()
            .split_whitespace()
            .collect();
        assert_eq!(row, ["api", "12.5", "0.0", "150", "7", "0", "0"]);
        assert!(
            text.contains("store redis DEGRADED since 1970-01-01T00:00:14Z, 3 subjects owe it"),
            "{text}"
        );
        assert!(text.contains("(at least 48)"), "{text}");
        assert!(draw(&now, None, Focus::default(), Size::ENDLESS).contains(" - "), "no rate yet");
    }

    /// Whatever the room, the screen fills it and no more, and the arrows reach the end of a list and stay there.
    #[test]
    fn a_screen_fits_its_terminal() {
        for (columns, lines) in [(80, 24), (20, 5), (1, 1), (200, 60)] {
            let size = Size { columns, lines };
            let text = draw(&snapshot(1, 1), None, Focus::default(), size);
            assert_eq!(text.lines().count(), lines, "{size:?}");
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{size:?}");
        }
        let size = Size { columns: 80, lines: 24 };
        let focus = (0..1_000).fold(Focus::default().next(), |focus, _| focus.down());
        let text = draw(&snapshot(1, 1), None, focus, size);
        assert!(text.contains("MOST LIMITED ◂") && text.contains("\ns49 "), "{text}");
    }
}
