//! The overrides of a data folder: a small file of their own.
//!
//! The file is replaced by a rename under its own lock, so a command can change it while a broker has the folder open, and
//! reading needs no lock.
//!
//! ```text
//! overrides       checksum and version in a line, then the document
//! overrides.lock  locked while the file is replaced
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;
use tollgate::gate::BoxFuture;
use tollgate::overrides::{Document, OverrideStore};
use tollgate::{Error, ErrorKind};

use crate::database::damaged;
use crate::folder::{make, unusable, writable};
use crate::row::checksum;

const FILE: &str = "overrides";
const LOCK: &str = "overrides.lock";
const NEXT: &str = "overrides.next";

/// The overrides of a data folder.
#[derive(Clone, Debug)]
pub struct EmbeddedOverrides {
    folder: PathBuf,
}

impl EmbeddedOverrides {
    /// Names the data folder, which the first change creates if it is missing.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn document(&self) -> Result<Document, Error> {
        let path = self.folder.join(FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Document::default()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(damaged(&path, "it is not text"));
            }
            Err(error) => return Err(unusable("read", &path, error)),
        };
        read(&text).ok_or_else(|| damaged(&path, "it does not match its checksum"))
    }

    fn swap(&self, known: u64, next: &Document) -> Result<bool, Error> {
        make(&self.folder)?;
        let lock = self.folder.join(LOCK);
        let locked = writable(&lock).map_err(|error| unusable("open", &lock, error))?;
        // Held only while one small file is written.
        locked.lock().map_err(|error| unusable("lock", &lock, error))?;
        if self.document()?.version != known {
            return Ok(false);
        }
        let path = self.folder.join(NEXT);
        self.write(&path, next).map_err(|error| unusable("write", &path, error))?;
        Ok(true)
    }

    fn write(&self, path: &Path, next: &Document) -> io::Result<()> {
        let mut file = writable(path)?;
        file.set_len(0)?;
        file.write_all(written(next).as_bytes())?;
        file.sync_all()?;
        fs::rename(path, self.folder.join(FILE))?;
        File::open(&self.folder)?.sync_all()
    }

    /// Runs `job` on a thread, because it blocks on the disk.
    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (done, answer) = oneshot::channel();
        let own = self.clone();
        let work = move || {
            // The caller may be gone.
            let _ = done.send(job(&own));
        };
        let thread = std::thread::Builder::new().name("tollgate-overrides".to_owned());
        thread.spawn(work).map_err(|error| unusable("read", &self.folder, error))?;
        answer.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "the thread of the overrides ended"))
        })
    }
}

impl OverrideStore for EmbeddedOverrides {
    fn read(&self, known: u64) -> BoxFuture<'_, Result<Option<Document>, Error>> {
        Box::pin(async move {
            let document = self.run(Self::document).await?;
            Ok(Some(document).filter(|document| document.version != known))
        })
    }

    fn replace<'a>(&'a self, known: u64, next: &'a Document) -> BoxFuture<'a, Result<bool, Error>> {
        let next = next.clone();
        Box::pin(self.run(move |own| own.swap(known, &next)))
    }
}

fn written(document: &Document) -> String {
    let body = format!("{}\n{}", document.version, document.text);
    format!("{:08x} {body}", checksum(FILE.as_bytes(), body.as_bytes()))
}

fn read(text: &str) -> Option<Document> {
    let (sum, body) = text.split_once(' ')?;
    let (version, text) = body.split_once('\n')?;
    if u32::from_str_radix(sum, 16).ok()? != checksum(FILE.as_bytes(), body.as_bytes()) {
        return None;
    }
    Some(Document { version: version.parse().ok()?, text: text.to_owned() })
}
