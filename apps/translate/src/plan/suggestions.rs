//! Warnings of a plan, with suggested settings.
//!
//! A suggested number was found by forecasts: the smallest with which the job meets the user's goal. Chunks of another size are cut and
//! forecast as well, since they have other estimates.

use serde::Serialize;
use tollgate_core::{Policy, Span};

use super::fit::{counts_days, requests_per_day, size_for_a_day};
use super::forecast::{Forecast, Schedule, TOKENS, TooLarge, WorkerPool, forecast, with_limits};
use super::text::grouped;
use super::{Conditions, Micros, Plan, Price, Prices, WORKERS_MAX, estimates};
use crate::chunk::{CHUNK_TOKENS_MIN, cut};
use crate::document::Document;
use crate::error::Error;
use crate::estimate::Calibration;
use crate::prompt::{Estimate, Task};

/// How often a combination of settings that does not suffice is raised.
const ROUNDS_MAX: usize = 40;

/// How much larger than the need a limit may have to be, since up to nine tenths of it may be headroom.
const HELD_BACK_MAX: u64 = 10;

/// A warning of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The problem.
    pub text: String,
    /// Settings that would help, each on its own unless it says otherwise.
    #[serde(rename = "remedies")]
    pub suggestions: Vec<String>,
    /// Whether the job, or a goal of the user, is not feasible with the current settings.
    pub breaks_a_wish: bool,
}

/// Chunks of another size, forecast.
struct Trial {
    size: u64,
    requests: usize,
    schedule: Schedule,
}

/// Searches for suggestions.
pub(super) struct Advisor<'a> {
    pub(super) task: &'a Task,
    pub(super) document: &'a Document,
    pub(super) calibration: &'a Calibration,
    pub(super) estimates: &'a [Estimate],
    pub(super) conditions: &'a Conditions,
    /// The limits of the forecast.
    pub(super) policy: &'a Policy,
    pub(super) pool: WorkerPool,
}

impl Advisor<'_> {
    pub(super) fn warnings(
        &self,
        plan: &Plan,
        too_large: Option<TooLarge>,
    ) -> Result<Vec<Warning>, Error> {
        let mut warnings = Vec::new();
        if let Some(too_large) = too_large {
            warnings.push(self.never_fits(plan, too_large)?);
        } else {
            let larger = self.larger_chunks(plan)?;
            warnings.extend(self.takes_days(plan, larger.as_ref())?);
            warnings.extend(self.too_slow(plan, larger.as_ref())?);
        }
        warnings.extend(self.too_dear(plan));
        Ok(warnings)
    }

    fn never_fits(&self, plan: &Plan, too_large: TooLarge) -> Result<Warning, Error> {
        let TooLarge { limit: index, tokens } = too_large;
        let most = self.policy.effective().nth(index).unwrap_or(0);
        let name = self.limit_name(index);
        let mut suggestions = Vec::new();
        let (mut size, mut largest) = (plan.chunk_tokens, tokens);
        for _ in 0..ROUNDS_MAX {
            // Every request also has its instructions and context.
            size = size.saturating_sub(largest.saturating_sub(most).max(1));
            if size < CHUNK_TOKENS_MIN {
                break;
            }
            match self.with_chunks_of(size)? {
                (_, Forecast::Feasible(_)) => {
                    suggestions
                        .push(format!("chunks of {} tokens (--chunk-tokens)", grouped(size)));
                    break;
                }
                (_, Forecast::TooLarge(still)) => largest = still.tokens,
            }
        }
        let limits = self.limits();
        let works = |number: u64| {
            let mut numbers = limits.clone();
            numbers[index] = number;
            Ok(match self.with_settings(&numbers, self.pool.workers)? {
                Some(Forecast::TooLarge(other)) => other.limit != index,
                Some(Forecast::Feasible(_)) => true,
                None => false,
            })
        };
        let all = self.estimates.iter().map(|estimate| estimate.input).max().unwrap_or(tokens);
        let high = all.saturating_mul(HELD_BACK_MAX);
        let needed = smallest(limits[index], high, works)?;
        suggestions.push(format!("a limit {name} of {needed}"));
        Ok(Warning {
            text: format!(
                "a request of {tokens} tokens never fits the limit {name}, which issues at most {most} at once"
            ),
            suggestions,
            breaks_a_wish: true,
        })
    }

    /// Warns of several days even without a deadline.
    fn takes_days(&self, plan: &Plan, larger: Option<&Trial>) -> Result<Option<Warning>, Error> {
        let days = plan.days.filter(|days| 1 < *days);
        let (Some(days), Some(daily)) = (days, requests_per_day(self.policy)) else {
            return Ok(None);
        };
        let mut suggestions: Vec<String> =
            larger.map(|trial| self.in_words(trial)).into_iter().collect();
        let in_a_day = |number: u64| {
            let limits = self.policy.limits();
            let numbers: Vec<u64> = limits
                .map(|limit| match limit.rule().limit() {
                    own if counts_days(limit) => own.max(number),
                    own => own,
                })
                .collect();
            let forecast = self.with_settings(&numbers, self.pool.workers)?;
            Ok(forecast.and_then(Forecast::schedule).is_some_and(|done| done.days == Some(1)))
        };
        let needed = smallest(daily, plan.requests.saturating_mul(HELD_BACK_MAX), in_a_day)?;
        // The rest of the day may be too short for any tier.
        if in_a_day(needed)? {
            suggestions.push(format!("a tier with {} requests per day", grouped(needed)));
        }
        Ok(Some(Warning {
            text: format!(
                "{} requests at {daily} per day take {days} days; the job pauses when a day's quota is used up and resumes by \
                 itself",
                plan.requests
            ),
            suggestions,
            breaks_a_wish: false,
        }))
    }

    fn in_words(&self, trial: &Trial) -> String {
        let days = match trial.schedule.days {
            Some(1) => ", on one day".to_owned(),
            Some(days) => format!(", on {days} days"),
            None => String::new(),
        };
        format!(
            "larger chunks (--fit-rpd): {} of up to {} tokens, done in {}{days}",
            grouped(trial.requests as u64),
            grouped(trial.size),
            trial.schedule.ends_at.since(self.conditions.now).humanize()
        )
    }

    fn too_slow(&self, plan: &Plan, larger: Option<&Trial>) -> Result<Option<Warning>, Error> {
        let (Some(within), Some(ends_at)) = (self.conditions.within, plan.ends_at) else {
            return Ok(None);
        };
        let takes = ends_at.since(self.conditions.now);
        if takes <= within {
            return Ok(None);
        }
        let text = format!(
            "it takes {}, not {}: {}",
            takes.humanize(),
            within.humanize(),
            super::text::pace(&plan.binding)
        );
        let is_in_time =
            |trial: &&Trial| trial.schedule.ends_at.since(self.conditions.now) <= within;
        let larger = larger.filter(is_in_time).map(|trial| self.in_words(trial));
        let suggestions = larger.into_iter().chain(self.settings_for(within)?).collect();
        Ok(Some(Warning { text, suggestions, breaks_a_wish: true }))
    }

    fn too_dear(&self, plan: &Plan) -> Option<Warning> {
        let max = self.conditions.max_cost?;
        let Some(cost) = plan.cost_micros else {
            return Some(Warning {
                text: format!(
                    "no price is known for {}, so the cost cannot be kept to {max} in advance",
                    plan.model
                ),
                suggestions: vec!["a table of prices of your own (--prices)".to_owned()],
                breaks_a_wish: false,
            });
        };
        if cost <= max {
            return None;
        }
        let total = Estimate { input: plan.input_tokens, output: plan.output_tokens };
        let prices = Prices::built_in();
        // Another family is another provider, and embeddings have no output.
        let family = plan.model.split('-').next();
        let suits = |(name, price): &(&String, &Price)| {
            name.split('-').next() == family && 0 < price.output
        };
        let cheaper = prices.models.iter().filter(suits);
        let cheaper = cheaper.map(|(name, price)| (price.cost(total.into()), name));
        let cheaper: Option<(Micros, &String)> = cheaper.filter(|(cost, _)| *cost <= max).max();
        let mut suggestions = vec![format!("a maximum of {cost}")];
        suggestions.extend(cheaper.map(|(cost, name)| format!("the model {name}, at {cost}")));
        Some(Warning {
            text: format!("it costs {cost}, more than {max}"),
            suggestions,
            breaks_a_wish: true,
        })
    }

    /// Returns the effect of `--fit-rpd`, if it reduces the days or the time.
    fn larger_chunks(&self, plan: &Plan) -> Result<Option<Trial>, Error> {
        let late = match (self.conditions.within, plan.ends_at) {
            (Some(within), Some(end)) => within < end.since(self.conditions.now),
            _ => false,
        };
        if !late && plan.days.is_none_or(|days| days < 2) {
            return Ok(None);
        }
        let size = size_for_a_day(self.document, self.task, self.policy);
        let Some(size) = size.filter(|size| *size != plan.chunk_tokens) else { return Ok(None) };
        let (requests, forecast) = self.with_chunks_of(size)?;
        let trial = forecast.schedule().map(|schedule| Trial { size, requests, schedule });
        Ok(trial.filter(|trial| {
            trial.schedule.days < plan.days || Some(trial.schedule.ends_at) < plan.ends_at
        }))
    }

    /// Returns the number of requests and the forecast with chunks of another size.
    fn with_chunks_of(&self, size: u64) -> Result<(usize, Forecast), Error> {
        let mut document = self.document.clone();
        let chunks = cut(&mut document, size)?;
        let model = &self.conditions.model;
        let estimates = estimates(self.task, &document, &chunks, model, self.calibration);
        let forecast = forecast(&estimates, self.policy, self.pool, self.conditions.now)?;
        Ok((chunks.len(), forecast))
    }

    /// Returns the smallest settings that together end the job `within` the time.
    fn settings_for(&self, within: Span) -> Result<Vec<String>, Error> {
        if within < self.pool.latency {
            let latency = self.pool.latency.humanize();
            return Ok(vec![format!("none: one call alone takes {latency}, so allow more time")]);
        }
        let limits = self.limits();
        // A limit beyond the need of the whole job has no effect.
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
        for (index, limit) in limits.iter().enumerate() {
            let works = |number: u64| {
                let mut numbers = ample.clone();
                numbers[index] = number;
                self.ends_within(within, &numbers, everyone)
            };
            needed[index] = smallest(*limit, ample[index], works)?;
        }
        let works = |workers: u64| {
            self.ends_within(within, &ample, usize::try_from(workers).unwrap_or(WORKERS_MAX))
        };
        let mut workers = smallest(self.pool.workers as u64, everyone as u64, works)?;
        // Each suffices with plenty of the others; together they may need a little more.
        let more = |number: u64, old: u64, most: u64| {
            if number == old { old } else { (number + number / 20 + 1).min(most) }
        };
        for _ in 0..ROUNDS_MAX {
            if self.ends_within(within, &needed, usize::try_from(workers).unwrap_or(WORKERS_MAX))? {
                return Ok(self.named(&limits, &needed, workers));
            }
            for (index, number) in needed.iter_mut().enumerate() {
                *number = more(*number, limits[index], ample[index]);
            }
            workers = more(workers, self.pool.workers as u64, everyone as u64);
        }
        Ok(vec!["none found; allow more time".to_owned()])
    }

    /// Describes the settings that changed.
    fn named(&self, limits: &[u64], needed: &[u64], workers: u64) -> Vec<String> {
        let changed = limits.iter().zip(needed).enumerate().filter(|(_, (old, new))| old != new);
        let mut settings: Vec<String> = changed
            .map(|(index, (_, number))| format!("a limit {} of {number}", self.limit_name(index)))
            .collect();
        if workers != self.pool.workers as u64 {
            settings.push(format!("{workers} workers"));
        }
        if 1 < settings.len() {
            vec![format!("together: {}", settings.join(", "))]
        } else {
            settings
        }
    }

    fn ends_within(&self, within: Span, limits: &[u64], workers: usize) -> Result<bool, Error> {
        let schedule = self.with_settings(limits, workers)?.and_then(Forecast::schedule);
        Ok(schedule.is_some_and(|done| done.ends_at.since(self.conditions.now) <= within))
    }

    /// Returns the forecast with other numbers; `None` if they make no valid policy.
    fn with_settings(&self, limits: &[u64], workers: usize) -> Result<Option<Forecast>, Error> {
        let Ok(policy) = with_limits(self.policy, limits) else { return Ok(None) };
        let pool = WorkerPool { workers, ..self.pool };
        forecast(self.estimates, &policy, pool, self.conditions.now).map(Some)
    }

    fn limits(&self) -> Vec<u64> {
        self.policy.limits().map(|limit| limit.rule().limit()).collect()
    }

    fn tokens(&self) -> u64 {
        self.estimates.iter().map(|estimate| estimate.input).sum()
    }

    fn limit_name(&self, index: usize) -> String {
        self.policy.limits().nth(index).map_or_else(String::new, |limit| limit.name().to_owned())
    }
}

/// Returns the smallest number from `low` to `high` that works; `high` if none does.
fn smallest(low: u64, high: u64, works: impl Fn(u64) -> Result<bool, Error>) -> Result<u64, Error> {
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
