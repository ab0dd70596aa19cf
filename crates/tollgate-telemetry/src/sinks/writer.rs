//! Asynchronous writes to a blocking writer, on a thread of its own.
//!
//! A pipe without a reader blocks only that thread, which the process does not wait for at exit.

use std::io::{self, Write};
use std::sync::mpsc;
use std::{fmt, thread};

use tokio::sync::oneshot;
use tollgate::{Error, ErrorKind};

type Job = (Vec<u8>, oneshot::Sender<io::Result<()>>);

/// A writer on its own thread.
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
}

impl Writer {
    /// Starts the thread of `writer`.
    pub(super) fn new(mut writer: impl Write + Send + 'static) -> Self {
        let (jobs, work) = mpsc::channel::<Job>();
        // Without a thread the channel is closed, and every write fails.
        drop(thread::Builder::new().name("tollgate-writer".to_owned()).spawn(move || {
            for (bytes, done) in work {
                let result = writer.write_all(&bytes).and_then(|()| writer.flush());
                // The receiver may have timed out.
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
