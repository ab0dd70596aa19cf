//! Under which names callers may reach the server.
//!
//! A web page can give its own name the address 127.0.0.1, and is then of the same origin as a server on the machine of its
//! reader (DNS rebinding). What it cannot do is send another name than its own in `Host`, or in `:authority` of HTTP/2.

use std::net::IpAddr;

use axum::http::header::HOST;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Uri, Version};
use tollgate::LogLimit;

use crate::app::App;
use crate::wire::{MISDIRECTED, Problem};

/// Refuses a head without exactly one `Host` (RFC 9112), and one whose host is not the server's.
pub(super) fn check(app: &App, head: &Parts) -> Result<(), Problem> {
    let hosts = head.headers.get_all(HOST).iter().count();
    if 1 < hosts || (hosts == 0 && head.version == Version::HTTP_11) {
        return Err(Problem::invalid("a request of HTTP/1.1 has the field Host exactly once"));
    }
    match foreign(app, &head.headers, &head.uri) {
        None => Ok(()),
        Some(detail) => Err(Problem::new(421, MISDIRECTED, detail)),
    }
}

/// Why a call that names its host in `headers` or `uri` is not for this server; nothing if it is.
pub(crate) fn foreign(app: &App, headers: &HeaderMap, uri: &Uri) -> Option<String> {
    let settings = app.limits();
    let is_bound =
        !settings.hosts.is_empty() || (settings.is_loopback && !app.access().is_guarded());
    if !is_bound {
        return None;
    }
    let fields = headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
    let target = uri.authority().map(|authority| authority.as_str().as_bytes());
    let is_own = |host: &[u8]| str::from_utf8(host).is_ok_and(|host| is_own(host, &settings.hosts));
    let host = fields.chain(target).find(|host| !is_own(host))?;
    Some(refuse(app, &String::from_utf8_lossy(host)))
}

/// What a caller is told of a foreign `host`, and the log: a proxy may let requests through when its call is refused.
#[cold]
fn refuse(app: &App, host: &str) -> String {
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

/// Whether `host`, with or without a port, is of the loopback interface or one of `hosts`.
fn is_own(host: &str, hosts: &[String]) -> bool {
    let name = name_of(host).trim_end_matches('.');
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.is_ok_and(|address| address.to_canonical().is_loopback())
        || name.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// `host` without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
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
