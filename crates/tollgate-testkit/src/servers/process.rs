//! A server as a child process: start, stop, pause, kill, start again.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

use super::{Fault, Port, Program};

/// Poll interval while a server starts or stops.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// 30 seconds to start listening.
const START_LOOKS_MAX: u32 = 6_000;
/// 10 seconds to stop.
const STOP_LOOKS_MAX: u32 = 2_000;
/// The most of a log that an error quotes.
const LOG_BYTES_SHOWN_MAX: usize = 2_000;

/// A server that runs until it is dropped, on one port of loopback and in one folder, with its output in `log` there.
#[derive(Debug)]
pub struct Process {
    program: Program,
    port: Port,
    folder: TempDir,
    child: Option<Child>,
}

impl Process {
    /// Starts `program` and waits until it listens on `port`. The folder goes away with the process.
    pub fn start(program: Program, port: Port, folder: TempDir) -> Result<Self, Fault> {
        let mut process = Self { program, port, folder, child: None };
        process.restart()?;
        Ok(process)
    }

    pub const fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the process id; `None` if it is stopped.
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Leaves the server running until the process `owner` ends. A shell then stops the server and removes its folder and
    /// `file`.
    pub(super) fn stop_after(mut self, owner: Pid, file: &Path) -> Result<(), Fault> {
        const SCRIPT: &str = "while kill -0 $0 2>/dev/null; do sleep 0.2; done
            kill -$2 $1; for _ in 1 2 3 4 5 6 7 8 9; do kill -0 $1 2>/dev/null && sleep 0.1; done
            rm -rf \"$3\" \"$4\"";
        let Some(child) = self.child.take() else { return Ok(()) };
        let numbers =
            [owner.as_raw_nonzero(), id_of(&child)?.as_raw_nonzero()].map(|id| id.to_string());
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT]).args(numbers).arg(self.program.stop.as_raw().to_string());
        shell.arg(self.folder.path()).arg(file).process_group(0);
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        shell.spawn().map_err(|error| Fault::new(format!("could not start a shell: {error}")))?;
        self.folder.disable_cleanup(true);
        Ok(())
    }

    /// Stops it and waits for its end.
    pub fn stop(&mut self) -> Result<(), Fault> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        // A paused process would not see the request.
        signal(&child, self.program.stop)?;
        signal(&child, Signal::CONT)?;
        if ended_within(&mut child, STOP_LOOKS_MAX)?.is_some() {
            return Ok(());
        }
        end(&mut child)?;
        Err(self.fault("did not end when asked to, and was killed"))
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) -> Result<(), Fault> {
        match self.child.take() {
            Some(mut child) => end(&mut child),
            None => Ok(()),
        }
    }

    /// Pauses it (SIGSTOP) and waits for that: connections stay open without replies.
    pub fn pause(&self) -> Result<(), Fault> {
        let Some(child) = &self.child else { return Err(self.fault("is not running")) };
        signal(child, Signal::STOP)?;
        // On a busy machine its threads go on for a while after the signal was sent.
        waitid(WaitId::Pid(id_of(child)?), WaitIdOptions::STOPPED)
            .map_err(|error| self.fault(&format!("did not stop: {error}")))?;
        Ok(())
    }

    /// Resumes it after [`pause`](Self::pause).
    pub fn resume(&self) -> Result<(), Fault> {
        self.signal(Signal::CONT)
    }

    /// Stops it if it runs, and starts it on the same port and folder.
    pub fn restart(&mut self) -> Result<(), Fault> {
        self.stop()?;
        let unwritable =
            |error| Fault::new(format!("could not write the log of a server: {error}"));
        let log = File::options().create(true).append(true).open(self.log_path());
        let log = log.map_err(unwritable)?;
        let mut command = self.program.command();
        command.current_dir(self.folder.path());
        command.stdout(log.try_clone().map_err(unwritable)?).stderr(log);
        let child = command.spawn().map_err(|error| self.program.missing(&error))?;
        self.child = Some(child);
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<(), Fault> {
        let address = self.address();
        for _ in 0..START_LOOKS_MAX {
            if let Some(child) = &mut self.child
                && let Some(status) = status(child)?
            {
                self.child = None;
                return Err(self.fault(&format!("ended with {}", words(status))));
            }
            if TcpStream::connect(address).is_ok() {
                return Ok(());
            }
            nap();
        }
        let fault = self.fault("did not listen in time");
        self.kill()?;
        Err(fault)
    }

    fn signal(&self, kind: Signal) -> Result<(), Fault> {
        match &self.child {
            Some(child) => signal(child, kind),
            None => Err(self.fault("is not running")),
        }
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn fault(&self, what: &str) -> Fault {
        let log = std::fs::read(self.log_path()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_BYTES_SHOWN_MAX)..]);
        let path = self.program.path.display();
        Fault::new(format!("{path} on port {} {what}; the end of its log:\n{log}", self.port()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.stop());
    }
}

fn id_of(child: &Child) -> Result<Pid, Fault> {
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    id.ok_or_else(|| Fault::new("the process has no id"))
}

fn signal(child: &Child, kind: Signal) -> Result<(), Fault> {
    let id = id_of(child)?;
    kill_process(id, kind).map_err(|error| Fault::new(format!("could not signal {id:?}: {error}")))
}

fn end(child: &mut Child) -> Result<(), Fault> {
    signal(child, Signal::KILL)?;
    match child.wait() {
        Ok(_) => Ok(()),
        Err(error) => Err(Fault::new(format!("could not kill {}: {error}", child.id()))),
    }
}

fn ended_within(child: &mut Child, looks: u32) -> Result<Option<ExitStatus>, Fault> {
    for _ in 0..looks {
        if let Some(status) = status(child)? {
            return Ok(Some(status));
        }
        nap();
    }
    Ok(None)
}

fn status(child: &mut Child) -> Result<Option<ExitStatus>, Fault> {
    child.try_wait().map_err(|error| Fault::new(format!("could not look at a server: {error}")))
}

fn words(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => status.to_string(),
    }
}

/// Polls `look` until it returns a value; `None` after 30 seconds.
pub fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    const LOOKS: u32 = 6_000;
    (0..LOOKS).find_map(|_| {
        look().or_else(|| {
            nap();
            None
        })
    })
}

/// Sleeps for one poll interval.
#[expect(
    clippy::disallowed_methods,
    reason = "another process starts, joins or ends; no clock of ours can wake us"
)]
pub(super) fn nap() {
    std::thread::sleep(LOOK_EVERY);
}
