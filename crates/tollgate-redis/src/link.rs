//! The shared connection to the server, which reconnects automatically.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{Cmd, FromRedisValue, RedisError, RedisResult, ServerErrorKind, TlsCertificates};
use tollgate::clock::SystemClock;
use tollgate::internal::timeout;
use tollgate::{Error, ErrorKind, Span};

use crate::error;
use crate::node::{Node, Reason, is_other_server};
use crate::options::{Options, REPLICA_SHARE};
use crate::script::Script;

/// The most redirections and slot map refreshes per call of the cluster client.
const REDIRECTIONS_MAX: u32 = 8;

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
    Single(Arc<Node>),
    Cluster(ClusterConnection),
}

/// Whether a call without a reply may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Idempotent.
    Safe,
    /// It may charge twice.
    Unsafe,
}

impl Link {
    pub(crate) async fn connect(options: &Options) -> Result<Self, Error> {
        let is_tls = options.sentinel.as_ref().is_some_and(|sentinel| sentinel.tls);
        if is_tls || options.urls.iter().any(|url| url.starts_with("rediss://")) {
            // Keeps a provider that the program has installed.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let servers = options.shown();
        error::check_authority(options.authority.as_deref())?;
        let connect = async {
            if options.cluster {
                cluster(options).await.map_err(|error| error::describe(error, "connect", &servers))
            } else {
                Ok(Connection::Single(Arc::new(Node::connect(options).await?)))
            }
        };
        let connection = timeout(&SystemClock, options.connect_timeout(), connect).await;
        let connection = connection
            .unwrap_or_else(|| Err(error::no_connection(&servers, options.connect_timeout())))?;
        let (timeout, wait_replicas) = (options.attempt_timeout, options.wait_replicas);
        let attempts_max = options.attempts_max;
        Ok(Self { connection, servers, timeout, attempts_max, wait_replicas })
    }

    /// Runs `script` on `keys` of one slot, and returns its reply.
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
            match timeout(&SystemClock, self.timeout, self.attempt(script, keys, args)).await {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(error))
                    if attempts < self.attempts_max
                        && repeat == Repeat::Safe
                        && error.is_connection_dropped() => {}
                other => return self.reply(other, script.verb),
            }
        }
    }

    async fn attempt(
        &self,
        script: &Script,
        keys: &[&str],
        args: &[&[u8]],
    ) -> RedisResult<Vec<u8>> {
        match self.query(command("EVALSHA", &script.sha, keys, args)).await {
            // After a restart, a failover or SCRIPT FLUSH. The script did not run, so EVAL is not a repeat.
            Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.query(command("EVAL", &script.source, keys, args)).await
            }
            other => other,
        }
    }

    /// Sends `command`, and sends it to the new primary if a demoted server refused it.
    async fn query<T: FromRedisValue>(&self, command: Cmd) -> RedisResult<T> {
        let node = match &self.connection {
            Connection::Single(node) => node,
            Connection::Cluster(connection) => {
                return command.query_async(&mut connection.clone()).await;
            }
        };
        let (mut connection, generation) = node.connection().await;
        match command.query_async(&mut connection).await {
            Err(error) if is_other_server(&error) => {
                if !node.renew(generation, Reason::Refused).await {
                    return Err(error);
                }
                let (mut connection, _) = node.connection().await;
                command.query_async(&mut connection).await
            }
            Err(error) => {
                if error.is_io_error() {
                    node.suspect();
                } else if error::is_refused(&error) {
                    node.forget_login(generation);
                }
                Err(error)
            }
            reply => reply,
        }
    }

    /// Connects to the primary if the server is not one. A cluster knows its primaries.
    pub(crate) async fn check_primary(&self) -> Result<(), Error> {
        let Connection::Single(node) = &self.connection else { return Ok(()) };
        let check = async {
            let (connection, generation) = node.connection().await;
            match node.check_role(connection).await {
                Err(error) if is_other_server(&error) => {
                    if node.renew(generation, Reason::Refused).await { Ok(()) } else { Err(error) }
                }
                reply => reply,
            }
        };
        self.reply(timeout(&SystemClock, self.timeout, check).await, "read the role")
    }

    /// Maps the result of a call with the attempt's timeout.
    fn reply<T>(&self, reply: Option<RedisResult<T>>, doing: &str) -> Result<T, Error> {
        let error = match reply {
            Some(Ok(reply)) => return Ok(reply),
            Some(Err(error)) => match &self.connection {
                Connection::Single(node) => node.describe(error, doing),
                Connection::Cluster(_) => error::describe(error, doing, &self.servers),
            },
            None => {
                if let Connection::Single(node) = &self.connection {
                    node.suspect();
                }
                error::too_slow(doing, &self.servers, self.timeout)
            }
        };
        match &self.connection {
            // A lost primary is the effect, and the reason why no other one is found is the cause.
            Connection::Single(node)
                if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::TimedOut) =>
            {
                Err(node.misconfigured().unwrap_or(error))
            }
            _ => Err(error),
        }
    }

    /// Waits until enough replicas have the last write to `key` on this connection.
    pub(crate) async fn replicated(&self, key: &str) -> Result<(), Error> {
        self.wait_for_replicas(key, false).await
    }

    /// As [`replicated`](Self::replicated), for a write of an earlier call, perhaps on another connection.
    pub(crate) async fn replicated_before(&self, key: &str) -> Result<(), Error> {
        self.wait_for_replicas(key, true).await
    }

    async fn wait_for_replicas(&self, key: &str, before: bool) -> Result<(), Error> {
        if self.wait_replicas == 0 {
            return Ok(());
        }
        // The server replies before the timeout.
        let patience = Span::from_micros(self.timeout.as_micros() / REPLICA_SHARE);
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.wait_replicas).arg(patience.as_millis_ceil());
        // Newer servers only wait for the last write of the connection, so one is made after the earlier call's.
        let mut touch = redis::cmd("SET");
        touch.arg(format!("{key}wait")).arg(1).arg("PX").arg(self.timeout.as_millis_ceil());
        let wait = self.wait(wait, before.then_some(touch), key);
        let reached = timeout(&SystemClock, self.timeout, wait).await;
        let reached = self.reply(reached, "wait for replicas")?;
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

    async fn wait(&self, wait: Cmd, touch: Option<Cmd>, key: &str) -> RedisResult<i64> {
        match self.connection.clone() {
            Connection::Single(node) => {
                let mut pipeline = redis::pipe();
                if let Some(touch) = touch {
                    pipeline.add_command(touch).ignore();
                }
                pipeline.add_command(wait);
                let (reached,) = pipeline.query_async(&mut node.connection().await.0).await?;
                Ok(reached)
            }
            Connection::Cluster(mut connection) => {
                if let Some(touch) = touch {
                    touch.query_async::<()>(&mut connection).await?;
                }
                // To the node of the key.
                let route = Route::new(slot(key), SlotAddr::Master);
                let routing = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route));
                let reply = connection.route_command(wait, routing).await?;
                redis::from_redis_value(reply).map_err(RedisError::from)
            }
        }
    }

    /// Runs `command` on the node of `slot`.
    pub(crate) async fn at_slot<T: FromRedisValue>(
        &self,
        command: Cmd,
        slot: u16,
        doing: &str,
    ) -> Result<T, Error> {
        let reply = async {
            match self.connection.clone() {
                Connection::Single(_) => self.query(command).await,
                Connection::Cluster(mut connection) => {
                    let route = Route::new(slot, SlotAddr::Master);
                    let routing =
                        RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route));
                    let reply = connection.route_command(command, routing).await?;
                    redis::from_redis_value(reply).map_err(RedisError::from)
                }
            }
        };
        self.reply(timeout(&SystemClock, self.timeout, reply).await, doing)
    }

    /// Returns one slot of each node.
    pub(crate) async fn slot_of_each_node(&self) -> Result<Vec<u16>, Error> {
        let Connection::Cluster(_) = self.connection else { return Ok(vec![0]) };
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        // Ranges of slots, each with its first slot, its last slot and its nodes, the master first.
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

    /// Checks that the server replies.
    pub(crate) async fn ping(&self) -> Result<(), Error> {
        let ping = async {
            let command = redis::cmd("PING");
            match self.connection.clone() {
                Connection::Single(_) => self.query(command).await,
                Connection::Cluster(mut connection) => {
                    connection.req_packed_command(&command).await
                }
            }
        };
        let reply: Option<RedisResult<redis::Value>> =
            timeout(&SystemClock, self.timeout, ping).await;
        self.reply(reply, "ping").map(|_| ())
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

/// Returns the cluster slot of `key`: the CRC-16 (XMODEM) of the text in its first braces.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let crc = tag.filter(|tag| !tag.is_empty()).unwrap_or(key).bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    });
    crc % 16_384
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

pub(crate) fn certificates(options: &Options) -> Option<TlsCertificates> {
    let authority = options.authority.clone()?;
    Some(TlsCertificates { client_tls: None, root_cert: Some(authority) })
}

#[cfg(test)]
mod tests {
    use super::slot;

    /// As CLUSTER KEYSLOT replies.
    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("tg:{api/alice}"), slot("api/alice"));
        assert_eq!(slot("tg:{}x"), slot("tg:{}x"));
    }
}
