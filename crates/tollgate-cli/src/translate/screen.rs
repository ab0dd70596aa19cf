//! A translation as a person sees it: a bar, tokens, where the quota stands, and when it ends.

use jiff::tz::TimeZoneDatabase;
use tollgate::{CalendarWindow, Policy, Rule, Span, Standing, Timestamp};
use tollgate_translate::pipeline::{Failure, Progress};
use tollgate_translate::plan::{Micros, Plan};

/// How wide the bar is.
const BAR: u64 = 30;

/// How many failures are named at the end.
const SHOWN_MAX: usize = 10;

/// What is known while a job runs.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) progress: &'a Progress,
    pub(super) standing: &'a [Standing],
    pub(super) policy: &'a Policy,
    pub(super) plan: Option<&'a Plan>,
    /// Chunks that were done when this run began.
    pub(super) done_before: u64,
    pub(super) now: Timestamp,
    pub(super) resume: &'a str,
}

impl Scene<'_> {
    /// All of it, for a terminal.
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
        if let Some(end) = self.ends_at().filter(|_| counts.done + counts.failed < counts.all()) {
            let left = end.since(self.now).for_people();
            lines.push(format!("ends      about {}, in {left}", seconds(end)));
        }
        lines.extend(self.pause());
        lines.join("\n")
    }

    /// What changed, for a log.
    pub(super) fn brief(&self) -> String {
        match self.pause() {
            Some(pause) => format!("{}; {pause}", self.chunks()),
            None => self.chunks(),
        }
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

    /// By the pace of this run, once there is one; by the plan where days pass between.
    fn ends_at(&self) -> Option<Timestamp> {
        let Progress { counts, began_at, .. } = self.progress;
        let planned = self.plan.and_then(|plan| plan.ends_at);
        let done = (counts.done + counts.failed).saturating_sub(self.done_before);
        if done < 3 {
            return planned;
        }
        let spent = self.now.since(*began_at).as_micros();
        let micros =
            u128::from(spent) * u128::from(counts.waiting + counts.working) / u128::from(done);
        let paced = self.now + Span::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        let takes_days = self.plan.and_then(|plan| plan.days).is_some_and(|days| 1 < days);
        if takes_days { planned.map(|end| end.max(paced)) } else { Some(paced) }
    }

    fn pause(&self) -> Option<String> {
        let why = self.progress.paused.as_ref()?;
        let resume = self.resume;
        Some(match self.progress.resume_at {
            Some(at) => format!(
                "paused: {why}; goes on {}, in {}. Ctrl-C is safe; resume with: {resume}",
                at_home(at, self.policy),
                at.since(self.now).for_people()
            ),
            None => format!("paused: {why}"),
        })
    }
}

/// A time where the day of the quota begins, if the policy has one, and in UTC.
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

/// What was given up or is doubtful, one line each.
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

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let parts = digits.as_bytes().rchunks(3).rev();
    parts.map(String::from_utf8_lossy).collect::<Vec<_>>().join(",")
}
