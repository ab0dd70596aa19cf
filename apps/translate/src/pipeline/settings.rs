//! The specification of a job, and the settings that are stored, so that every process makes the same requests.

use serde::{Deserialize, Serialize};

use super::Pipeline;
use crate::chunk::CHUNK_TOKENS;
use crate::error::{Error, Result};
use crate::job::{Job, NewJob};
use crate::plan::{Micros, Price};
use crate::{Chapters, Format, Language, Layout, Task, Term};

/// The specification of a new job.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// Identifies it in the store: 1 to 64 letters, digits, `-` and `_`.
    pub id: String,
    /// A name for people, such as that of the file.
    pub name: String,
    /// The bytes of the document.
    pub document: Vec<u8>,
    /// Its format.
    pub format: Format,
    /// The chapters to translate; `None` for all.
    pub chapters: Option<Chapters>,
    /// The languages, the glossary and the instructions.
    pub task: Task,
    /// The provider's name of the model.
    pub model: String,
    /// The size of a chunk, in tokens.
    pub chunk_tokens: u64,
    /// The price of the model's tokens.
    pub price: Option<Price>,
    /// A hard budget: the job is paused before it costs more. Needs a price.
    pub max_cost: Option<Micros>,
    /// A soft budget without a hard one: the job is paused when the next call is expected to cost more. Pending calls may exceed it.
    pub ask_above: Option<Micros>,
    /// The layout of the written document.
    pub layout: Layout,
    /// The file to write the document to.
    pub output: Option<String>,
    /// Whether the user named that file, so that it may be overwritten.
    pub overwrites: bool,
    /// The provider and the quota.
    pub route: Route,
}

impl JobSpec {
    /// Returns a job with chunks of [`CHUNK_TOKENS`], without a price and without a budget.
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

/// The stored part of a [`JobSpec`], without the document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOptions {
    /// The format of the document.
    pub format: Format,
    /// The chapters to translate; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chapters: Option<Chapters>,
    /// The language of the source.
    pub from: Language,
    /// The language to translate into.
    pub to: Language,
    /// Terms and their translations.
    pub glossary: Vec<Term>,
    /// Additional instructions of the user.
    pub instructions: Option<String>,
    /// The size of the context before a chunk, in tokens.
    pub context_tokens: u64,
    /// The size of a chunk, in tokens.
    pub chunk_tokens: u64,
    /// The model.
    pub model: String,
    /// The price of its tokens.
    pub price: Option<Price>,
    /// The hard budget.
    pub max_cost: Option<Micros>,
    /// The soft budget, without a hard one.
    #[serde(default)]
    pub ask_above: Option<Micros>,
    /// The layout of the written document.
    #[serde(default)]
    pub layout: Layout,
    /// The file to write the document to.
    #[serde(default)]
    pub output: Option<String>,
    /// Whether the user named that file, so that it may be overwritten.
    #[serde(default)]
    pub overwrites: bool,
    /// The provider and the quota; empty in jobs of older versions.
    #[serde(default)]
    pub route: Route,
    /// A digest of the chunks and of the version of the prompt.
    pub digest: String,
}

impl JobOptions {
    /// Returns the settings of `spec`, without the digest.
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

    /// Parses the settings of a job.
    ///
    /// # Errors
    /// If they are invalid.
    pub fn from_job(job: &Job) -> Result<Self> {
        Self::parse(&job.id, &job.settings)
    }

    /// Returns whether `job` and `other` translate in the same way, whatever their budgets. Does not compare the documents.
    ///
    /// # Errors
    /// If the settings of either are invalid.
    pub fn is_same_work(job: &NewJob, other: &Job) -> Result<bool> {
        let wanted = Self::parse(&job.id, &job.settings)?;
        let stored = Self::from_job(other)?;
        let Self { price, max_cost, ask_above, digest, .. } = wanted.clone();
        // The budget may have been raised since, and the digest distinguishes versions of the program.
        Ok(Self { price, max_cost, ask_above, digest, ..stored } == wanted)
    }

    fn parse(id: &str, settings: &str) -> Result<Self> {
        serde_json::from_str(settings)
            .map_err(|error| Error::store(format!("invalid settings of the job {id:?}: {error}")))
    }

    pub(super) fn check(&self) -> Result<()> {
        let is_wrong = |c: char| c.is_whitespace() || "/?#:".contains(c);
        if self.model.is_empty() || self.model.contains(is_wrong) {
            return Err(Error::invalid(format!(
                "invalid name of a model {:?}; write it as in gemini-2.5-flash",
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

    pub(super) fn to_json(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(|error| Error::store(format!("the settings cannot be written: {error}")))
    }
}

/// The provider of a job and the quota of its calls, by name. The API key is never stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Route {
    /// The API of the provider.
    pub provider: Option<String>,
    /// Its URL, if it is not the provider's own.
    pub url: Option<String>,
    /// The policy of the quota.
    pub policy: Option<String>,
    /// The subject of the quota.
    pub subject: Option<String>,
}

impl Route {
    /// Returns this route, completed by `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let is_same = self.provider.is_none() || self.provider == other.provider;
        Self {
            provider: self.provider.or(other.provider),
            // A URL belongs to its provider.
            url: self.url.or(other.url.filter(|_| is_same)),
            policy: self.policy.or(other.policy),
            subject: self.subject.or(other.subject),
        }
    }
}

/// A change of the settings of a job that is not over, such as another model or budget. An empty field changes nothing.
#[derive(Clone, Debug, Default)]
pub struct Amendment {
    /// The model, with its price if it is known.
    pub model: Option<(String, Option<Price>)>,
    /// The hard budget.
    pub max_cost: Option<Micros>,
    /// The soft budget.
    pub ask_above: Option<Micros>,
    /// The provider and the quota.
    pub route: Route,
}

impl Pipeline {
    /// Changes the settings of a job. Translated chunks stay.
    ///
    /// # Errors
    /// If there is no such job, it is over, or a budget has no price.
    pub async fn amend(&self, id: &str, amendment: &Amendment) -> Result<()> {
        let job = self.0.job(id).await?;
        if job.state.is_over() {
            return Err(Error::invalid(format!(
                "the job {id:?} is {} and cannot be changed",
                job.state
            )));
        }
        let mut settings = JobOptions::from_job(&job)?;
        if let Some((model, price)) = &amendment.model {
            settings.model.clone_from(model);
            settings.price = *price;
        }
        settings.max_cost = amendment.max_cost.or(settings.max_cost);
        settings.ask_above = amendment.ask_above.or(settings.ask_above);
        settings.route = amendment.route.clone().or(settings.route);
        settings.check()?;
        self.0.store.set_settings(id, &settings.to_json()?).await
    }
}
