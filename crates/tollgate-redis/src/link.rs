//! The way to the server: one connection that many callers share, and that comes back by itself.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{
    Client, Cmd, FromRedisValue, IntoConnectionInfo, ProtocolVersion, RedisError, RedisResult,
    ServerErrorKind, TlsCertificates,
};
use tollgate::{Error, ErrorKind, Span, SystemClock, within};

use crate::fault;
use crate::options::{Options, REPLICA_SHARE};
use crate::script::Script;

/// How often the manager tries again to connect before it says that it could not; the next call tries again anyway.
const CONNECT_RETRIES_MAX: usize = 0;
/// How often the client of a cluster follows a redirection or asks for the new map of slots.
const REDIRECTIONS_MAX: u32 = 8;
/// How many calls may wait to be written to one connection.
const CALLS_QUEUED_MAX: usize = 1_024;

/// A connection to a server or a cluster.
pub(crate) struct Link {
    connection: Connection,
    servers: String,
    timeout: Span,
    attempts_max: usize,
    wait_replicas: u32,
}

#[derive(Clone)]
enum Connection {
    Single(Single),
    Cluster(ClusterConnection),
}

/// A manager comes back by itself unless the server refused it while it connected; then another one takes its place.
#[derive(Clone)]
struct Single(Arc<Remade>);

struct Remade {
    client: Client,
    config: ConnectionManagerConfig,
    manager: Mutex<ConnectionManager>,
}

impl Single {
    fn manager(&self) -> ConnectionManager {
        self.0.manager.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs `command`; what the server refuses for good is asked on another connection next time.
    async fn run<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let answer = command.query_async(&mut self.manager()).await;
        if let Err(error) = &answer
            && fault::is_refused(error)
            && let Ok(manager) = ConnectionManager::new_lazy_with_config(
                self.0.client.clone(),
                self.0.config.clone(),
            )
        {
            *self.0.manager.lock().unwrap_or_else(PoisonError::into_inner) = manager;
        }
        answer
    }
}

/// Whether a call that may have been carried out can be sent again without harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The second time changes nothing.
    Safe,
    /// It might be charged twice.
    Unsafe,
}

impl Link {
    pub(crate) async fn connect(options: &Options) -> Result<Self, Error> {
        if options.urls.iter().any(|url| url.starts_with("rediss://")) {
            // A program that has chosen its own cryptography keeps it.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let servers = options.shown();
        fault::check_authority(options.authority.as_deref())?;
        let connect =
            async { if options.cluster { cluster(options).await } else { single(options).await } };
        let connection = within(&SystemClock, options.connect_timeout(), connect).await;
        let connection = match connection {
            Some(Ok(connection)) => connection,
            Some(Err(error)) => return Err(fault::fault(error, "connect", &servers)),
            None => return Err(fault::no_connection(&servers, options.connect_timeout())),
        };
        let (timeout, wait_replicas) = (options.attempt_timeout, options.wait_replicas);
        let attempts_max = options.attempts_max;
        Ok(Self { connection, servers, timeout, attempts_max, wait_replicas })
    }

    /// Runs `script` on `keys`, all of one slot, and returns what it answered.
    pub(crate) async fn run(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
        repeat: Repeat,
    ) -> Result<Vec<u8>, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match within(&SystemClock, self.timeout, self.attempt(script, keys, args)).await {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(error))
                    if attempts < self.attempts_max
                        && repeat == Repeat::Safe
                        && error.is_connection_dropped() => {}
                Some(Err(error)) => return Err(fault::fault(error, script.verb, &self.servers)),
                None => return Err(fault::too_slow(script.verb, &self.servers, self.timeout)),
            }
        }
    }

    async fn attempt(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> RedisResult<Vec<u8>> {
        let known = self.send(command("EVALSHA", &script.sha, keys, args)).await;
        match known {
            // After a start, a failover or SCRIPT FLUSH. It was not run, so sending it whole is no repeat.
            Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.send(command("EVAL", &script.source, keys, args)).await
            }
            other => other,
        }
    }

    async fn send(&self, command: Cmd) -> RedisResult<Vec<u8>> {
        match self.connection.clone() {
            Connection::Single(connection) => connection.run(&command).await,
            Connection::Cluster(mut connection) => command.query_async(&mut connection).await,
        }
    }

    /// Waits until as many replicas as wanted have what was written to `key` on this connection.
    pub(crate) async fn replicated(&self, key: &str) -> Result<(), Error> {
        if self.wait_replicas == 0 {
            return Ok(());
        }
        // The server answers before we give up on it.
        let patience = Span::from_micros(self.timeout.as_micros() / REPLICA_SHARE);
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.wait_replicas).arg(patience.as_millis_ceil());
        let reached = match within(&SystemClock, self.timeout, self.wait(wait, key)).await {
            Some(Ok(reached)) => reached,
            Some(Err(error)) => {
                return Err(fault::fault(error, "wait for replicas", &self.servers));
            }
            None => return Err(fault::too_slow("wait for replicas", &self.servers, self.timeout)),
        };
        if reached < i64::from(self.wait_replicas) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "redis: the change was made, but {reached} of {} replicas have it after {patience}. Look at the \
                     replicas with INFO replication, or lower wait_replicas",
                    self.wait_replicas
                ),
            ));
        }
        Ok(())
    }

    async fn wait(&self, wait: Cmd, key: &str) -> RedisResult<i64> {
        match self.connection.clone() {
            Connection::Single(connection) => connection.run(&wait).await,
            Connection::Cluster(mut connection) => {
                // To the node that has the key.
                let route = Route::new(slot(key), SlotAddr::Master);
                let routing = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route));
                let answer = connection.route_command(wait, routing).await?;
                redis::from_redis_value(answer).map_err(RedisError::from)
            }
        }
    }

    /// Runs `command` on the node that has `slot`; any node where there is only one.
    pub(crate) async fn at_slot<T: FromRedisValue>(
        &self,
        command: Cmd,
        slot: u16,
        doing: &str,
    ) -> Result<T, Error> {
        let answer = async {
            match self.connection.clone() {
                Connection::Single(connection) => connection.run(&command).await,
                Connection::Cluster(mut connection) => {
                    let route = Route::new(slot, SlotAddr::Master);
                    let routing =
                        RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route));
                    let answer = connection.route_command(command, routing).await?;
                    redis::from_redis_value(answer).map_err(RedisError::from)
                }
            }
        };
        match within(&SystemClock, self.timeout, answer).await {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(fault::fault(error, doing, &self.servers)),
            None => Err(fault::too_slow(doing, &self.servers, self.timeout)),
        }
    }

    /// One slot of each node; any slot where there is only one node.
    pub(crate) async fn slot_of_each_node(&self) -> Result<Vec<u16>, Error> {
        let Connection::Cluster(_) = self.connection else { return Ok(vec![0]) };
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        // Ranges of slots, each with its first and last slot and its nodes, the master first.
        let ranges: Vec<(u16, u16, redis::Value)> = self
            .at_slot::<Vec<Vec<redis::Value>>>(command, 0, "list the nodes")
            .await?
            .into_iter()
            .filter_map(|range| {
                let [first, last, master, ..] =
                    <[redis::Value; 3]>::try_from(range.into_iter().take(3).collect::<Vec<_>>())
                        .ok()?;
                let slot = |value| redis::from_redis_value(value).ok();
                Some((slot(first)?, slot(last)?, master))
            })
            .collect();
        let mut masters: Vec<redis::Value> = Vec::new();
        let mut slots = Vec::new();
        for (first, _, master) in ranges {
            if !masters.contains(&master) {
                masters.push(master);
                slots.push(first);
            }
        }
        Ok(slots)
    }

    /// Whether the server answers.
    pub(crate) async fn ping(&self) -> Result<(), Error> {
        let ping = async {
            let command = redis::cmd("PING");
            match self.connection.clone() {
                Connection::Single(connection) => connection.run(&command).await,
                Connection::Cluster(mut connection) => {
                    connection.req_packed_command(&command).await
                }
            }
        };
        match within(&SystemClock, self.timeout, ping).await {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(fault::fault(error, "ping", &self.servers)),
            None => Err(fault::too_slow("ping", &self.servers, self.timeout)),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("servers", &self.servers).finish_non_exhaustive()
    }
}

fn command(name: &str, script: &str, keys: &[&str], args: &[&[u8]]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(keys.len()).arg(keys);
    args.iter().for_each(|arg| {
        command.arg(*arg);
    });
    command
}

/// The slot of a cluster that has `key`: the CRC-16 (XMODEM) of what stands in its first braces.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let crc = tag.filter(|tag| !tag.is_empty()).unwrap_or(key).bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    });
    crc % 16_384
}

async fn single(options: &Options) -> RedisResult<Connection> {
    let url = options.urls.first().map_or("", String::as_str);
    let info = url.into_connection_info()?;
    // With RESP3 the connection notices that it was lost before the next call does.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let info = info.set_redis_settings(settings);
    let client = match certificates(options) {
        Some(certificates) if url.starts_with("rediss://") => {
            Client::build_with_tls(info, certificates)?
        }
        _ => Client::open(info)?,
    };
    let timeout = Some(Duration::from(options.attempt_timeout));
    let config = ConnectionManagerConfig::new()
        .set_response_timeout(timeout)
        .set_connection_timeout(Some(Duration::from(options.connect_timeout())))
        .set_number_of_retries(CONNECT_RETRIES_MAX)
        .set_pipeline_buffer_size(CALLS_QUEUED_MAX);
    let manager = ConnectionManager::new_with_config(client.clone(), config.clone()).await?;
    Ok(Connection::Single(Single(Arc::new(Remade {
        client,
        config,
        manager: Mutex::new(manager),
    }))))
}

async fn cluster(options: &Options) -> RedisResult<Connection> {
    let timeout = Duration::from(options.attempt_timeout);
    let mut builder = ClusterClient::builder(options.urls.iter().map(String::as_str));
    if let Some(certificates) = certificates(options) {
        builder = builder.certs(certificates);
    }
    let client = builder
        .retries(REDIRECTIONS_MAX)
        .connection_timeout(Duration::from(options.connect_timeout()))
        .response_timeout(timeout)
        .overall_response_timeout(Some(timeout))
        .build()?;
    Ok(Connection::Cluster(client.get_async_connection().await?))
}

fn certificates(options: &Options) -> Option<TlsCertificates> {
    let authority = options.authority.clone()?;
    Some(TlsCertificates { client_tls: None, root_cert: Some(authority) })
}

#[cfg(test)]
mod tests {
    use super::slot;

    /// As CLUSTER KEYSLOT answers.
    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("tg:{api/alice}"), slot("api/alice"));
        assert_eq!(slot("tg:{}x"), slot("tg:{}x"));
    }
}
