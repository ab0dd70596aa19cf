//! Turning away who has no key for a call.
//!
//! Programs send `Authorization: Bearer KEY`. A browser can only send a password, so what merely looks also takes the
//! key as the password of `Basic`. Nothing else does: a browser sends a password on behalf of any page that is open.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{Extensions, HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::reply;
use crate::access::{Caller, Certificate};
use crate::app::App;
use crate::keys::{Refused, Scope};
use crate::wire::Problem;

/// What a call needs.
#[derive(Clone, Debug)]
pub(super) struct Needs {
    pub(super) app: Arc<App>,
    pub(super) scope: Scope,
    /// Whether the call is about every policy and subject.
    pub(super) is_unbound: bool,
}

/// Answers the call if its key allows it.
pub(super) async fn guard(
    State(Needs { app, scope, is_unbound }): State<Needs>,
    mut request: Request,
    next: Next,
) -> Response {
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

/// Who sent `headers`, if they may do what needs `scope`.
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

/// Whether a request to a call that is open to everybody carries a key that may inspect all policies and subjects. On a
/// server without keys none does. A wrong key is no failed authentication here.
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

/// The key as a program sends it.
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
    let fields = response.headers_mut();
    let mut add = |value| fields.append(WWW_AUTHENTICATE, HeaderValue::from_static(value));
    // The words of RFC 6750.
    add(match refused {
        Refused::Missing => "Bearer realm=\"tollgate\"",
        Refused::Wrong | Refused::Expired(_) => {
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
