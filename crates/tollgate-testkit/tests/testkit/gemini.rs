//! The fake Gemini counts as strictly as the real one might, whichever way that counts.

use std::sync::Arc;

use serde_json::{Value, json};
use tollgate::clock::ManualClock;
use tollgate::{Span, Timestamp};
use tollgate_testkit::fakes::gemini::{
    FakeGemini, Fault, Limit, Quota, Settings, Trouble, When, Window,
};

const PATH: &str = "/v1beta/models/gemini-2.5-flash:generateContent";

fn fake(at: &str, quota: Quota) -> (FakeGemini, ManualClock) {
    let clock = ManualClock::at(at.parse::<Timestamp>().expect("a time"));
    let settings = Settings { quota, ..Settings::default() };
    (FakeGemini::new(Arc::new(clock.clone()), settings), clock)
}

async fn call(fake: &FakeGemini, key: &str, text: &str) -> (u16, Value) {
    let body = json!({"contents": [{"role": "user", "parts": [{"text": text}]}]});
    let (status, body) = fake.handle(PATH, Some(key), body.to_string().as_bytes()).await;
    (status, serde_json::from_str(&body).unwrap_or_default())
}

#[tokio::test]
async fn a_burst_over_a_minute_boundary_breaks_the_rolling_window_alone() {
    let quota = Quota { rpm: 2, ..Quota::NONE };
    let (fake, clock) = fake("2026-01-10T12:00:59Z", quota);
    for _ in 0..2 {
        assert_eq!(call(&fake, "p.a", "⟦#1⟧ x").await.0, 200);
    }
    clock.advance(Span::from_secs(2));
    let (status, body) = call(&fake, "p.b", "⟦#1⟧ x").await;
    assert_eq!(status, 429, "two keys of a project share its quota");
    assert_eq!(body["error"]["status"], "RESOURCE_EXHAUSTED");
    let violations = fake.tally().violations;
    assert_eq!(violations.get(&(Limit::Requests, Window::Rolling)), Some(&1));
    assert_eq!(violations.get(&(Limit::Requests, Window::Fixed)), None);
    assert_eq!(call(&fake, "other", "⟦#1⟧ x").await.0, 200, "another project has its own");
    clock.advance(Span::from_secs(58));
    assert_eq!(call(&fake, "p.a", "⟦#1⟧ x").await.0, 200, "60 s after the first two");
}

#[tokio::test]
async fn tokens_and_days_are_counted_and_a_refusal_counts_nothing() {
    let (fake, clock) = fake("2026-01-10T07:59:00Z", Quota { tpm: 10, rpd: 2, ..Quota::NONE });
    let (status, body) = call(&fake, "p", &"word ".repeat(11)).await;
    assert_eq!(status, 429);
    assert!(body.to_string().contains("GenerateContentInputTokensPerModelPerMinute-FreeTier"));
    for wanted in [200, 200, 429] {
        assert_eq!(call(&fake, "p", "word").await.0, wanted);
    }
    assert_eq!(fake.tally().violations.get(&(Limit::Daily, Window::Fixed)), Some(&1));
    clock.advance(Span::from_mins(1));
    assert_eq!(call(&fake, "p", "word").await.0, 200, "midnight on the Pacific coast");
}

#[tokio::test]
async fn troubles_strike_when_they_are_told_to() {
    let (fake, _clock) = fake("2026-01-10T12:00:00Z", Quota::NONE);
    let troubles = vec![
        Trouble::new(Fault::Overloaded, When::Call(1)),
        Trouble::new(Fault::BlockedPrompt, When::Contains("bomb".to_owned())).times(1),
    ];
    fake.set(Settings { troubles, ..Settings::default() });
    assert_eq!(call(&fake, "p", "⟦#1⟧ x").await.0, 503);
    let (_, blocked) = call(&fake, "p", "⟦#1⟧ bomb").await;
    assert!(blocked.get("candidates").is_none() && blocked["promptFeedback"].is_object());
    let (_, answered) = call(&fake, "p", "⟦#1⟧ bomb").await;
    assert_eq!(answered["candidates"][0]["finishReason"], "STOP");
    assert_eq!((fake.tally().calls, fake.tally().translated), (3, 1));
}
