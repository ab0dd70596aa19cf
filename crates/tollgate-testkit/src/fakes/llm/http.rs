//! The fake on a port of loopback.

use std::future::pending;
use std::io;
use std::sync::Arc;

use hyper::body::Bytes;
use hyper::{HeaderMap, Response};
use serde_json::{Value, json};

use super::call::{Arrival, Call};
use super::fault::Fault;
use super::play::{Played, play};
use super::request::{Dialect, Endpoint, Request};
use super::script::{Piece, Script};
use super::{
    ARRIVALS_MAX, FakeLlm, Settings, anthropic, encoding, errors, gemini, hash_of, limits, openai,
};
use crate::fakes::http::Served;
use crate::fakes::quota::Load;

/// A response, or an error that closes the connection.
type Reply = io::Result<Response<Script>>;

/// The path of the counters.
const TALLY: &str = "/tally";

/// A request that may be answered.
struct Admitted {
    call: Call,
    request: Request,
    settings: Settings,
    fault: Option<Fault>,
    headers: Vec<(String, String)>,
}

/// An error to answer with.
struct Refusal {
    call: Call,
    status: u16,
    body: String,
    headers: Vec<(String, String)>,
}

impl FakeLlm {
    /// Serves the fake on `port` of loopback, or on a free port for 0, as a task of the current tokio runtime.
    ///
    /// Paths are those of the providers, below the name of the dialect or not: `/v1/messages`, `/anthropic/v1/messages`.
    pub async fn serve(&self, port: u16) -> io::Result<Served> {
        let fake = self.clone();
        Served::start(port, move |request| {
            let fake = fake.clone();
            async move { fake.answer(request).await }
        })
        .await
    }

    async fn answer(&self, http: hyper::Request<Bytes>) -> Reply {
        if http.uri().path() == TALLY {
            let body = Bytes::from(self.counters().to_string());
            return self.respond(200, "application/json", &[], vec![Piece::Send(body, 0)], None);
        }
        let (dialect, path) = dialect_of(&http);
        match self.arrive(dialect, &path, &http) {
            Ok(admitted) => self.perform(admitted, http.headers()).await,
            Err(refusal) => {
                let Refusal { mut call, status, body, mut headers } = *refusal;
                call.status = status;
                headers.extend(request_id(dialect, call.number));
                let pieces = vec![Piece::Send(Bytes::from(body), 0), Piece::Complete];
                self.respond(status, "application/json", &headers, pieces, Some(call))
            }
        }
    }

    /// Counts the call, and decides on it.
    fn arrive(
        &self,
        dialect: Dialect,
        path: &str,
        http: &hyper::Request<Bytes>,
    ) -> Result<Admitted, Box<Refusal>> {
        let now = self.0.clock.now();
        let key = key_of(http);
        let project = key.split('.').next().unwrap_or_default().to_owned();
        let read = read(dialect, path, http);
        let mut state = self.state();
        let state = &mut *state;
        state.tally.calls += 1;
        state.tally.at_once += 1;
        state.tally.at_once_max = state.tally.at_once_max.max(state.tally.at_once);
        let number = state.tally.calls;
        let request = read.as_ref().ok();
        if state.arrivals.len() == ARRIVALS_MAX {
            state.arrivals.pop_front();
        }
        state.arrivals.push_back(Arrival {
            number,
            at: now,
            dialect,
            endpoint: request.map(|request| request.endpoint),
            model: request.map(|request| request.model.clone()).unwrap_or_default(),
            project: project.clone(),
            headers: headers_of(http.headers()),
            body_bytes: http.body().len(),
            body_hash: hash_of(http.body()),
            input: request.map_or(0, Request::input),
            status: 0,
            output: 0,
            is_complete: false,
            is_over: false,
        });
        let mut call = Call::new(self.clone(), number);
        let error = |call: Call, status: u16, message: &str| {
            let body = errors::body(dialect, status, message, number);
            Box::new(Refusal { call, status, body, headers: Vec::new() })
        };
        let keys = &state.settings.keys;
        if key.is_empty() || !(keys.is_empty() || keys.contains(&key)) {
            return Err(error(call, 401, "Incorrect API key provided."));
        }
        let request = match read {
            Ok(request) => request,
            Err((status, message)) => return Err(error(call, status, &message)),
        };
        let is_free = matches!(request.endpoint, Endpoint::Models | Endpoint::CountTokens);
        let mut headers = Vec::new();
        if !is_free {
            let owner = (project, request.model.clone());
            let quota = state.settings.quota;
            let counts = state.quotas.entry(owner.clone()).or_default();
            let output = request.output_max.unwrap_or(0).saturating_mul(request.answers);
            let taken = counts.take(quota, now, Load { input: request.input(), output });
            headers = limits::headers(dialect, &counts.left(quota, now), now);
            match taken {
                Ok(id) => call.slot = Some((owner, id)),
                Err(refused) => {
                    for broken in &refused.broken {
                        *state.tally.violations.entry(*broken).or_default() += 1;
                    }
                    headers.extend(limits::retry(dialect, refused.retry_after));
                    let owner = (owner.0.as_str(), owner.1.as_str());
                    let body = errors::quota(dialect, owner, quota, &refused, number);
                    return Err(Box::new(Refusal { call, status: 429, body, headers }));
                }
            }
            state.tally.input_tokens += request.input();
        }
        let troubles = &mut state.settings.troubles;
        let fault = troubles
            .iter_mut()
            .find_map(|trouble| trouble.happens(number, &request.text, 0).then_some(trouble.fault));
        if let Some(fault) = fault {
            *state.tally.faults.entry(fault).or_default() += 1;
        }
        match fault {
            Some(Fault::Refuse { status, retry_after }) => {
                if let Some(after) = retry_after {
                    headers.extend(limits::retry(dialect, after));
                }
                // Some providers quote the request.
                let quote: String = request.text.chars().take(80).collect();
                let body =
                    errors::body(dialect, status, &format!("refused on demand: {quote}"), number);
                return Err(Box::new(Refusal { call, status, body, headers }));
            }
            Some(Fault::NoCredit) => {
                let (status, body) = errors::no_credit(dialect, number);
                return Err(Box::new(Refusal { call, status, body, headers }));
            }
            _ => {}
        }
        Ok(Admitted { call, request, settings: state.settings.clone(), fault, headers })
    }

    async fn perform(&self, admitted: Admitted, asked: &HeaderMap) -> Reply {
        let Admitted { mut call, request, settings, fault, mut headers } = admitted;
        let latency = match fault {
            Some(Fault::Slow(span)) => span,
            Some(Fault::Hangup) => return Err(io::Error::other("the fake closes the connection")),
            Some(Fault::Stall { after: 0 }) => pending().await,
            _ => settings.latency,
        };
        if !latency.is_zero() {
            self.0.clock.sleep_until(self.0.clock.now() + latency).await;
        }
        let Played { status, content_type, mut pieces } = play(&request, &settings, fault);
        call.status = status;
        headers.extend(request_id(request.dialect, call.number));
        let accepted = asked.get("accept-encoding").and_then(|value| value.to_str().ok());
        if settings.gzip && accepted.is_some_and(|accepted| accepted.contains("gzip")) {
            headers.push(("content-encoding".to_owned(), "gzip".to_owned()));
            pieces = encoding::gzip(pieces);
        }
        self.respond(status, content_type, &headers, pieces, Some(call))
    }

    fn respond(
        &self,
        status: u16,
        content_type: &str,
        headers: &[(String, String)],
        pieces: Vec<Piece>,
        call: Option<Call>,
    ) -> Reply {
        let mut response = Response::builder().status(status).header("content-type", content_type);
        for (name, value) in headers {
            response = response.header(name, value);
        }
        let length = match pieces.as_slice() {
            [Piece::Send(bytes, _)] | [Piece::Send(bytes, _), Piece::Complete] => Some(bytes.len()),
            _ => None,
        };
        if let Some(length) = length {
            response = response.header("content-length", length);
        }
        let script = Script::new(pieces, Arc::clone(&self.0.clock), call);
        response.body(script).map_err(io::Error::other)
    }

    /// Returns the counters as JSON: `GET /tally`.
    fn counters(&self) -> Value {
        let tally = self.tally();
        let by_limit = |counts: &std::collections::BTreeMap<_, u64>| -> Value {
            let named = counts.iter().map(
                |((limit, window), count): (&(super::Limit, super::Window), _)| {
                    (format!("{limit:?}/{window:?}"), json!(count))
                },
            );
            Value::Object(named.collect())
        };
        let statuses =
            tally.statuses.iter().map(|(status, count)| (status.to_string(), json!(count)));
        json!({
            "calls": tally.calls,
            "statuses": Value::Object(statuses.collect()),
            "violations": by_limit(&tally.violations),
            "peaks": by_limit(&tally.peaks),
            "at_once": tally.at_once,
            "at_once_max": tally.at_once_max,
            "input_tokens": tally.input_tokens,
            "output_tokens": tally.output_tokens,
            "unfinished": tally.unfinished,
        })
    }
}

fn read(
    dialect: Dialect,
    path: &str,
    http: &hyper::Request<Bytes>,
) -> Result<Request, (u16, String)> {
    let body: Value = if http.method() == hyper::Method::GET {
        Value::Null
    } else {
        serde_json::from_slice(http.body())
            .map_err(|_| (400, "Invalid JSON payload received.".to_owned()))?
    };
    let below = path.strip_prefix("/v1beta/").or_else(|| path.strip_prefix("/v1/"));
    let read = below.and_then(|below| match dialect {
        Dialect::OpenAi => openai::read(below, &body),
        Dialect::Anthropic => anthropic::read(below, &body),
        Dialect::Gemini => gemini::read(below, http.uri().query().unwrap_or_default(), &body),
    });
    let unknown = || (404, format!("Invalid URL ({} {path})", http.method()));
    read.ok_or_else(unknown)?.map_err(|message| (400, message))
}

/// Returns the dialect and the path below its name. Without a name the path or the headers tell the dialect.
fn dialect_of(http: &hyper::Request<Bytes>) -> (Dialect, String) {
    let path = http.uri().path();
    for dialect in Dialect::ALL {
        let below = path.strip_prefix('/').and_then(|path| path.strip_prefix(dialect.name()));
        if let Some(below) = below.filter(|below| below.starts_with('/')) {
            return (dialect, below.to_owned());
        }
    }
    let headers = http.headers();
    let dialect = if path.contains("/messages") || headers.contains_key("anthropic-version") {
        Dialect::Anthropic
    } else if path.starts_with("/v1beta/")
        || path.contains("/models/")
        || headers.contains_key("x-goog-api-key")
    {
        Dialect::Gemini
    } else {
        Dialect::OpenAi
    };
    (dialect, path.to_owned())
}

/// Returns the key of the client, or an empty text.
fn key_of(http: &hyper::Request<Bytes>) -> String {
    let header = |name: &str| http.headers().get(name).and_then(|value| value.to_str().ok());
    let bearer = || header("authorization").map(|value| value.trim_start_matches("Bearer "));
    let query = || {
        http.uri().query().unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("key="))
    };
    let key =
        header("x-goog-api-key").or_else(|| header("x-api-key")).or_else(bearer).or_else(query);
    key.unwrap_or_default().to_owned()
}

fn headers_of(headers: &HeaderMap) -> Vec<(String, String)> {
    let text =
        |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

fn request_id(dialect: Dialect, number: u64) -> Option<(String, String)> {
    let name = match dialect {
        Dialect::OpenAi => "x-request-id",
        Dialect::Anthropic => "request-id",
        Dialect::Gemini => return None,
    };
    Some((name.to_owned(), errors::request_id(number)))
}
