//! `GET /v1/forward-auth`: what nginx, Traefik and Caddy ask before they pass a request on.
//!
//! Proxies send the fields of their caller along, so none of them is believed unless the query names it, and the query is
//! written by whoever configures the proxy. This call charges although it is a GET, and a web page can make a browser
//! send one anywhere; it cannot add `X-Forwarded-*`, so a request without any is not a proxy's and is refused.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, COOKIE, FORWARDED, PROXY_AUTHORIZATION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use tollgate::{Decision, Error, ErrorKind};

use super::{input, reply};
use crate::access::Caller;
use crate::app::{App, Settings};
use crate::bounds::HOPS_MAX;
use crate::subject;
use crate::token;
use crate::wire::{AcquireRequest, ForwardAuthQuery, named_costs};

const PERMIT: HeaderName = HeaderName::from_static("tollgate-permit");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

const EXAMPLE: &str = "?policy=api&subject_header=X-Real-IP";

/// 200 if the request may pass, with the permit in a field for whoever answers it; a refusal as from acquire.
pub(super) async fn ask(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    fields: HeaderMap,
) -> Response {
    let query = match input::query(&uri, EXAMPLE) {
        Ok(query) => query,
        Err(problem) => return reply::problem(&problem),
    };
    match decided(&app, &caller, &query, &fields).await {
        Ok(response) => response,
        Err(error) => reply::error(&error),
    }
}

async fn decided(
    app: &App,
    caller: &Caller,
    query: &ForwardAuthQuery,
    fields: &HeaderMap,
) -> Result<Response, Error> {
    if !fields.keys().any(is_of_a_proxy) {
        return Err(invalid(
            "this is for proxies; have yours send X-Forwarded-Host, say, or use POST /v1/acquire",
        ));
    }
    let refusal = match query.refusal {
        None | Some(429) => StatusCode::TOO_MANY_REQUESTS,
        Some(403) => StatusCode::FORBIDDEN,
        Some(other) => return Err(invalid(format!("refusal {other} is neither 429 nor 403"))),
    };
    let request = request_of(query, fields, app.limits())?;
    let policy = app.policy(&request.policy)?;
    let decision = app.acquire(caller, &policy, &request).await?;
    let mut response = reply::decision(app, &policy, &request.subject, &decision).map(Body::new);
    match &decision {
        Decision::Admitted(permit) => {
            let sealed = token::encode(permit, app.permit_keys().sealing());
            if let Ok(value) = HeaderValue::try_from(sealed) {
                response.headers_mut().insert(PERMIT, value);
            }
        }
        Decision::Denied(_) => *response.status_mut() = refusal,
    }
    Ok(response)
}

fn is_of_a_proxy(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-forwarded-") || name == "x-real-ip"
}

fn request_of(
    query: &ForwardAuthQuery,
    fields: &HeaderMap,
    settings: &Settings,
) -> Result<AcquireRequest, Error> {
    let both = |what: &str| {
        invalid(format!("{what} and {what}_header are both there; write {EXAMPLE}, say"))
    };
    let policy = match (&query.policy, &query.policy_header) {
        (Some(policy), None) => policy.clone(),
        (None, Some(name)) => text_of(fields, name)?,
        (Some(_), Some(_)) => return Err(both("policy")),
        (None, None) => return Err(invalid(format!("there is no policy; write {EXAMPLE}, say"))),
    };
    if query.hops.is_some() && query.subject_header.is_none() {
        return Err(invalid("hops counts members of a field; name it with subject_header"));
    }
    let subject = match (&query.subject, &query.subject_header) {
        (Some(subject), None) => subject.clone(),
        (None, Some(name)) => subject_of(fields, name, query.hops, settings)?,
        (Some(_), Some(_)) => return Err(both("subject")),
        (None, None) => return Err(invalid(format!("there is no subject; write {EXAMPLE}, say"))),
    };
    let costs = match (&query.costs, &query.costs_header) {
        (None, None) => String::new(),
        (Some(costs), None) => costs.clone(),
        (None, Some(name)) => text_of(fields, name)?,
        (Some(_), Some(_)) => return Err(both("costs")),
    };
    let costs = named_costs(costs.split(',').filter(|cost| !cost.trim().is_empty()))?;
    Ok(AcquireRequest { policy, subject, costs, ..AcquireRequest::default() })
}

/// The subject that the field `name` has: some subject, whatever it has.
fn subject_of(
    fields: &HeaderMap,
    name: &str,
    hops: Option<usize>,
    settings: &Settings,
) -> Result<String, Error> {
    let name = name_of(name)?;
    let value = match hops {
        Some(hops) => member(fields, &name, hops)?,
        None if name == X_FORWARDED_FOR || name == FORWARDED => {
            return Err(invalid(format!(
                "{name} is a list that callers can begin; write hops=1 for its last member, which your proxy wrote"
            )));
        }
        None => one(fields, &name)?.as_bytes(),
    };
    // Who sent a secret is told apart by it, and it is neither stored nor shown.
    if [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE].contains(&name) {
        return Ok(subject::digest(value));
    }
    Ok(match std::str::from_utf8(value) {
        Ok(text) => subject::fitting(subject::network(text, settings)),
        Err(_) => subject::digest(value),
    })
}

fn text_of(fields: &HeaderMap, name: &str) -> Result<String, Error> {
    let name = name_of(name)?;
    let value = one(fields, &name)?;
    match value.to_str() {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(invalid(format!("the field {name} has more than visible ASCII"))),
    }
}

fn name_of(name: &str) -> Result<HeaderName, Error> {
    HeaderName::try_from(name)
        .map_err(|_| invalid(format!("{name:?} is no name of a field, as X-Real-IP is one")))
}

/// The value of a field that is there once. Of two, one may be the caller's own.
fn one<'a>(fields: &'a HeaderMap, name: &HeaderName) -> Result<&'a HeaderValue, Error> {
    let mut values = fields.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) if !value.is_empty() => Ok(value),
        (Some(_), Some(_)) => {
            Err(invalid(format!("the field {name} is there twice; have the proxy replace it")))
        }
        _ => Err(missing(name)),
    }
}

/// The member of a list that stands `hops` from its end.
fn member<'a>(fields: &'a HeaderMap, name: &HeaderName, hops: usize) -> Result<&'a [u8], Error> {
    if hops == 0 || HOPS_MAX < hops {
        return Err(invalid(format!("hops {hops} must be between 1 and {HOPS_MAX}")));
    }
    let lines = fields.get_all(name).iter().rev();
    let mut members = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    match members.nth(hops - 1).map(<[u8]>::trim_ascii) {
        Some(member) if !member.is_empty() => Ok(member),
        Some(_) => Err(invalid(format!("member {hops} of the field {name} is empty"))),
        None if fields.contains_key(name) => {
            Err(invalid(format!("the field {name} has fewer than {hops} members")))
        }
        None => Err(missing(name)),
    }
}

fn missing(name: &HeaderName) -> Error {
    invalid(format!("the field {name} is missing or empty; have the proxy send it"))
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}
