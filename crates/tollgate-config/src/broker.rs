//! `[store] kind = "broker"`: another broker keeps the state, and is called as any client calls it.

use std::path::PathBuf;

use crate::store::StoreTable;
use crate::{Diagnostic, Document, Secret, StoreConfig};

/// The keys of the table, apart from `kind`.
pub(super) const KEYS: &[&str] = &[
    "url",
    "grpc",
    "resp",
    "key",
    "key_env",
    "key_file",
    "authority_file",
    "certificate_file",
    "certificate_key_file",
    "attempt_timeout",
];

/// Another broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerConfig {
    /// The URL of HTTP.
    pub url: Option<String>,
    /// The URL of gRPC, which is tried first.
    pub grpc: Option<String>,
    /// The URL of the Redis protocol, which is tried last.
    pub resp: Option<String>,
    /// The API key.
    pub key: Option<Secret>,
    /// Certificate authorities to trust instead of the system's.
    pub authority: Option<PathBuf>,
    /// The client certificate and its private key.
    pub identity: Option<[PathBuf; 2]>,
}

pub(super) fn resolve(document: &Document, table: &StoreTable) -> Result<StoreConfig, Diagnostic> {
    let error = |key: &str, message: &str| document.error(&["store", key], message);
    let (url, grpc, resp) = (table.url.clone(), table.grpc.clone(), table.resp.clone());
    if url.is_none() && grpc.is_none() && resp.is_none() {
        return Err(error(
            "kind",
            "a broker needs an address; add url (HTTP, as in \"http://127.0.0.1:8080\"), grpc (\"http://127.0.0.1:8081\"), \
             resp (\"redis://127.0.0.1:6380\") or several of them",
        ));
    }
    let places = [&table.key, &table.key_env, &table.key_file].map(Option::as_deref);
    let key = match places {
        [None, None, None] => None,
        places => {
            let key = Secret::resolve(document, "the store", "key", places);
            Some(key.map_err(|message| document.error(&["store", "kind"], message))?)
        }
    };
    let path = |path: &String| document.folder().join(path);
    let identity = match (&table.certificate_file, &table.certificate_key_file) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some([path(certificate), path(key)]),
        (Some(_), None) => {
            let message = "a certificate needs its private key; add certificate_key_file";
            return Err(error("certificate_file", message));
        }
        (None, Some(_)) => {
            let message = "a private key needs its certificate; add certificate_file";
            return Err(error("certificate_key_file", message));
        }
    };
    let authority = table.authority_file.as_ref().map(path);
    let config = BrokerConfig { url, grpc, resp, key, authority, identity };
    Ok(StoreConfig::Broker(Box::new(config)))
}
