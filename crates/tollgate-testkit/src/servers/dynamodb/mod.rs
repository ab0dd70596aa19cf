//! A server that speaks DynamoDB, behind a proxy that counts and misbehaves on demand.
//!
//! The server is dynoxide: it applies conditional writes one after another and returns the old item of a refused one, as
//! the service does. [`Ministack`] is a second opinion. Neither throttles or loses a reply; the [`Proxy`] does that.

mod http;
mod proxy;

use std::path::PathBuf;

pub use proxy::{Counts, Misbehaviour, Proxy};

use super::program::installed;
use super::{Fault, Ministack, Port, Process, Program};

/// Where `cargo xtask` puts the server, below the folder of the build.
const INSTALLED: &str = "servers/node_modules/@dynoxide/linux-x64/dynoxide";

/// A DynamoDB server with a proxy in front of it.
#[derive(Debug)]
pub struct DynamoDb {
    process: Process,
    proxy: Proxy,
}

impl DynamoDb {
    /// Starts a server that keeps its tables in memory: a restart begins empty.
    pub fn start() -> Result<Self, Fault> {
        Self::start_with("")
    }

    /// Starts a server that keeps its tables in a file of its folder, so that they survive a restart.
    pub fn start_durable() -> Result<Self, Fault> {
        Self::start_with(" --db-path tables")
    }

    /// Starts [`Ministack`] in place of dynoxide: slower, and another opinion of what the service would say.
    pub fn start_ministack() -> Result<Self, Fault> {
        Self::behind_proxy(Ministack::start()?.into_process())
    }

    fn start_with(arguments: &str) -> Result<Self, Fault> {
        let folder = tempfile::tempdir()
            .map_err(|error| Fault::new(format!("could not make a folder: {error}")))?;
        let port = Port::free()?;
        let line = format!("serve --host 127.0.0.1 --port {}{arguments}", port.number());
        let program = Program::new(program()).args(&line);
        Self::behind_proxy(Process::start(program, port, folder)?)
    }

    fn behind_proxy(process: Process) -> Result<Self, Fault> {
        let proxy = Proxy::start(process.address())?;
        Ok(Self { process, proxy })
    }

    /// The address to give to a client: that of the proxy.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.proxy.address())
    }

    /// The proxy, to count and to misbehave.
    pub const fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// The server that was installed for the tests, or one on the path.
fn program() -> PathBuf {
    installed(INSTALLED).unwrap_or_else(|| PathBuf::from("dynoxide"))
}
