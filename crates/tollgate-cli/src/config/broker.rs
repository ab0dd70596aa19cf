//! `[store] kind = "broker"`: the state is at another broker, which is asked as any client asks it.

use std::path::{Path, PathBuf};

use super::place::Text;
use super::{Blame, Secret, StoreConfig, file};

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
pub(crate) struct BrokerConfig {
    /// Where it serves HTTP.
    pub(crate) url: Option<String>,
    /// Where it serves gRPC, which is tried first.
    pub(crate) grpc: Option<String>,
    /// Where it serves the Redis protocol, which is tried last.
    pub(crate) resp: Option<String>,
    pub(crate) key: Option<Secret>,
    /// Certificates to trust instead of the machine's own.
    pub(crate) authority: Option<PathBuf>,
    /// The certificate to show to a broker that asks for one, and its private key.
    pub(crate) identity: Option<[PathBuf; 2]>,
}

pub(super) fn resolve(
    text: &Text<'_>,
    table: &file::StoreTable,
    folder: &Path,
) -> Result<StoreConfig, Blame> {
    let blame = |key: &str, what: &str| text.blame(&["store", key], what);
    let (url, grpc, resp) = (table.url.clone(), table.grpc.clone(), table.resp.clone());
    if url.is_none() && grpc.is_none() && resp.is_none() {
        return Err(blame(
            "kind",
            "a broker needs an address; add url (HTTP, as in \"http://127.0.0.1:8080\"), grpc (\"http://127.0.0.1:8081\"), \
             resp (\"redis://127.0.0.1:6380\") or several of them",
        ));
    }
    let places = [&table.key, &table.key_env, &table.key_file].map(Option::as_deref);
    let key = match places {
        [None, None, None] => None,
        places => {
            let key = Secret::resolve("the store", "key", places, folder);
            Some(key.map_err(|what| text.blame(&["store", "kind"], what))?)
        }
    };
    let path = |path: &String| folder.join(path);
    let identity = match (&table.certificate_file, &table.certificate_key_file) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some([path(certificate), path(key)]),
        (Some(_), None) => {
            let what = "a certificate needs its private key; add certificate_key_file";
            return Err(blame("certificate_file", what));
        }
        (None, Some(_)) => {
            let what = "a private key needs its certificate; add certificate_file";
            return Err(blame("certificate_key_file", what));
        }
    };
    let authority = table.authority_file.as_ref().map(path);
    let config = BrokerConfig { url, grpc, resp, key, authority, identity };
    Ok(StoreConfig::Broker(Box::new(config)))
}
