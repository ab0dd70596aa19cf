//! Servers that all test processes of one run share.
//!
//! nextest runs each test in a process of its own, so a server that is slow to start would be started for every test.
//! The first process that needs the server starts it; a shell stops it when the run ends.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, getpid, getppid};

use super::{Fault, Process};

/// Returns a name that no other test of this run uses: of a database, a table or a prefix.
pub fn unique_name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Returns the address of the server `name` of this run. The first caller starts the server; the others wait for it.
pub(super) fn shared(
    name: &str,
    start: impl FnOnce() -> Result<(String, Vec<Process>), Fault>,
) -> Result<String, Fault> {
    let (run, owner) = test_run();
    let folder = std::env::temp_dir().join("tollgate-shared-servers");
    let path = folder.join(format!("{name}-{run}"));
    let failed = |error: io::Error| Fault::new(format!("{}: {error}", path.display()));
    fs::create_dir_all(&folder).map_err(failed)?;
    let mut file =
        File::options().create(true).read(true).append(true).open(&path).map_err(failed)?;
    file.lock().map_err(failed)?;
    let mut address = String::new();
    file.read_to_string(&mut address).map_err(failed)?;
    if address.is_empty() {
        let (started, processes) = start()?;
        for process in processes {
            process.stop_after(owner, &path)?;
        }
        address = started;
        file.write_all(address.as_bytes()).map_err(failed)?;
    }
    Ok(address)
}

/// Returns the id of the run and the process that lives as long as the run: nextest, or this process.
fn test_run() -> (String, Pid) {
    #[expect(clippy::disallowed_methods, reason = "the test runner sets it")]
    let run = std::env::var("NEXTEST_RUN_ID");
    match (run, getppid()) {
        (Ok(run), Some(runner)) => (run, runner),
        _ => (getpid().as_raw_nonzero().to_string(), getpid()),
    }
}
