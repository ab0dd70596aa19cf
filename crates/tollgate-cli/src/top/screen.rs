//! The screen of `tollgate top` as text, a pure function of the responses of the broker.

use tollgate::Span;
use tollgate_protocol::json::{GatewayStats, StatsResponse};
use unicode_width::UnicodeWidthChar as _;

use super::Snapshot;
use super::lists::{self, List, MOST_LIMITED};
use crate::plan::micros;
use tollgate_terminal::escape_controls;

/// The size of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) lines: usize,
}

/// Below this many lines per list, lists are not separated by blank lines.
const LIST_LINES_MIN: usize = 3;

/// The list that the arrows scroll, and how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Focus {
    list: usize,
    skipped: usize,
}

impl Focus {
    pub(super) const fn next(self) -> Self {
        Self { list: self.list.wrapping_add(1), skipped: 0 }
    }

    pub(super) const fn up(self) -> Self {
        Self { skipped: self.skipped.saturating_sub(1), ..self }
    }

    pub(super) const fn down(self) -> Self {
        Self { skipped: self.skipped.saturating_add(1), ..self }
    }

    /// Returns the policy and the subject in the first visible row, if the list of subjects has the focus.
    pub(super) fn subject(self, now: &Snapshot) -> Option<(&str, &str)> {
        let lists = lists::all(now, None);
        let is_subjects = lists[self.list % lists.len()].title == MOST_LIMITED;
        let place = self.skipped.min(now.top.subjects.len().saturating_sub(1));
        let row = now.top.subjects.get(place).filter(|_| is_subjects)?;
        Some((&row.policy, &row.subject))
    }
}

/// Formats the whole screen. Without `focus` it has no line about keys.
pub(super) fn draw(
    now: &Snapshot,
    before: Option<&Snapshot>,
    focus: Option<Focus>,
    size: Size,
) -> String {
    let mut lines = head(&now.stats);
    let lists = lists::all(now, before);
    let needs: Vec<usize> = lists.iter().map(|list| list.lines.len()).collect();
    // Each list also has a blank line and a title, and the last line lists the keys.
    let room_with =
        |blank: usize| size.lines.saturating_sub(lines.len() + 1 + (1 + blank) * lists.len());
    let has_blanks = LIST_LINES_MIN * lists.len() <= room_with(1);
    let room = room_with(usize::from(has_blanks));
    let (count, rooms) = (lists.len(), share_lines(&needs, room));
    for (place, (List { title, lines: all }, room)) in lists.into_iter().zip(rooms).enumerate() {
        let focus = focus.filter(|focus| focus.list % count == place);
        let mark = if focus.is_some() { " ◂" } else { "" };
        if has_blanks {
            lines.push(String::new());
        }
        lines.push(format!("{title}{mark}"));
        let (head, rows) = all.split_at(room.min(1).min(all.len()));
        lines.extend_from_slice(head);
        let room = room.saturating_sub(head.len());
        let skipped = focus.map_or(0, |focus| focus.skipped.min(rows.len().saturating_sub(1)));
        lines.extend(rows.iter().skip(skipped).take(room).cloned());
        let hidden = rows.len().saturating_sub(skipped + room);
        if 0 < hidden
            && 0 < room
            && let Some(last) = lines.last_mut()
        {
            *last = format!("… {} more", hidden + 1);
        }
    }
    lines.truncate(size.lines.saturating_sub(1));
    if focus.is_some() {
        lines.resize(size.lines.saturating_sub(1), String::new());
        lines
            .push("q quit   tab next list   ↑ ↓ move   enter look up the first subject".to_owned());
    }
    lines.into_iter().map(|line| cut(&line, size.columns)).collect::<Vec<_>>().join("\n")
}

/// Distributes `room` lines fairly: a list gets what it needs, or an equal share of the rest.
fn share_lines(needs: &[usize], room: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..needs.len()).collect();
    places.sort_by_key(|place| needs[*place]);
    let (mut left, mut shares) = (room, vec![0; needs.len()]);
    for (done, place) in places.into_iter().enumerate() {
        shares[place] = needs[place].min(left / (needs.len() - done));
        left -= shares[place];
    }
    shares
}

/// Replaces the first line of `text` by `notice`.
pub(super) fn with_notice(text: &str, notice: &str, size: Size) -> String {
    let notice = cut(&escape_controls(notice), size.columns);
    match text.split_once('\n') {
        Some((_, rest)) => format!("{notice}\n{rest}"),
        None => notice,
    }
}

/// Returns as much of `line` as fits into `columns` of the terminal.
fn cut(line: &str, columns: usize) -> String {
    let mut width = 0_usize;
    let fits = |c: &char| {
        width += c.width().unwrap_or(0);
        width <= columns
    };
    line.chars().take_while(fits).collect()
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
        _ => format!("p50 {}   p99 {}", micros(stats.latency.p50_us), micros(stats.latency.p99_us)),
    };
    let since = stats.since.map(|at| format!("   since {at}")).unwrap_or_default();
    let dropped = match stats.audit.dropped {
        0 => String::new(),
        dropped => format!("   {dropped} records dropped"),
    };
    let mut lines = vec![
        format!("tollgate{since}"),
        format!("store {} {state}{owing}   {latency}{dropped}", store.kind),
    ];
    lines.extend(stats.gateway.as_ref().map(gateway_line));
    lines
}

fn gateway_line(gateway: &GatewayStats) -> String {
    let GatewayStats { waiting, oldest_wait_ms, in_flight, deployments, .. } = gateway;
    let oldest = oldest_wait_ms
        .map(|waited| format!(" (the oldest {})", Span::from_millis(waited).humanize()));
    let closed = deployments.iter().filter(|it| it.closed_until.is_some()).count();
    let closed = if closed == 0 { String::new() } else { format!(", {closed} closed") };
    format!(
        "gateway {waiting} calls wait{}, {in_flight} at a provider{closed}",
        oldest.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::Timestamp;
    use tollgate::{Limit, Policy, TokenBucket};
    use tollgate_protocol::json::{
        AuditResponse, LimitedSubject, PoliciesResponse, PolicyCounts, QueueState, QueuesResponse,
        StandingResponse, StoreHealth, TenantState, TopResponse,
    };

    const TALL: Size = Size { columns: 200, lines: 200 };

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
                broker: "1f2e3d4c".to_owned(),
                since: at,
                now: at,
                policies: vec![counts],
                latency: Default::default(),
                store: StoreHealth {
                    kind: "redis".to_owned(),
                    degraded: true,
                    degraded_since: at,
                    misconfigured: false,
                    owing: 3,
                },
                audit: Default::default(),
                gateway: None,
            },
            top: TopResponse { since: at, subjects: subjects.collect() },
            recent: AuditResponse { records: Vec::new(), next: None, partial: false },
            incidents: AuditResponse { records: Vec::new(), next: None, partial: false },
            queues: QueuesResponse::default(),
            policies: PoliciesResponse::from_iter(&[policy()]),
            standing: None,
        }
    }

    fn policy() -> Policy {
        let burst =
            |size| [Limit::new("burst", "requests", TokenBucket::per_second(10).burst(size))];
        Policy::builder("api")
            .limits(burst(20))
            .override_for("alice", burst(40).to_vec())
            .build()
            .unwrap()
    }

    #[test]
    fn the_queue_of_a_gateway_is_a_line_of_the_head() {
        let mut now = snapshot(1, 1);
        assert!(!draw(&now, None, None, TALL).contains("gateway"));
        now.stats.gateway = Some(GatewayStats {
            waiting: 25,
            oldest_wait_ms: Some(42_000),
            in_flight: 3,
            ..Default::default()
        });
        let text = draw(&now, None, None, TALL);
        assert!(text.contains("gateway 25 calls wait (the oldest 42s), 3 at a provider"), "{text}");
    }

    #[test]
    fn rates_are_per_second_of_the_broker() {
        let (before, now) = (snapshot(10, 100), snapshot(14, 150));
        let text = draw(&now, Some(&before), None, TALL);
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
        assert!(draw(&now, None, None, TALL).contains(" - "), "no rate yet");
    }

    /// Whatever the room, the screen fills it and no more, and the arrows reach the end of a list and stay there.
    #[test]
    fn a_screen_fits_its_terminal() {
        for (columns, lines) in [(80, 24), (20, 5), (1, 1), (200, 60)] {
            let size = Size { columns, lines };
            let text = draw(&snapshot(1, 1), None, Some(Focus::default()), size);
            assert_eq!(text.lines().count(), lines, "{size:?}");
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{size:?}");
        }
        let size = Size { columns: 80, lines: 24 };
        let once = draw(&snapshot(1, 1), None, None, size);
        assert!(once.lines().count() < 24 && !once.contains("q quit"), "{once}");
        let focus = (0..1_000).fold(Focus::default().next().next(), |focus, _| focus.down());
        let text = draw(&snapshot(1, 1), None, Some(focus), size);
        assert!(text.contains("MOST LIMITED ◂") && text.contains("\ns49 "), "{text}");
        assert_eq!(focus.subject(&snapshot(1, 1)), Some(("api", "s49")));
        assert_eq!(Focus::default().subject(&snapshot(1, 1)), None);
    }

    /// Short lists are shown whole, and long lists share the rest.
    #[test]
    fn lists_share_the_room() {
        assert_eq!(share_lines(&[2, 50, 1, 30], 23), [2, 10, 1, 10]);
        assert_eq!(share_lines(&[2, 3], 100), [2, 3]);
        assert_eq!(share_lines(&[5, 5], 3), [1, 2]);
    }

    #[test]
    fn limits_overrides_and_a_standing_are_shown() {
        let mut now = snapshot(1, 1);
        let standing =
            StandingResponse { limits: Vec::new(), policy: "api".into(), subject: "s\u{7}".into() };
        now.standing = Some(standing);
        let text = draw(&now, None, None, TALL);
        assert!(
            text.contains("burst            requests     20 at once, 10 back per 1s"),
            "{text}"
        );
        assert!(text.contains("alice (file)"), "{text}");
        assert!(text.contains("STANDING of s\\u{7} under api"), "{text}");
        assert!(!text.contains("INCIDENTS") && !text.contains("WAITING"), "{text}");
    }

    /// The tenants of a queue are listed, and the screen still fits.
    #[test]
    fn waiting_tenants_are_shown() {
        let mut now = snapshot(1, 1);
        let tenant = |number: usize| TenantState {
            tenant: format!("tenant-{number}"),
            weight: 3,
            waiting: 20 - number,
        };
        now.queues.queues = vec![QueueState {
            policy: "account".to_owned(),
            subject: "all".to_owned(),
            waiting: 210,
            tenant_count: 20,
            tenants: (0..20).map(tenant).collect(),
        }];
        let text = draw(&now, None, None, TALL);
        let line = text.lines().find(|line| line.starts_with("tenant-1 ")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words, ["tenant-1", "3", "19", "account", "all"]);
        let once = draw(&now, None, None, Size { columns: 80, lines: 24 });
        assert!(once.lines().count() < 24, "{once}");
        for title in ["POLICIES", "LIMITS", "MOST LIMITED", "WAITING", "RECENT"] {
            assert!(once.contains(title), "{title}: {once}");
        }
    }
}
