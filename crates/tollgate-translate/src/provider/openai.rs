//! Any endpoint that speaks OpenAI's chat completions: OpenAI itself, Gemini's own compatible endpoint, and the servers of
//! local models.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::{BoxFuture, Clock, Span, Timestamp};

use super::call::Caller;
use super::error::{ProviderError, ProviderErrorKind};
use super::{Answer, Endpoint, Finish, Key, Provider, Request, Transport, Usage, next_midnight};
use crate::error::Error;

/// Where OpenAI is.
pub const BASE_URL: &str = "https://api.openai.com/v1";

/// The environment variables that may hold the key.
pub const KEY_VARIABLES: [&str; 1] = ["OPENAI_API_KEY"];

/// The client of a compatible endpoint.
#[derive(Debug)]
pub struct OpenAi {
    caller: Caller,
}

impl OpenAi {
    /// A client at `url`, the part before `/chat/completions`, that gives up on a call after `timeout` on `clock`.
    ///
    /// # Errors
    /// If the URL is wrong.
    pub fn new(
        endpoint: impl Into<Endpoint>,
        key: impl Into<Option<Key>>,
        transport: Arc<dyn Transport>,
        clock: Arc<dyn Clock>,
        timeout: Span,
    ) -> Result<Self, Error> {
        Ok(Self { caller: Caller::new(&endpoint.into(), key.into(), transport, clock, timeout)? })
    }
}

impl Provider for OpenAi {
    fn translate<'a>(
        &'a self,
        request: &'a Request,
    ) -> BoxFuture<'a, Result<Answer, ProviderError>> {
        Box::pin(async move {
            let body = body_of(request);
            let reply =
                self.caller.call("/chat/completions", "authorization", "Bearer ", &body).await?;
            let body: Body = self.caller.read(&reply)?;
            if body.choices.is_none() && body.usage.is_none() {
                return Err(self.caller.not_provider("JSON of another shape"));
            }
            Ok(answer_of(body))
        })
    }

    /// There is no such call, so nobody may rely on it.
    fn count_tokens<'a>(
        &'a self,
        _request: &'a Request,
    ) -> BoxFuture<'a, Result<u64, ProviderError>> {
        Box::pin(async {
            let text = "a compatible endpoint does not count tokens; use the estimate";
            Err(ProviderError::new(ProviderErrorKind::BadRequest, text))
        })
    }

    fn day_ends(&self, now: Timestamp) -> Timestamp {
        next_midnight(now, "UTC")
    }
}

fn body_of(request: &Request) -> Value {
    json!({
        "model": request.model,
        "max_tokens": request.max_output_tokens,
        "temperature": 0.3,
        "messages": [
            {"role": "system", "content": request.system},
            {"role": "user", "content": request.prompt},
        ],
    })
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    choices: Option<Vec<Choice>>,
    usage: Option<Tokens>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Choice {
    message: Message,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Message {
    content: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tokens {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

fn answer_of(body: Body) -> Answer {
    let tokens = body.usage.unwrap_or_default();
    let usage =
        Usage { input: tokens.prompt_tokens, output: tokens.completion_tokens, ..Usage::default() };
    let Some(choice) = body.choices.into_iter().flatten().next() else {
        return Answer {
            text: String::new(),
            finish: Finish::Other("no choices".to_owned()),
            usage,
        };
    };
    let finish = match choice.finish_reason.as_deref() {
        Some("stop") => Finish::Stop,
        Some("length") => Finish::MaxTokens,
        Some("content_filter") => Finish::Blocked("content_filter".to_owned()),
        other => Finish::Other(other.unwrap_or("no finish reason").to_owned()),
    };
    Answer { text: choice.message.content.unwrap_or_default(), finish, usage }
}
