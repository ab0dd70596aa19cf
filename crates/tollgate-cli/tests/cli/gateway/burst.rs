//! Bursts far above the quota: every call succeeds, the provider refuses none, and the quota is used.

use tollgate::Span;
use tollgate_testkit::fakes::llm::{Quota, Settings};
use tollgate_testkit::servers::sdks::Sdk;

use super::{KEY, Setup};

/// Two hundred calls at once on `rate` per second. The policy is the provider's quota with a margin for the way there.
fn burst(sdk: Sdk, rate: u64, margin: Span) {
    const CALLS: u64 = 200;
    let limits = format!(
        "{{ name = \"rate\", unit = \"requests\", rule = \"rolling-window\", limit = {rate}, window = \"1s\", margin = \"{margin}\" }}"
    );
    let quota = Quota { rpm: rate, minute: Span::from_secs(1), ..Quota::NONE };
    let assembled = Setup { limits: &limits, ..Setup::default() }
        .start(Settings { quota, ..Settings::default() });
    let results =
        sdk.run(&assembled.gateway.url, KEY, &[&format!("burst:{CALLS}")]).expect("it runs");
    assert_eq!(results["burst"]["errors"], serde_json::json!([]), "{results}");
    let fake = &assembled.provider.fake;
    let tally = fake.tally();
    assert_eq!((tally.answered(200), tally.answered(429)), (CALLS, 0), "{tally:?}");
    assert!(tally.violations.is_empty(), "{tally:?}");
    let arrivals = fake.arrivals();
    let (first, last) = (&arrivals[0], &arrivals[arrivals.len() - 1]);
    let took = last.at.since(first.at).as_micros();
    // A full window at the start, then one whenever the policy has room again.
    let window = Span::from_secs(1).plus(margin).as_micros();
    let best = (CALLS / rate - 1) * window;
    assert!(took * 95 <= best * 100, "{took} µs, where the policy allows {best} µs");
}

#[test]
fn a_burst_of_two_hundred_takes_its_time() {
    burst(Sdk::OpenAiPython, 25, Span::from_millis(250));
}

/// What only the long check runs: the profile `sdks` of nextest.
mod every_sdk {
    use super::*;

    #[test]
    fn two_hundred_calls_on_five_per_second_openai() {
        burst(Sdk::OpenAiPython, 5, Span::from_millis(100));
    }

    #[test]
    fn two_hundred_calls_on_twenty_per_second_anthropic() {
        burst(Sdk::AnthropicPython, 20, Span::from_millis(250));
    }

    /// This client never retries by itself.
    #[test]
    fn two_hundred_calls_on_twenty_per_second_gemini() {
        burst(Sdk::GooglePython, 20, Span::from_millis(250));
    }
}
