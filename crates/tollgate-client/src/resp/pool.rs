//! A bounded pool of connections of the Redis protocol. A broker processes the requests of one connection in order, so each
//! call has a connection to itself. A connection whose call was cancelled is dropped: its reply may still arrive.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;
use tollgate::{Error, ErrorKind};

use super::reply::{self, Reply};
use crate::convert::unexpected;
use crate::target::Target;

/// The most connections of one client; further calls wait for one.
pub const CONNECTIONS_MAX: usize = 64;

const READ_BYTES: usize = 4 * 1_024;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

type Connection = Box<dyn Stream>;

/// The connections to one broker.
pub(super) struct Pool {
    target: Target,
    host: String,
    port: u16,
    idle: Mutex<Vec<Connection>>,
    slots: Semaphore,
}

impl Pool {
    pub(super) fn new(target: Target) -> Result<Self, Error> {
        let host = target.address.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = target.address.port_u16().ok_or_else(|| {
            let text =
                format!("{} has no port; write it as in redis://127.0.0.1:6380", target.address);
            Error::new(ErrorKind::Invalid, text)
        })?;
        Ok(Self {
            target,
            host,
            port,
            idle: Mutex::default(),
            slots: Semaphore::new(CONNECTIONS_MAX),
        })
    }

    pub(super) const fn target(&self) -> &Target {
        &self.target
    }

    /// Sends a request and returns its reply.
    pub(super) async fn send(&self, args: &[String]) -> Result<Reply, Error> {
        let call = async {
            let _slot = self.slots.acquire().await.map_err(|error| self.target.lost(error))?;
            let mut connection = match self.idle().await {
                Some(connection) => connection,
                None => self.open().await?,
            };
            let reply = self.exchange(&mut connection, args).await?;
            self.target.note_response();
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            Ok(reply)
        };
        self.target.with_deadline(call).await
    }

    /// Returns an idle connection that is still open.
    async fn idle(&self) -> Option<Connection> {
        loop {
            let mut connection = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            let mut byte = [0];
            let is_quiet = poll_fn(|context| {
                let mut read = ReadBuf::new(&mut byte);
                let polled = Pin::new(&mut connection).poll_read(context, &mut read);
                Poll::Ready(polled.is_pending())
            });
            if is_quiet.await {
                return Some(connection);
            }
        }
    }

    async fn open(&self) -> Result<Connection, Error> {
        let stream = TcpStream::connect((&*self.host, self.port)).await;
        let stream = stream.map_err(|error| self.target.not_reached(error))?;
        stream.set_nodelay(true).map_err(|error| self.target.not_reached(error))?;
        let mut connection: Connection = match &self.target.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from(self.host.clone())
                    .map_err(|error| self.target.not_reached(error))?;
                let connector = TlsConnector::from(tls.config());
                let stream = connector.connect(name, stream).await;
                Box::new(stream.map_err(|error| self.target.not_reached(error))?)
            }
        };
        self.greet(&mut connection).await?;
        Ok(connection)
    }

    /// Selects RESP3, and authenticates if the broker requires a key.
    async fn greet(&self, connection: &mut Connection) -> Result<(), Error> {
        let hello = ["HELLO", "3"].map(str::to_owned);
        let mut reply = self.exchange(connection, &hello).await?;
        if let Reply::Failed { code, .. } = &reply
            && code == "NOAUTH"
        {
            let key = self.key().ok_or_else(|| self.target.unauthenticated("this needs a key"))?;
            let words = ["HELLO", "3", "AUTH", "key", key].map(str::to_owned);
            reply = self.exchange(connection, &words).await?;
        }
        match reply {
            Reply::Value(_) => Ok(()),
            Reply::Failed { code, text } => Err(self.failed(&code, &text)),
        }
    }

    fn key(&self) -> Option<&str> {
        let value = self.target.authorization.as_ref()?.to_str().ok()?;
        value.strip_prefix("Bearer ")
    }

    /// Converts an error reply.
    pub(super) fn failed(&self, code: &str, text: &str) -> Error {
        match code {
            "NOAUTH" | "WRONGPASS" => self.target.unauthenticated(text),
            "NOPERM" | "FORBIDDEN" => self.target.forbidden(text),
            _ => {
                let kind = tollgate_protocol::json::kind_of(&code.to_ascii_lowercase());
                Error::new(kind.unwrap_or(ErrorKind::Corrupt), text)
            }
        }
    }

    async fn exchange(&self, connection: &mut Connection, args: &[String]) -> Result<Reply, Error> {
        let lost = |error: io::Error| self.target.lost(error);
        let mut request = format!("*{}\r\n", args.len());
        for arg in args {
            request += &format!("${}\r\n{arg}\r\n", arg.len());
        }
        connection.write_all(request.as_bytes()).await.map_err(lost)?;
        connection.flush().await.map_err(lost)?;
        let mut bytes = Vec::with_capacity(READ_BYTES);
        loop {
            if connection.read_buf(&mut bytes).await.map_err(lost)? == 0 {
                return Err(lost(io::ErrorKind::UnexpectedEof.into()));
            }
            match reply::read(&bytes) {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => {}
                Err(reply::Malformed(why)) => {
                    return Err(unexpected(&format!("the broker's reply does not parse: {why}")));
                }
            }
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("target", &self.target).finish_non_exhaustive()
    }
}
