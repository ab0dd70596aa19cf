//! The clients over a real connection, against the fake.

use std::sync::Arc;

use async_trait::async_trait;
use hyper::HeaderMap;
use tollgate::Span;
use tollgate::clock::SystemClock;
use tollgate_testkit::fakes::gemini::{
    FakeGemini, Fault, Served, Settings, Trouble, When, tokens_of, translated,
};
use tollgate_translate::provider::anthropic::Anthropic;
use tollgate_translate::provider::gemini::Gemini;
use tollgate_translate::provider::openai::OpenAi;
use tollgate_translate::provider::{
    ApiKey, FinishReason, Http, Post, Provider, ProviderClient, ProviderError,
    ProviderErrorKind as Kind, Reply, Request, TIMEOUT_DEFAULT, Transport,
};

use crate::harness::MODEL;

async fn served(fault: Option<Fault>) -> (FakeGemini, Served) {
    let troubles = fault.map(|fault| Trouble::new(fault, When::Every(1))).into_iter().collect();
    let fake = FakeGemini::new(Arc::new(SystemClock), Settings { troubles, ..Settings::default() });
    let served = fake.serve(0).await.unwrap();
    (fake, served)
}

fn all(served: &Served) -> [Box<dyn Provider>; 3] {
    let http = Arc::new(Http::new());
    let chat = format!("{}/v1beta/openai/", served.url());
    let client = |url: &str| {
        let (key, clock) = (ApiKey::new("project.key").unwrap(), Arc::new(SystemClock));
        ProviderClient::new(url, key, http.clone(), clock, TIMEOUT_DEFAULT).unwrap()
    };
    [
        Box::new(Gemini::new(client(&served.url()))),
        Box::new(OpenAi::new(client(&chat))),
        Box::new(Anthropic::new(client(&served.url()))),
    ]
}

fn request() -> Request {
    Request {
        model: MODEL.to_owned(),
        system: "Into French.".to_owned(),
        prompt: "Translate:\n⟦#1⟧ The river.\n".to_owned(),
        max_output_tokens: 1_000,
    }
}

#[tokio::test]
async fn r003_4_all_clients_translate_and_say_what_it_cost() {
    let (fake, served) = served(None).await;
    let request = request();
    let tokens = tokens_of(&request.system) + tokens_of(&request.prompt);
    for provider in all(&served) {
        let answer = provider.translate(&request).await.unwrap();
        assert_eq!(answer.text, format!("⟦#1⟧{}", translated(" The river.\n")));
        assert_eq!((answer.finish, answer.usage.input), (FinishReason::Stop, Some(tokens)));
        assert!(answer.usage.output.is_some());
    }
    let [gemini, openai, anthropic] = all(&served);
    assert_eq!(gemini.count_tokens(&request).await.unwrap(), tokens);
    assert_eq!(anthropic.count_tokens(&request).await.unwrap(), tokens);
    assert!(openai.count_tokens(&request).await.unwrap_err().text.contains("estimate"));
    assert_eq!((fake.tally().calls, fake.tally().counted), (3, 2));
    let short = Request { max_output_tokens: 1, ..request };
    for provider in [gemini, openai, anthropic] {
        assert_eq!(provider.translate(&short).await.unwrap().finish, FinishReason::MaxTokens);
    }
    // A model that takes its maximum under another name.
    let short = Request { model: "gpt-5-mini".to_owned(), ..short };
    let [_, openai, _] = all(&served);
    assert_eq!(openai.translate(&short).await.unwrap().finish, FinishReason::MaxTokens);
}

#[tokio::test]
async fn r003_4_every_error_of_the_provider_has_its_kind() {
    for (fault, kind) in [
        (Fault::Overloaded, Kind::Overloaded),
        (Fault::Internal, Kind::Overloaded),
        (Fault::Deadline, Kind::Overloaded),
        (Fault::MinuteQuota, Kind::MinuteQuota),
        (Fault::TokenQuota, Kind::TokenQuota),
        (Fault::DailyQuota, Kind::DailyQuota),
        (Fault::BareQuota, Kind::Quota),
        (Fault::NotInTier, Kind::NotInTier),
        (Fault::Gone, Kind::Gone),
        (Fault::BadRequest, Kind::BadRequest),
        (Fault::BadKey, Kind::Denied),
        (Fault::Location, Kind::Denied),
        (Fault::Garbage, Kind::Garbled),
        (Fault::Page, Kind::NotProvider),
    ] {
        let (_fake, served) = served(Some(fault)).await;
        let [gemini, openai, anthropic] = all(&served);
        let error = anthropic.translate(&request()).await.unwrap_err();
        // It has no details of quotas, and of the account's location.
        let wanted = match (fault, kind) {
            (Fault::MinuteQuota | Fault::TokenQuota | Fault::DailyQuota, _) => Kind::Quota,
            (Fault::Location, _) => Kind::BadRequest,
            _ => kind,
        };
        assert_eq!(error.kind, wanted, "{fault:?}: {error}");
        for provider in [gemini, openai] {
            let error = provider.translate(&request()).await.unwrap_err();
            assert_eq!(error.kind, kind, "{fault:?}: {error}");
            if fault == Fault::MinuteQuota {
                assert_eq!(error.retry_after, Some(Span::from_secs(38)));
                assert!(!error.violations.is_empty());
            }
        }
    }
    for (fault, finish) in [
        (Fault::Truncated, FinishReason::MaxTokens),
        (Fault::Blocked, FinishReason::Blocked("SAFETY".to_owned())),
        (Fault::BlockedPrompt, FinishReason::Blocked("PROHIBITED_CONTENT".to_owned())),
    ] {
        let (_fake, served) = served(Some(fault)).await;
        let [gemini, openai, anthropic] = all(&served);
        assert_eq!(gemini.translate(&request()).await.unwrap().finish, finish);
        for provider in [openai, anthropic] {
            assert_ne!(provider.translate(&request()).await.unwrap().finish, FinishReason::Stop);
        }
    }
}

#[tokio::test]
async fn r003_4_a_provider_that_is_not_there_is_unreachable_and_said_so() {
    let (_fake, served) = served(None).await;
    let [gemini, ..] = all(&served);
    let url = served.url();
    drop(served);
    // The listener goes with its task.
    let error = loop {
        match gemini.translate(&request()).await {
            Err(error) => break error,
            Ok(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(error.kind, Kind::Unreachable);
    assert!(error.text.contains(url.trim_start_matches("http://")), "{error}");
}

/// Requests that certainly never arrived are distinguished from those that may have: a TLS handshake that fails, and a connection that ends after the
/// request was read.
#[tokio::test]
async fn r003_4_a_failed_connect_is_distinguished_from_a_broken_connection() {
    for (scheme, wanted) in [("https", Kind::Unreachable), ("http", Kind::Unanswered)] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut first = [0; 1_024];
                let read = tokio::io::AsyncReadExt::read(&mut stream, &mut first).await;
                assert!(0 < read.unwrap());
            }
        });
        let (http, clock) = (Arc::new(Http::new()), Arc::new(SystemClock));
        let key = ApiKey::new("k").unwrap();
        let client = ProviderClient::new(&url, key, http, clock, TIMEOUT_DEFAULT).unwrap();
        let gemini = Gemini::new(client);
        let error = gemini.translate(&request()).await.unwrap_err();
        assert_eq!(error.kind, wanted, "{error}");
    }
}

/// Answers every request with the same JSON.
#[derive(Debug)]
struct Elsewhere(&'static str);

#[async_trait]
impl Transport for Elsewhere {
    async fn post(&self, _post: Post<'_>) -> Result<Reply, ProviderError> {
        let body = self.0.as_bytes().to_vec();
        Ok(Reply { status: 200, headers: HeaderMap::new(), body })
    }
}

#[tokio::test]
async fn another_service_is_distinguished_from_an_unresponsive_provider() {
    for (body, is_elsewhere) in [
        ("{\"status\":\"ok\"}", true),
        ("{\"candidates\":[],\"choices\":[],\"content\":[]}", false),
    ] {
        let (elsewhere, clock) = (Arc::new(Elsewhere(body)), Arc::new(SystemClock));
        let (url, key) = ("https://elsewhere/api", ApiKey::new("k").unwrap());
        let client = ProviderClient::new(url, key, elsewhere, clock, TIMEOUT_DEFAULT).unwrap();
        let all: [Box<dyn Provider>; 3] = [
            Box::new(Gemini::new(client.clone())),
            Box::new(OpenAi::new(client.clone())),
            Box::new(Anthropic::new(client)),
        ];
        for provider in all {
            match provider.translate(&request()).await {
                Ok(answer) => {
                    assert!(!is_elsewhere && answer.finish != FinishReason::Stop, "{answer:?}");
                }
                Err(error) => {
                    assert!(is_elsewhere && error.kind == Kind::NotProvider, "{error:?}");
                    assert!(error.text.contains(url), "{error}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_provider_that_is_silent_is_given_up_on_by_the_clock() {
    let clock = Arc::new(tollgate::clock::ManualClock::new());
    let settings = Settings { latency: Span::from_hours(1), ..Settings::default() };
    let fake = FakeGemini::new(clock.clone(), settings);
    let transport =
        Arc::new(crate::harness::Direct { fake, clock: clock.clone(), delay: Span::ZERO });
    let key = ApiKey::new("k").unwrap();
    let timeout = Span::from_secs(30);
    let client = ProviderClient::new("https://fake", key, transport, clock.clone(), timeout);
    let gemini = Gemini::new(client.unwrap());
    let calling = tokio::spawn(async move { gemini.translate(&request()).await });
    while clock.next_alarm().is_none() {
        tokio::task::yield_now().await;
    }
    clock.advance(Span::from_secs(30));
    let error = calling.await.unwrap().unwrap_err();
    assert_eq!(error.kind, Kind::Unanswered, "it may have arrived");
    assert!(error.text.contains("30s"), "{error}");
}
