//! Messages of `/v1/translations`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate::Timestamp;

use super::serde_as;

/// The body of `POST /v1/translations`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TranslationRequest {
    /// The name of the policy with the limits of the provider.
    pub policy: String,
    /// The subject that calls to the provider are counted for.
    pub subject: String,
    /// The language to translate into, as in `fr` or `pt-BR`.
    pub to: String,
    /// The language of the document; `en` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The format of the document: `txt`, `md`, `html`, `srt`, `vtt` or `epub`.
    pub format: String,
    /// The document as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// The document in base64 with padding, instead of `document`, as an EPUB needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document_base64: Option<String>,
    /// The id of the job: 1 to 64 letters, digits, `-`, `_` and `.`. By default it is derived from the request. A repeated id returns
    /// the same job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What people call the job, such as the name of a file; the id by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The interface of the provider: `gemini`, the default, `openai` or `anthropic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The model; `openai` needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Additional instructions for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Terms and their translations.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "serde_as::objects"
    )]
    pub glossary: Vec<GlossaryTerm>,
    /// The size of a chunk, in tokens.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "serde_as::whole"
    )]
    pub chunk_tokens: Option<u64>,
    /// The job is paused before it costs more than this, in millionths of a dollar; by default before it costs twice the plan.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "serde_as::whole"
    )]
    pub max_cost_micros: Option<u64>,
    /// The chapters of a book to translate, by their order of reading, as in `3-5`; all of them by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chapters: Option<String>,
    /// Keeps each paragraph, with its translation behind it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bilingual: bool,
}

/// A term and its translation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GlossaryTerm {
    /// The term in the language of the document.
    pub source: String,
    /// Its translation.
    pub target: String,
    /// A note for the translator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The body of `POST /v1/translations/{id}/cancel`, an object without members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {}

/// A translation job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Translation {
    /// Its id.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// `planned`, `running`, `stopped` (no worker has it), `paused`, `completed`, `completed_with_errors` or `cancelled`.
    pub state: String,
    /// Whether its document can be fetched: every chunk was translated or given up.
    pub finished: bool,
    /// Why it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When it resumes automatically; omitted if an operator must resume it.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_as::MaybeTime")]
    pub resume_at: Option<Timestamp>,
    /// The number of chunks.
    pub chunks: u64,
    /// Chunks that are translated.
    pub done: u64,
    /// Chunks that were given up, and are marked in the document.
    pub failed: u64,
    /// Calls to the provider.
    pub calls: u64,
    /// Tokens that were sent.
    pub input_tokens: u64,
    /// Tokens that were received.
    pub output_tokens: u64,
    /// The cost so far at the list price, in millionths of a dollar.
    pub cost_micros: u64,
    /// The bound on the cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_micros: Option<u64>,
    /// The language of the document.
    pub from: String,
    /// The language it is translated into.
    pub to: String,
    /// The format of the document.
    pub format: String,
    /// The model.
    pub model: String,
    /// The policy with the limits of the provider.
    pub policy: String,
    /// The subject that calls to the provider are counted for.
    pub subject: String,
    /// When it was created.
    #[serde(with = "serde_as::Time")]
    pub created_at: Timestamp,
    /// When work began.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_as::MaybeTime")]
    pub started_at: Option<Timestamp>,
    /// When it was completed or cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "serde_as::MaybeTime")]
    pub ended_at: Option<Timestamp>,
}

/// The response of `GET /v1/translations`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TranslationsResponse {
    /// The 20 newest jobs, newest first.
    pub jobs: Vec<Translation>,
}
