//! Another broker as the store: its client, and the key that permits are sealed with again.

use std::sync::Arc;

use tollgate::gate::BoxFuture;
use tollgate::overrides::{Document, OverrideStore};
use tollgate::{Clock, Error, ErrorKind, Span};
use tollgate_client::{Client, ClientOptions};
use tollgate_protocol::permit_token::{self, KEY_BYTES};

use super::remote::Remote;
use super::{certificates, random_bytes};
use crate::{BrokerConfig, Secret};

pub(super) fn open(
    config: &BrokerConfig,
    timeout: Span,
    clock: Arc<dyn Clock>,
    is_broker: bool,
) -> Result<Remote, Error> {
    let (client, api_key) = client(config, timeout, clock)?;
    let key = permit_key(api_key.as_deref(), is_broker)?;
    Ok(Remote { gate: Arc::new(client), key, overrides: Arc::new(Elsewhere), chore: None })
}

/// Returns a client of the broker, with calls of up to `timeout`, and its API key.
fn client(
    config: &BrokerConfig,
    timeout: Span,
    clock: Arc<dyn Clock>,
) -> Result<(Client, Option<String>), Error> {
    let BrokerConfig { url, grpc, resp, key, authority, identity } = config;
    let mut options = ClientOptions::new().deadline(timeout).clock(clock);
    if let Some(address) = grpc {
        options = options.grpc(address);
    }
    if let Some(address) = url {
        options = options.http(address);
    }
    if let Some(address) = resp {
        options = options.resp(address);
    }
    if let Some(path) = authority {
        options = options.authority(certificates(path)?);
    }
    if let Some([certificate, key]) = identity {
        options = options.identity(certificates(certificate)?, certificates(key)?);
    }
    let key = key.as_ref().map(Secret::read).transpose()?;
    if let Some(key) = &key {
        options = options.key(key.trim())?;
    }
    Ok((Client::new(&options)?, key))
}

/// Returns the key that permits are sealed with. It is derived from the API key, so that all clients with the same API key
/// accept each other's permits.
///
/// Without an API key there is no shared secret. A command has no permits of its own to protect, and the other broker
/// checks its own, so a constant is enough; a broker may have some, so its key is random and ends with the process.
fn permit_key(api_key: Option<&str>, is_broker: bool) -> Result<[u8; KEY_BYTES], Error> {
    match api_key {
        Some(secret) => Ok(permit_token::key_from(secret.trim())),
        None if is_broker => random_bytes(),
        None => Ok(permit_token::key_from("")),
    }
}

/// Overrides of a broker in front of another, which has the numbers in force: they have to be set there.
#[derive(Debug)]
struct Elsewhere;

impl OverrideStore for Elsewhere {
    fn read(&self, _: u64) -> BoxFuture<'_, Result<Option<Document>, Error>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn replace<'a>(&'a self, _: u64, _: &'a Document) -> BoxFuture<'a, Result<bool, Error>> {
        let text = "the store is another broker, whose overrides count; override there, with --server and its URL";
        Box::pin(std::future::ready(Err(Error::new(ErrorKind::Invalid, text))))
    }
}
