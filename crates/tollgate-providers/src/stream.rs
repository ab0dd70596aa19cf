//! Reading of streamed answers beside the copy to the client.

use crate::call::{Call, Endpoint};
use crate::json::{JsonError, Kind, Names, Result, Scanner};
use crate::provider_error::{ProviderErrorKind, kind_of_words};
use crate::request::{RequestFacts, read_content};
use crate::sse::EventSplitter;
use crate::usage::UsageFields;

/// Reads a streamed answer in pieces of any size: its usage, the size of its output, and how it ended.
///
/// ```
/// use http::Method;
/// use tollgate_providers::{Dialect, StreamReader};
///
/// let call = Dialect::OpenAi.classify(&Method::POST, "/v1/chat/completions", None)?;
/// let mut reader = StreamReader::new(&call);
/// reader.feed(b"data: {\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}\n\ndata: {\"choices\":[],\"us");
/// reader.feed(b"age\":{\"prompt_tokens\":8,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n");
/// assert!(reader.is_complete());
/// assert_eq!(reader.usage().and_then(|usage| usage.get("completion_tokens")), Some(2));
/// # Ok::<(), tollgate_providers::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct StreamReader {
    splitter: EventSplitter,
    state: State,
}

#[derive(Clone, Debug)]
struct State {
    endpoint: Endpoint,
    /// Reports that add up, later ones over earlier ones.
    merged: UsageFields,
    /// The last report, unread: some providers repeat it in every event.
    last: String,
    quarters: u64,
    is_complete: bool,
    error: Option<ProviderErrorKind>,
}

impl StreamReader {
    /// Returns a reader of the answer to `call`.
    #[must_use]
    pub fn new(call: &Call) -> Self {
        Self {
            splitter: EventSplitter::new(call.framing),
            state: State {
                endpoint: call.endpoint,
                merged: UsageFields::default(),
                last: String::new(),
                quarters: 0,
                is_complete: false,
                error: None,
            },
        }
    }

    /// Reads the next bytes of the body. An event that is not JSON of the dialect is ignored.
    pub fn feed(&mut self, bytes: &[u8]) {
        let state = &mut self.state;
        self.splitter.feed(bytes, |event| state.read(event));
    }

    /// Reads what remains at the end of the body: an event without a line end.
    pub fn finish(&mut self) {
        let state = &mut self.state;
        self.splitter.finish(|event| state.read(event));
    }

    /// Returns the usage reported so far. Final if [`is_complete`](Self::is_complete).
    #[must_use]
    pub fn usage(&self) -> Option<UsageFields> {
        let mut usage = self.state.merged.clone();
        usage.update(&UsageFields::from_json(&self.state.last));
        (!usage.is_empty()).then_some(usage)
    }

    /// Returns the estimated tokens of the output that was streamed so far, before calibration.
    #[must_use]
    pub const fn output_tokens(&self) -> u64 {
        self.state.quarters.div_ceil(4)
    }

    /// Returns whether the provider ended the answer itself, rather than the connection breaking off.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.state.is_complete
    }

    /// Returns the class of the error that the provider reported in the stream.
    #[must_use]
    pub const fn error(&self) -> Option<ProviderErrorKind> {
        self.state.error
    }
}

impl State {
    fn read(&mut self, event: &[u8]) {
        let Ok(text) = std::str::from_utf8(event) else { return };
        if text.trim_ascii() == "[DONE]" {
            self.is_complete = true;
            return;
        }
        let scanner = &mut Scanner::new(text, Names::Exact);
        // An event that cannot be read to its end changes nothing more than it did until there.
        let _ = match self.endpoint {
            Endpoint::OpenAiResponses => self.read_responses(scanner),
            Endpoint::AnthropicMessages | Endpoint::AnthropicCount => self.read_anthropic(scanner),
            Endpoint::GeminiGenerate
            | Endpoint::GeminiCount
            | Endpoint::GeminiEmbed
            | Endpoint::GeminiBatchEmbed => self.read_gemini(scanner),
            Endpoint::OpenAiChat | Endpoint::OpenAiEmbeddings | Endpoint::Models => {
                self.read_chat(scanner)
            }
        };
    }

    fn read_chat(&mut self, scanner: &mut Scanner<'_>) -> Result<()> {
        scanner.members(&["choices", "usage", "error"], |scanner, name| match name {
            "choices" => scanner.elements(|scanner| {
                scanner.members(&["delta", "text"], |scanner, _| self.read_output(scanner))
            }),
            "usage" => self.read_last_usage(scanner),
            _ => self.read_error(scanner),
        })
    }

    fn read_responses(&mut self, scanner: &mut Scanner<'_>) -> Result<()> {
        let (mut is_end, mut is_error, mut is_text, mut quarters) = (false, false, true, 0);
        let mut code = None;
        let names = ["type", "delta", "response", "error", "code"];
        scanner.members(&names, |scanner, name| {
            match name {
                "type" => {
                    let kind = scanner.text()?.map(|text| text.unescaped()).unwrap_or_default();
                    is_end = matches!(
                        &*kind,
                        "response.completed" | "response.incomplete" | "response.failed"
                    );
                    is_error = kind == "error";
                    // Base64, not text.
                    is_text = !kind.ends_with("audio.delta");
                }
                "delta" => quarters = scanner.text()?.map_or(0, |text| text.quarters()),
                "response" => scanner.members(&["usage", "error"], |scanner, name| match name {
                    "usage" => self.read_last_usage(scanner),
                    _ => self.read_error(scanner),
                })?,
                "error" => self.read_error(scanner)?,
                _ => code = scanner.text()?.map(|text| text.unescaped()),
            }
            Ok::<_, JsonError>(())
        })?;
        self.is_complete |= is_end;
        self.quarters += if is_text { quarters } else { 0 };
        if is_error && self.error.is_none() {
            self.error = Some(kind_of_words(&[code.as_deref().unwrap_or_default()]));
        }
        Ok(())
    }

    fn read_anthropic(&mut self, scanner: &mut Scanner<'_>) -> Result<()> {
        let names = ["type", "message", "content_block", "delta", "usage", "error"];
        scanner.members(&names, |scanner, name| {
            match name {
                "type" => {
                    self.is_complete |= scanner.text()?.is_some_and(|kind| kind.is("message_stop"));
                }
                "message" => scanner.members(&["usage"], |scanner, _| self.merge_usage(scanner))?,
                "content_block" | "delta" => scanner
                    .members(&["text", "thinking", "partial_json", "name"], |scanner, _| {
                        self.read_output(scanner)
                    })?,
                "usage" => self.merge_usage(scanner)?,
                _ => self.read_error(scanner)?,
            }
            Ok(())
        })
    }

    fn read_gemini(&mut self, scanner: &mut Scanner<'_>) -> Result<()> {
        let names = ["candidates", "promptFeedback", "usageMetadata", "error"];
        scanner.members(&names, |scanner, name| match name {
            "candidates" => scanner.elements(|scanner| {
                scanner.members(&["content", "finishReason"], |scanner, name| match name {
                    "content" => self.read_output(scanner),
                    _ => {
                        self.is_complete |= scanner.text()?.is_some();
                        Ok(())
                    }
                })
            }),
            // A blocked prompt has no candidates.
            "promptFeedback" => scanner.members(&["blockReason"], |scanner, _| {
                self.is_complete |= scanner.text()?.is_some();
                Ok(())
            }),
            "usageMetadata" => self.read_last_usage(scanner),
            _ => self.read_error(scanner),
        })
    }

    fn read_output(&mut self, scanner: &mut Scanner<'_>) -> Result<()> {
        // Images and audio in the output are counted by the usage, not here.
        read_content(scanner, &mut RequestFacts::default(), &mut self.quarters)
    }

    fn read_last_usage(&mut self, scanner: &mut Scanner<'_>) -> Result<()> {
        let is_object = scanner.kind()? == Kind::Object;
        let range = scanner.range()?;
        if is_object {
            self.last.clear();
            self.last.push_str(scanner.slice(range));
        }
        Ok(())
    }

    fn merge_usage(&mut self, scanner: &mut Scanner<'_>) -> Result<()> {
        let range = scanner.range()?;
        self.merged.update(&UsageFields::from_json(scanner.slice(range)));
        Ok(())
    }

    fn read_error(&mut self, scanner: &mut Scanner<'_>) -> Result<()> {
        if scanner.kind()? == Kind::Null {
            return scanner.skip();
        }
        let mut words = Vec::new();
        scanner.members(&["type", "code", "status"], |scanner, _| {
            words.extend(scanner.text()?.map(|text| text.unescaped()));
            Ok::<_, JsonError>(())
        })?;
        let words: Vec<&str> = words.iter().map(|word| &**word).collect();
        self.error = Some(kind_of_words(&words));
        Ok(())
    }
}
