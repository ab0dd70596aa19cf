//! The real clients believe the fake: what they return is what it said.

use std::sync::Arc;

use tollgate::clock::SystemClock;
use tollgate_testkit::fakes::llm::{FakeLlm, Settings};
use tollgate_testkit::servers::sdks::{Sdk, troubles};

/// Runs every scenario of a client against the fake itself.
fn believes(sdk: Sdk) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    // The clients offer gzip; without it they are tested through the gateway, which does not offer it.
    let settings = Settings { troubles: troubles(), gzip: true, ..Settings::default() };
    let fake = FakeLlm::new(Arc::new(SystemClock), settings);
    let served = runtime.block_on(fake.serve(0)).expect("it serves");
    let results = sdk.run(&served.url(), "sk-test", &sdk.scenarios()).expect("it runs");
    assert_eq!(sdk.mistakes(&results), [""; 0], "{results:#}");
    let tally = fake.tally();
    assert_eq!((tally.answered(500), tally.answered(404)), (2, 0), "{tally:?}");
}

#[test]
fn python_openai_believes_the_fake() {
    believes(Sdk::OpenAiPython);
}

#[test]
fn python_anthropic_believes_the_fake() {
    believes(Sdk::AnthropicPython);
}

#[test]
fn python_google_genai_believes_the_fake() {
    believes(Sdk::GooglePython);
}

/// What only the long check runs: the profile `sdks` of nextest.
mod every_sdk {
    use super::*;

    #[test]
    fn langchain_openai_believes_the_fake() {
        believes(Sdk::LangChain);
    }

    #[test]
    fn node_openai_believes_the_fake() {
        believes(Sdk::OpenAiNode);
    }

    #[test]
    fn node_anthropic_believes_the_fake() {
        believes(Sdk::AnthropicNode);
    }

    #[test]
    fn node_google_genai_believes_the_fake() {
        believes(Sdk::GoogleNode);
    }

    #[test]
    fn ai_sdk_believes_the_fake() {
        believes(Sdk::Ai);
    }
}
