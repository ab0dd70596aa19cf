//! Clients of LLM providers as their users install them, and the scenarios that each must survive.
//!
//! A driver script in `sdks/` takes a URL, a key, a model and scenarios, and prints what the client returned. The prompts of
//! the scenarios `error`, `timeout`, `retry` and `leave` name a fault; [`troubles`] has them for the fake provider.

use serde_json::Value;
use tollgate::Span;

use super::Fault as Problem;
use super::clients::script_of;
use crate::fakes::llm::{Dialect, Fault, Trouble, When};

/// A client of an LLM provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sdk {
    OpenAiPython,
    AnthropicPython,
    GooglePython,
    LangChain,
    OpenAiNode,
    AnthropicNode,
    GoogleNode,
    /// Vercel's AI SDK.
    Ai,
}

/// The scenarios of every client.
const SCENARIOS: [&str; 7] = ["plain", "stream", "tools", "image", "error", "timeout", "retry"];

impl Sdk {
    /// One client of each dialect.
    pub const COMMON: [Self; 3] = [Self::OpenAiPython, Self::AnthropicPython, Self::GooglePython];

    pub const fn dialect(self) -> Dialect {
        match self {
            Self::OpenAiPython | Self::LangChain | Self::OpenAiNode | Self::Ai => Dialect::OpenAi,
            Self::AnthropicPython | Self::AnthropicNode => Dialect::Anthropic,
            Self::GooglePython | Self::GoogleNode => Dialect::Gemini,
        }
    }

    pub const fn model(self) -> &'static str {
        match self.dialect() {
            Dialect::OpenAi => "gpt-4o-mini",
            Dialect::Anthropic => "claude-haiku-4-5",
            Dialect::Gemini => "gemini-2.5-flash",
        }
    }

    /// Returns the scenarios that the client has: the common ones, and those of its API.
    pub fn scenarios(self) -> Vec<&'static str> {
        let more: &[&str] = match self {
            Self::OpenAiPython | Self::OpenAiNode => {
                &["stream_usage", "responses", "embeddings", "models"]
            }
            Self::AnthropicPython | Self::AnthropicNode => &["count_tokens", "models"],
            Self::GooglePython | Self::GoogleNode => &["embeddings", "count_tokens", "models"],
            Self::LangChain => &["embeddings"],
            Self::Ai => &["chat_stream", "embeddings"],
        };
        SCENARIOS.iter().chain(more).copied().collect()
    }

    /// Runs scenarios with `url` as the base URL, and returns the result of each by its name.
    pub fn run(self, url: &str, key: &str, scenarios: &[&str]) -> Result<Value, Problem> {
        const PYTHON: (&str, &str, &str) = ("python3", "-c", "PYTHONPATH");
        const NODE: (&str, &str, &str) = ("node", "-e", "NODE_PATH");
        let (language, packages, script) = match self {
            Self::OpenAiPython => (PYTHON, "llm/python", include_str!("sdks/openai.py")),
            Self::AnthropicPython => (PYTHON, "llm/python", include_str!("sdks/anthropic.py")),
            Self::GooglePython => (PYTHON, "llm/python", include_str!("sdks/google_genai.py")),
            Self::LangChain => (PYTHON, "llm/langchain", include_str!("sdks/langchain_openai.py")),
            Self::OpenAiNode => (NODE, "llm/node/node_modules", include_str!("sdks/openai.js")),
            Self::AnthropicNode => {
                (NODE, "llm/node/node_modules", include_str!("sdks/anthropic.js"))
            }
            Self::GoogleNode => {
                (NODE, "llm/node/node_modules", include_str!("sdks/google_genai.js"))
            }
            Self::Ai => (NODE, "llm/node/node_modules", include_str!("sdks/ai.js")),
        };
        let arguments = [&[url, key, self.model()], scenarios].concat();
        let (program, option, variable) = language;
        let packages = format!("servers/{packages}");
        let printed = script_of(program, option, (variable, &packages), script, &arguments)?;
        serde_json::from_str(&printed)
            .map_err(|error| Problem::new(format!("{self:?} printed no JSON: {error}: {printed}")))
    }

    /// Returns what is wrong with the results of [`run`](Self::run), a line each.
    pub fn mistakes(self, results: &Value) -> Vec<String> {
        let Some(results) = results.as_object() else { return vec![format!("{results}")] };
        let plain = &results.get("plain").cloned().unwrap_or_default();
        let wrong = results.iter().filter(|(name, result)| !self.is_right(name, result, plain));
        wrong.map(|(name, result)| format!("{self:?} {name}: {result}")).collect()
    }

    fn is_right(self, name: &str, result: &Value, plain: &Value) -> bool {
        let text = result["text"].as_str().unwrap_or_default();
        let has_usage = result["usage"][0].as_u64().is_some_and(|input| 0 < input);
        let is_same = result["text"] == plain["text"];
        match name {
            "plain" => !text.is_empty() && has_usage && result["usage"][1] == 16,
            // Usage that was not asked for must not be there.
            "stream" if matches!(self, Self::OpenAiPython | Self::OpenAiNode) => {
                is_same && result["chunks"] == 18 && result["usage"].is_null()
            }
            "stream" if self == Self::LangChain => is_same,
            "stream" | "stream_usage" | "chat_stream" => {
                is_same && result["usage"] == plain["usage"]
            }
            "tools" => {
                let is_called = result["name"] == "get_weather";
                is_called
                    && result["arguments"]["city"] == "Paris"
                    && text.starts_with("The tool said sunny")
            }
            "image" => text.starts_with("I see 1 images"),
            "responses" => {
                is_same && result["streamed"] == result["text"] && result["usage"] == plain["usage"]
            }
            "embeddings" => result["vectors"] == serde_json::json!([8, 8]),
            "count_tokens" => result["usage"][0] == plain["usage"][0],
            "models" => result["models"].as_array().is_some_and(|models| !models.is_empty()),
            "error" => {
                let is_told = result["message"]
                    .as_str()
                    .is_some_and(|text| text.contains("refused on demand"));
                result["status"] == 400 && is_told
            }
            "timeout" => {
                let name = result["error"].as_str().unwrap_or_default().to_lowercase();
                let message = result["message"].as_str().unwrap_or_default().to_lowercase();
                name.contains("timeout") || message.contains("abort")
            }
            "retry" => !text.is_empty(),
            _ => false,
        }
    }
}

/// Returns the faults that the prompts of the scenarios name.
pub fn troubles() -> Vec<Trouble> {
    let named = |fault, text: &str| Trouble::new(fault, When::Contains(text.to_owned()));
    vec![
        named(Fault::status(400), "Please fail with 400."),
        named(Fault::Slow(Span::from_hours(1)), "Please be slow."),
        named(Fault::status(500), "Please fail twice.").times(2),
        named(Fault::SlowStream(Span::from_millis(50)), "Please drip."),
    ]
}
