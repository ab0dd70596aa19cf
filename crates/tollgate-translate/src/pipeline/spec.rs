//! What somebody wants of a job, and what is kept of it, so that another process makes the same requests.

use serde::{Deserialize, Serialize};

use super::Route;
use crate::chunk::CHUNK_TOKENS;
use crate::error::Error;
use crate::job::{Job, NewJob};
use crate::plan::{Micros, Price};
use crate::{Chapters, Format, Language, Layout, Task, Term};

/// A job to make.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// What it is called everywhere: 1 to 64 letters, digits, `-` and `_`.
    pub id: String,
    /// What people call it, such as the name of the file.
    pub name: String,
    /// The document, as it is in its file.
    pub document: Vec<u8>,
    /// Its format.
    pub format: Format,
    /// The chapters of a book that are translated; all, without.
    pub chapters: Option<Chapters>,
    /// What is to be done with it.
    pub task: Task,
    /// The model, by the provider's name.
    pub model: String,
    /// The size of a chunk, in tokens.
    pub chunk_tokens: u64,
    /// What the model's tokens cost.
    pub price: Option<Price>,
    /// The job is paused before it costs more than this. Needs a price.
    pub max_cost: Option<Micros>,
    /// Without such a bound, the job is paused when it is about to cost more than this, so that somebody can be asked. Calls that are under
    /// way may pass it.
    pub ask_above: Option<Micros>,
    /// What stands in the written document.
    pub layout: Layout,
    /// The file that the document is to be written to, for whoever finishes the job.
    pub output: Option<String>,
    /// Whether somebody named that file, so that it may be written over.
    pub overwrites: bool,
    /// Whom it calls, and within which quota.
    pub route: Route,
}

impl JobSpec {
    /// A job with chunks of [`CHUNK_TOKENS`], without a price and without a bound on its cost.
    pub fn new(
        id: impl Into<String>,
        document: Vec<u8>,
        format: Format,
        task: Task,
        model: impl Into<String>,
    ) -> Self {
        let id = id.into();
        Self {
            name: id.clone(),
            id,
            document,
            format,
            chapters: None,
            task,
            model: model.into(),
            chunk_tokens: CHUNK_TOKENS,
            price: None,
            max_cost: None,
            ask_above: None,
            layout: Layout::default(),
            output: None,
            overwrites: false,
            route: Route::default(),
        }
    }
}

/// What is kept of a [`JobSpec`] besides the document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSettings {
    /// The format of the document.
    pub format: Format,
    /// The chapters of a book that are translated; all, without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chapters: Option<Chapters>,
    /// The language of the source.
    pub from: Language,
    /// The language to translate into.
    pub to: Language,
    /// Terms and their translations.
    pub glossary: Vec<Term>,
    /// What the user wants besides.
    pub instructions: Option<String>,
    /// How much source before a chunk goes with it, in tokens.
    pub context_tokens: u64,
    /// The size of a chunk, in tokens.
    pub chunk_tokens: u64,
    /// The model.
    pub model: String,
    /// What its tokens cost.
    pub price: Option<Price>,
    /// The job is paused before it costs more than this.
    pub max_cost: Option<Micros>,
    /// Without such a bound, the job is paused when it is about to cost more than this.
    #[serde(default)]
    pub ask_above: Option<Micros>,
    /// What stands in the written document.
    #[serde(default)]
    pub layout: Layout,
    /// The file that it is to be written to.
    #[serde(default)]
    pub output: Option<String>,
    /// Whether somebody named that file, so that it may be written over.
    #[serde(default)]
    pub overwrites: bool,
    /// Whom it calls, and within which quota; nothing in jobs of older programs.
    #[serde(default)]
    pub route: Route,
    /// What the chunks and the wording of the requests came to when the job was made.
    pub digest: String,
}

impl JobSettings {
    /// What is kept of `spec`; the digest is still to be made of its chunks.
    pub(super) fn new(spec: &JobSpec) -> Self {
        let task = &spec.task;
        Self {
            format: spec.format,
            chapters: spec.chapters.clone(),
            from: task.from.clone(),
            to: task.to.clone(),
            glossary: task.glossary.terms().to_vec(),
            instructions: task.instructions.clone(),
            context_tokens: task.context_tokens,
            chunk_tokens: spec.chunk_tokens,
            model: spec.model.clone(),
            price: spec.price,
            max_cost: spec.max_cost,
            ask_above: spec.ask_above,
            layout: spec.layout,
            output: spec.output.clone(),
            overwrites: spec.overwrites,
            route: spec.route.clone(),
            digest: String::new(),
        }
    }

    /// The settings of a job.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn of(job: &Job) -> Result<Self, Error> {
        Self::parse(&job.id, &job.settings)
    }

    /// Whether `job` and `other` translate in the same way, whatever bounds their cost. The documents are not compared.
    ///
    /// # Errors
    /// If the settings of either cannot be read.
    pub fn is_same_work(job: &NewJob, other: &Job) -> Result<bool, Error> {
        let wanted = Self::parse(&job.id, &job.settings)?;
        let kept = Self::of(other)?;
        let Self { price, max_cost, ask_above, digest, .. } = wanted.clone();
        // The bound may have been raised since, and the digest tells versions of the program apart.
        Ok(Self { price, max_cost, ask_above, digest, ..kept } == wanted)
    }

    fn parse(id: &str, settings: &str) -> Result<Self, Error> {
        serde_json::from_str(settings).map_err(|error| {
            Error::store(format!("the settings of the job {id:?} cannot be read: {error}"))
        })
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let is_wrong = |c: char| c.is_whitespace() || "/?#:".contains(c);
        if self.model.is_empty() || self.model.contains(is_wrong) {
            return Err(Error::invalid(format!(
                "{:?} is no name of a model; write it as in gemini-2.5-flash",
                self.model
            )));
        }
        if self.max_cost.is_some() && self.price.is_none() {
            return Err(Error::invalid(format!(
                "a bound on the cost needs the price of {:?}; give its price, or leave the bound away",
                self.model
            )));
        }
        Ok(())
    }

    pub(super) fn to_json(&self) -> Result<String, Error> {
        serde_json::to_string(self)
            .map_err(|error| Error::store(format!("the settings cannot be written: {error}")))
    }
}
