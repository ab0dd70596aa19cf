//! Another broker as the store: the client it is asked with, and the key of the permits that are handed on for it.

use std::sync::Arc;

use tollgate::overrides::{Document, OverrideStore};
use tollgate::{
    Ask, BoxFuture, Clock, Costs, Decision, Error, ErrorKind, Gate, Permit, Policy, Span, Standing,
    Timestamp,
};
use tollgate_client::{Client, Settings};
use tollgate_server::token::{self, KEY_BYTES};

use crate::config::{BrokerConfig, Secret};
use crate::open;

/// The broker that `config` names, with calls of up to `timeout`; and its key.
pub(crate) fn client(
    config: &BrokerConfig,
    timeout: Span,
    clock: Arc<dyn Clock>,
) -> Result<(Client, Option<String>), Error> {
    let BrokerConfig { url, grpc, resp, key, authority, identity } = config;
    let mut settings = Settings::new().deadline(timeout).clock(clock);
    if let Some(address) = grpc {
        settings = settings.grpc(address);
    }
    if let Some(address) = url {
        settings = settings.http(address);
    }
    if let Some(address) = resp {
        settings = settings.resp(address);
    }
    if let Some(path) = authority {
        settings = settings.authority(open::certificates(path)?);
    }
    if let Some([certificate, key]) = identity {
        settings = settings.identity(open::certificates(certificate)?, open::certificates(key)?);
    }
    let key = key.as_ref().map(Secret::read).transpose()?;
    if let Some(key) = &key {
        settings = settings.key(key.trim())?;
    }
    Ok((Client::new(&settings)?, key))
}

/// The key of permits that are handed on. Everybody who asks the other broker with the same API key has the same one, so
/// that each of them takes back what another gave out.
///
/// Without an API key there is nothing that only they know. A command has no permits of its own to protect, and the other
/// broker checks its own, so any key will do; a broker may have some, so its key ends with it.
pub(crate) fn permit_key(api_key: Option<&str>, is_broker: bool) -> Result<[u8; KEY_BYTES], Error> {
    match api_key {
        Some(secret) => Ok(token::key_from(secret.trim())),
        None if is_broker => open::random_bytes(),
        None => Ok(token::key_from("")),
    }
}

/// The overrides of a broker that asks another: the other one's numbers count, so they are made there.
#[derive(Debug)]
pub(crate) struct Elsewhere;

impl OverrideStore for Elsewhere {
    fn read(&self, _: u64) -> BoxFuture<'_, Result<Option<Document>, Error>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn replace<'a>(&'a self, _: u64, _: &'a Document) -> BoxFuture<'a, Result<bool, Error>> {
        let text = "the store is another broker, whose overrides count; override there, with --server and its URL";
        Box::pin(std::future::ready(Err(Error::new(ErrorKind::Invalid, text))))
    }
}

/// A gate on a store that is asked with a key of this broker. What that key does not allow is for the operator to change, and
/// not the fault of the caller. It stays outside of a fallback: one caller who asks for what the key does not allow must not
/// cut the others off.
#[derive(Debug)]
pub(crate) struct OwnKey<G>(pub(crate) G);

/// Turns the refusal of our key into trouble of the operator.
fn of_operator(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Forbidden => {
            Error::new(ErrorKind::Misconfigured, error.to_string()).caused_by(error)
        }
        _ => error,
    }
}

impl<G: Gate> Gate for OwnKey<G> {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(async move { self.0.acquire(ask).await.map_err(of_operator) })
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move { self.0.settle(permit, actual).await.map_err(of_operator) })
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move { self.0.release(permit).await.map_err(of_operator) })
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move { self.0.renew(permit).await.map_err(of_operator) })
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move { self.0.charge(ask).await.map_err(of_operator) })
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move { self.0.close_until(ask, limit, until).await.map_err(of_operator) })
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        Box::pin(async move { self.0.standing(policy, subject).await.map_err(of_operator) })
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move { self.0.reset(policy, subject).await.map_err(of_operator) })
    }
}
