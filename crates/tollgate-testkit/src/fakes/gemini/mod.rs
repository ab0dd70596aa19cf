//! A fake of Gemini.
//!
//! It answers `generateContent`, `countTokens`, the OpenAI-compatible chat and Anthropic's messages, over HTTP or by [`FakeGemini::handle`]. It
//! enforces requests and input tokens per minute as fixed *and* as rolling windows, and requests per day of the
//! Pacific coast and of any 24 hours, for each project and model, on a clock that is passed in; refuses with the real bodies, injects
//! faults and counts everything. Its pseudo-translation shows a missing, doubled or moved paragraph.

mod anthropic;
pub(super) mod bodies;
mod dialects;
mod fault;
mod http;
mod refusals;
mod translate;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tollgate::{Clock, Span, Timestamp};

use super::quota::{Counts, Load};
use bodies::Reply;
use dialects::{Asked, as_chat, chat, content};

pub use super::http::Served;
pub use super::quota::{Limit, Quota, Window};
pub use super::scaled::ScaledClock;
pub use super::trouble::When;
pub use fault::{Fault, Trouble};
pub use translate::{Phrases, tokens_of, translated};

#[derive(Clone, Debug)]
pub struct Settings {
    /// What each project may send to each model.
    pub quota: Quota,
    pub latency: Span,
    /// How many tokens it counts, in percent of [`tokens_of`].
    pub tokens_percent: u64,
    /// Faults; the first that applies happens.
    pub troubles: Vec<Trouble>,
    /// Canned wrong answers.
    pub phrases: Phrases,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            quota: Quota::NONE,
            latency: Span::ZERO,
            tokens_percent: 100,
            troubles: Vec::new(),
            phrases: Phrases::default(),
        }
    }
}

/// Counters of the fake.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Calls of `generateContent`, refused ones included.
    pub calls: u64,
    /// Calls answered with a complete translation.
    pub translated: u64,
    pub counted: u64,
    /// Requests that broke a quota, by limit and kind of window. One request may break several.
    pub violations: BTreeMap<(Limit, Window), u64>,
    /// The most that any window held, by limit and kind.
    pub peaks: BTreeMap<(Limit, Window), u64>,
    /// Faults that happened.
    pub faults: BTreeMap<Fault, u64>,
    /// The most concurrent calls.
    pub at_once_max: u64,
    /// Input tokens of the calls that were let through.
    pub input_tokens: u64,
    /// Complete translations of a request beyond the first: paid twice.
    pub repeated: u64,
}

/// A fake Gemini. Clones are the same.
#[derive(Clone)]
pub struct FakeGemini(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    settings: Settings,
    quotas: HashMap<(String, String), Counts>,
    answered: HashMap<u64, u64>,
    at_once: u64,
    tally: Tally,
}

impl fmt::Debug for FakeGemini {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeGemini").field("tally", &self.state().tally).finish_non_exhaustive()
    }
}

/// A call that was let through.
struct Arrived {
    fault: Option<Fault>,
    done_at: Timestamp,
    number: u64,
    project_and_model: (String, String),
    /// Its id in the quota.
    id: u64,
}

/// Counts one concurrent call until it is dropped.
struct AtOnce<'a>(&'a FakeGemini, &'a Arrived);

impl Drop for AtOnce<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.at_once -= 1;
        if let Some(counts) = state.quotas.get_mut(&self.1.project_and_model) {
            counts.finish(self.1.id, 0);
        }
    }
}

impl FakeGemini {
    /// Creates a fake on `clock`.
    pub fn new(clock: Arc<dyn Clock>, settings: Settings) -> Self {
        let state = State {
            settings,
            quotas: HashMap::new(),
            answered: HashMap::new(),
            at_once: 0,
            tally: Tally::default(),
        };
        Self(Arc::new(Inner { clock, state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counters.
    pub fn tally(&self) -> Tally {
        let state = self.state();
        let mut tally = state.tally.clone();
        for counts in state.quotas.values() {
            for (key, held) in &counts.peaks {
                let peak = tally.peaks.entry(*key).or_default();
                *peak = (*peak).max(*held);
            }
        }
        tally
    }

    /// Replaces the settings.
    pub fn set(&self, settings: Settings) {
        self.state().settings = settings;
    }

    /// Answers a request to `path` with a status and a body. The project is the part of `key` before its first dot, so
    /// that keys `p.a` and `p.b` share a quota.
    pub async fn handle(&self, path: &str, key: Option<&str>, body: &[u8]) -> (u16, String) {
        let Some(key) = key.filter(|key| !key.is_empty()) else {
            return bodies::error(
                403,
                "PERMISSION_DENIED",
                "Method doesn't allow unregistered callers (callers without established identity). Please use API Key or other form of API consumer identity to call this API.",
            );
        };
        let project = key.split('.').next().unwrap_or(key);
        let Ok(body) = serde_json::from_slice::<Value>(body) else {
            return bodies::error(400, "INVALID_ARGUMENT", "Invalid JSON payload received.");
        };
        if path.ends_with("/chat/completions") {
            return match chat(&body) {
                Some(asked) => as_chat(self.generate(project, &asked).await),
                None => bodies::wrapped(bodies::error(400, "INVALID_ARGUMENT", "no messages")),
            };
        }
        match (path, anthropic::message(&body)) {
            ("/v1/messages", Some(asked)) => {
                return anthropic::as_message(self.generate(project, &asked).await);
            }
            ("/v1/messages/count_tokens", Some(asked)) => {
                self.state().tally.counted += 1;
                return (200, json!({"input_tokens": asked.input()}).to_string());
            }
            ("/v1/messages" | "/v1/messages/count_tokens", None) => {
                return anthropic::error(400, "messages: Field required");
            }
            _ => {}
        }
        let call = path.strip_prefix("/v1beta/models/").and_then(|call| call.split_once(':'));
        match call {
            Some((model, "generateContent")) => match content(model, &body) {
                Some(asked) => self.generate(project, &asked).await,
                None => bodies::error(
                    400,
                    "INVALID_ARGUMENT",
                    "* GenerateContentRequest.contents: contents is not specified",
                ),
            },
            Some((model, "countTokens")) => {
                let inner = body.get("generateContentRequest").unwrap_or(&body);
                let Some(asked) = content(model, inner) else {
                    return bodies::error(
                        400,
                        "INVALID_ARGUMENT",
                        "* CountTokensRequest.contents: contents is not specified",
                    );
                };
                self.state().tally.counted += 1;
                (200, json!({"totalTokens": asked.input()}).to_string())
            }
            _ => bodies::error(404, "NOT_FOUND", "Requested entity was not found."),
        }
    }

    async fn generate(&self, project: &str, asked: &Asked) -> Reply {
        let input = asked.input() * self.state().settings.tokens_percent / 100;
        let arrived = match self.arrive(project, asked, input) {
            Ok(arrived) => arrived,
            Err(reply) => return reply,
        };
        let _at_once = AtOnce(self, &arrived);
        self.0.clock.sleep_until(arrived.done_at).await;
        self.reply(arrived.fault, asked, input, arrived.number)
    }

    /// Counts the call, and decides on its fault and the time of its answer.
    fn arrive(&self, project: &str, asked: &Asked, input: u64) -> Result<Arrived, Reply> {
        let now = self.0.clock.now();
        let mut state = self.state();
        let state = &mut *state;
        state.tally.calls += 1;
        let number = state.tally.calls;
        let Settings { quota, latency, troubles, .. } = &mut state.settings;
        let project_and_model = (project.to_owned(), asked.model.clone());
        let counts = state.quotas.entry(project_and_model.clone()).or_default();
        let id = match counts.take(*quota, now, Load { input, output: 0 }) {
            Ok(id) => id,
            Err(refused) => {
                for key in &refused.broken {
                    *state.tally.violations.entry(*key).or_default() += 1;
                }
                let (limits, delay) = (refused.limits(), refused.retry_after);
                return Err(bodies::quota(&asked.model, &limits, *quota, delay, number));
            }
        };
        state.tally.input_tokens += input;
        let segments = translate::segments_in(&asked.prompt);
        let text = translate::to_translate(&asked.prompt);
        let fault = troubles
            .iter_mut()
            .find_map(|trouble| trouble.happens(number, text, segments).then_some(trouble.fault));
        if let Some(fault) = fault {
            *state.tally.faults.entry(fault).or_default() += 1;
        }
        state.at_once += 1;
        state.tally.at_once_max = state.tally.at_once_max.max(state.at_once);
        let latency = if fault == Some(Fault::Slow) { Span::from_hours(1) } else { *latency };
        // Counted from the arrival, so that a test that sees the call knows when it is answered.
        Ok(Arrived { fault, done_at: now + latency, number, project_and_model, id })
    }

    fn reply(&self, fault: Option<Fault>, asked: &Asked, input: u64, number: u64) -> Reply {
        let quota = self.state().settings.quota;
        fault
            .and_then(|fault| refusals::refusal(fault, &asked.model, quota, input, number))
            .unwrap_or_else(|| self.answer(fault, asked, input))
    }

    fn answer(&self, fault: Option<Fault>, asked: &Asked, input: u64) -> Reply {
        let phrases = self.state().settings.phrases.clone();
        let mut text = translate::answer(&asked.system, &asked.prompt, fault, &phrases);
        let mut finish = "STOP";
        if fault == Some(Fault::Truncated) || asked.most_output < tokens_of(&text) {
            let half = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
            text.truncate(half);
            finish = "MAX_TOKENS";
        }
        if matches!(fault, None | Some(Fault::Slow)) && finish == "STOP" {
            let mut state = self.state();
            state.tally.translated += 1;
            let times = state.answered.entry(asked.number()).or_default();
            *times += 1;
            state.tally.repeated += u64::from(1 < *times);
        }
        let output = tokens_of(&text);
        bodies::answer(&asked.model, Some(&text), finish, (input, output))
    }
}
