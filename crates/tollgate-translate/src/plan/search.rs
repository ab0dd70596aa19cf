//! Looking for settings that grant a wish: forecasts with other chunks, limits and workers, and the smallest numbers at
//! which it comes true.

use tollgate_core::Span;

use super::fit::size_for_a_day;
use super::forecast::{Crew, Forecast, TOKENS, TooLarge, forecast, with_limits};
use super::remedy::Case;
use super::{Plan, WORKERS_MAX, estimates};
use crate::chunk::cut;
use crate::error::Error;

/// How often settings that do not work together are raised before there is no answer.
pub(super) const ROUNDS_MAX: usize = 40;

/// Chunks of another size, forecast.
pub(super) struct Trial {
    pub(super) size: u64,
    pub(super) requests: usize,
    pub(super) outcome: Forecast,
}

impl Case<'_> {
    /// What `--fit-rpd` would do, if that makes fewer days or an earlier end.
    pub(super) fn larger_chunks(&self, plan: &Plan) -> Result<Option<Trial>, Error> {
        let late = match (self.conditions.within, plan.ends_at) {
            (Some(within), Some(end)) => within < end.since(self.conditions.now),
            _ => false,
        };
        if !late && plan.days.is_none_or(|days| days < 2) {
            return Ok(None);
        }
        let size = size_for_a_day(self.document, self.task, self.policy);
        let Some(size) = size.filter(|size| *size != plan.chunk_tokens) else { return Ok(None) };
        let trial = self.with_chunks_of(size)?.ok();
        Ok(trial.filter(|trial| {
            trial.outcome.days < plan.days || Some(trial.outcome.ends_at) < plan.ends_at
        }))
    }

    pub(super) fn with_chunks_of(&self, size: u64) -> Result<Result<Trial, TooLarge>, Error> {
        let mut document = self.document.clone();
        let chunks = cut(&mut document, size)?;
        let model = &self.conditions.model;
        let estimates = estimates(self.task, &document, &chunks, model, self.calibration);
        let outcome = forecast(&estimates, self.policy, self.crew, self.conditions.now)?;
        Ok(outcome.map(|outcome| Trial { size, requests: chunks.len(), outcome }))
    }

    /// The settings that together end the job `within` the time, each as small as it can be.
    pub(super) fn settings_for(&self, within: Span) -> Result<Vec<String>, Error> {
        if within < self.crew.latency {
            let latency = self.crew.latency.for_people();
            return Ok(vec![format!(
                "none: one call alone takes {latency}, so wish for more time"
            )]);
        }
        let limits = self.limits();
        // What the whole job needs at once is as much as a limit can help.
        let ample: Vec<u64> =
            self.policy
                .limits()
                .map(|limit| {
                    if limit.unit() == TOKENS { self.tokens() } else { self.estimates.len() as u64 }
                })
                .zip(&limits)
                .map(|(needed, limit)| needed.max(*limit))
                .collect();
        let everyone = self.estimates.len().clamp(1, WORKERS_MAX);
        let mut needed = limits.clone();
        for (place, limit) in limits.iter().enumerate() {
            let works = |number: u64| {
                let mut numbers = ample.clone();
                numbers[place] = number;
                self.ends_within(within, &numbers, everyone)
            };
            needed[place] = smallest(*limit, ample[place], works)?;
        }
        let works = |workers: u64| {
            self.ends_within(within, &ample, usize::try_from(workers).unwrap_or(WORKERS_MAX))
        };
        let mut workers = smallest(self.crew.workers as u64, everyone as u64, works)?;
        // Each by itself is enough with plenty of the others; together they may need a little more.
        let more = |number: u64, old: u64, most: u64| {
            if number == old { old } else { (number + number / 20 + 1).min(most) }
        };
        for _ in 0..ROUNDS_MAX {
            if self.ends_within(within, &needed, usize::try_from(workers).unwrap_or(WORKERS_MAX))? {
                return Ok(self.named(&limits, &needed, workers));
            }
            for (place, number) in needed.iter_mut().enumerate() {
                *number = more(*number, limits[place], ample[place]);
            }
            workers = more(workers, self.crew.workers as u64, everyone as u64);
        }
        Ok(vec!["none that was found; wish for more time".to_owned()])
    }

    /// The settings that changed, in words.
    fn named(&self, limits: &[u64], needed: &[u64], workers: u64) -> Vec<String> {
        let changed = limits.iter().zip(needed).enumerate().filter(|(_, (old, new))| old != new);
        let mut settings: Vec<String> = changed
            .map(|(place, (_, number))| format!("a limit {} of {number}", self.limit_name(place)))
            .collect();
        if workers != self.crew.workers as u64 {
            settings.push(format!("{workers} workers"));
        }
        if 1 < settings.len() {
            vec![format!("together: {}", settings.join(", "))]
        } else {
            settings
        }
    }

    fn ends_within(&self, within: Span, limits: &[u64], workers: usize) -> Result<bool, Error> {
        let outcome = self.with_settings(limits, workers)?.and_then(Result::ok);
        Ok(outcome.is_some_and(|done| done.ends_at.since(self.conditions.now) <= within))
    }

    /// The forecast with other numbers; nothing if there is no policy with these.
    pub(super) fn with_settings(
        &self,
        limits: &[u64],
        workers: usize,
    ) -> Result<Option<Result<Forecast, TooLarge>>, Error> {
        let Ok(policy) = with_limits(self.policy, limits) else { return Ok(None) };
        let crew = Crew { workers, ..self.crew };
        forecast(self.estimates, &policy, crew, self.conditions.now).map(Some)
    }

    pub(super) fn limits(&self) -> Vec<u64> {
        self.policy.limits().map(|limit| limit.rule().limit()).collect()
    }

    fn tokens(&self) -> u64 {
        self.estimates.iter().map(|estimate| estimate.input).sum()
    }

    pub(super) fn limit_name(&self, place: usize) -> String {
        self.policy.limits().nth(place).map_or_else(String::new, |limit| limit.name().to_owned())
    }
}

/// The smallest number from `low` to `high` that works; `high` if none does.
pub(super) fn smallest(
    low: u64,
    high: u64,
    works: impl Fn(u64) -> Result<bool, Error>,
) -> Result<u64, Error> {
    if high <= low || works(low)? {
        return Ok(low);
    }
    let (mut low, mut high) = (low, high);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if works(middle)? { high = middle } else { low = middle }
    }
    Ok(high)
}
