//! Real clients, unmodified: only the base URL and the key are those of the gateway.

use tollgate_testkit::fakes::llm::Settings;
use tollgate_testkit::servers::sdks::{Sdk, troubles};

use super::{KEY, Setup, upstream_key};

/// Runs every scenario of a client through the gateway.
fn works(sdk: Sdk) {
    let assembled = Setup::default().start(Settings {
        troubles: troubles(),
        keys: vec![upstream_key(sdk.dialect())],
        gzip: true,
        ..Settings::default()
    });
    let results = sdk.run(&assembled.gateway.url, KEY, &sdk.scenarios()).expect("it runs");
    assert_eq!(sdk.mistakes(&results), [""; 0], "{results:#}");
    let fake = &assembled.provider.fake;
    let tally = fake.tally();
    assert_eq!((tally.answered(401), tally.answered(404)), (0, 0), "{tally:?}");
    // The client retried, not the gateway: a call that failed with 500 may have been processed.
    assert_eq!(tally.answered(500), 2, "{tally:?}");
    for arrival in fake.arrivals() {
        let is_leaked = arrival.headers.iter().any(|(_, value)| value.contains(KEY));
        assert!(!is_leaked, "{arrival:?}");
        let encoding = arrival.header("accept-encoding").unwrap_or("identity");
        assert_eq!(encoding, "identity", "{arrival:?}");
    }
    // The client that gave up did so at the provider, too.
    assembled.provider.idle();
    assembled.gateway.settled();
}

#[test]
fn python_openai_works_through_the_gateway() {
    works(Sdk::OpenAiPython);
}

#[test]
fn python_anthropic_works_through_the_gateway() {
    works(Sdk::AnthropicPython);
}

#[test]
fn python_google_genai_works_through_the_gateway() {
    works(Sdk::GooglePython);
}

/// What only the long check runs: the profile `sdks` of nextest.
mod every_sdk {
    use super::*;

    #[test]
    fn langchain_openai_works_through_the_gateway() {
        works(Sdk::LangChain);
    }

    #[test]
    fn node_openai_works_through_the_gateway() {
        works(Sdk::OpenAiNode);
    }

    #[test]
    fn node_anthropic_works_through_the_gateway() {
        works(Sdk::AnthropicNode);
    }

    #[test]
    fn node_google_genai_works_through_the_gateway() {
        works(Sdk::GoogleNode);
    }

    #[test]
    fn ai_sdk_works_through_the_gateway() {
        works(Sdk::Ai);
    }
}
