//! Checks of a request before it is answered: its host and its API key.
//!
//! **Host.** A web page can resolve its own name to 127.0.0.1, and then has the same origin as a server on the machine of
//! its reader (DNS rebinding). It cannot send another name than its own in `Host`, or in `:authority` of HTTP/2.
//!
//! **Key.** Programs send `Authorization: Bearer KEY`. A browser can only send a password, so read-only endpoints also
//! accept the key as the password of `Basic`. Others do not: a browser sends a password on behalf of any open page. A JSON Web
//! Token is sent as a key is.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, HeaderValue, Uri, Version};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tollgate::internal::LogLimit;
use tollgate_protocol::json::{MISDIRECTED, Problem};

use super::reply;
use crate::access::{Caller, Certificate};
use crate::app::App;
use crate::jwt::is_token;
use crate::keys::{Refused, Scope};

/// Refuses a request without exactly one `Host` (RFC 9112), or for a host that is not the server's.
pub(super) fn check_host(app: &App, head: &Parts) -> Result<(), Problem> {
    let hosts = head.headers.get_all(HOST).iter().count();
    if 1 < hosts || (hosts == 0 && head.version == Version::HTTP_11) {
        return Err(Problem::invalid("a request of HTTP/1.1 has the field Host exactly once"));
    }
    match foreign_host(app, &head.headers, &head.uri) {
        None => Ok(()),
        Some(detail) => Err(Problem::new(421, MISDIRECTED, detail)),
    }
}

/// Returns why the host in `headers` or `uri` is not the server's; `None` if it is.
pub(crate) fn foreign_host(app: &App, headers: &HeaderMap, uri: &Uri) -> Option<String> {
    let options = app.options();
    let is_checked =
        !options.hosts.is_empty() || (options.is_loopback && !app.access().is_guarded());
    if !is_checked {
        return None;
    }
    let fields = headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
    let target = uri.authority().map(|authority| authority.as_str().as_bytes());
    let is_own = |host: &[u8]| str::from_utf8(host).is_ok_and(|host| is_own(host, &options.hosts));
    let host = fields.chain(target).find(|host| !is_own(host))?;
    Some(refuse_host(app, &String::from_utf8_lossy(host)))
}

/// Returns the text for the caller, and logs it: a proxy may let requests through when its subrequest is refused.
#[cold]
fn refuse_host(app: &App, host: &str) -> String {
    static LIMIT: LogLimit = LogLimit::new();
    if let Some(suppressed) = LIMIT.pass(app.now()) {
        tracing::warn!(
            ?host,
            suppressed,
            "a call to another host was refused; is it missing in hosts of [server]?"
        );
    }
    format!(
        "this server does not answer to the host {host:?}; add it to hosts in [server], or call it by a name in there \
         or by localhost"
    )
}

/// Returns whether `host`, with or without a port, is loopback or one of `hosts`.
fn is_own(host: &str, hosts: &[String]) -> bool {
    let name = name_of(host).trim_end_matches('.');
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.is_ok_and(|address| address.to_canonical().is_loopback())
        || name.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// Returns `host` without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// The key that an endpoint requires.
#[derive(Clone, Debug)]
pub(super) struct Requirement {
    pub(super) app: Arc<App>,
    pub(super) scope: Scope,
    /// Whether the key must be for every policy and subject.
    pub(super) is_unbound: bool,
}

/// Middleware: runs the handler if the key of the request meets the requirement.
pub(super) async fn require(
    State(Requirement { app, scope, is_unbound }): State<Requirement>,
    mut request: Request,
    next: Next,
) -> Response {
    await_key(&app, request.headers()).await;
    let caller = check(&app, request.headers(), request.extensions(), scope).and_then(|caller| {
        if is_unbound {
            caller.check_unbound()?;
        }
        Ok(caller)
    });
    match caller {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(refused) => refusal(refused, scope),
    }
}

/// Waits for the key of the token of a request, if it has a token with an unknown key.
pub(super) async fn await_key(app: &App, headers: &HeaderMap) {
    if let Some((verifier, token)) = app.jwt().zip(bearer(headers))
        && is_token(token)
    {
        verifier.await_key(token, app.clock()).await;
    }
}

/// Returns the caller of a request, if its key has `scope`.
pub(super) fn check(
    app: &App,
    headers: &HeaderMap,
    extensions: &Extensions,
    scope: Scope,
) -> Result<Caller, Refused> {
    let key = key_of(headers, scope);
    let certificate = extensions.get::<Arc<Certificate>>();
    let caller = app.caller(key.as_deref(), certificate.map(|certificate| &**certificate))?;
    caller.check(scope)?;
    Ok(caller)
}

/// Returns whether a request to an open endpoint carries a key that may inspect all policies and subjects. On a server
/// without keys none does. A wrong key is not counted as a failed authentication.
pub(super) fn may_inspect(app: &App, headers: &HeaderMap, extensions: &Extensions) -> bool {
    let key = key_of(headers, Scope::Inspect);
    let certificate = extensions.get::<Arc<Certificate>>();
    let caller = app.identify(key.as_deref(), certificate.map(|certificate| &**certificate));
    caller.is_ok_and(|caller| {
        caller.has_key() && caller.has(Scope::Inspect) && caller.check_unbound().is_ok()
    })
}

fn key_of(headers: &HeaderMap, scope: Scope) -> Option<Cow<'_, str>> {
    if let Some(key) = bearer(headers) {
        return Some(key.into());
    }
    let (scheme, rest) = credentials(headers)?;
    if scheme.eq_ignore_ascii_case("basic") && scope == Scope::Inspect {
        let text = String::from_utf8(BASE64_STANDARD.decode(rest).ok()?).ok()?;
        return text.split_once(':').map(|(_, password)| password.to_owned().into());
    }
    None
}

/// Returns the key of `Authorization: Bearer`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = credentials(headers)?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key)
}

fn credentials(headers: &HeaderMap) -> Option<(&str, &str)> {
    let (scheme, rest) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some((scheme, rest.trim()))
}

pub(super) fn refusal(refused: Refused, scope: Scope) -> Response {
    let problem = Problem::new(refused.status(), refused.kind(), refused.to_string());
    let mut response = reply::problem(&problem);
    let headers = response.headers_mut();
    let mut add = |value| headers.append(WWW_AUTHENTICATE, HeaderValue::from_static(value));
    // The words of RFC 6750.
    add(match refused {
        Refused::Missing => "Bearer realm=\"tollgate\"",
        Refused::Wrong | Refused::Expired(_) | Refused::Token(_) => {
            "Bearer realm=\"tollgate\", error=\"invalid_token\""
        }
        Refused::Scope(_) | Refused::Bound => {
            "Bearer realm=\"tollgate\", error=\"insufficient_scope\""
        }
    });
    if refused.status() == 401 && scope == Scope::Inspect {
        add("Basic realm=\"tollgate\", charset=\"UTF-8\"");
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_loopback_and_those_of_the_settings_are_own() {
        let hosts = ["tollgate.internal".to_owned()];
        for own in [
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]",
            "[::1]:8080",
            "tollgate.internal:80",
        ] {
            assert!(is_own(own, &hosts), "{own}");
        }
        for other in
            ["evil.example", "localhost.evil.example:8080", "10.0.0.1", "[::2]:1", "", ":80"]
        {
            assert!(!is_own(other, &hosts), "{other}");
        }
    }
}
