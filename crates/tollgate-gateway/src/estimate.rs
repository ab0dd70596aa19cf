//! What a call will cost, before it is made.

use std::sync::Arc;

use tollgate::{Ask, Costs};
use tollgate_providers::{
    CallKind, Dialect, PaidTokens, Price, RequestFacts, USD_MICROS, UsageFields, UsageMap,
};

use crate::calibration::Calibration;

/// The tokens of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tokens {
    pub(crate) input: u64,
    pub(crate) output: u64,
}

/// Which units input and output count into at an upstream, by its usage map.
#[derive(Debug)]
pub(crate) struct Weights(Vec<Weight>);

#[derive(Debug)]
struct Weight {
    unit: Arc<str>,
    input: u64,
    output: u64,
}

impl Weights {
    /// Reads the weights off `map`, which is a sum of fields, by the fields that `dialect` reports.
    pub(crate) fn new(dialect: Dialect, map: &UsageMap) -> Self {
        let weigh = |input: u64, output: u64, unit: &str| {
            let amounts = fields(dialect, input, output);
            amounts.iter().filter_map(|fields| map.costs(fields).get(unit)).max().unwrap_or(0)
        };
        let weight = |unit: &str| Weight {
            unit: unit.into(),
            input: weigh(1, 0, unit),
            output: weigh(0, 1, unit),
        };
        Self(map.units().map(weight).collect())
    }

    /// Returns the costs of `tokens`, in the units of the map, and in money with a price.
    pub(crate) fn costs(&self, tokens: Tokens, price: Option<Price>) -> Costs {
        let amount = |weight: &Weight| {
            let input = tokens.input.saturating_mul(weight.input);
            input.saturating_add(tokens.output.saturating_mul(weight.output))
        };
        let mut costs: Costs =
            self.0.iter().map(|weight| (Arc::clone(&weight.unit), amount(weight))).collect();
        if let Some(price) = price {
            let (input, output) = (tokens.input, tokens.output);
            let paid = PaidTokens { input, output, ..PaidTokens::default() };
            costs.set(USD_MICROS, price.cost(paid).0);
        }
        costs
    }
}

/// The usage objects in which `dialect` would report so many tokens.
fn fields(dialect: Dialect, input: u64, output: u64) -> Vec<UsageFields> {
    let total = input + output;
    let texts = match dialect {
        Dialect::OpenAi => vec![
            format!(
                r#"{{"prompt_tokens":{input},"completion_tokens":{output},"total_tokens":{total}}}"#
            ),
            format!(
                r#"{{"input_tokens":{input},"output_tokens":{output},"total_tokens":{total}}}"#
            ),
        ],
        Dialect::Anthropic => {
            vec![format!(r#"{{"input_tokens":{input},"output_tokens":{output}}}"#)]
        }
        Dialect::Gemini => vec![format!(
            r#"{{"promptTokenCount":{input},"candidatesTokenCount":{output},"totalTokenCount":{total}}}"#
        )],
    };
    texts.iter().map(|text| UsageFields::from_json(text)).collect()
}

/// Returns the costs that `usage` reports, in the units of `map`, and in money with a price.
pub(crate) fn reported(
    dialect: Dialect,
    map: &UsageMap,
    usage: &UsageFields,
    price: Option<Price>,
) -> Costs {
    let mut costs = map.costs(usage);
    if let Some(price) = price {
        costs.set(USD_MICROS, price.cost(PaidTokens::from_usage(dialect, usage)).0);
    }
    costs
}

/// Estimates the tokens of a call. An undeclared output is not final: [`fit_output`] reduces it.
pub(crate) fn tokens(kind: CallKind, facts: &RequestFacts, known: &Calibration) -> Tokens {
    let input = known.input(facts.text_tokens).saturating_add(facts.media_tokens()).max(1);
    let output = match kind {
        CallKind::Generate => {
            facts.output_tokens_declared().unwrap_or_else(|| known.usual_output())
        }
        _ => 0,
    };
    Tokens { input, output }
}

/// Returns the undeclared output to ask for: at most a quarter of any limit, and never so much that the call could not be admitted for
/// its sake.
pub(crate) fn fit_output(
    ask: &Ask<'_>,
    mut tokens: Tokens,
    costs: impl Fn(Tokens) -> Costs,
) -> u64 {
    let limits = || {
        ask.charges().flat_map(|charge| charge.policy().limits()).filter_map(|limit| {
            let most = limit.rule().limit();
            (limit.unit() != crate::config::REQUESTS).then_some((limit.unit(), most))
        })
    };
    let fits = |tokens: Tokens| {
        let all = costs(tokens);
        let output = costs(Tokens { input: 0, ..tokens });
        limits().all(|(unit, most)| {
            all.get(unit).unwrap_or(0) <= most && output.get(unit).unwrap_or(0) <= most / 4
        })
    };
    // Halving errs to the small side, which settling corrects.
    while 0 < tokens.output && !fits(tokens) {
        tokens.output /= 2;
    }
    tokens.output
}

#[cfg(test)]
mod tests {
    use tollgate::{Limit, Policy, TokenBucket};

    use super::*;

    #[test]
    fn the_weights_of_the_default_maps() {
        let rows = [
            (Dialect::OpenAi, [Some(110), Some(100), Some(10)]),
            (Dialect::Anthropic, [Some(110), Some(100), Some(10)]),
            (Dialect::Gemini, [Some(100), Some(100), Some(10)]),
        ];
        for (dialect, expected) in rows {
            let weights = Weights::new(dialect, &dialect.usage_map());
            let costs = weights.costs(Tokens { input: 100, output: 10 }, None);
            let units = ["tokens", "input_tokens", "output_tokens"];
            assert_eq!(units.map(|unit| costs.get(unit)), expected, "{dialect}");
        }
    }

    #[test]
    fn a_map_with_the_fields_of_one_endpoint_counts_for_all() {
        let map = UsageMap::parse([("input_tokens", "prompt_tokens")]).unwrap();
        let costs = Weights::new(Dialect::OpenAi, &map).costs(Tokens { input: 7, output: 3 }, None);
        assert_eq!(costs.get("input_tokens"), Some(7));
    }

    #[test]
    fn an_undeclared_output_takes_a_quarter_at_most_and_never_prevents_a_call() {
        let bucket = TokenBucket::per_minute(10_000);
        let policy = Policy::new("llm", [Limit::new("tpm", "tokens", bucket)]).unwrap();
        let weights = Weights::new(Dialect::OpenAi, &Dialect::OpenAi.usage_map());
        let fit = |input, output| {
            let ask = Ask::new(&policy, "s");
            fit_output(&ask, Tokens { input, output }, |tokens| weights.costs(tokens, None))
        };
        assert_eq!(fit(100, 2_000), 2_000);
        assert_eq!(fit(100, 4_096), 2_048);
        assert_eq!(fit(9_500, 4_096), 256);
        assert_eq!(fit(10_000, 4_096), 0);
        assert_eq!(fit(20_000, 4_096), 0, "too large by itself");
    }
}
