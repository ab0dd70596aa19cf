//! The data folder and its locks.
//!
//! ```text
//! lock            locked by the process that has the folder open, with its description
//! server          also locked by a broker, with its URL
//! waiting         locked, shared, by processes that wait for the folder
//! format          exists if the database was created
//! commits         the number of commits that the database has at least
//! entries.sqlite  the database, with -wal and -shm next to it
//! overrides       overrides at run time, with a lock of their own
//! room            exists while a store that was stopped checks for room on the disk
//! ```
//! File locks end with their process, so a crash leaves none behind, and a crashed broker is not mistaken for a running one.
//! Waiting processes sleep in the kernel.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use tollgate::{Error, ErrorKind, Span};

use crate::options::Holder;

const LOCK: &str = "lock";
const SERVER: &str = "server";
const WAITING: &str = "waiting";
const ROOM: &str = "room";

/// The room that a stopped store needs before it opens again. A smaller check could succeed in pages that the file has
/// already, while every ask fails.
pub(crate) const ROOM_MIN: usize = 1 << 20;

/// How often a waiting command checks whether a broker took the lock.
const SERVER_RECHECK: Span = Span::from_secs(1);

/// The longest URL that is read.
const URL_BYTES_MAX: u64 = 2_048;

/// The locks of this process, until they are dropped.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _lock: File,
    _server: Option<File>,
}

/// Creates the folder if it is missing, and locks it within `lock_wait`.
pub(crate) fn lock(folder: &Path, holder: &Holder, lock_wait: Span) -> Result<FolderLock, Error> {
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
    Ok(FolderLock { _lock: lock, _server: server })
}

/// Fails unless the disk of `folder` takes [`ROOM_MIN`] more bytes.
pub(crate) fn ensure_room(folder: &Path) -> Result<(), Error> {
    let path = folder.join(ROOM);
    let written = writable(&path).and_then(|mut file| {
        // Not zeros, which a file system may store without blocks.
        file.write_all(&vec![0xa5; ROOM_MIN])?;
        file.sync_all()
    });
    // Also after a failure: a partial file would take what is left.
    let removed = fs::remove_file(&path);
    written.and(removed).map_err(|error| unusable("write", &path, error))
}

/// Creates the folder if it is missing, accessible to its owner alone.
pub(crate) fn make(folder: &Path) -> Result<(), Error> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|error| unusable("create", folder, error))
}

/// Waits for the lock on a thread, since file locks have no timeout.
fn wait(folder: &Path, file: File, lock_wait: Span) -> Result<File, Error> {
    refuse_if_served(folder)?;
    let path = folder.join(LOCK);
    // The holder sees that it is awaited. Without the file, it does not, and gives the folder up in its own time.
    let waiting =
        writable(&folder.join(WAITING)).and_then(|file| file.lock_shared().map(|()| file));
    let _waiting = waiting.ok();
    let (sender, receiver) = mpsc::sync_channel(0);
    // After a timeout the thread releases the lock as soon as it gets it.
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

/// Returns whether another process waits for the folder.
pub(crate) fn is_awaited(folder: &Path) -> bool {
    let waiting = File::open(folder.join(WAITING));
    waiting.is_ok_and(|waiting| matches!(waiting.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Returns the URL of the running broker that holds the folder.
pub(crate) fn served_at(folder: &Path) -> Option<String> {
    let mut server = File::open(folder.join(SERVER)).ok()?;
    // The lock ends with the broker.
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
            "the data folder {folder} is held by a running broker; talk to it with --server {url}, or stop it first for \
             export, import and repair"
        ),
    ))
}

fn serve(path: &Path, url: &str) -> io::Result<File> {
    let mut file = writable(path)?;
    // Waits at most while a command reads the file.
    file.lock()?;
    rewrite(&mut file, url)?;
    Ok(file)
}

fn rewrite(file: &mut File, text: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text.as_bytes())
}

/// Opens the file at `path`, and creates it for its owner alone if it is missing.
pub(crate) fn writable(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Describes a failure to `act` on the file or folder at `path`.
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
