//! The connection to the primary, by address or by Sentinel, also after a failover.
//!
//! A connection to a demoted server stays open and refuses writes. On such a reply the connection is dropped, the address is
//! resolved or Sentinel is queried again, and the role of the new server is checked.
#![allow(
    clippy::disallowed_types,
    reason = "held across await, so that one call makes the connection"
)]

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{
    Client, ConnectionAddr, ConnectionInfo, ErrorKind as Kind, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind, Value,
};
use tokio::sync::Mutex;
use tollgate::clock::SystemClock;
use tollgate::{Clock, Error, ErrorKind, Span, Timestamp};

use crate::error;
use crate::link::certificates;
use crate::options::{Login, Options, RENEW_PAUSE};

/// Retries of the manager; the next call reconnects anyway.
const CONNECT_RETRIES_MAX: usize = 0;
/// The most queued calls per connection.
const CALLS_QUEUED_MAX: usize = 1_024;

/// A connection to the primary, which is replaced after a failover.
pub(crate) struct Node {
    options: Options,
    current: RwLock<Arc<Current>>,
    /// The end of the last reconnection; locked during one.
    renewing: Mutex<Timestamp>,
    /// Whether the primary may have changed.
    suspect: AtomicBool,
    /// Whether ROLE is forbidden for the user.
    role_is_hidden: AtomicBool,
    /// The sentinel that replied last.
    sentinel: AtomicUsize,
    /// Why the last search for the primary failed, if only the operator can change that.
    misconfigured: RwLock<Option<Error>>,
}

struct Current {
    generation: u64,
    info: ConnectionInfo,
    manager: ConnectionManager,
}

impl Node {
    pub(crate) async fn connect(options: &Options) -> Result<Self, Error> {
        let sentinel = AtomicUsize::new(0);
        let info = locate(options, &sentinel, options.connect_timeout()).await?;
        let manager = open(options, info.clone()).await;
        let manager =
            manager.map_err(|error| error::describe(error, "connect", &options.shown()))?;
        Ok(Self {
            options: options.clone(),
            current: RwLock::new(Arc::new(Current { generation: 0, info, manager })),
            renewing: Mutex::new(Timestamp::EPOCH),
            suspect: AtomicBool::new(false),
            role_is_hidden: AtomicBool::new(false),
            sentinel,
            misconfigured: RwLock::new(None),
        })
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the connection and its generation. With Sentinel, looks up a primary that did not reply before.
    pub(crate) async fn connection(&self) -> (ConnectionManager, u64) {
        if self.suspect.load(Ordering::Relaxed) {
            self.renew(self.current().generation, Reason::Silent).await;
        }
        let current = self.current();
        (current.manager.clone(), current.generation)
    }

    /// Records that the primary did not reply. With Sentinel, the next call looks up the primary.
    pub(crate) fn suspect(&self) {
        self.suspect.store(self.options.sentinel.is_some(), Ordering::Relaxed);
    }

    /// Replaces the connection of `generation`, unless another call did. Returns whether it was replaced.
    pub(crate) async fn renew(&self, generation: u64, reason: Reason) -> bool {
        let mut tried_at = self.renewing.lock().await;
        let current = self.current();
        if current.generation != generation {
            return true;
        }
        // The calls that waited meanwhile would fail alike, and a server that is loading does so for a while.
        if SystemClock.now().since(*tried_at) < RENEW_PAUSE {
            return false;
        }
        let renewed = self.find(&current, reason).await;
        *tried_at = SystemClock.now();
        match renewed {
            Ok(found) => {
                self.suspect.store(false, Ordering::Relaxed);
                self.set_misconfigured(None);
                let Some((info, manager)) = found else { return false };
                tracing::warn!(
                    server = %info.addr(),
                    "redis: the server is no longer the primary; reconnected to the primary"
                );
                self.replace(Current { generation: generation + 1, info, manager });
                true
            }
            Err(error) => {
                tracing::debug!(%error, "redis: no primary was found");
                let is_misconfigured = error.kind() == ErrorKind::Misconfigured;
                self.set_misconfigured(is_misconfigured.then_some(error));
                // The next call searches again, so that the reason stays current.
                self.suspect();
                false
            }
        }
    }

    /// Describes `error` of a call on the current connection.
    pub(crate) fn describe(&self, error: RedisError, verb: &str) -> Error {
        match &self.options.sentinel {
            Some(sentinel) if error.is_io_error() && !error::is_certificate(&error) => {
                let address = self.current().info.addr().to_string();
                error::lost_primary(error, verb, &address, &sentinel.master)
            }
            _ => error::describe(error, verb, &self.options.shown()),
        }
    }

    /// Returns why no primary is found, if Sentinel or the servers behind it refuse this program.
    pub(crate) fn misconfigured(&self) -> Option<Error> {
        self.misconfigured.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_misconfigured(&self, error: Option<Error>) {
        // The address of a single server is searched after a refusal only, so its reason may be out of date.
        if self.options.sentinel.is_some() {
            *self.misconfigured.write().unwrap_or_else(PoisonError::into_inner) = error;
        }
    }

    fn replace(&self, next: Current) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    }

    /// Replaces the manager of `generation` after a refused login, so that the next call logs in again.
    pub(crate) fn forget_login(&self, generation: u64) {
        let current = self.current();
        if current.generation == generation
            && let Ok(manager) = open_lazily(&self.options, current.info.clone())
        {
            let info = current.info.clone();
            self.replace(Current { generation: generation + 1, info, manager });
        }
    }

    /// Connects to the primary; `None` if the current connection already leads to it.
    async fn find(
        &self,
        current: &Current,
        reason: Reason,
    ) -> Result<Option<(ConnectionInfo, ConnectionManager)>, Error> {
        let info = locate(&self.options, &self.sentinel, self.options.attempt_timeout).await?;
        if reason == Reason::Silent && info.addr() == current.info.addr() {
            return Ok(None);
        }
        let servers = self.options.shown();
        let manager = open(&self.options, info.clone()).await;
        let manager = manager.map_err(|error| error::describe(error, "connect", &servers))?;
        self.check_serves(manager.clone())
            .await
            .map_err(|error| error::describe(error, "connect", &servers))?;
        Ok(Some((info, manager)))
    }

    /// Fails unless the server is a primary that serves clients. A server that is loading its data replies to ROLE.
    async fn check_serves(&self, mut connection: ConnectionManager) -> RedisResult<()> {
        self.check_role(connection.clone()).await?;
        redis::cmd("PING").query_async(&mut connection).await
    }

    /// Fails unless the server is a primary, or ROLE is forbidden for the user.
    pub(crate) async fn check_role(&self, mut connection: ConnectionManager) -> RedisResult<()> {
        if self.role_is_hidden.load(Ordering::Relaxed) {
            return Ok(());
        }
        let role: Vec<Value> = match redis::cmd("ROLE").query_async(&mut connection).await {
            Ok(role) => role,
            Err(error) if error.code() != Some("NOPERM") => return Err(error),
            Err(_) => {
                self.role_is_hidden.store(true, Ordering::Relaxed);
                return Ok(());
            }
        };
        let role = role.into_iter().next().and_then(|role| redis::from_redis_value(role).ok());
        match role {
            Some(role) if role != "master" => {
                let text: String = role;
                Err(RedisError::from((
                    Kind::Server(ServerErrorKind::ReadOnly),
                    "the server is not a primary",
                    text,
                )))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Why a connection is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The server is not a writable primary.
    Refused,
    /// The server did not reply.
    Silent,
}

/// Whether the command was not executed because the server is not a writable primary.
pub(crate) fn is_other_server(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        Kind::Server(
            ServerErrorKind::ReadOnly | ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown
        )
    )
}

async fn open(options: &Options, info: ConnectionInfo) -> RedisResult<ConnectionManager> {
    ConnectionManager::new_with_config(client_of(options, info)?, config(options)).await
}

/// As [`open`], but connects on the first call.
fn open_lazily(options: &Options, info: ConnectionInfo) -> RedisResult<ConnectionManager> {
    ConnectionManager::new_lazy_with_config(client_of(options, info)?, config(options))
}

fn config(options: &Options) -> ConnectionManagerConfig {
    ConnectionManagerConfig::new()
        .set_response_timeout(Some(Duration::from(options.attempt_timeout)))
        .set_connection_timeout(Some(Duration::from(options.connect_timeout())))
        .set_number_of_retries(CONNECT_RETRIES_MAX)
        .set_pipeline_buffer_size(CALLS_QUEUED_MAX)
}

fn client_of(options: &Options, info: ConnectionInfo) -> RedisResult<Client> {
    let is_tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
    client(options, info, is_tls)
}

fn client(options: &Options, info: ConnectionInfo, is_tls: bool) -> RedisResult<Client> {
    match certificates(options) {
        Some(certificates) if is_tls => Client::build_with_tls(info, certificates),
        _ => Client::open(info),
    }
}

/// Locates the primary by URL or by Sentinel.
async fn locate(
    options: &Options,
    last: &AtomicUsize,
    timeout: Span,
) -> Result<ConnectionInfo, Error> {
    let invalid = |error| error::describe(error, "connect", &options.shown());
    let Some(sentinel) = &options.sentinel else {
        let url = options.urls.first().map_or("", String::as_str);
        let info = url.into_connection_info().map_err(invalid)?;
        // With RESP3 the connection notices that it was lost before the next call does.
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        return Ok(info.set_redis_settings(settings));
    };
    let count = options.urls.len().max(1);
    // Leaves time for the other sentinels if one does not reply.
    let share = Span::from_micros(timeout.as_micros() / (count as u64 + 1));
    let first = last.load(Ordering::Relaxed);
    let (master, servers) = (&sentinel.master, options.shown());
    let (mut refused, mut why) = (None, String::new());
    for place in (0..count).map(|step| (first + step) % count) {
        let Some(address) = options.urls.get(place) else { continue };
        let asked = tollgate::internal::timeout(&SystemClock, share, ask(options, address)).await;
        match asked {
            Some(Ok(Some((host, port)))) => {
                last.store(place, Ordering::Relaxed);
                let settings = sentinel.servers.settings().set_protocol(ProtocolVersion::RESP3);
                let settings = settings.set_db(sentinel.database);
                let info =
                    addr(host, port, sentinel.tls).into_connection_info().map_err(invalid)?;
                return Ok(info.set_redis_settings(settings));
            }
            Some(Ok(None)) => refused = Some(error::unknown_master(master, address)),
            Some(Err(error)) => {
                why = format!(" ({address}: {error})");
                let error = error::describe_sentinel(error, address);
                if error.kind() == ErrorKind::Misconfigured {
                    refused = Some(error);
                }
            }
            None => why = format!(" ({address}: no reply within {share})"),
        }
    }
    Err(refused.unwrap_or_else(|| {
        Error::new(
            ErrorKind::Unavailable,
            format!(
                "redis: no sentinel of {servers} answered{why}. Check their addresses, and that they run"
            ),
        )
    }))
}

/// Queries the sentinel at `address` for the primary.
async fn ask(options: &Options, address: &str) -> RedisResult<Option<(String, u16)>> {
    let Some(sentinel) = &options.sentinel else { return Ok(None) };
    let (host, port) = split(address).ok_or_else(|| {
        RedisError::from((Kind::InvalidClientConfig, "not an address", address.to_owned()))
    })?;
    let info = addr(host, port, sentinel.tls).into_connection_info()?;
    let info = info.set_redis_settings(sentinel.sentinels.settings());
    let client = client(options, info, sentinel.tls)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("get-master-addr-by-name").arg(&sentinel.master);
    command.query_async(&mut connection).await
}

fn addr(host: String, port: u16, tls: bool) -> ConnectionAddr {
    if tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

/// Splits `host:port`, where an IPv6 address is in brackets.
pub(crate) fn split(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

impl Login {
    fn settings(&self) -> RedisConnectionInfo {
        let mut settings = RedisConnectionInfo::default();
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        settings
    }
}
