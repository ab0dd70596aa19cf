//! What stands against a wish, and which settings would grant it.
//!
//! A number that is proposed was found by forecasting with it: the smallest at which the wish comes true.

use serde::Serialize;
use tollgate_core::{CalendarWindow, Period, Policy, Rule, Span};

use super::forecast::{Crew, TOKENS, TooLarge, forecast, with_limits};
use super::text::grouped;
use super::{Conditions, Micros, Plan, Prices, WORKERS_MAX};
use crate::chunk::{CHUNK_TOKENS_MIN, fitting_size};
use crate::document::Document;
use crate::error::Error;
use crate::prompt::Estimate;

/// How often settings that do not work together are raised before there is no answer.
const ROUNDS_MAX: usize = 40;

/// Something that stands against the job or a wish.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// What it is.
    pub text: String,
    /// What would help, each by itself unless it says otherwise.
    pub remedies: Vec<String>,
    /// Whether the job, or a wish, is not feasible as it is set.
    pub breaks_a_wish: bool,
}

/// Everything a remedy is looked for in.
pub(super) struct Case<'a> {
    pub(super) document: &'a Document,
    pub(super) estimates: &'a [Estimate],
    pub(super) conditions: &'a Conditions,
    /// The limits that the forecast was made with.
    pub(super) policy: &'a Policy,
    pub(super) crew: Crew,
    pub(super) size_max: u64,
}

impl Case<'_> {
    pub(super) fn warnings(
        &self,
        plan: &Plan,
        too_large: Option<TooLarge>,
    ) -> Result<Vec<Warning>, Error> {
        let mut warnings = Vec::new();
        if let Some(too_large) = too_large {
            warnings.push(self.never_fits(plan, too_large));
        } else {
            warnings.extend(self.takes_days(plan));
            warnings.extend(self.too_slow(plan)?);
        }
        warnings.extend(self.too_dear(plan));
        Ok(warnings)
    }

    fn never_fits(&self, plan: &Plan, too_large: TooLarge) -> Warning {
        let most = self.policy.effective().nth(too_large.limit).unwrap_or(0);
        let name = self.limit_name(too_large.limit);
        // What is not text stays in every request.
        let overhead = too_large.tokens.saturating_sub(plan.chunk_tokens);
        let size = most.saturating_sub(overhead);
        let mut remedies = Vec::new();
        if CHUNK_TOKENS_MIN <= size {
            remedies.push(format!("chunks of {} tokens", grouped(size)));
        }
        remedies.push(format!("a limit {name} of at least {}", too_large.tokens));
        Warning {
            text: format!(
                "a request of {} tokens never fits the limit {name}, which issues at most {most} at once",
                too_large.tokens
            ),
            remedies,
            breaks_a_wish: true,
        }
    }

    /// A daily quota is worth a word even where nobody wished for an end.
    fn takes_days(&self, plan: &Plan) -> Option<Warning> {
        let days = plan.days.filter(|days| 1 < *days)?;
        let daily = self.daily_requests()?;
        let mut remedies = Vec::new();
        for goal in (1..days).filter(|goal| *goal == 1 || *goal == days - 1) {
            let room = daily.saturating_mul(goal);
            if let Some(size) = fitting_size(self.document, room, self.size_max) {
                let on = if goal == 1 { "one day".to_owned() } else { format!("{goal} days") };
                remedies.push(format!(
                    "larger chunks (--fit-rpd): {} tokens each fit {on}",
                    grouped(size)
                ));
                break;
            }
        }
        remedies.push(format!("a tier with {} requests per day", plan.requests));
        Some(Warning {
            text: format!(
                "{} requests at {daily} per day take {days} days; the job pauses when a day's quota is used up and resumes by \
                 itself",
                plan.requests
            ),
            remedies,
            breaks_a_wish: false,
        })
    }

    fn too_slow(&self, plan: &Plan) -> Result<Option<Warning>, Error> {
        let (Some(within), Some(ends_at)) = (self.conditions.within, plan.ends_at) else {
            return Ok(None);
        };
        let takes = ends_at.since(self.conditions.now);
        if takes <= within {
            return Ok(None);
        }
        let text = format!(
            "it takes {}, not {}: {}",
            takes.for_people(),
            within.for_people(),
            super::text::pace(&plan.binding)
        );
        let remedies = self.settings_for(within)?;
        Ok(Some(Warning { text, remedies, breaks_a_wish: true }))
    }

    /// The settings that together end the job `within` the time, each as small as it can be.
    fn settings_for(&self, within: Span) -> Result<Vec<String>, Error> {
        if within < self.crew.latency {
            let latency = self.crew.latency.for_people();
            return Ok(vec![format!(
                "none: one call alone takes {latency}, so wish for more time"
            )]);
        }
        let limits: Vec<u64> = self.policy.limits().map(|limit| limit.rule().limit()).collect();
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
        let Ok(policy) = with_limits(self.policy, limits) else { return Ok(false) };
        let crew = Crew { workers, ..self.crew };
        let outcome = forecast(self.estimates, &policy, crew, self.conditions.now)?;
        Ok(outcome.is_ok_and(|done| done.ends_at.since(self.conditions.now) <= within))
    }

    fn too_dear(&self, plan: &Plan) -> Option<Warning> {
        let max = self.conditions.max_cost?;
        let Some(cost) = plan.cost_micros else {
            return Some(Warning {
                text: format!(
                    "no price is known for {}, so the cost cannot be kept to {max} in advance",
                    plan.model
                ),
                remedies: vec!["a table of prices of your own (--prices)".to_owned()],
                breaks_a_wish: false,
            });
        };
        if cost <= max {
            return None;
        }
        let total = Estimate { input: plan.input_tokens, output: plan.output_tokens };
        let prices = Prices::built_in();
        let cheaper = prices.models.iter().map(|(name, price)| (price.of(total), name));
        let cheaper: Option<(Micros, &String)> = cheaper.filter(|(cost, _)| *cost <= max).max();
        let mut remedies = vec![format!("a maximum of {cost}")];
        remedies.extend(cheaper.map(|(cost, name)| format!("the model {name}, at {cost}")));
        Some(Warning {
            text: format!("it costs {cost}, more than {max}"),
            remedies,
            breaks_a_wish: true,
        })
    }

    fn tokens(&self) -> u64 {
        self.estimates.iter().map(|estimate| estimate.input).sum()
    }

    fn limit_name(&self, place: usize) -> String {
        self.conditions
            .policy
            .limits()
            .nth(place)
            .map_or_else(String::new, |limit| limit.name().to_owned())
    }

    /// How many requests a day the policy issues.
    fn daily_requests(&self) -> Option<u64> {
        let daily = self.policy.limits().zip(self.policy.effective()).filter(|(limit, _)| {
            let by_day = matches!(
                limit.rule(),
                Rule::CalendarWindow(CalendarWindow { period: Period::Day, .. })
            );
            by_day && limit.unit() == tollgate_core::REQUESTS
        });
        daily.map(|(_, most)| most).min()
    }
}

/// The smallest number from `low` to `high` that works; `high` if none does.
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
