//! Maps errors of Redis to error kinds, with the next step.

use redis::{ErrorKind as Kind, RedisError, ServerErrorKind};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tollgate::{Error, ErrorKind, Span};

/// Describes `error`; `servers` are shown without credentials.
pub(crate) fn describe(error: RedisError, verb: &str, servers: &str) -> Error {
    let (kind, text) = kind_and_text(&error, verb, servers);
    Error::new(kind, text).caused_by(error)
}

/// Describes an error of the sentinel at `address`.
pub(crate) fn describe_sentinel(error: RedisError, address: &str) -> Error {
    let here = format!("redis: Sentinel at {address}");
    let text = if error.code() == Some("NOPERM") {
        format!(
            "{here}: the user lacks a permission. Allow it with: ACL SETUSER name +sentinel|get-master-addr-by-name"
        )
    } else if is_refused(&error) {
        format!(
            "{here}: the user name or the password is wrong. Check sentinel_user and sentinel_password, and ACL LIST on \
             the sentinel"
        )
    } else {
        return describe(error, "query Sentinel", address);
    };
    Error::new(ErrorKind::Misconfigured, text).caused_by(error)
}

/// Describes a reply of the sentinel at `address`, which does not monitor `master`.
pub(crate) fn unknown_master(master: &str, address: &str) -> Error {
    Error::new(
        ErrorKind::Misconfigured,
        format!(
            "redis: Sentinel at {address} knows no master {master:?}. Check master against SENTINEL MASTERS"
        ),
    )
}

/// Whether the server refused the credentials.
pub(crate) fn is_refused(error: &RedisError) -> bool {
    error.kind() == Kind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"))
}

/// Whether the certificate of the server is not trusted.
pub(crate) fn is_certificate(error: &RedisError) -> bool {
    error.to_string().contains("invalid peer certificate")
}

/// Describes a failed connection to the primary at `address`, which Sentinel named.
pub(crate) fn lost_primary(error: RedisError, verb: &str, address: &str, master: &str) -> Error {
    let here = format!("the primary {address} of {master:?}");
    let (kind, _) = kind_and_text(&error, verb, &here);
    let why = if error.is_connection_refusal() {
        "nothing listens there"
    } else {
        "the connection was lost, or it did not reply in time"
    };
    let text = format!(
        "redis: could not {verb} on {here}: {why}, and Sentinel has not elected another primary yet. If it does not, see \
         SENTINEL CKQUORUM {master} on a sentinel"
    );
    Error::new(kind, text).caused_by(error)
}

/// Describes a timeout of a call.
pub(crate) fn too_slow(verb: &str, servers: &str, timeout: Span) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!(
            "redis: {verb} on {servers} timed out after {timeout}. It may have been charged; retry \
             with the same id, and check the load of the server"
        ),
    )
}

/// Describes a timeout of a connection attempt.
pub(crate) fn no_connection(servers: &str, timeout: Span) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "redis: could not connect on {servers}: no reply within {timeout}. Check the address and the firewall, and \
             that the port speaks TLS if and only if the url begins with rediss://"
        ),
    )
}

/// Checks that `pem` holds certificates, since the client skips unreadable ones.
pub(crate) fn check_authority(pem: Option<&[u8]>) -> Result<(), Error> {
    let Some(pem) = pem else { return Ok(()) };
    let mut certificates = CertificateDer::pem_slice_iter(pem).peekable();
    if certificates.peek().is_some() && certificates.all(|certificate| certificate.is_ok()) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        "the certificate authority for Redis cannot be used: it holds no readable certificate; give it as PEM",
    ))
}

fn kind_and_text(error: &RedisError, verb: &str, servers: &str) -> (ErrorKind, String) {
    let here = format!("redis: could not {verb} on {servers}");
    match error.kind() {
        Kind::AuthenticationFailed => (ErrorKind::Misconfigured, wrong_password(&here)),
        Kind::Server(ServerErrorKind::NoPerm) => (ErrorKind::Misconfigured, no_permission(&here)),
        // A forbidden command inside a script is an error of the script.
        Kind::Server(ServerErrorKind::ResponseError)
            if error.detail().is_some_and(|detail| {
                detail.contains("ACL failure") || detail.contains("user executing the script can't")
            }) =>
        {
            (ErrorKind::Misconfigured, no_permission(&here))
        }
        Kind::Server(ServerErrorKind::ReadOnly) => (
            ErrorKind::Unavailable,
            format!(
                "{here}: it is a replica and takes no writes. Point the url at the primary, or name the sentinels"
            ),
        ),
        Kind::Server(ServerErrorKind::BusyLoading) => {
            (ErrorKind::Unavailable, format!("{here}: it is loading its data; retry later"))
        }
        Kind::Server(ServerErrorKind::MasterDown) => (
            ErrorKind::Unavailable,
            format!(
                "{here}: it is a replica that lost its primary (replica-serve-stale-data no). Start the primary, or point \
                 the url at the new one"
            ),
        ),
        Kind::Server(ServerErrorKind::ClusterDown) => (
            ErrorKind::Unavailable,
            format!("{here}: the cluster does not serve this slot. See CLUSTER INFO on a node"),
        ),
        Kind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask) => (
            ErrorKind::Misconfigured,
            format!(
                "{here}: it belongs to a cluster and sends us elsewhere. Set cluster = true, or Options::cluster; if that is \
                 set, the user may lack the permission +asking"
            ),
        ),
        Kind::InvalidClientConfig => (
            ErrorKind::Invalid,
            format!(
                "{here}: the url or the TLS settings do not work. Use redis://[user:password@]host:port/database, or rediss:// for TLS"
            ),
        ),
        Kind::Io if is_certificate(error) => (
            ErrorKind::Misconfigured,
            format!(
                "{here}: its certificate is not by an authority that is trusted here, or not for this host. Give the \
                 authority's certificates as PEM: Options::authority, or authority_file in [store]"
            ),
        ),
        Kind::Io if error.is_timeout() => (
            // Connecting concerns no subject.
            if verb == "connect" { ErrorKind::Unavailable } else { ErrorKind::TimedOut },
            format!(
                "{here}: it did not reply in time. Check the load of the server, and firewalls"
            ),
        ),
        Kind::Io if error.is_connection_refusal() => (
            ErrorKind::Unavailable,
            format!("{here}: nothing listens there. Start Redis, or correct the url"),
        ),
        Kind::Io => (
            ErrorKind::Unavailable,
            format!(
                "{here}: the connection was lost or refused. It is re-established automatically"
            ),
        ),
        _ => by_code(error, here),
    }
}

fn by_code(error: &RedisError, here: String) -> (ErrorKind, String) {
    match error.code() {
        Some("WRONGPASS" | "NOAUTH") => (ErrorKind::Misconfigured, wrong_password(&here)),
        Some("OOM") => (
            ErrorKind::Full,
            format!(
                "{here}: it is out of memory. Raise maxmemory; keys of tollgate expire on their own"
            ),
        ),
        Some("MISCONF") => (
            ErrorKind::Unavailable,
            format!("{here}: it cannot write to its disk and refuses writes. See its log"),
        ),
        Some("NOREPLICAS") => (
            ErrorKind::Unavailable,
            format!("{here}: too few replicas are connected (min-replicas-to-write)"),
        ),
        // Concerns this key alone.
        Some("WRONGTYPE") => (
            ErrorKind::Corrupt,
            format!("{here}: the key belongs to another program. Set another prefix"),
        ),
        _ => (ErrorKind::Unavailable, here),
    }
}

fn wrong_password(here: &str) -> String {
    format!(
        "{here}: the user name or the password is wrong. Check both, and ACL LIST on the server"
    )
}

fn no_permission(here: &str) -> String {
    format!(
        "{here}: the user lacks a permission. Allow it with: ACL SETUSER name ~tg:* +evalsha +eval +time +get +set +hget \
         +hmget +hset +hdel +del +pexpireat +ping +role +wait +scan +info +config|get, and on a cluster +hlen +hscan +cluster|slots +asking"
    )
}
