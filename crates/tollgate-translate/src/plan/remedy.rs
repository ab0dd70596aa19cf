//! What stands against a wish, and which settings would grant it, in words.
//!
//! A number that is proposed was found by forecasting with it: the smallest at which the wish comes true. Chunks of another size
//! are cut and forecast as well, since they have other estimates.

use serde::Serialize;
use tollgate_core::Policy;

use super::fit::{counts_days, requests_per_day};
use super::forecast::{Crew, TooLarge};
use super::search::{ROUNDS_MAX, Trial, smallest};
use super::text::grouped;
use super::{Conditions, Micros, Plan, Prices};
use crate::chunk::CHUNK_TOKENS_MIN;
use crate::document::Document;
use crate::error::Error;
use crate::estimate::Calibration;
use crate::prompt::{Estimate, Task};

/// How much larger than what is needed a limit may have to be, since a part of it may be held back: at most nine tenths.
const HELD_BACK_MAX: u64 = 10;

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
    pub(super) task: &'a Task,
    pub(super) document: &'a Document,
    pub(super) calibration: &'a Calibration,
    pub(super) estimates: &'a [Estimate],
    pub(super) conditions: &'a Conditions,
    /// The limits that the forecast was made with.
    pub(super) policy: &'a Policy,
    pub(super) crew: Crew,
}

impl Case<'_> {
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
        let TooLarge { limit: place, tokens } = too_large;
        let most = self.policy.effective().nth(place).unwrap_or(0);
        let name = self.limit_name(place);
        let mut remedies = Vec::new();
        let (mut size, mut largest) = (plan.chunk_tokens, tokens);
        for _ in 0..ROUNDS_MAX {
            // What is not text stays in every request.
            size = size.saturating_sub(largest.saturating_sub(most).max(1));
            if size < CHUNK_TOKENS_MIN {
                break;
            }
            match self.with_chunks_of(size)? {
                Ok(_) => {
                    remedies.push(format!("chunks of {} tokens (--chunk-tokens)", grouped(size)));
                    break;
                }
                Err(still) => largest = still.tokens,
            }
        }
        let limits = self.limits();
        let works = |number: u64| {
            let mut numbers = limits.clone();
            numbers[place] = number;
            let outcome = self.with_settings(&numbers, self.crew.workers)?;
            Ok(outcome
                .is_some_and(|outcome| outcome.err().is_none_or(|other| other.limit != place)))
        };
        let all = self.estimates.iter().map(|estimate| estimate.input).max().unwrap_or(tokens);
        let high = all.saturating_mul(HELD_BACK_MAX);
        let needed = smallest(limits[place], high, works)?;
        remedies.push(format!("a limit {name} of {needed}"));
        Ok(Warning {
            text: format!(
                "a request of {tokens} tokens never fits the limit {name}, which issues at most {most} at once"
            ),
            remedies,
            breaks_a_wish: true,
        })
    }

    /// A daily quota is worth a word even where nobody wished for an end.
    fn takes_days(&self, plan: &Plan, larger: Option<&Trial>) -> Result<Option<Warning>, Error> {
        let days = plan.days.filter(|days| 1 < *days);
        let (Some(days), Some(daily)) = (days, requests_per_day(self.policy)) else {
            return Ok(None);
        };
        let mut remedies: Vec<String> =
            larger.map(|trial| self.in_words(trial)).into_iter().collect();
        let in_a_day = |number: u64| {
            let limits = self.policy.limits();
            let numbers: Vec<u64> = limits
                .map(|limit| match limit.rule().limit() {
                    own if counts_days(limit) => own.max(number),
                    own => own,
                })
                .collect();
            let outcome = self.with_settings(&numbers, self.crew.workers)?;
            Ok(outcome.and_then(Result::ok).is_some_and(|done| done.days == Some(1)))
        };
        let needed = smallest(daily, plan.requests.saturating_mul(HELD_BACK_MAX), in_a_day)?;
        // The rest of a day may be too short, whatever the tier.
        if in_a_day(needed)? {
            remedies.push(format!("a tier with {} requests per day", grouped(needed)));
        }
        Ok(Some(Warning {
            text: format!(
                "{} requests at {daily} per day take {days} days; the job pauses when a day's quota is used up and resumes by \
                 itself",
                plan.requests
            ),
            remedies,
            breaks_a_wish: false,
        }))
    }

    fn in_words(&self, trial: &Trial) -> String {
        let days = match trial.outcome.days {
            Some(1) => ", on one day".to_owned(),
            Some(days) => format!(", on {days} days"),
            None => String::new(),
        };
        format!(
            "larger chunks (--fit-rpd): {} of up to {} tokens, done in {}{days}",
            grouped(trial.requests as u64),
            grouped(trial.size),
            trial.outcome.ends_at.since(self.conditions.now).for_people()
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
            takes.for_people(),
            within.for_people(),
            super::text::pace(&plan.binding)
        );
        let is_in_time =
            |trial: &&Trial| trial.outcome.ends_at.since(self.conditions.now) <= within;
        let larger = larger.filter(is_in_time).map(|trial| self.in_words(trial));
        let remedies = larger.into_iter().chain(self.settings_for(within)?).collect();
        Ok(Some(Warning { text, remedies, breaks_a_wish: true }))
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
}
