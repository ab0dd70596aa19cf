//! One token bucket for all commands of a user.
//!
//! The bucket of a process is full at its start, so two commands in a row would make two bursts. The state is kept in a
//! small file; each call locks it, decides and writes it back.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tollgate::core::{Change, Entry, Known, apply, codec};
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::internal::edge::environment;
use tollgate::{Clock, Error, Gate, Policy, Span};

/// How far the entry may be ahead of the clock. Beyond that, the clock was set back.
const AHEAD_MAX: Span = Span::from_secs(1);

/// The most that is read from a file.
const ENTRY_BYTES_MAX: u64 = 65_536;

/// A store with one file per bucket.
#[derive(Debug)]
struct Files {
    folder: PathBuf,
    endpoint: String,
    clock: Arc<dyn Clock>,
}

/// Returns the gate that the commands of this user share; `None` if there is no folder for it.
pub(super) fn gate(endpoint: Option<&str>, clock: Arc<dyn Clock>) -> Option<Arc<dyn Gate>> {
    let state = match environment("XDG_STATE_HOME").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => Path::new(&environment("HOME")?).join(".local/state"),
    };
    let folder = state.join("tollgate");
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&folder).ok()?;
    let endpoint = endpoint.unwrap_or_default().to_owned();
    Some(Arc::new(Files { folder, endpoint, clock }))
}

impl Files {
    fn open(&self, policy: &Policy, subject: &str) -> io::Result<File> {
        let key = [policy.name(), subject, &self.endpoint].join("\n");
        let name: String =
            Sha256::digest(key).iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        let path = self.folder.join(format!("drs-{name}.pace"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path)?;
        file.lock()?;
        Ok(file)
    }

    fn read(&self, mut file: &File, policy: &Policy) -> Option<Entry> {
        let mut bytes = Vec::new();
        file.rewind().ok()?;
        file.take(ENTRY_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        let entry = codec::decode(&bytes, policy).ok()?;
        (entry.at() <= self.clock.now() + AHEAD_MAX).then_some(entry)
    }
}

fn write(mut file: &File, entry: &Entry) -> io::Result<()> {
    let mut bytes = Vec::new();
    codec::encode(entry, &mut bytes);
    file.rewind()?;
    file.write_all(&bytes)?;
    file.set_len(bytes.len() as u64)
}

impl Gate for Files {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move { self.decide(&operation) })
    }

    fn try_run(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        Some(self.decide(operation))
    }
}

impl Files {
    /// Decides on a full bucket if the file is unusable: a recovery must not fail because of it, and the bucket of the process
    /// still limits the rate.
    fn decide(&self, operation: &Operation<'_>) -> Result<Outcome, Error> {
        let policy = operation.policy();
        let file = self.open(policy, operation.subject()).ok();
        let now = self.clock.now();
        let kept = file.as_ref().and_then(|file| self.read(file, policy));
        let mut entry = kept.unwrap_or_else(|| Entry::fresh(policy, now));
        let applied = apply(operation, &mut entry, Known::New, now)?;
        if let (Change::Entry, Some(file)) = (applied.change, &file)
            && let Err(error) = write(file, &entry)
        {
            tracing::warn!(%error, "the rate of calls is not shared with other commands");
        }
        Ok(applied.outcome)
    }
}
