//! The data folder, and whose turn it is.
//!
//! ```text
//! lock            locked by whoever has the folder open; says who, for people
//! server          locked by a broker besides; says where it answers
//! format          says that the database was made
//! commits         says how many commits the database has at least
//! entries.sqlite  the database, with -wal and -shm next to it
//! overrides       what was overridden at run time, with a lock of its own
//! ```
//! Locks are the operating system's and go with the process, so a crash leaves none behind, and the broker is known
//! by its lock and not by what a crashed one left in a file. Whoever waits sleeps in the kernel until it is its turn.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use tollgate::{Error, ErrorKind, Span};

use crate::options::Holder;

const LOCK: &str = "lock";
const SERVER: &str = "server";

/// How often a waiting command looks whether a broker has come before it.
const SERVER_RECHECK: Span = Span::from_secs(1);

/// The most that is read from the file that says where a broker answers.
const URL_BYTES_MAX: u64 = 2_048;

/// The turn of this process; dropping it ends the turn.
#[derive(Debug)]
pub(crate) struct Turn {
    _lock: File,
    _server: Option<File>,
}

/// Makes the folder if there is none and waits until it is this process's turn, at most `lock_wait`.
pub(crate) fn enter(folder: &Path, holder: &Holder, lock_wait: Span) -> Result<Turn, Error> {
    make(folder)?;
    let path = folder.join(LOCK);
    let file = writable(&path).map_err(|error| unusable("open", &path, error))?;
    let mut lock = match file.try_lock() {
        Ok(()) => file,
        Err(TryLockError::WouldBlock) => wait(folder, file, lock_wait)?,
        Err(TryLockError::Error(error)) => return Err(unusable("lock", &path, error)),
    };
    let pid = std::process::id();
    let (who, server) = match holder {
        Holder::Command => (format!("process {pid}, a command\n"), None),
        Holder::Server { url } => {
            let path = folder.join(SERVER);
            let server = serve(&path, url).map_err(|error| unusable("lock", &path, error))?;
            (format!("process {pid}, a broker at {url}\n"), Some(server))
        }
    };
    rewrite(&mut lock, &who).map_err(|error| unusable("write", &path, error))?;
    Ok(Turn { _lock: lock, _server: server })
}

/// Makes the folder for its owner alone, if there is none.
pub(crate) fn make(folder: &Path) -> Result<(), Error> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|error| unusable("create", folder, error))
}

/// Waits in the kernel on a thread of its own, since a lock cannot be waited for with a bound.
fn wait(folder: &Path, file: File, lock_wait: Span) -> Result<File, Error> {
    refuse_if_served(folder)?;
    let path = folder.join(LOCK);
    let (sender, receiver) = mpsc::sync_channel(0);
    // If nobody waits any more the lock is let go as soon as it is had.
    let spawned = thread::Builder::new().name("tollgate-lock".to_owned()).spawn(move || {
        let mut locked = file.lock();
        while matches!(&locked, Err(error) if error.kind() == io::ErrorKind::Interrupted) {
            locked = file.lock();
        }
        let locked = locked.map(|()| file);
        let _ = sender.send(locked);
    });
    spawned.map_err(|error| unusable("wait for", &path, error))?;
    let mut left = lock_wait;
    loop {
        let slice = left.min(SERVER_RECHECK);
        match receiver.recv_timeout(slice.into()) {
            Ok(locked) => return locked.map_err(|error| unusable("lock", &path, error)),
            Err(RecvTimeoutError::Timeout) => refuse_if_served(folder)?,
            Err(RecvTimeoutError::Disconnected) => {
                let error = io::Error::other("the thread that waited for the lock ended");
                return Err(unusable("lock", &path, error));
            }
        }
        left = Span::from_micros(left.as_micros() - slice.as_micros());
        if left.is_zero() {
            return Err(Error::new(
                ErrorKind::Contended,
                format!(
                    "the data folder {} is held by other commands for more than {lock_wait}; run \
                     fewer at once, or start a broker and talk to it with --server URL",
                    folder.display()
                ),
            ));
        }
    }
}

/// Where the running broker that holds the folder answers; nothing if there is none.
pub(crate) fn served_at(folder: &Path) -> Option<String> {
    let mut server = File::open(folder.join(SERVER)).ok()?;
    // A broker that ended, however it ended, has let go of its lock.
    if !matches!(server.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        return None;
    }
    let mut url = String::new();
    let _ = (&mut server).take(URL_BYTES_MAX).read_to_string(&mut url);
    Some(url.trim().to_owned())
}

fn refuse_if_served(folder: &Path) -> Result<(), Error> {
    let Some(url) = served_at(folder) else { return Ok(()) };
    let url = if url.is_empty() { "URL" } else { &url };
    let folder = folder.display();
    Err(Error::new(
        ErrorKind::Contended,
        format!(
            "the data folder {folder} is held by a running broker; talk to it with --server {url}"
        ),
    ))
}

fn serve(path: &Path, url: &str) -> io::Result<File> {
    let mut file = writable(path)?;
    // At most for the moment in which a command looks who is there.
    file.lock()?;
    rewrite(&mut file, url)?;
    Ok(file)
}

fn rewrite(file: &mut File, text: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text.as_bytes())
}

/// Opens the file at `path`, which is made for its owner alone if there is none.
pub(crate) fn writable(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// The error for a file or folder at `path` that we could not `act` on.
pub(crate) fn unusable(act: &str, path: &Path, error: io::Error) -> Error {
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; make it writable for this user, or choose another data folder"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "; choose a data folder that is not a file"
        }
        io::ErrorKind::StorageFull => "; free some disk space",
        _ => "",
    };
    let text = format!("could not {act} {}: {error}{advice}", path.display());
    Error::new(ErrorKind::Unavailable, text).caused_by(error)
}
