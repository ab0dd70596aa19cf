//! Bytes to a writer that may block, without blocking the runtime.
//!
//! The writer lives on a thread of its own. A pipe that nobody reads holds up that thread, which nobody waits for when the process ends.

use std::io::{self, Write};
use std::sync::mpsc;
use std::{fmt, thread};

use tokio::sync::oneshot;
use tollgate::{Error, ErrorKind};

type Job = (Vec<u8>, oneshot::Sender<io::Result<()>>);

/// A way to a writer on its own thread.
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
}

impl Writer {
    /// Hands `writer` to a thread.
    pub(super) fn new(mut writer: impl Write + Send + 'static) -> Self {
        let (jobs, work) = mpsc::channel::<Job>();
        // Where no thread can be had, the channel is closed and every write says so.
        drop(thread::Builder::new().name("tollgate-writer".to_owned()).spawn(move || {
            for (bytes, done) in work {
                let result = writer.write_all(&bytes).and_then(|()| writer.flush());
                // Whoever gave up waiting does not want to know.
                drop(done.send(result));
            }
        }));
        Self { jobs }
    }

    /// Writes `bytes` and flushes.
    pub(super) async fn write(&self, bytes: Vec<u8>) -> Result<(), Error> {
        let gone = || Error::new(ErrorKind::Unavailable, "the thread of the writer is gone");
        let (done, result) = oneshot::channel();
        self.jobs.send((bytes, done)).map_err(|_| gone())?;
        result.await.map_err(|_| gone())?.map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("could not write: {error}"))
        })
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}
