//! Structured logs: one JSON object per line, with the correlation id of the call.

use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use serde::Serialize;
use tollgate::{Clock, Timestamp};

use crate::error::{Context, Error};
use crate::failure::Failure;
use crate::monitor::{Event, Monitor};

/// The most lines that wait to be written; further ones are dropped and counted.
pub const LINES_MAX: usize = 4_096;

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Severity {
    /// Normal operation.
    Info,
    /// An attempt failed and is retried, or a job waits.
    Warning,
    /// A call failed.
    Error,
    /// A call failed in all its attempts.
    Critical,
}

impl FromStr for Severity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.to_ascii_lowercase().as_str() {
            "info" => Ok(Self::Info),
            "warning" => Ok(Self::Warning),
            "error" => Ok(Self::Error),
            "critical" => Ok(Self::Critical),
            _ => Err(Error::Invalid(format!(
                "unknown log level {text:?}; use info, warning, error or critical"
            ))),
        }
    }
}

/// One line.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// When.
    pub timestamp: String,
    /// The severity.
    pub severity: Severity,
    /// The name of the event.
    pub event: &'static str,
    /// The operation.
    pub operation: &'static str,
    /// The region.
    pub region: String,
    /// The account.
    pub account: String,
    /// The same for all lines of one call.
    pub correlation_id: String,
    /// The number of the attempt, from 0, where it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// How many attempts there were, where there will be no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
    /// How many jobs there are, where it is about that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_jobs: Option<u64>,
    /// The job that was found, where one was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

impl Entry {
    /// Returns the line of `event` at `at`; `None` for successful attempts.
    #[must_use]
    pub fn from_event(event: &Event<'_>, at: Timestamp) -> Option<Self> {
        let new = |context: &Context, severity, event| Self {
            timestamp: at.to_string(),
            severity,
            event,
            operation: context.operation,
            region: context.region.to_string(),
            account: context.account.to_string(),
            correlation_id: context.correlation_id.to_string(),
            attempt: None,
            attempts: None,
            error: None,
            current_jobs: None,
            job: None,
        };
        Some(match event {
            Event::Attempted { context, attempt, failure: Some(failure), .. } => {
                let word =
                    if failure.is_rate_limit() { "rate_limit_error" } else { "attempt_failed" };
                let error = Some((*failure).clone());
                Self { attempt: Some(*attempt), error, ..new(context, Severity::Warning, word) }
            }
            // The failed attempt has a line already.
            Event::Attempted { .. } | Event::Retrying { .. } => return None,
            Event::Exhausted(exhausted) => Self {
                attempts: Some(exhausted.attempts),
                error: Some(exhausted.last.clone()),
                ..new(&exhausted.context, Severity::Critical, "retry_exhausted")
            },
            Event::Called { context, error: None } => new(context, Severity::Info, "called"),
            // Exhausted retries have a line already.
            Event::Called { error: Some(Error::RetryExhausted(_)), .. } => return None,
            Event::Called { context, error: Some(error) } => Self {
                error: Some(Failure::from_error(error)),
                ..new(context, Severity::Error, "call_failed")
            },
            Event::LookedUp { context, job } => {
                Self { job: job.map(str::to_owned), ..new(context, Severity::Warning, "looked_up") }
            }
            Event::FailedOpen { context, error } => Self {
                error: Some(Failure::from_error(error)),
                ..new(context, Severity::Error, "failed_open")
            },
            Event::Throttled { context, current_jobs, .. } => Self {
                current_jobs: Some(*current_jobs),
                ..new(context, Severity::Warning, "job_throttled")
            },
        })
    }
}

/// Writes lines of JSON in a background thread, so that no caller waits for a slow disk or pipe.
#[derive(Debug)]
pub struct Journal {
    clock: Arc<dyn Clock>,
    least: Severity,
    lines: Mutex<Option<SyncSender<String>>>,
    dropped: AtomicU64,
    writing: Mutex<Option<JoinHandle<()>>>,
}

impl Journal {
    /// Writes events of at least the severity `least` to `writer`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new(
        least: Severity,
        clock: Arc<dyn Clock>,
        mut writer: impl Write + Send + 'static,
    ) -> std::io::Result<Self> {
        let (lines, queue) = sync_channel::<String>(LINES_MAX);
        let writing =
            thread::Builder::new().name("tollgate-journal".to_owned()).spawn(move || {
                for line in queue {
                    // There is nowhere to report a log that cannot be written.
                    drop(writer.write_all(line.as_bytes()).and_then(|()| writer.flush()));
                }
            })?;
        Ok(Self {
            clock,
            least,
            lines: Mutex::new(Some(lines)),
            dropped: AtomicU64::new(0),
            writing: Mutex::new(Some(writing)),
        })
    }

    /// Returns how many lines were dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Writes the queued lines and stops; later lines are dropped.
    pub fn close(&self) {
        drop(self.lines.lock().unwrap_or_else(PoisonError::into_inner).take());
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writing) = writing {
            // A writer that panicked has nothing left to write.
            drop(writing.join());
        }
    }
}

impl Monitor for Journal {
    fn observe(&self, event: &Event<'_>) {
        let Some(entry) =
            Entry::from_event(event, self.clock.now()).filter(|entry| self.least <= entry.severity)
        else {
            return;
        };
        let Ok(line) = serde_json::to_string(&entry) else { return };
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.as_ref().is_none_or(|lines| lines.try_send(line + "\n").is_err()) {
            self.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// Logs events by `tracing`, for clients without a monitor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traced;

impl Monitor for Traced {
    fn observe(&self, event: &Event<'_>) {
        let Some(entry) = Entry::from_event(event, Timestamp::EPOCH) else { return };
        let error = entry.error.as_ref().map(|error| format!("{}: {}", error.code, error.message));
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    event = entry.event,
                    operation = entry.operation,
                    region = entry.region,
                    account = entry.account,
                    correlation_id = entry.correlation_id,
                    attempt = entry.attempt,
                    attempts = entry.attempts,
                    error
                )
            };
        }
        match entry.severity {
            Severity::Info => log!(debug),
            Severity::Warning => log!(warn),
            Severity::Error | Severity::Critical => log!(error),
        }
    }
}
