//! From an answer and a fault to what is sent, and when.

use hyper::body::Bytes;
use tollgate::Span;

use super::answer::Answer;
use super::request::{Dialect, Endpoint, Request};
use super::script::Piece;
use super::{Fault, Settings, anthropic, gemini, openai, responses};
use crate::fakes::gemini::tokens_of;

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

/// One chunk of a stream.
#[derive(Debug)]
pub(super) struct Event {
    bytes: String,
    /// Tokens that it brings.
    pub(super) output: u64,
    /// Whether it has the final usage.
    is_usage: bool,
}

impl Event {
    pub(super) const fn new(bytes: String) -> Self {
        Self { bytes, output: 0, is_usage: false }
    }

    pub(super) fn text(bytes: String, text: &str) -> Self {
        Self { bytes, output: tokens_of(text), is_usage: false }
    }

    pub(super) const fn usage(bytes: String) -> Self {
        Self { bytes, output: 0, is_usage: true }
    }
}

/// What is sent.
pub(super) struct Played {
    pub(super) status: u16,
    pub(super) content_type: &'static str,
    pub(super) pieces: Vec<Piece>,
}

/// Returns what is sent in answer to `request`, with `fault`.
pub(super) fn play(request: &Request, settings: &Settings, fault: Option<Fault>) -> Played {
    let mut answer = Answer::new(request, settings.length);
    if fault == Some(Fault::UsageNever) {
        answer.usage = None;
    }
    match fault {
        Some(Fault::Html { status }) => {
            let page =
                "<html><head><title>Welcome</title></head><body>Please sign in.</body></html>\n";
            return whole(status, HTML, page);
        }
        Some(Fault::Empty) => return whole(200, JSON, ""),
        Some(Fault::Garbage) if request.is_stream => {
            return whole(
                200,
                EVENTS,
                "data: {\"choices\":[{\"del\n\nnot an event\n\u{0}\u{1}\n\ndata: ]]]\n\n",
            );
        }
        Some(Fault::Garbage) => return whole(200, JSON, "{\"choices\": [{\"mess\u{fffd}"),
        _ => {}
    }
    let (content_type, events) = events(request, &answer);
    let pause = match fault {
        Some(Fault::SlowStream(span)) => span,
        _ => settings.pause,
    };
    Played { status: 200, content_type, pieces: pieces(events, pause, fault, request.dialect) }
}

fn whole(status: u16, content_type: &'static str, body: &str) -> Played {
    let pieces = vec![Piece::Send(Bytes::from(body.to_owned()), 0), Piece::Complete];
    Played { status, content_type, pieces }
}

fn events(request: &Request, answer: &Answer) -> (&'static str, Vec<Event>) {
    let body = |body: String| {
        let output = answer.usage.map_or(0, |usage| usage.output);
        (JSON, vec![Event { bytes: body, output, is_usage: true }])
    };
    let free = |body: String| (JSON, vec![Event::new(body)]);
    match (request.dialect, request.endpoint, request.is_stream) {
        (Dialect::OpenAi, Endpoint::Models, _) => free(openai::models()),
        (Dialect::Anthropic, Endpoint::Models, _) => free(anthropic::models()),
        (Dialect::Gemini, Endpoint::Models, _) => free(gemini::models()),
        (Dialect::Anthropic, Endpoint::CountTokens, _) => free(anthropic::count(request)),
        (_, Endpoint::CountTokens, _) => free(gemini::count(request)),
        (Dialect::Gemini, Endpoint::Embeddings, _) => free(gemini::embeddings(request)),
        (_, Endpoint::Embeddings, _) => free(openai::embeddings(request)),
        (_, Endpoint::Chat, false) => body(openai::chat(request, answer)),
        (_, Endpoint::Chat, true) => (EVENTS, openai::chat_events(request, answer)),
        (_, Endpoint::Responses, false) => body(responses::body(request, answer)),
        (_, Endpoint::Responses, true) => (EVENTS, responses::events(request, answer)),
        (_, Endpoint::Messages, false) => body(anthropic::body(request, answer)),
        (_, Endpoint::Messages, true) => (EVENTS, anthropic::events(request, answer)),
        (_, Endpoint::Generate, false) => body(gemini::body(request, answer)),
        (_, Endpoint::Generate, true) => {
            let content_type = if request.option { "text/event-stream" } else { JSON };
            (content_type, gemini::events(request, answer))
        }
    }
}

fn pieces(events: Vec<Event>, pause: Span, fault: Option<Fault>, dialect: Dialect) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (index, event) in events.into_iter().enumerate() {
        match fault {
            Some(Fault::Stall { after }) if after == index => {
                pieces.push(Piece::Stall);
                return pieces;
            }
            Some(Fault::Truncate { after }) if after == index => return pieces,
            Some(Fault::Disconnect { after }) if after == index => {
                pieces.extend([Piece::Flush, Piece::Cut]);
                return pieces;
            }
            Some(Fault::ErrorEvent { after }) if after == index => {
                let event = super::errors::event(dialect);
                pieces.extend([Piece::Send(Bytes::from(event), 0), Piece::Complete]);
                return pieces;
            }
            Some(Fault::UsageLate(span)) if event.is_usage => pieces.push(Piece::Wait(span)),
            _ if 0 < index && !pause.is_zero() => pieces.push(Piece::Wait(pause)),
            _ => {}
        }
        pieces.push(Piece::Send(Bytes::from(event.bytes), event.output));
    }
    pieces.push(Piece::Complete);
    pieces
}
