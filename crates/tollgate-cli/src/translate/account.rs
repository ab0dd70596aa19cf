//! What became of a job: its document if it is over, and what to do if it is not. It takes the jobs and nothing else, so a
//! document can be fetched where there is neither a key nor a quota.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate::{Error, ErrorKind};
use tollgate_translate::job::{JobState, JobStore};
use tollgate_translate::pipeline::{self, Ended, JobSettings, Output};
use tollgate_translate::plan::{Micros, Plan};
use tollgate_translate::{FAILED_MARK, Layout};

use super::{invalid, list, screen};
use crate::DENIED;
use crate::consent;
use crate::destination::replaceable;
use crate::failure::Failure;
use crate::output::{self, Reader};

/// What is known about a job before it is worked on.
pub(super) struct Account<'a> {
    jobs: &'a Arc<dyn JobStore>,
    reader: Reader,
    pub(super) id: &'a str,
    pub(super) plan: Option<&'a Plan>,
    file: PathBuf,
    layout: Layout,
    /// How it was over already, if it was.
    pub(super) over: Option<Ended>,
    /// Whether nobody named the file, so that what somebody else put there stays.
    keeps: bool,
    /// What the job itself wrote there before.
    mine: Option<Vec<u8>>,
    /// The command that goes on with it.
    pub(super) resume: String,
}

impl<'a> Account<'a> {
    /// The account of the job `id`, whose document is written to `named`, or where the job says.
    pub(super) async fn open(
        jobs: &'a Arc<dyn JobStore>,
        reader: Reader,
        id: &'a str,
        named: Option<&Path>,
        again: &str,
        plan: Option<&'a Plan>,
    ) -> Result<Self, Failure> {
        let job = list::job(&**jobs, id).await?;
        let settings = JobSettings::of(&job)?;
        let file = named.map(Path::to_owned).or_else(|| settings.output.clone().map(PathBuf::from));
        let file = file.ok_or_else(|| invalid("this job names no file; give one with --output"))?;
        let over = match job.state {
            JobState::Completed => Some(Ended::Completed),
            JobState::CompletedWithErrors => Some(Ended::CompletedWithErrors),
            JobState::Cancelled => Some(Ended::Cancelled),
            JobState::Planned | JobState::Running | JobState::Paused { .. } => None,
        };
        // A file that was named once may have been worked on since the job was over.
        let keeps = named.is_none() && (over.is_some() || !settings.overwrites);
        let mine = match &over {
            Some(Ended::Completed | Ended::CompletedWithErrors) if keeps => {
                Some(Output::of(&**jobs, id, settings.layout).await?.bytes)
            }
            _ => None,
        };
        let resume = format!("tollgate translate resume {id}{again}");
        let layout = settings.layout;
        Ok(Self { jobs, reader, id, plan, file, layout, over, keeps, mine, resume })
    }

    /// Whether the file can be written, as far as can be told before anything is paid.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match replaceable(&self.file).map(std::fs::read) {
            Some(Ok(there)) if self.keeps && self.mine.as_ref() != Some(&there) => {
                Err(in_the_way(&self.file))
            }
            _ => can_be_written(&self.file),
        }
    }

    /// Whether somebody at the terminal wants the job to go on up to a cost of `to`. A bound that was set is not asked about.
    pub(super) async fn may_raise(&self, to: Micros) -> Result<bool, Failure> {
        let job = list::job(&**self.jobs, self.id).await?;
        if self.reader != Reader::Person || JobSettings::of(&job)?.max_cost.is_some() {
            return Ok(false);
        }
        let spent = Micros(self.jobs.counts(self.id).await?.cost);
        let planned = self.plan.and_then(|plan| plan.cost_micros);
        let planned = planned.map(|cost| format!(", and {cost} was planned")).unwrap_or_default();
        let question = format!("{spent} is spent{planned}. Go on up to {to}?");
        Ok(consent::asked(&question)?.unwrap_or(false))
    }

    /// Writes the document if the job is over, and tells how it ended; `when` says what a pause waits for.
    pub(super) async fn give(&self, ended: &Ended, when: &str) -> Result<ExitCode, Failure> {
        let written = match ended {
            Ended::Completed | Ended::CompletedWithErrors => {
                let output = Output::of(&**self.jobs, self.id, self.layout).await;
                let output = output.map_err(|error| resumable(error.into(), &self.resume))?;
                self.write(&output.bytes)?;
                Some(output)
            }
            Ended::Paused { .. } | Ended::Stopped | Ended::Cancelled => None,
        };
        let told = self.tell(ended, written.as_ref(), when).await;
        told.map_err(|failure| resumable(failure, &self.resume))?;
        Ok(if *ended == Ended::Completed { ExitCode::SUCCESS } else { ExitCode::from(DENIED) })
    }

    /// Writes the whole file or nothing. Time has passed since it was looked at, so it is looked at again.
    fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        let file = &self.file;
        let unwritable = |error: std::io::Error| {
            let text = format!(
                "{} cannot be written: {error}; the translation is kept, name another file with resume --output",
                file.display()
            );
            Failure::new(ErrorKind::Unavailable, text)
        };
        let Some(file) = &replaceable(file) else {
            let opened = std::fs::OpenOptions::new().write(true).open(file);
            return opened.and_then(|mut it| it.write_all(bytes)).map_err(unwritable);
        };
        let beside = beside(file, ".part");
        std::fs::write(&beside, bytes).map_err(unwritable)?;
        if let Ok(there) = std::fs::metadata(file) {
            std::fs::set_permissions(&beside, there.permissions()).map_err(unwritable)?;
        }
        let there = if self.keeps { std::fs::read(file).ok() } else { None };
        let is_mine = |there: &Vec<u8>| there == bytes || self.mine.as_ref() == Some(there);
        let placed = match there {
            Some(there) if !is_mine(&there) => Err(std::io::ErrorKind::AlreadyExists.into()),
            // A link, unlike a new name, never takes the place of a file.
            None if self.keeps => match std::fs::hard_link(&beside, file) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    std::fs::rename(&beside, file)
                }
                linked => linked.and_then(|()| std::fs::remove_file(&beside)),
            },
            _ => std::fs::rename(&beside, file),
        };
        placed.map_err(|error| {
            // It is in the jobs.
            drop(std::fs::remove_file(&beside));
            match error.kind() {
                std::io::ErrorKind::AlreadyExists => in_the_way(file),
                _ => unwritable(error),
            }
        })
    }

    async fn tell(
        &self,
        ended: &Ended,
        written: Option<&Output>,
        when: &str,
    ) -> Result<(), Failure> {
        let Self { id, file, .. } = self;
        let resume = match ended {
            Ended::Paused { raise_to: Some(to), .. } => raised(&self.resume, *to),
            _ => self.resume.clone(),
        };
        let mut whole = list::row(&**self.jobs, &list::job(&**self.jobs, id).await?).await?;
        let failures = written.map_or(&[][..], |output| &output.failures);
        let doubts = written.map_or(&[][..], |output| &output.warnings);
        whole["output"] = written.map(|_| file.display().to_string()).into();
        whole["failures"] = fields(failures).into();
        whole["warnings"] = fields(doubts).into();
        if *ended == Ended::Stopped {
            whole["state"] = list::STOPPED.into();
        }
        if *ended != Ended::Completed {
            whole["resume"] = resume.as_str().into();
        }
        let all = match self.plan {
            Some(plan) => json!({ "plan": plan, "job": whole }),
            None => json!({ "job": whole }),
        };
        output::answer(self.reader, &all, || {
            let (done, chunks) = (&whole["done"], &whole["chunks"]);
            let mut text = match ended {
                Ended::Completed => format!("{} is written, {chunks} chunks", file.display()),
                Ended::CompletedWithErrors => format!(
                    "{} is written, {} of {chunks} chunks are not translated and marked {}:\n{}\nTry them again with: {resume} --retry-failed",
                    file.display(),
                    failures.len(),
                    FAILED_MARK.trim_end(),
                    screen::failures(failures)
                ),
                Ended::Paused { why, .. } => format!(
                    "paused at {done} of {chunks} chunks: {why}; {when}. Resume with: {resume}"
                ),
                Ended::Stopped => format!(
                    "stopped at {done} of {chunks} chunks; nothing is lost. Resume with: {resume}"
                ),
                Ended::Cancelled => format!("{id} was cancelled at {done} of {chunks} chunks"),
            };
            if !doubts.is_empty() {
                text += &format!("\nWorth a look:\n{}", screen::failures(doubts));
            }
            text
        })
    }
}

/// `failure`, with the command that goes on if it is an outage.
pub(super) fn resumable(failure: Failure, command: &str) -> Failure {
    match failure {
        Failure::Gate(error) if error.kind() == ErrorKind::Unavailable => {
            let text = format!("{error}. What is done is kept. Resume with: {command}");
            Failure::Gate(Error::new(ErrorKind::Unavailable, text).caused_by(error))
        }
        other => other,
    }
}

/// The command `resume` with a bound on the cost that lets the job go on.
pub(super) fn raised(resume: &str, to: Micros) -> String {
    format!("{resume} --max-cost {}", to.to_string().trim_start_matches('$'))
}

pub(super) fn fields(failures: &[pipeline::Failure]) -> Vec<Value> {
    let one = |failure: &pipeline::Failure| json!({ "segments": failure.run.to_string(), "source": failure.source, "reason": failure.reason });
    failures.iter().map(one).collect()
}

/// Tries to make the file that becomes `file`, and leaves nothing behind.
pub(super) fn can_be_written(file: &Path) -> Result<(), Failure> {
    let Some(file) = &replaceable(file) else { return Ok(()) };
    // Somebody else may be writing the document right now.
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

fn in_the_way(file: &Path) -> Failure {
    invalid(format!(
        "{} is not what was written there, or was changed since; the translation is kept, move the file away, or name another with --output",
        file.display()
    ))
}
