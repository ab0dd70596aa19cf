//! `GET /v1/forward-auth`: the subrequest of nginx, Traefik and Caddy before they forward a request.
//!
//! A proxy copies the headers of its client, so a header is trusted only if the query names it; the query comes from the
//! proxy's configuration. This endpoint charges although it is a GET, and a web page can make a browser send a GET
//! anywhere. A page cannot add `X-Forwarded-*`, so a request without any is not a proxy's and is refused.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{AUTHORIZATION, COOKIE, FORWARDED, PROXY_AUTHORIZATION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::Response;
use axum::routing::get;
use tollgate::{Decision, Error, ErrorKind};
use tollgate_protocol::json::{AcquireRequest, Charge, ForwardAuthQuery, named_costs};
use tollgate_protocol::permit_token;

use super::super::{input, reply};
use super::{Endpoint, Method, Output, POLICY_PROBLEMS};
use crate::access::Caller;
use crate::app::{App, ServerOptions};
use crate::bounds::HOPS_MAX;
use crate::keys::Scope;
use crate::proxy_subject;

const PERMIT: HeaderName = HeaderName::from_static("tollgate-permit");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

const EXAMPLE: &str = "?policy=api&subject_header=X-Real-IP";

pub(super) const FORWARD_AUTH: Endpoint = Endpoint::new(
    Method::Get,
    "/v1/forward-auth",
    "forwardAuth",
    "Asks on behalf of a proxy, which sends X-Forwarded-* or X-Real-IP.",
    || get(forward_auth),
)
.scope(Scope::Acquire)
.query::<ForwardAuthQuery>()
.output(Output::ProxyDecision)
.problems(POLICY_PROBLEMS);

/// Responds 200 if the request may pass, with the permit in a header for the upstream; a denial as from acquire.
async fn forward_auth(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let query = match input::query(&uri, EXAMPLE) {
        Ok(query) => query,
        Err(problem) => return reply::problem(&problem),
    };
    match decide(&app, &caller, &query, &headers).await {
        Ok(response) => response,
        Err(error) => reply::error(&error),
    }
}

async fn decide(
    app: &App,
    caller: &Caller,
    query: &ForwardAuthQuery,
    headers: &HeaderMap,
) -> Result<Response, Error> {
    if !headers.keys().any(is_of_a_proxy) {
        return Err(invalid(
            "this is for proxies; have yours send X-Forwarded-Host, say, or use POST /v1/acquire",
        ));
    }
    let refusal = match query.refusal {
        None | Some(429) => StatusCode::TOO_MANY_REQUESTS,
        Some(403) => StatusCode::FORBIDDEN,
        Some(other) => return Err(invalid(format!("refusal {other} is neither 429 nor 403"))),
    };
    let request = request_of(query, headers, caller, app.options())?;
    let policies = app.policies_of(caller, &request)?;
    let decision = app.acquire(&policies, &request).await?;
    let mut response = reply::decision(app, &policies, &request, &decision).map(Body::new);
    match &decision {
        Decision::Admitted(permit) => {
            let sealed = permit_token::encode(permit, app.permit_keys().sealing());
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
    headers: &HeaderMap,
    caller: &Caller,
    options: &ServerOptions,
) -> Result<AcquireRequest, Error> {
    let both = |what: &str| {
        invalid(format!("{what} and {what}_header are both there; write {EXAMPLE}, say"))
    };
    let costs = match (&query.costs, &query.costs_header) {
        (None, None) => String::new(),
        (Some(costs), None) => costs.clone(),
        (None, Some(name)) => text_of(headers, name)?,
        (Some(_), Some(_)) => return Err(both("costs")),
    };
    let costs = named_costs(costs.split(',').filter(|cost| !cost.trim().is_empty()))?;
    if let Some(charges) = &query.charges {
        let charges = charges_of(charges, query, headers, options)?;
        return Ok(AcquireRequest { charges, costs, ..AcquireRequest::default() });
    }
    let policy = match (&query.policy, &query.policy_header) {
        (Some(policy), None) => policy.clone(),
        (None, Some(name)) => text_of(headers, name)?,
        (Some(_), Some(_)) => return Err(both("policy")),
        (None, None) => return Err(invalid(format!("there is no policy; write {EXAMPLE}, say"))),
    };
    if query.hops.is_some() && query.subject_header.is_none() {
        return Err(invalid("hops counts members of a field; name it with subject_header"));
    }
    let subject = match (&query.subject, &query.subject_header) {
        (Some(subject), None) => subject.clone(),
        (None, Some(name)) => subject_of(headers, name, query.hops, options)?,
        (Some(_), Some(_)) => return Err(both("subject")),
        (None, None) => match caller.subject() {
            Some(subject) => subject.to_owned(),
            None => return Err(invalid(format!("there is no subject; write {EXAMPLE}, say"))),
        },
    };
    Ok(AcquireRequest { policy, subject, costs, ..AcquireRequest::default() })
}

/// Parses `charges`, as in `user:{X-User},account:all`.
fn charges_of(
    charges: &str,
    query: &ForwardAuthQuery,
    headers: &HeaderMap,
    options: &ServerOptions,
) -> Result<Vec<Charge>, Error> {
    let single = [&query.policy, &query.policy_header, &query.subject, &query.subject_header];
    if single.into_iter().any(Option::is_some) {
        return Err(invalid("charges has the policies and subjects; leave policy and subject out"));
    }
    let charge = |text: &str| {
        let (policy, subject) = text.split_once(':').ok_or_else(|| {
            invalid(format!(
                "{text:?} is not a policy with a subject; write charges=user:{{X-User}},account:all, say"
            ))
        })?;
        let header = subject.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
        let subject = match header {
            Some(name) => {
                let is_list = name_of(name).is_ok_and(|name| is_list(&name));
                subject_of(headers, name, query.hops.filter(|_| is_list), options)?
            }
            None => subject.to_owned(),
        };
        Ok(Charge { policy: policy.to_owned(), subject, costs: None })
    };
    charges.split(',').map(charge).collect()
}

/// Returns whether the header is a list that callers can begin.
fn is_list(name: &HeaderName) -> bool {
    *name == X_FORWARDED_FOR || *name == FORWARDED
}

/// The subject that the field `name` has: some subject, whatever it has.
fn subject_of(
    headers: &HeaderMap,
    name: &str,
    hops: Option<usize>,
    options: &ServerOptions,
) -> Result<String, Error> {
    let name = name_of(name)?;
    let value = match hops {
        Some(hops) => member(headers, &name, hops)?,
        None if is_list(&name) => {
            return Err(invalid(format!(
                "{name} is a list that callers can begin; write hops=1 for its last member, which your proxy wrote"
            )));
        }
        None => one(headers, &name)?.as_bytes(),
    };
    // A secret identifies its sender, but is neither stored nor shown.
    if [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE].contains(&name) {
        return Ok(proxy_subject::digest(value));
    }
    Ok(match std::str::from_utf8(value) {
        Ok(text) => proxy_subject::bounded(proxy_subject::network(text, options)),
        Err(_) => proxy_subject::digest(value),
    })
}

fn text_of(headers: &HeaderMap, name: &str) -> Result<String, Error> {
    let name = name_of(name)?;
    let value = one(headers, &name)?;
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
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a HeaderValue, Error> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) if !value.is_empty() => Ok(value),
        (Some(_), Some(_)) => {
            Err(invalid(format!("the field {name} is there twice; have the proxy replace it")))
        }
        _ => Err(missing(name)),
    }
}

/// Returns the member of a list that is `hops` from its end.
fn member<'a>(headers: &'a HeaderMap, name: &HeaderName, hops: usize) -> Result<&'a [u8], Error> {
    if hops == 0 || HOPS_MAX < hops {
        return Err(invalid(format!("hops {hops} must be between 1 and {HOPS_MAX}")));
    }
    let lines = headers.get_all(name).iter().rev();
    let mut members = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    match members.nth(hops - 1).map(<[u8]>::trim_ascii) {
        Some(member) if !member.is_empty() => Ok(member),
        Some(_) => Err(invalid(format!("member {hops} of the field {name} is empty"))),
        None if headers.contains_key(name) => {
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
