//! Connections of the Redis protocol. A broker answers the requests of one connection one after the other, so each call has
//! a connection to itself, out of a bounded pool. One whose call ended early is not used again: its answer may still come.

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
use crate::call::Caller;
use crate::convert::odd;

/// The most connections of one client; further calls wait for one.
pub const LINKS_MAX: usize = 64;

const READ_BYTES: usize = 4 * 1_024;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

type Link = Box<dyn Stream>;

/// The connections to one broker.
pub(super) struct Links {
    caller: Caller,
    host: String,
    port: u16,
    idle: Mutex<Vec<Link>>,
    room: Semaphore,
}

impl Links {
    pub(super) fn new(caller: Caller) -> Result<Self, Error> {
        let host = caller.address.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = caller.address.port_u16().ok_or_else(|| {
            let text =
                format!("{} has no port; write it as in redis://127.0.0.1:6380", caller.address);
            Error::new(ErrorKind::Invalid, text)
        })?;
        Ok(Self { caller, host, port, idle: Mutex::default(), room: Semaphore::new(LINKS_MAX) })
    }

    pub(super) const fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The answer to the request that has these words.
    pub(super) async fn ask(&self, words: &[String]) -> Result<Reply, Error> {
        let call = async {
            let _place = self.room.acquire().await.map_err(|error| self.caller.lost(error))?;
            let mut link = match self.idle().await {
                Some(link) => link,
                None => self.open().await?,
            };
            let reply = self.exchange(&mut link, words).await?;
            self.caller.answered();
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(link);
            Ok(reply)
        };
        self.caller.within(call).await
    }

    /// A connection that is open and has nothing to say.
    async fn idle(&self) -> Option<Link> {
        loop {
            let mut link = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            let mut byte = [0];
            let is_quiet = poll_fn(|context| {
                let mut read = ReadBuf::new(&mut byte);
                let polled = Pin::new(&mut link).poll_read(context, &mut read);
                Poll::Ready(polled.is_pending())
            });
            if is_quiet.await {
                return Some(link);
            }
        }
    }

    async fn open(&self) -> Result<Link, Error> {
        let stream = TcpStream::connect((&*self.host, self.port)).await;
        let stream = stream.map_err(|error| self.caller.not_reached(error))?;
        stream.set_nodelay(true).map_err(|error| self.caller.not_reached(error))?;
        let mut link: Link = match &self.caller.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from(self.host.clone())
                    .map_err(|error| self.caller.not_reached(error))?;
                let connector = TlsConnector::from(tls.config());
                let stream = connector.connect(name, stream).await;
                Box::new(stream.map_err(|error| self.caller.not_reached(error))?)
            }
        };
        self.greet(&mut link).await?;
        Ok(link)
    }

    /// Agrees on RESP3, and says the key if the broker asks for one.
    async fn greet(&self, link: &mut Link) -> Result<(), Error> {
        let hello = ["HELLO", "3"].map(str::to_owned);
        let mut reply = self.exchange(link, &hello).await?;
        if let Reply::Failed { code, .. } = &reply
            && code == "NOAUTH"
        {
            let key = self.key().ok_or_else(|| self.caller.unauthenticated("this needs a key"))?;
            let words = ["HELLO", "3", "AUTH", "key", key].map(str::to_owned);
            reply = self.exchange(link, &words).await?;
        }
        match reply {
            Reply::Value(_) => Ok(()),
            Reply::Failed { code, text } => Err(self.failed(&code, &text)),
        }
    }

    fn key(&self) -> Option<&str> {
        let value = self.caller.authorization.as_ref()?.to_str().ok()?;
        value.strip_prefix("Bearer ")
    }

    /// What an error that the broker answered with means.
    pub(super) fn failed(&self, code: &str, text: &str) -> Error {
        match code {
            "NOAUTH" | "WRONGPASS" => self.caller.unauthenticated(text),
            "NOPERM" | "FORBIDDEN" => self.caller.forbidden(text),
            _ => {
                let kind = tollgate_server::wire::kind_of(&code.to_ascii_lowercase());
                Error::new(kind.unwrap_or(ErrorKind::Corrupt), text)
            }
        }
    }

    async fn exchange(&self, link: &mut Link, words: &[String]) -> Result<Reply, Error> {
        let lost = |error: io::Error| self.caller.lost(error);
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        link.write_all(request.as_bytes()).await.map_err(lost)?;
        link.flush().await.map_err(lost)?;
        let mut bytes = Vec::with_capacity(READ_BYTES);
        loop {
            if link.read_buf(&mut bytes).await.map_err(lost)? == 0 {
                return Err(lost(io::ErrorKind::UnexpectedEof.into()));
            }
            match reply::read(&bytes) {
                Ok(Some(reply)) => return Ok(reply),
                Ok(None) => {}
                Err(reply::Malformed(why)) => {
                    return Err(odd(&format!("the broker's answer does not parse: {why}")));
                }
            }
        }
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("caller", &self.caller).finish_non_exhaustive()
    }
}
