#![doc = include_str!("../README.md")]

mod anthropic;
pub mod bounds;
mod call;
mod dialect;
mod error;
mod error_body;
pub mod estimate;
mod gemini;
mod json;
mod meter;
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
pub use meter::{End, Meter, OUTPUT_DEFAULT};
pub use openai::is_openai_reasoning_model;
pub use prices::{Micros, PaidTokens, Price, Prices};
pub use provider_error::{ProviderError, ProviderErrorKind, QuotaViolation};
pub use refusal::{NOT_PROVIDER_HINT, classify_error};
pub use request::{RequestFacts, Rewrite};
pub use standings::{HeaderStanding, header_standings};
pub use stream::StreamReader;
pub use strip::UsageStripper;
pub use usage::{INPUT_TOKENS, OUTPUT_TOKENS, TOKENS, USD_MICROS, UsageFields, UsageMap};
