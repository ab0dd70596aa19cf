//! ministack: an emulator of many AWS services behind one port.
//!
//! For DynamoDB it is a second opinion beside dynoxide: another implementation of expressions and conditions, behind the
//! same [`Proxy`](super::dynamodb::Proxy) ([`DynamoDb::start_ministack`](super::DynamoDb::start_ministack)). It serves
//! CloudWatch, SNS, SQS and STS as well, deploys templates of CloudFormation, executes state machines of Step Functions, and
//! runs Lambda functions as processes of this machine. It keeps everything in memory: a restart begins empty.

use super::program::installed;
use super::{Fault, Port, Process, Program};

/// Where `cargo xtask` puts its packages, below the folder of the build.
const PACKAGES: &str = "servers/python";

/// An emulator of AWS services. It accepts any credentials and any region.
#[derive(Debug)]
pub struct Ministack {
    process: Process,
}

impl Ministack {
    /// Starts it.
    ///
    /// # Errors
    /// If Python or its packages are not installed, or it does not start.
    pub fn start() -> Result<Self, Fault> {
        Self::start_hurried(1.0)
    }

    /// Starts it; the waits and the delays before retries of its state machines take this share of their time.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_hurried(share: f64) -> Result<Self, Fault> {
        let packages = installed(PACKAGES).ok_or_else(|| {
            Fault::new(
                "ministack is not installed; `cargo xtask test` installs what the tests need",
            )
        })?;
        let folder = tempfile::tempdir()
            .map_err(|error| Fault::new(format!("could not make a folder: {error}")))?;
        let port = Port::free()?;
        let program = Program::new("python3")
            .args("-m ministack")
            .env("PYTHONPATH", packages.to_string_lossy())
            .env("GATEWAY_PORT", port.number().to_string())
            .env("BIND_HOST", "127.0.0.1")
            // It would take a second, fixed port.
            .env("IOT_MTLS_ENABLED", "0")
            // Packages of functions are unpacked there.
            .env("TMPDIR", folder.path().to_string_lossy())
            .env("STATE_DIR", folder.path().to_string_lossy())
            .env("SFN_WAIT_SCALE", share.to_string())
            .env("LOG_LEVEL", "WARNING");
        Ok(Self { process: Process::start(program, port, folder)? })
    }

    /// The address to give to a client of any service.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.process.address())
    }

    /// The process, to stop, pause, kill and restart it.
    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub(super) fn into_process(self) -> Process {
        self.process
    }
}
