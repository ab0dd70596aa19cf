//! Envoy: a proxy that asks a rate limit service about every request.

use super::program::installed;
use super::{Fault, Port, Process, Program};

/// Where `cargo xtask` puts it, below the folder of the build.
const PROGRAM: &str = "servers/envoy/envoy/_bin/envoy";

/// A proxy.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
}

impl Envoy {
    /// Starts it with what `configure` makes of the port to listen on.
    ///
    /// # Errors
    /// If it is not installed, or does not start; with the end of its log.
    pub fn start(configure: impl FnOnce(u16) -> String) -> Result<Self, Fault> {
        let program = installed(PROGRAM).ok_or_else(|| {
            Fault::new("envoy is not installed; `cargo xtask test` installs what the tests need")
        })?;
        let unwritable = |error| Fault::new(format!("could not write for envoy: {error}"));
        let folder = tempfile::tempdir().map_err(unwritable)?;
        let port = Port::free()?;
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, configure(port.number())).map_err(unwritable)?;
        let program = Program::new(program)
            .args("--concurrency 1 --disable-hot-restart -l warn -c")
            .arg(file.to_string_lossy());
        Ok(Self { process: Process::start(program, port, folder)? })
    }

    /// The process, to find, stop, pause, kill and restart it.
    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
