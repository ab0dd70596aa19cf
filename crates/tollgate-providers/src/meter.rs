//! The meter of one call: what to charge before it is sent, and what it used when its response has ended.
//!
//! For programs that call a provider themselves, in front of whose HTTP client an adapter takes a permit and settles it.

use std::borrow::Cow;

use http::Method;
use tollgate_core::Costs;

use crate::bounds::RESPONSE_BYTES_MAX;
use crate::call::{Call, CallKind};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::prices::PaidTokens;
use crate::request::{RequestFacts, Rewrite};
use crate::stream::StreamReader;
use crate::strip::UsageStripper;
use crate::usage::{UsageFields, UsageMap};

/// The output that is charged to a call that declares no maximum, in tokens.
pub const OUTPUT_DEFAULT: u64 = 4_096;

/// Meters one call, from its request to the end of its response.
///
/// ```
/// use http::Method;
/// use tollgate_providers::{Dialect, End, Meter};
///
/// let body = br#"{"model":"gpt-4o","max_tokens":50,"messages":[{"role":"user","content":"Say hello."}]}"#;
/// let path = "/openai/v1/chat/completions";
/// let mut meter = Meter::new(Dialect::OpenAi, &Method::POST, path, None, body)?.ok_or("it uses tokens")?;
/// assert_eq!(meter.estimate().get("output_tokens"), Some(50));
/// meter.begin("application/json", false);
/// meter.feed(br#"{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":3,"total_tokens":13}}"#);
/// assert_eq!(meter.end(End::Complete).get("tokens"), Some(13));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Meter {
    call: Call,
    facts: RequestFacts,
    usage: UsageMap,
    input: u64,
    output: u64,
    /// Whether usage is asked for that the client did not ask for.
    injects_usage: bool,
    response: Response,
}

/// How a response is read.
#[derive(Clone, Debug)]
enum Response {
    /// Not at all: it has not begun, it is compressed, or it is too long.
    Unread,
    /// At its end.
    Whole(Vec<u8>),
    /// While it arrives.
    Stream(Box<StreamReader>, Option<UsageStripper>),
}

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its body was read to the end.
    Complete,
    /// The connection failed, or the provider stopped in the middle.
    Broken,
    /// The client stopped reading.
    Abandoned,
}

impl Meter {
    /// Returns the meter of a call that uses tokens, and `None` for one that lists models or counts tokens. The path may have a prefix
    /// before that of the dialect, as `/openai` in `/openai/v1/chat/completions`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the dialect does not cover the call, and
    /// [`ErrorKind::Request`](crate::ErrorKind::Request) if the body is not JSON of its shape.
    pub fn new(
        dialect: Dialect,
        method: &Method,
        path: &str,
        query: Option<&str>,
        body: &[u8],
    ) -> Result<Option<Self>, Error> {
        let call = classify(dialect, method, path, query)?;
        if !matches!(call.kind(), CallKind::Generate | CallKind::Embed) {
            return Ok(None);
        }
        let facts = call.read_request(body)?;
        let output = match call.kind() {
            CallKind::Generate => facts.output_tokens_declared().unwrap_or(OUTPUT_DEFAULT),
            _ => 0,
        };
        Ok(Some(Self {
            usage: dialect.usage_map(),
            input: facts.input_tokens().max(1),
            output,
            injects_usage: call.needs_usage_option() && facts.stream && !facts.asks_usage,
            response: Response::Unread,
            call,
            facts,
        }))
    }

    /// Replaces the default of which usage fields count into which unit, for the units that `usage` has.
    #[must_use]
    pub fn usage_map(mut self, usage: UsageMap) -> Self {
        self.usage = self.usage.with(usage);
        self
    }

    /// Charges an undeclared output with at most a quarter of each limit, and never so much that the call could not be admitted for its
    /// sake. `limits` are units with the most that one ask can cost.
    #[must_use]
    pub fn fit_output(mut self, limits: &[(&str, u64)]) -> Self {
        let is_declared = self.facts.output_tokens_declared().is_some();
        while !is_declared && 0 < self.output && !self.fits(limits) {
            // Errs to the small side, which settling corrects.
            self.output /= 2;
        }
        self
    }

    fn fits(&self, limits: &[(&str, u64)]) -> bool {
        let (all, output) = (self.costs(self.input, self.output), self.costs(0, self.output));
        limits.iter().all(|(unit, most)| {
            all.get(unit).unwrap_or(0) <= *most && output.get(unit).unwrap_or(0) <= most / 4
        })
    }

    /// Returns the model.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.facts.model
    }

    /// Returns the costs to charge before the call.
    #[must_use]
    pub fn estimate(&self) -> Costs {
        self.costs(self.input, self.output)
    }

    /// Returns the body to send: that of the request, with usage asked for in a stream where the client does not.
    #[must_use]
    pub fn request_body<'a>(&self, body: &'a [u8]) -> Cow<'a, [u8]> {
        self.facts.rewrite(body, &Rewrite { model: None, include_usage: true })
    }

    /// Begins a response with its content type. Usage in a compressed response is not read.
    ///
    /// Returns whether its length may change, because usage that the client did not ask for is removed.
    pub fn begin(&mut self, content_type: &str, is_compressed: bool) -> bool {
        let is_events = content_type.starts_with("text/event-stream");
        self.response = if is_compressed {
            Response::Unread
        } else if is_events || self.call.stream() == Some(true) {
            let stripper = (self.injects_usage && is_events).then(UsageStripper::new);
            Response::Stream(Box::new(StreamReader::new(&self.call)), stripper)
        } else {
            Response::Whole(Vec::new())
        };
        matches!(self.response, Response::Stream(_, Some(_)))
    }

    /// Reads the next bytes of the response, and returns what the client gets of them.
    pub fn feed<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        match &mut self.response {
            Response::Unread => Cow::Borrowed(bytes),
            Response::Whole(body) if RESPONSE_BYTES_MAX < body.len() + bytes.len() => {
                self.response = Response::Unread;
                Cow::Borrowed(bytes)
            }
            Response::Whole(body) => {
                body.extend_from_slice(bytes);
                Cow::Borrowed(bytes)
            }
            Response::Stream(reader, stripper) => {
                reader.feed(bytes);
                let Some(stripper) = stripper else { return Cow::Borrowed(bytes) };
                let mut stripped = Vec::with_capacity(bytes.len());
                stripper.feed(bytes, &mut stripped);
                Cow::Owned(stripped)
            }
        }
    }

    /// Returns what was held back, at the end of the body.
    pub fn finish(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        if let Response::Stream(reader, stripper) = &mut self.response {
            reader.finish();
            if let Some(mut stripper) = stripper.take() {
                stripper.finish(&mut rest);
            }
        }
        rest
    }

    /// Returns what the call used. A unit that is left out keeps its estimate, as all do if the response says nothing.
    #[must_use]
    pub fn end(&self, end: End) -> Costs {
        match &self.response {
            Response::Unread => Costs::new(),
            Response::Whole(_) if end != End::Complete => Costs::new(),
            Response::Whole(body) => self
                .call
                .read_response(body)
                .map_or_else(Costs::new, |usage| self.usage.costs(&usage)),
            Response::Stream(reader, _) => match reader.usage() {
                // A client may stop reading at the last event.
                Some(usage) if self.is_final(reader) => self.usage.costs(&usage),
                // Reasoning is charged and not streamed.
                usage if end == End::Abandoned && !self.facts.may_hide_output => {
                    self.streamed(reader, usage.as_ref())
                }
                usage => self.at_least_estimate(&self.streamed(reader, usage.as_ref())),
            },
        }
    }

    /// Returns whether the usage of a stream is that of the whole. A server that is compatible with OpenAI may omit the last event, but
    /// reports usage only at the end.
    fn is_final(&self, reader: &StreamReader) -> bool {
        let is_openai = self.call.dialect() == Dialect::OpenAi;
        reader.error().is_none() && (reader.is_complete() || is_openai)
    }

    /// Returns the costs of the input and of the output that was streamed.
    fn streamed(&self, reader: &StreamReader, usage: Option<&UsageFields>) -> Costs {
        let output = reader.output_tokens();
        let Some(usage) = usage else { return self.costs(self.input, output) };
        // The input is exact; the output may be that of the beginning.
        let paid = PaidTokens::from_usage(self.call.dialect(), usage);
        let more = self.costs(0, output.saturating_sub(paid.output));
        let add = |(unit, amount): (&'_ str, u64)| {
            (unit.to_owned(), amount.saturating_add(more.get(unit).unwrap_or(0)))
        };
        self.usage.costs(usage).iter().map(add).collect()
    }

    fn at_least_estimate(&self, costs: &Costs) -> Costs {
        let estimate = self.estimate();
        let at_least = |(unit, amount): (&'_ str, u64)| {
            (unit.to_owned(), amount.max(estimate.get(unit).unwrap_or(0)))
        };
        costs.iter().map(at_least).collect()
    }

    /// Returns what so many tokens cost, by the fields in which the dialect would report them.
    fn costs(&self, input: u64, output: u64) -> Costs {
        let mut costs = Costs::new();
        for fields in usage_fields(self.call.dialect(), input, output) {
            for (unit, amount) in self.usage.costs(&fields).iter() {
                let so_far = costs.get(unit).unwrap_or(0);
                costs.set(unit, amount.max(so_far));
            }
        }
        costs
    }
}

/// Classifies a call whose path may have a prefix, and may lack the version that only some servers compatible with OpenAI have.
fn classify(
    dialect: Dialect,
    method: &Method,
    path: &str,
    query: Option<&str>,
) -> Result<Call, Error> {
    let starts = path.match_indices('/').map(|(start, _)| start);
    let found = starts.into_iter().find_map(|start| {
        let path = &path[start..];
        let versioned = || match dialect {
            Dialect::OpenAi => dialect.classify(method, &format!("/v1{path}"), query).ok(),
            _ => None,
        };
        dialect.classify(method, path, query).ok().or_else(versioned)
    });
    found.map_or_else(|| dialect.classify(method, path, query), Ok)
}

/// Returns the usage objects in which `dialect` would report so many tokens.
fn usage_fields(dialect: Dialect, input: u64, output: u64) -> Vec<UsageFields> {
    let total = input.saturating_add(output);
    let texts = match dialect {
        Dialect::OpenAi => vec![
            format!(
                r#"{{"prompt_tokens":{input},"completion_tokens":{output},"total_tokens":{total}}}"#
            ),
            format!(
                r#"{{"input_tokens":{input},"output_tokens":{output},"total_tokens":{total}}}"#
            ),
        ],
        Dialect::Anthropic => {
            vec![format!(r#"{{"input_tokens":{input},"output_tokens":{output}}}"#)]
        }
        Dialect::Gemini => vec![format!(
            r#"{{"promptTokenCount":{input},"candidatesTokenCount":{output},"totalTokenCount":{total}}}"#
        )],
    };
    texts.iter().map(|text| UsageFields::from_json(text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: &str = "/v1/chat/completions";

    fn meter(dialect: Dialect, path: &str, body: &str) -> Meter {
        Meter::new(dialect, &Method::POST, path, None, body.as_bytes()).unwrap().unwrap()
    }

    fn units(costs: &Costs) -> [Option<u64>; 3] {
        ["tokens", "input_tokens", "output_tokens"].map(|unit| costs.get(unit))
    }

    #[test]
    fn a_path_may_have_a_prefix_and_lack_a_version() {
        let body = r#"{"model":"m","messages":[]}"#;
        for path in [CHAT, "/openai/v1/chat/completions", "/api/v3/chat/completions"] {
            assert_eq!(meter(Dialect::OpenAi, path, body).model(), "m", "{path}");
        }
        let path = "/gemini/v1beta/models/flash:streamGenerateContent";
        assert_eq!(meter(Dialect::Gemini, path, r#"{"contents":[]}"#).model(), "flash");
        let error = Meter::new(Dialect::OpenAi, &Method::POST, "/v1/files", None, b"");
        assert_eq!(error.unwrap_err().kind(), crate::ErrorKind::Unsupported);
        let none = Meter::new(Dialect::Anthropic, &Method::GET, "/v1/models", None, b"");
        assert!(none.unwrap().is_none());
    }

    #[test]
    fn an_undeclared_output_takes_a_quarter_at_most_and_a_declared_one_is_charged_in_full() {
        let body = r#"{"model":"m","messages":[]}"#;
        let charged = |body: &str, most| {
            let fit = meter(Dialect::OpenAi, CHAT, body).fit_output(&[("tokens", most)]);
            fit.estimate().get("output_tokens").unwrap_or(0)
        };
        assert_eq!(charged(body, 100_000), OUTPUT_DEFAULT);
        assert_eq!(charged(body, 10_000), 2_048);
        assert_eq!(charged(body, 1), 0);
        let declared = r#"{"model":"m","max_tokens":9000,"messages":[]}"#;
        assert_eq!(charged(declared, 10_000), 9_000);
    }

    #[test]
    fn usage_that_the_client_did_not_ask_for_is_read_and_removed() {
        let body = r#"{"model":"m","stream":true,"messages":[]}"#;
        let mut meter = meter(Dialect::OpenAi, CHAT, body);
        let sent = String::from_utf8(meter.request_body(body.as_bytes()).into_owned()).unwrap();
        assert!(sent.contains(r#""include_usage":true"#), "{sent}");
        assert!(meter.begin("text/event-stream; charset=utf-8", false));
        let mut got = Vec::new();
        for piece in [
            "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}],\"usage\":null}\n\ndata: {\"cho",
            "ices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":2,\"total_tokens\":10}}\n\ndata: [DONE]\n\n",
        ] {
            got.extend_from_slice(&meter.feed(piece.as_bytes()));
        }
        got.extend(meter.finish());
        let text = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\ndata: [DONE]\n\n";
        assert_eq!(String::from_utf8(got).unwrap(), text);
        assert_eq!(units(&meter.end(End::Complete)), [Some(10), Some(8), Some(2)]);
    }

    #[test]
    fn a_stream_that_is_abandoned_costs_what_was_streamed_and_a_broken_one_its_estimate() {
        let body = r#"{"model":"m","max_tokens":100,"stream":true,"messages":[{"role":"user","content":"Hello there"}]}"#;
        let mut meter = meter(Dialect::Anthropic, "/v1/messages", body);
        meter.begin("text/event-stream", false);
        meter.feed(b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n");
        meter.feed(b"data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"four letters make one token\"}}\n\n");
        assert_eq!(units(&meter.end(End::Abandoned)), [Some(16), Some(9), Some(7)]);
        let broken = meter.end(End::Broken);
        assert_eq!(broken.get("output_tokens"), Some(100));
    }

    #[test]
    fn a_response_that_is_compressed_or_breaks_off_keeps_the_estimate() {
        let body = r#"{"model":"m","messages":[]}"#;
        let usage = br#"{"usage":{"total_tokens":5}}"#;
        let mut meter = meter(Dialect::OpenAi, CHAT, body);
        meter.begin("application/json", true);
        meter.feed(usage);
        assert_eq!(units(&meter.end(End::Complete)), [None; 3]);
        meter.begin("application/json", false);
        meter.feed(usage);
        assert_eq!(units(&meter.end(End::Broken)), [None; 3]);
        assert_eq!(meter.end(End::Complete).get("tokens"), Some(5));
    }
}
