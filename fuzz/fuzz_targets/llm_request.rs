//! Any body as a request of any LLM dialect: it is read or refused, and rewriting leaves it JSON that is read alike.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::llm::CALLS;
use tollgate_providers::Rewrite;

fuzz_target!(|input: &[u8]| {
    let Some((which, body)) = input.split_first() else { return };
    let call = CALLS[usize::from(*which) % CALLS.len()].call();
    let Ok(facts) = call.read_request(body) else { return };
    assert!(facts.model.len() <= body.len().max(16), "never larger than the body");
    let _ = (facts.input_tokens(), facts.output_tokens_declared(), call.read_response(body));
    let changes = Rewrite { model: Some("other"), include_usage: true };
    let rewritten = facts.rewrite(body, &changes);
    assert!(
        serde_json::from_slice::<serde::de::IgnoredAny>(body).is_err() || {
            serde_json::from_slice::<serde::de::IgnoredAny>(&rewritten).is_ok()
        }
    );
    if call.model().is_none() {
        let again = call.read_request(&rewritten).expect("a rewritten request is one");
        assert!(again.model == "other" || facts.model.is_empty());
        assert_eq!(again.text_tokens, facts.text_tokens);
        assert!(again.asks_usage || !facts.stream || !call.needs_usage_option());
    }
});
