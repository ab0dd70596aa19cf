//! The APIs of LLM providers as data: what a request asks for, what an answer used, what an error means, what a token costs.
//!
//! Pure functions over bytes and headers. Nothing here opens a connection, reads a clock or waits; `now` is an argument. The gateway and
//! the translator share this crate, so that a provider is described once.
//!
//! ```
//! use http::Method;
//! use tollgate_providers::{CallKind, Dialect};
//!
//! let call = Dialect::OpenAi.classify(&Method::POST, "/v1/chat/completions", None)?;
//! assert_eq!(call.kind(), CallKind::Generate);
//!
//! let body = br#"{"model":"gpt-4o","max_tokens":50,"messages":[{"role":"user","content":"Say hello."}]}"#;
//! let facts = call.read_request(body)?;
//! assert_eq!(facts.model, "gpt-4o");
//! assert_eq!(facts.output_tokens_declared(), Some(50));
//!
//! let answer = br#"{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3,"total_tokens":13}}"#;
//! let usage = call.read_response(answer).ok_or("an answer has usage")?;
//! assert_eq!(Dialect::OpenAi.usage_map().costs(&usage).get("output_tokens"), Some(3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod anthropic;
pub mod bounds;
mod call;
mod dialect;
mod error;
mod error_body;
pub mod estimate;
mod gemini;
mod json;
mod openai;
pub mod prices;
mod provider_error;
mod refusal;
mod request;
mod retry_hint;
mod sse;
mod standings;
mod stream;
mod strip;
mod usage;

pub use call::{Call, CallKind};
pub use dialect::{Dialect, KeyHeader};
pub use error::{Error, ErrorKind};
pub use error_body::{ErrorCode, error_body};
pub use openai::is_openai_reasoning_model;
pub use prices::{Micros, PaidTokens, Price, Prices};
pub use provider_error::{ProviderError, ProviderErrorKind, QuotaViolation};
pub use refusal::{NOT_PROVIDER_HINT, classify_error};
pub use request::{RequestFacts, Rewrite};
pub use standings::{HeaderStanding, header_standings};
pub use stream::StreamReader;
pub use strip::UsageStripper;
pub use usage::{INPUT_TOKENS, OUTPUT_TOKENS, TOKENS, USD_MICROS, UsageFields, UsageMap};
