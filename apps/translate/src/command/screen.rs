//! The progress of a translation for people: a bar, tokens, the quota, and the expected end.

use crate::pipeline::{ExhaustedLimit, Failure, Progress};
use crate::plan::{Micros, Plan, grouped};
use jiff::tz::TimeZoneDatabase;
use tollgate::policy::{OnStoreFailure, Rule};
use tollgate::{CalendarWindow, Policy, RollingWindow, Span, Standing, Timestamp};

use super::outages::Outages;

/// The width of the bar.
const BAR: u64 = 30;

/// How many failures are printed.
const SHOWN_MAX: usize = 10;

/// The shortest wait for the quota that is shown.
const WAIT_SHOWN: Span = Span::from_secs(3);

/// The state of a running job.
#[derive(Debug)]
pub(super) struct Screen<'a> {
    pub(super) progress: &'a Progress,
    pub(super) standing: &'a [Standing],
    pub(super) policy: &'a Policy,
    pub(super) plan: Option<&'a Plan>,
    /// Finished chunks at the start of this run.
    pub(super) done_before: u64,
    /// The limit that queued calls wait for.
    pub(super) full: Option<&'a ExhaustedLimit>,
    pub(super) now: Timestamp,
    pub(super) resume: &'a str,
    pub(super) outages: &'a Outages,
}

impl Screen<'_> {
    /// Renders everything, for a terminal.
    pub(super) fn draw(&self) -> String {
        let Progress { job, counts, under_way, in_line, .. } = self.progress;
        let all = counts.all().max(1);
        let filled = usize::try_from((counts.done + counts.failed) * BAR / all).unwrap_or(0);
        let rest = usize::try_from(BAR).unwrap_or(0) - filled;
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(rest));
        let line = match in_line {
            0 => String::new(),
            waiting => format!(", {waiting} of them in line for a permit"),
        };
        let mut lines = vec![
            format!("{job}  {bar}  {}", self.chunks()),
            format!(
                "tokens    {} sent, {} received, {}",
                grouped(counts.input_tokens),
                grouped(counts.output_tokens),
                Micros(counts.cost)
            ),
            format!("quota     {}", self.quota()),
            format!("now       {under_way} under way{line}"),
        ];
        lines.extend(self.wait().map(|wait| format!("waits     for {wait}")));
        if let Some(end) = self.end() {
            let left = end.since(self.now).humanize();
            lines.push(format!("ends      about {}, in {left}", seconds(end)));
        }
        lines.extend(self.outages.lasting(self.policy, self.now));
        lines.extend(self.retry().map(|(why, when)| format!("trouble   {why}; {when}")));
        lines.extend(self.pause());
        lines.join("\n")
    }

    /// Renders one line, for a log.
    pub(super) fn brief(&self) -> String {
        // A log has one line for a failure, however often it is retried.
        match (self.pause(), self.retry(), self.end()) {
            (Some(pause), ..) => format!("{}; {pause}", self.chunks()),
            (None, Some((why, _)), _) => format!("{}; {why}; it is tried again", self.chunks()),
            (None, None, end) => {
                let wait = self.wait().map(|wait| format!("; waiting for {wait}"));
                let end = end.map(|end| format!(", ends about {}", seconds(end)));
                format!("{}{}{}", self.chunks(), wait.unwrap_or_default(), end.unwrap_or_default())
            }
        }
    }

    /// Returns until when queued calls wait, if that takes a while.
    pub(super) fn waits_until(&self) -> Option<Timestamp> {
        self.wait().and(self.full).map(|full| full.until)
    }

    /// Describes the limit that queued calls wait for, if that takes a while.
    fn wait(&self) -> Option<String> {
        let ExhaustedLimit { limit, until, .. } = self.full?;
        let left = until.since(self.now);
        let at = seconds(*until).to_string();
        let time = at.split('T').nth(1).unwrap_or(&at);
        (WAIT_SHOWN <= left).then(|| format!("{limit}, next at {time}, in {}", left.humanize()))
    }

    /// Returns why the last call failed, and when it is retried.
    fn retry(&self) -> Option<(&str, String)> {
        let Progress { retry, retry_at, paused: None, .. } = self.progress else { return None };
        // No call is made then, and the outage has a line of its own.
        let is_closed = self.policy.on_store_failure() == OnStoreFailure::Closed;
        if is_closed && self.outages.is_store_away() {
            return None;
        }
        let left = retry_at.unwrap_or(self.now).since(self.now).humanize();
        Some((retry.as_deref()?, format!("tries again in {left}")))
    }

    fn chunks(&self) -> String {
        let counts = &self.progress.counts;
        let failed = match counts.failed {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        format!("{}/{} chunks{failed}", counts.done, counts.all())
    }

    fn quota(&self) -> String {
        let used = self.standing.iter().map(|limit| {
            format!(
                "{} {}/{} {}",
                limit.name,
                grouped(limit.used),
                grouped(limit.limit),
                limit.unit
            )
        });
        used.collect::<Vec<_>>().join(", ")
    }

    /// Returns when it ends, if that is in the future.
    fn end(&self) -> Option<Timestamp> {
        let counts = &self.progress.counts;
        self.ends_at().filter(|_| counts.done + counts.failed < counts.all())
    }

    /// Extrapolates the pace of this run; uses the plan if it takes days.
    fn ends_at(&self) -> Option<Timestamp> {
        let Progress { counts, began_at, .. } = self.progress;
        let planned = self.plan.and_then(|plan| plan.ends_at);
        let done = (counts.done + counts.failed).saturating_sub(self.done_before);
        if done < 3 {
            return planned.max(self.by_quota());
        }
        let spent = self.now.since(*began_at).as_micros();
        let micros =
            u128::from(spent) * u128::from(counts.waiting + counts.working) / u128::from(done);
        let paced = self.now + Span::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        let paced = paced.max(self.by_quota().unwrap_or(paced));
        let takes_days = self.plan.and_then(|plan| plan.days).is_some_and(|days| 1 < days);
        if takes_days { planned.map(|end| end.max(paced)) } else { Some(paced) }
    }

    /// Returns when the quota admits the last call, if it must wait.
    fn by_quota(&self) -> Option<Timestamp> {
        let Progress { counts, in_line, .. } = self.progress;
        let calls = counts.waiting + u64::try_from(*in_line).unwrap_or(0);
        let each = |unit: &str| match unit {
            "requests" => Some(1),
            _ => counts.input_tokens.checked_div(counts.done),
        };
        let standing = match (self.standing, self.full) {
            ([], Some(full)) => full.standing.as_slice(),
            (standing, _) => standing,
        };
        let ends = self.policy.limits().filter_map(|limit| {
            let Rule::RollingWindow(RollingWindow { window, .. }) = limit.rule() else {
                return None;
            };
            let at = standing.iter().find(|standing| &*standing.name == limit.name())?;
            let short = calls.saturating_mul(each(limit.unit())?).saturating_sub(at.remaining);
            let rounds = short.checked_sub(1)?.checked_div(at.limit)?;
            // Used quota becomes free about evenly between both times.
            let (first, last) = (at.reset_at?, at.full_at?);
            let rest = u128::from(short - rounds * at.limit - 1);
            let share = u128::from(last.since(first).as_micros()) * rest
                / u128::from(at.used.saturating_sub(1).max(1));
            let wait = u128::from(window.as_micros()) * u128::from(rounds) + share;
            Some(first + Span::from_micros(u64::try_from(wait).unwrap_or(u64::MAX)))
        });
        ends.max()
    }

    fn pause(&self) -> Option<String> {
        let why = self.progress.paused.as_ref()?;
        let resume = self.resume;
        Some(match self.progress.resume_at {
            Some(at) => format!(
                "paused: {why}; goes on {}, in {}. Ctrl-C is safe; resume with: {resume}",
                at_home(at, self.policy),
                at.since(self.now).humanize()
            ),
            None => format!("paused: {why}"),
        })
    }
}

/// Formats a time in the time zone of the quota, if it has one, and in UTC.
pub(super) fn at_home(at: Timestamp, policy: &Policy) -> String {
    let zone = policy.limits().find_map(|limit| match limit.rule() {
        Rule::CalendarWindow(CalendarWindow { zone, .. }) => Some(zone),
        _ => None,
    });
    let there = zone.and_then(|name| {
        let zone = TimeZoneDatabase::bundled().get(name).ok()?;
        let instant =
            jiff::Timestamp::from_microsecond(i64::try_from(at.as_micros()).ok()?).ok()?;
        Some(format!("{} {name}", instant.to_zoned(zone).strftime("%H:%M")))
    });
    match there {
        Some(there) => format!("at {there} ({})", seconds(at)),
        None => format!("at {}", seconds(at)),
    }
}

/// Formats failures or doubts, one line each.
pub(super) fn failures(failures: &[Failure]) -> String {
    let line = |failure: &Failure| {
        format!("  segments {}, {:?}: {}", failure.run, failure.source, failure.reason)
    };
    let mut lines: Vec<String> = failures.iter().take(SHOWN_MAX).map(line).collect();
    if let Some(more) = failures.len().checked_sub(SHOWN_MAX).filter(|more| 0 < *more) {
        lines.push(format!("  and {more} more; tollgate translate status names them all"));
    }
    lines.join("\n")
}

fn seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_secs(at.as_micros().div_ceil(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Counts, Outage};
    use tokio::sync::watch;
    use tollgate::Limit;
    use tollgate::policy::Period;

    const HOUR: u64 = 3_600;

    fn shown(progress: &Progress, done_before: u64, now: Timestamp) -> (String, String) {
        shown_without(None, progress, done_before, now)
    }

    /// The same while the store is `away`.
    fn shown_without(
        away: Option<Outage>,
        progress: &Progress,
        done_before: u64,
        now: Timestamp,
    ) -> (String, String) {
        let day = CalendarWindow::new(25, Period::Day).in_zone("America/Los_Angeles");
        let policy = Policy::new("free", [Limit::new("rpd", "requests", day)]).unwrap();
        let standing = [Standing {
            name: "rpd".into(),
            unit: "requests".into(),
            limit: 1_025,
            used: 1_000,
            remaining: 25,
            reset_at: None,
            full_at: None,
            refilled_at: None,
        }];
        let (standing, policy, plan, resume) = (&standing[..], &policy, None, "tollgate …");
        let outages = &Outages::new(watch::channel(away).1, watch::channel(None).1);
        let full = None;
        let scene =
            Screen { progress, standing, policy, plan, done_before, full, now, resume, outages };
        (scene.draw(), scene.brief())
    }

    #[test]
    fn a_run_is_drawn_with_its_pace_and_its_end() {
        let began_at = Timestamp::from_secs(1_700_000_000);
        let progress = Progress {
            job: "book".to_owned(),
            counts: Counts { done: 14, failed: 1, waiting: 10, working: 5, ..Counts::default() },
            under_way: 5,
            in_line: 2,
            began_at,
            ..Progress::default()
        };
        // Ten were done in this run, in 100 seconds: the other 15 take 150.
        let (drawn, brief) = shown(&progress, 5, began_at + Span::from_secs(100));
        let bar = format!("{}{}", "█".repeat(15), "░".repeat(15));
        assert_eq!(
            drawn,
            format!(
                "book  {bar}  14/30 chunks, 1 failed\ntokens    0 sent, 0 received, $0.0000\n\
                 quota     rpd 1,000/1,025 requests\nnow       5 under way, 2 of them in line for a permit\n\
                 ends      about 2023-11-14T22:17:30Z, in 2m 30s"
            )
        );
        assert_eq!(brief, "14/30 chunks, 1 failed, ends about 2023-11-14T22:17:30Z");
    }

    /// Five calls per minute are used up after three seconds: the last one goes when the first is a minute old.
    #[test]
    fn the_end_is_told_by_the_quota_where_that_sets_the_pace() {
        let began_at = Timestamp::from_secs(1_700_000_000);
        let now = began_at + Span::from_secs(3);
        let minute = RollingWindow::new(5, Span::from_mins(1));
        let policy = Policy::new("free", [Limit::new("rpm", "requests", minute)]).unwrap();
        let until = began_at + Span::from_secs(60);
        let standing = Standing {
            name: "rpm".into(),
            unit: "requests".into(),
            limit: 5,
            used: 5,
            remaining: 0,
            reset_at: Some(until),
            full_at: Some(until + Span::from_secs(2)),
            refilled_at: None,
        };
        let full = ExhaustedLimit { limit: "rpm".to_owned(), until, standing: vec![standing] };
        let shown = |waiting: u64| {
            let counts = Counts { done: 5, waiting, ..Counts::default() };
            let progress = Progress { counts, in_line: 1, began_at, ..Progress::default() };
            let (progress, policy, plan, resume) = (&progress, &policy, None, "tollgate …");
            let full = Some(&full);
            let outages = &Outages::new(watch::channel(None).1, watch::channel(None).1);
            let (standing, done_before) = (&[], 0);
            let scene = Screen {
                progress,
                standing,
                policy,
                plan,
                done_before,
                full,
                now,
                resume,
                outages,
            };
            scene.brief()
        };
        let wait = "waiting for rpm, next at 22:14:20Z, in 57s";
        assert_eq!(shown(0), format!("5/5 chunks; {wait}"));
        assert_eq!(shown(1), format!("5/6 chunks; {wait}, ends about 2023-11-14T22:14:21Z"));
        assert_eq!(shown(5), format!("5/10 chunks; {wait}, ends about 2023-11-14T22:15:20Z"));
    }

    #[test]
    fn a_call_that_failed_is_seen_with_its_reason_and_its_next_try() {
        let now = Timestamp::from_secs(1_700_000_000);
        let progress = Progress {
            retry: Some("fake:1 cannot be reached: connection refused".to_owned()),
            retry_at: Some(now + Span::from_secs(4)),
            ..Progress::default()
        };
        let (drawn, brief) = shown(&progress, 0, now);
        let trouble = "\ntrouble   fake:1 cannot be reached: connection refused; tries again in 4s";
        assert!(drawn.ends_with(trouble), "{drawn}");
        assert_eq!(
            brief,
            "0/0 chunks; fake:1 cannot be reached: connection refused; it is tried again"
        );
    }

    #[test]
    fn a_store_that_is_away_is_seen_with_what_happens_meanwhile_and_no_trouble_besides() {
        let now = Timestamp::from_secs(1_700_000_000);
        let progress =
            Progress { retry: Some("the store cannot be asked".to_owned()), ..Progress::default() };
        let since = Timestamp::from_secs(1_700_000_000 - 90);
        let away = Outage { since, error: "redis: nothing listens there".to_owned() };
        let (drawn, _) = shown_without(Some(away), &progress, 0, now);
        let line = "\nstore     the store of the quota is unavailable (redis: nothing listens there); no call is made until it is \
                    back (on_store_failure = \"closed\"), for 1m 30s";
        assert!(drawn.ends_with(line), "{drawn}");
    }

    #[test]
    fn a_pause_says_when_it_ends_where_the_day_of_the_quota_begins() {
        let midnight: Timestamp = "2026-11-16T08:00:00Z".parse().unwrap();
        let progress = Progress {
            paused: Some("the limit rpd is used up".to_owned()),
            resume_at: Some(midnight),
            ..Progress::default()
        };
        let (_, brief) =
            shown(&progress, 0, Timestamp::from_secs(midnight.as_micros() / 1_000_000 - 3 * HOUR));
        assert_eq!(
            brief,
            "0/0 chunks; paused: the limit rpd is used up; goes on at 00:00 America/Los_Angeles \
             (2026-11-16T08:00:00Z), in 3h. Ctrl-C is safe; resume with: tollgate …"
        );
    }
}
