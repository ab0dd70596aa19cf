//! Opening the configured store, and closing it again.

use std::path::Path;
use std::sync::Arc;

use tollgate::{Atomic, Clock, Error, ErrorKind, Gate, KEYS_MAX_DEFAULT, Memory};
use tollgate_embedded::{Durability, Embedded, Holder, Options};
use tollgate_server::token::KEY_BYTES;

use crate::config::{self, StoreConfig};

/// A store that is open.
#[derive(Debug)]
pub(crate) struct Opened {
    store: Kept,
    key: [u8; KEY_BYTES],
}

#[derive(Debug)]
enum Kept {
    Memory(Arc<Atomic<Memory>>),
    Embedded(Arc<Atomic<Embedded>>),
}

impl Opened {
    /// The store as a gate.
    pub(crate) fn gate(&self) -> Arc<dyn Gate> {
        match &self.store {
            Kept::Memory(gate) => Arc::clone(gate) as Arc<dyn Gate>,
            Kept::Embedded(gate) => Arc::clone(gate) as Arc<dyn Gate>,
        }
    }

    /// The key that permits are sealed with.
    pub(crate) const fn key(&self) -> &[u8; KEY_BYTES] {
        &self.key
    }

    /// Writes what is not written yet and lets go of the folder.
    pub(crate) async fn close(self) -> Result<(), Error> {
        match &self.store {
            Kept::Memory(_) => Ok(()),
            Kept::Embedded(gate) => gate.store().close().await,
        }
    }
}

/// Opens `store` for one question, after those who came before.
pub(crate) fn for_command(store: &StoreConfig, clock: Arc<dyn Clock>) -> Result<Opened, Error> {
    match store {
        StoreConfig::Memory => Err(Error::new(
            ErrorKind::Invalid,
            "the configured store is memory, which is inside the broker, so a command on its own would find it empty; \
             start tollgate serve and name it with --server URL, or use kind = \"embedded\"",
        )),
        StoreConfig::Embedded { path, durability } => {
            embedded(path, options(*durability, Holder::Command, clock))
        }
    }
}

/// The folder of `store`, if there is nothing in it yet.
pub(crate) fn missing(store: &StoreConfig) -> Result<Option<&Path>, Error> {
    match store {
        StoreConfig::Embedded { path, .. } if !Embedded::exists(path)? => Ok(Some(path)),
        StoreConfig::Embedded { .. } | StoreConfig::Memory => Ok(None),
    }
}

/// A store in memory, with nothing used. It also answers questions about a folder that is not there.
pub(crate) fn empty(clock: Arc<dyn Clock>) -> Result<Opened, Error> {
    let store = Kept::Memory(Arc::new(Atomic::new(Memory::with(clock, KEYS_MAX_DEFAULT))));
    Ok(Opened { store, key: fresh_key()? })
}

/// Opens `store` for a broker at `url`, which keeps it until it ends.
pub(crate) fn for_server(
    store: &StoreConfig,
    url: &str,
    clock: Arc<dyn Clock>,
) -> Result<Opened, Error> {
    match store {
        StoreConfig::Memory => empty(clock),
        StoreConfig::Embedded { path, durability } => {
            let holder = Holder::Server { url: url.to_owned() };
            embedded(path, options(*durability, holder, clock))
        }
    }
}

fn embedded(path: &Path, options: Options) -> Result<Opened, Error> {
    let embedded = Embedded::open(path, options)?;
    let key = embedded.permit_key();
    Ok(Opened { store: Kept::Embedded(Arc::new(Atomic::new(embedded))), key })
}

fn options(durability: config::Durability, holder: Holder, clock: Arc<dyn Clock>) -> Options {
    let durability = match durability {
        config::Durability::Strict => Durability::Strict,
        config::Durability::Relaxed => Durability::Relaxed,
    };
    Options::new().durability(durability).holder(holder).clock(clock)
}

/// A key that nobody can guess. The permits of a memory store end with it, so its key does too.
fn fresh_key() -> Result<[u8; KEY_BYTES], Error> {
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the system gave no random numbers").caused_by(error)
    })?;
    Ok(key)
}
