//! A fake of LLM providers: `OpenAI` (chat completions, responses, embeddings, models), Anthropic (messages, token counts)
//! and Gemini (content, streams, token counts, embeddings).
//!
//! It is strict where a provider is: it enforces requests, input and output tokens per minute, requests per day and
//! concurrent requests, for each project and model and on a clock that is passed in, refuses with the real bodies and headers,
//! and counts what reaches it. It injects [faults](Fault). The same conversation always gets the same answer, byte for byte,
//! however it is asked for.

mod answer;
mod anthropic;
mod call;
mod encoding;
mod errors;
mod fault;
mod gemini;
mod http;
mod limits;
mod openai;
mod play;
mod request;
mod responses;
mod script;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::{Clock, Span};

use super::quota::Counts;

pub use super::http::Served;
pub use super::quota::{Limit, Quota, Window};
pub use super::scaled::ScaledClock;
pub use super::trouble::When;
pub use call::{Arrival, Tally};
pub use fault::{Fault, Trouble};
pub use request::{Dialect, Endpoint};

/// The most arrivals that are kept; older ones are only counted.
pub const ARRIVALS_MAX: usize = 4_096;

#[derive(Clone, Debug)]
pub struct Settings {
    /// What each project may send to each model.
    pub quota: Quota,
    /// Until the first byte.
    pub latency: Span,
    /// Between two chunks of a stream.
    pub pause: Span,
    /// How long an answer is if nothing bounds it, in tokens.
    pub length: u64,
    /// Keys that are accepted; without any, every key is.
    pub keys: Vec<String>,
    /// Compresses for clients that accept gzip.
    pub gzip: bool,
    /// Faults; the first that applies happens.
    pub troubles: Vec<Trouble>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            quota: Quota::NONE,
            latency: Span::ZERO,
            pause: Span::ZERO,
            length: 16,
            keys: Vec::new(),
            gzip: false,
            troubles: Vec::new(),
        }
    }
}

/// Is called at the end of each call.
type Watcher = Arc<dyn Fn(&Arrival) + Send + Sync>;

/// A fake provider. Clones are the same.
#[derive(Clone)]
pub struct FakeLlm(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    settings: Settings,
    quotas: HashMap<(String, String), Counts>,
    arrivals: VecDeque<Arrival>,
    tally: Tally,
    watcher: Option<Watcher>,
}

impl fmt::Debug for FakeLlm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeLlm").field("tally", &self.state().tally).finish_non_exhaustive()
    }
}

impl FakeLlm {
    /// Creates a fake on `clock`.
    pub fn new(clock: Arc<dyn Clock>, settings: Settings) -> Self {
        let state = State {
            settings,
            quotas: HashMap::new(),
            arrivals: VecDeque::new(),
            tally: Tally::default(),
            watcher: None,
        };
        Self(Arc::new(Inner { clock, state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the settings; what was used of the quotas stays.
    pub fn set(&self, settings: Settings) {
        self.state().settings = settings;
    }

    /// Calls `watcher` at the end of each call.
    pub fn watch(&self, watcher: impl Fn(&Arrival) + Send + Sync + 'static) {
        self.state().watcher = Some(Arc::new(watcher));
    }

    /// Returns the newest calls, at most [`ARRIVALS_MAX`].
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.state().arrivals.iter().cloned().collect()
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
}

/// Returns the hash of a body, to compare it with [`Arrival::body_hash`].
pub fn hash_of(body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    hasher.finish()
}
