//! `tollgate gateway check`: a dry call to each upstream, and what it says about its limits.

use std::process::ExitCode;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use tollgate::clock::SystemClock;
use tollgate::internal::timeout;
use tollgate::policy::Policies;
use tollgate::{Clock as _, Error, ErrorKind, Span};
use tollgate_gateway::{ConnectProblem, Route};
use tollgate_providers::{
    Dialect, HeaderStanding, ProviderErrorKind, classify_error, header_standings,
};
use tollgate_terminal::output::{self, OutputFormat};
use tollgate_terminal::{EXIT_DENIED, Failure, escape_controls};
use tollgate_transport::http::{HttpClient, SendError};
use tollgate_transport::tls::{ClientTls, TlsOptions};

use crate::args::GatewayCheck;
use crate::config::{GatewayConfig, ServeConfig, UpstreamConfig};

/// The longest time to connect to an upstream.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The longest time of a call.
const CALL_MAX: Span = Span::from_secs(30);

/// The largest response that is read: a list of models.
const RESPONSE_BYTES_MAX: usize = 8 << 20;

/// The version of Anthropic's API, which its calls must name.
const ANTHROPIC_VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

/// All upstreams.
#[derive(Debug, Serialize)]
struct Report {
    upstreams: Vec<UpstreamReport>,
}

/// What is known of one upstream.
#[derive(Debug, Serialize)]
struct UpstreamReport {
    upstream: String,
    dialect: &'static str,
    url: String,
    /// Whether it answered as its dialect does, and accepts the key.
    ok: bool,
    /// What is wrong, and what would be right.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// How many models it lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<usize>,
    /// The limits in its headers.
    limits: Vec<LimitReport>,
}

/// A limit in the headers of an upstream, beside the policies that charge it.
#[derive(Debug, Serialize)]
struct LimitReport {
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
    policies: Vec<PolicyLimit>,
}

/// A limit of a policy in the same unit.
#[derive(Debug, Serialize)]
struct PolicyLimit {
    policy: String,
    name: String,
    limit: u64,
    /// Whether it is above that of the provider.
    above: bool,
}

/// Checks every upstream of the configuration, or the named ones.
pub(crate) async fn run(
    config: &ServeConfig,
    args: &GatewayCheck,
    format: OutputFormat,
) -> Result<ExitCode, Failure> {
    let Some(gateway) = &config.gateway else {
        let text = "the configuration has no [gateway]; name another file with --config, or add one as in docs/gateway.md";
        return Err(Failure::new(ErrorKind::Invalid, text));
    };
    let upstreams = chosen(gateway, &args.upstreams)?;
    let mut reports = Vec::with_capacity(upstreams.len());
    for upstream in upstreams {
        reports.push(check(gateway, upstream, &config.gates.policies, args.call).await?);
    }
    let report = Report { upstreams: reports };
    output::print(format, &report, || text(&report))?;
    let is_ok = report.upstreams.iter().all(|upstream| upstream.ok);
    Ok(if is_ok { ExitCode::SUCCESS } else { ExitCode::from(EXIT_DENIED) })
}

fn chosen<'a>(
    gateway: &'a GatewayConfig,
    names: &[String],
) -> Result<Vec<&'a UpstreamConfig>, Failure> {
    if names.is_empty() {
        return Ok(gateway.upstreams.iter().collect());
    }
    let find = |name: &String| {
        let found = gateway.upstreams.iter().find(|upstream| upstream.name == *name);
        found.ok_or_else(|| {
            let known: Vec<&str> = gateway.upstreams.iter().map(|it| it.name.as_str()).collect();
            let text = format!("no upstream is called {name:?}; known: {}", known.join(", "));
            Failure::new(ErrorKind::Invalid, text)
        })
    };
    names.iter().map(find).collect()
}

async fn check(
    gateway: &GatewayConfig,
    upstream: &UpstreamConfig,
    policies: &Policies,
    makes_call: bool,
) -> Result<UpstreamReport, Failure> {
    let mut report = UpstreamReport {
        upstream: upstream.name.clone(),
        dialect: upstream.dialect.name(),
        url: upstream.url.clone(),
        ok: false,
        problem: None,
        models: None,
        limits: Vec::new(),
    };
    let probe = Probe::new(upstream)?;
    let mut answers = vec![probe.list_models().await];
    if makes_call && answers.iter().all(|answer| answer.problem.is_none()) {
        match routed_model(gateway, upstream) {
            Some(model) => answers.push(probe.generate(&model).await),
            None => {
                report.problem = Some(
                    "no route names one model of it without *; without a name there is nothing to call"
                        .to_owned(),
                );
            }
        }
    }
    for answer in answers {
        report.models = report.models.or(answer.models);
        for standing in answer.standings {
            if report.limits.iter().all(|known| known.unit != standing.unit) {
                report.limits.push(beside(standing, upstream, &gateway.routes, policies));
            }
        }
        report.problem = report.problem.or(answer.problem);
    }
    report.ok = report.problem.is_none();
    Ok(report)
}

/// Returns the first model without a wildcard that a route serves at `upstream`, by its name there.
fn routed_model(gateway: &GatewayConfig, upstream: &UpstreamConfig) -> Option<String> {
    let mut routes = gateway.routes.iter().filter(|it| it.upstreams.contains(&upstream.name));
    let model = routes.find_map(|route| route.models.iter().find(|model| !model.contains('*')))?;
    Some(upstream.model_there(model).to_owned())
}

/// Puts `standing` beside the limits of the policies that charge `upstream` in the same unit.
fn beside(
    standing: HeaderStanding,
    upstream: &UpstreamConfig,
    routes: &[Route],
    policies: &Policies,
) -> LimitReport {
    let routes = routes.iter().filter(|route| route.upstreams.contains(&upstream.name));
    let charges = routes.flat_map(|route| &route.charges);
    let mut found: Vec<PolicyLimit> = Vec::new();
    for charge in charges.filter(|charge| charge.subject.contains("{upstream}")) {
        let Ok(policy) = policies.get(&charge.policy) else { continue };
        for limit in policy.limits().filter(|limit| limit.unit() == standing.unit) {
            let number = limit.rule().limit();
            if found.iter().any(|it| it.policy == policy.name() && it.name == limit.name()) {
                continue;
            }
            found.push(PolicyLimit {
                policy: policy.name().to_owned(),
                name: limit.name().to_owned(),
                limit: number,
                above: standing.limit.is_some_and(|theirs| theirs < number),
            });
        }
    }
    LimitReport {
        unit: standing.unit,
        limit: standing.limit,
        remaining: standing.remaining,
        policies: found,
    }
}

/// A client of one upstream.
struct Probe<'a> {
    upstream: &'a UpstreamConfig,
    key: String,
    client: HttpClient,
    tls: Option<ClientTls>,
}

/// What a call said.
#[derive(Default)]
struct Answer {
    problem: Option<String>,
    models: Option<usize>,
    standings: Vec<HeaderStanding>,
}

impl<'a> Probe<'a> {
    fn new(upstream: &'a UpstreamConfig) -> Result<Self, Failure> {
        let key = upstream.read_key()?;
        let tls = match upstream.read_authority()? {
            Some(pem) => {
                Some(ClientTls::new(&TlsOptions::default().authority(pem)).map_err(|error| {
                    let text =
                        format!("the authority_file of the upstream {:?}: {error}", upstream.name);
                    Error::new(ErrorKind::Invalid, text)
                })?)
            }
            None => upstream.url.starts_with("https://").then(ClientTls::native),
        };
        let client = HttpClient::with_environment_proxy(
            &upstream.url,
            tls.as_ref(),
            Some(CONNECT_MAX),
            RESPONSE_BYTES_MAX,
        );
        let client = client.map_err(|proxy| {
            let text = format!(
                "HTTPS_PROXY names {proxy}, and only proxies that begin with http:// can be used"
            );
            Error::new(ErrorKind::Invalid, text)
        })?;
        Ok(Self { upstream, key, client, tls })
    }

    /// Lists the models, which costs nothing.
    async fn list_models(&self) -> Answer {
        let path = match self.upstream.dialect {
            Dialect::OpenAi | Dialect::Anthropic => "/v1/models",
            Dialect::Gemini => "/v1beta/models",
        };
        let mut answer = self.call(Method::GET, path, None).await;
        let list = if self.upstream.dialect == Dialect::Gemini { "models" } else { "data" };
        if let (None, Some(body)) = (&answer.0.problem, &answer.1) {
            let parsed: Option<Value> = serde_json::from_slice(body).ok();
            let models = parsed.as_ref().and_then(|body| body.get(list)?.as_array());
            match models {
                Some(models) => answer.0.models = Some(models.len()),
                None => {
                    answer.0.problem = Some(format!(
                        "it does not list models as {} does; check dialect and url",
                        self.upstream.dialect
                    ));
                }
            }
        }
        answer.0
    }

    /// Makes a call with one token of output.
    async fn generate(&self, model: &str) -> Answer {
        let (path, body) = match self.upstream.dialect {
            Dialect::OpenAi => (
                "/v1/chat/completions".to_owned(),
                json!({
                    "model": model,
                    "max_completion_tokens": 1,
                    "messages": [{ "role": "user", "content": "Hi" }],
                }),
            ),
            Dialect::Anthropic => (
                "/v1/messages".to_owned(),
                json!({
                    "model": model,
                    "max_tokens": 1,
                    "messages": [{ "role": "user", "content": "Hi" }],
                }),
            ),
            Dialect::Gemini => (
                format!("/v1beta/models/{model}:generateContent"),
                json!({
                    "contents": [{ "role": "user", "parts": [{ "text": "Hi" }] }],
                    "generationConfig": { "maxOutputTokens": 1 },
                }),
            ),
        };
        self.call(Method::POST, &path, Some(&body)).await.0
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> (Answer, Option<Bytes>) {
        let url = format!("{}{path}", self.upstream.url);
        let header = self.upstream.dialect.key_header();
        let mut request = Request::builder()
            .method(method)
            .uri(&url)
            .header(header.name, format!("{}{}", header.prefix, self.key))
            .header("accept-encoding", "identity");
        if self.upstream.dialect == Dialect::Anthropic {
            request = request.header(ANTHROPIC_VERSION.0, ANTHROPIC_VERSION.1);
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let problem = |text: String| (Answer { problem: Some(text), ..Answer::default() }, None);
        let request = match request.body(Bytes::from(body)) {
            Ok(request) => request,
            Err(error) => return problem(format!("the url cannot be called: {error}")),
        };
        match timeout(&SystemClock, CALL_MAX, self.client.send(request)).await {
            None => problem(format!("no answer within {CALL_MAX}")),
            Some(Err(error)) => problem(self.unreachable(&error)),
            Some(Ok(response)) => self.answered(&url, response),
        }
    }

    fn unreachable(&self, error: &SendError) -> String {
        match ConnectProblem::new(error, self.tls.as_ref()) {
            ConnectProblem::Unreachable(_) if error.is_not_http() => {
                "it does not speak HTTP; check url".to_owned()
            }
            problem => format!("{problem}; {}", problem.advice()),
        }
    }

    fn answered(&self, url: &str, response: Response<Bytes>) -> (Answer, Option<Bytes>) {
        let (head, body) = response.into_parts();
        let (dialect, now) = (self.upstream.dialect, SystemClock.now());
        let standings = header_standings(dialect, &head.headers, now);
        let mut answer = Answer { standings, ..Answer::default() };
        if head.status == StatusCode::OK {
            return (answer, Some(body));
        }
        let error = classify_error(url, head.status, &head.headers, &body, now);
        let status = head.status.as_u16();
        answer.problem = Some(match error.kind {
            ProviderErrorKind::Denied => {
                format!("it refuses the key ({status}); check key, key_env or key_file")
            }
            ProviderErrorKind::Gone | ProviderErrorKind::NotProvider => format!(
                "it does not know {} ({status}); check dialect and url, or the model",
                head_path(url)
            ),
            kind if kind.is_quota() => {
                format!("a limit of the provider is exhausted ({status}); check again later")
            }
            ProviderErrorKind::InsufficientQuota => {
                format!("the account has no money left ({status})")
            }
            _ => format!("it answered {status}; check dialect and url"),
        });
        (answer, None)
    }
}

/// Returns the path of `url`, for messages.
fn head_path(url: &str) -> String {
    url.parse::<hyper::Uri>().map(|uri| uri.path().to_owned()).unwrap_or_default()
}

fn text(report: &Report) -> String {
    let lines = report.upstreams.iter().map(|upstream| {
        let UpstreamReport { upstream: name, dialect, url, problem, models, limits, .. } = upstream;
        let state = match (problem, models) {
            (Some(problem), _) => escape_controls(problem).to_string(),
            (None, Some(count)) => format!("ok, {count} models"),
            (None, None) => "ok".to_owned(),
        };
        let mut text = format!("{name} ({dialect}, {url}): {state}");
        for limit in limits {
            text += &format!("\n  {}", limit_text(limit));
        }
        if limits.is_empty() && problem.is_none() {
            text += "\n  its headers say nothing about its limits";
        }
        text
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn limit_text(limit: &LimitReport) -> String {
    let LimitReport { unit, limit, remaining, policies } = limit;
    let number = |value: &Option<u64>| value.map_or_else(|| "?".to_owned(), |it| it.to_string());
    let mut text = format!("{unit}: {} of {} left", number(remaining), number(limit));
    if policies.is_empty() {
        text += "; no policy that charges it counts them";
    }
    for PolicyLimit { policy, name, limit, above } in policies {
        let note = if *above { ", which is above it" } else { "" };
        text += &format!("; policy {policy} has {limit} ({name}){note}");
    }
    text
}
