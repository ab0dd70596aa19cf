//! The report of a job: its document if it has ended, and the command to resume it. Needs only the job store, so a document can be
//! fetched without a key and a quota.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate::{Error, ErrorKind};
use tollgate_terminal::files::rename_target;
use tollgate_terminal::output::{self, OutputFormat};
use tollgate_terminal::{EXIT_DENIED, Failure, confirm};

use super::{invalid, jobs, screen};
use crate::job::JobStore;
use crate::pipeline::{self, JobOptions, Output, RunOutcome};
use crate::plan::{Micros, Plan};
use crate::{FAILED_MARK, Layout};

/// The output and the outcome of a job.
pub(super) struct JobReport<'a> {
    jobs: &'a Arc<dyn JobStore>,
    format: OutputFormat,
    pub(super) id: &'a str,
    pub(super) plan: Option<&'a Plan>,
    file: PathBuf,
    layout: Layout,
    /// Its outcome, if it had ended before.
    pub(super) ended: Option<RunOutcome>,
    /// Whether the user did not name the file, so that foreign content is not overwritten.
    keeps: bool,
    /// What the job wrote there before.
    own: Option<Vec<u8>>,
    /// The command that resumes it.
    pub(super) resume: String,
}

impl<'a> JobReport<'a> {
    /// Opens the report of the job `id`, whose document is written to `named`, or to the file of the job.
    pub(super) async fn open(
        jobs: &'a Arc<dyn JobStore>,
        format: OutputFormat,
        id: &'a str,
        named: Option<&Path>,
        again: &str,
        plan: Option<&'a Plan>,
    ) -> Result<Self, Failure> {
        let job = jobs::find(&**jobs, id).await?;
        let settings = JobOptions::from_job(&job)?;
        let file = named.map(Path::to_owned).or_else(|| settings.output.clone().map(PathBuf::from));
        let file = file.ok_or_else(|| invalid("this job names no file; give one with --output"))?;
        let ended = RunOutcome::from_ended_state(&job.state);
        // A file that was named once may have been edited since the job ended.
        let keeps = named.is_none() && (ended.is_some() || !settings.overwrites);
        let own = match &ended {
            Some(RunOutcome::Completed | RunOutcome::CompletedWithErrors) if keeps => {
                Some(Output::assemble(&**jobs, id, settings.layout).await?.bytes)
            }
            _ => None,
        };
        let resume = format!("tollgate translate resume {id}{again}");
        let layout = settings.layout;
        Ok(Self { jobs, format, id, plan, file, layout, ended, keeps, own, resume })
    }

    /// Checks whether the file can be written, before anything is paid.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match rename_target(&self.file).map(std::fs::read) {
            Some(Ok(found)) if self.keeps && self.own.as_ref() != Some(&found) => {
                Err(foreign_file(&self.file))
            }
            _ => can_be_written(&self.file),
        }
    }

    /// Asks on the terminal whether to continue up to a cost of `to`. Does not ask about a hard budget.
    pub(super) async fn confirm_raise(&self, to: Micros) -> Result<bool, Failure> {
        let job = jobs::find(&**self.jobs, self.id).await?;
        if self.format != OutputFormat::Text || JobOptions::from_job(&job)?.max_cost.is_some() {
            return Ok(false);
        }
        let spent = Micros(self.jobs.counts(self.id).await?.cost);
        let planned = self.plan.and_then(|plan| plan.cost_micros);
        let planned = planned.map(|cost| format!(", and {cost} was planned")).unwrap_or_default();
        let question = format!("{spent} is spent{planned}. Continue up to {to}?");
        Ok(confirm::ask(&question)?.unwrap_or(false))
    }

    /// Writes the document of a finished job, and prints the outcome; `when` describes the end of a pause.
    pub(super) async fn finish(&self, ended: &RunOutcome, when: &str) -> Result<ExitCode, Failure> {
        let written = match ended {
            RunOutcome::Completed | RunOutcome::CompletedWithErrors => {
                let output = Output::assemble(&**self.jobs, self.id, self.layout).await;
                let output = output.map_err(|error| resumable(error.into(), &self.resume))?;
                self.write(&output.bytes)?;
                Some(output)
            }
            RunOutcome::Paused { .. } | RunOutcome::Stopped | RunOutcome::Cancelled => None,
        };
        let printed = self.print(ended, written.as_ref(), when).await;
        printed.map_err(|failure| resumable(failure, &self.resume))?;
        Ok(if *ended == RunOutcome::Completed {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(EXIT_DENIED)
        })
    }

    /// Writes the file atomically. Checks it again, since it may have changed meanwhile.
    fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        let file = &self.file;
        let unwritable = |error: std::io::Error| {
            let text = format!(
                "{} cannot be written: {error}; the translation is kept, name another file with resume --output",
                file.display()
            );
            Failure::new(ErrorKind::Unavailable, text)
        };
        let Some(file) = &rename_target(file) else {
            let opened = std::fs::OpenOptions::new().write(true).open(file);
            return opened.and_then(|mut it| it.write_all(bytes)).map_err(unwritable);
        };
        let beside = beside(file, ".part");
        std::fs::write(&beside, bytes).map_err(unwritable)?;
        if let Ok(there) = std::fs::metadata(file) {
            std::fs::set_permissions(&beside, there.permissions()).map_err(unwritable)?;
        }
        let found = if self.keeps { std::fs::read(file).ok() } else { None };
        let is_own = |found: &Vec<u8>| found == bytes || self.own.as_ref() == Some(found);
        let placed = match found {
            Some(found) if !is_own(&found) => Err(std::io::ErrorKind::AlreadyExists.into()),
            // Unlike a rename, a link never replaces a file.
            None if self.keeps => match std::fs::hard_link(&beside, file) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    std::fs::rename(&beside, file)
                }
                linked => linked.and_then(|()| std::fs::remove_file(&beside)),
            },
            _ => std::fs::rename(&beside, file),
        };
        placed.map_err(|error| {
            // The job store still has it.
            drop(std::fs::remove_file(&beside));
            match error.kind() {
                std::io::ErrorKind::AlreadyExists => foreign_file(file),
                _ => unwritable(error),
            }
        })
    }

    async fn print(
        &self,
        ended: &RunOutcome,
        written: Option<&Output>,
        when: &str,
    ) -> Result<(), Failure> {
        let Self { id, file, .. } = self;
        let resume = match ended {
            RunOutcome::Paused { raise_to: Some(to), .. } => raised(&self.resume, *to),
            _ => self.resume.clone(),
        };
        let mut whole = jobs::row(&**self.jobs, &jobs::find(&**self.jobs, id).await?).await?;
        let failures = written.map_or(&[][..], |output| &output.failures);
        let doubts = written.map_or(&[][..], |output| &output.warnings);
        whole["output"] = written.map(|_| file.display().to_string()).into();
        whole["failures"] = fields(failures).into();
        whole["warnings"] = fields(doubts).into();
        if *ended == RunOutcome::Stopped {
            whole["state"] = jobs::STOPPED.into();
        }
        if *ended != RunOutcome::Completed {
            whole["resume"] = resume.as_str().into();
        }
        let all = match self.plan {
            Some(plan) => json!({ "plan": plan, "job": whole }),
            None => json!({ "job": whole }),
        };
        output::print(self.format, &all, || {
            let (done, chunks) = (&whole["done"], &whole["chunks"]);
            let mut text = match ended {
                RunOutcome::Completed => format!("{} is written, {chunks} chunks", file.display()),
                RunOutcome::CompletedWithErrors => format!(
                    "{} is written, {} of {chunks} chunks are not translated and marked {}:\n{}\nTry them again with: {resume} --retry-failed",
                    file.display(),
                    failures.len(),
                    FAILED_MARK.trim_end(),
                    screen::failures(failures)
                ),
                RunOutcome::Paused { why, .. } => format!(
                    "paused at {done} of {chunks} chunks: {why}; {when}. Resume with: {resume}"
                ),
                RunOutcome::Stopped => format!(
                    "stopped at {done} of {chunks} chunks; nothing is lost. Resume with: {resume}"
                ),
                RunOutcome::Cancelled => format!("{id} was cancelled at {done} of {chunks} chunks"),
            };
            if !doubts.is_empty() {
                text += &format!("\nWorth a look:\n{}", screen::failures(doubts));
            }
            text
        })
    }
}

/// Adds the command to resume to a failure by an outage.
pub(super) fn resumable(failure: Failure, command: &str) -> Failure {
    match failure {
        Failure::Gate(error) if error.kind() == ErrorKind::Unavailable => {
            let text = format!("{error}. What is done is kept. Resume with: {command}");
            Failure::Gate(Error::new(ErrorKind::Unavailable, text).caused_by(error))
        }
        other => other,
    }
}

/// Adds a sufficient budget to the command `resume`.
pub(super) fn raised(resume: &str, to: Micros) -> String {
    format!("{resume} --max-cost {}", to.to_string().trim_start_matches('$'))
}

pub(super) fn fields(failures: &[pipeline::Failure]) -> Vec<Value> {
    let one = |failure: &pipeline::Failure| json!({ "segments": failure.run.to_string(), "source": failure.source, "reason": failure.reason });
    failures.iter().map(one).collect()
}

/// Checks whether `file` can be written, by creating a file beside it.
pub(super) fn can_be_written(file: &Path) -> Result<(), Failure> {
    let Some(file) = &rename_target(file) else { return Ok(()) };
    // Another process may be writing the document right now.
    let beside = beside(file, ".try");
    let tried = match file.is_dir() {
        true => Err(std::io::ErrorKind::IsADirectory.into()),
        false => std::fs::File::create(&beside).and_then(|_| std::fs::remove_file(&beside)),
    };
    tried.map_err(|error| {
        invalid(format!(
            "{} cannot be written: {error}; name another file with --output",
            file.display()
        ))
    })
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut beside = file.as_os_str().to_owned();
    beside.push(ending);
    PathBuf::from(beside)
}

fn foreign_file(file: &Path) -> Failure {
    invalid(format!(
        "{} is not what was written there, or was changed since; the translation is kept, move the file away, or name another with --output",
        file.display()
    ))
}
