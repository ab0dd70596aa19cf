//! The document of a job with everything that is asked about it: requests, checks, prices.
//!
//! Another process, on another machine, must make the same requests of the same document. So a job keeps the document and
//! its settings, and a digest of the chunks that came of them; a program that would cut them otherwise refuses to go on.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Route, no_job};
use crate::cache::Key;
use crate::chunk::{self, CHUNK_TOKENS};
use crate::error::Error;
use crate::job::{Job, JobStore, Run};
use crate::plan::{Micros, Price};
use crate::provider::Request;
use crate::verify::{Fault, Verified, verify};
use crate::{
    Chunk, Document, Estimate, Format, Glossary, Language, Layout, PROMPT_VERSION, Task, Term,
};

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
            task,
            model: model.into(),
            chunk_tokens: CHUNK_TOKENS,
            price: None,
            max_cost: None,
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
    /// The settings of a job.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn of(job: &Job) -> Result<Self, Error> {
        serde_json::from_str(&job.settings).map_err(|error| {
            Error::store(format!("the settings of the job {:?} cannot be read: {error}", job.id))
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

/// A document that was read and cut, with its settings.
#[derive(Debug)]
pub(super) struct Book {
    document: Document,
    chunks: Vec<Run>,
    task: Task,
    settings: JobSettings,
}

/// A request for a run of segments.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) request: Request,
    pub(super) key: Key,
    /// Its tokens by the rule alone.
    pub(super) tokens: u64,
    /// The tokens of the answer, on the high side.
    pub(super) output: u64,
}

impl Book {
    pub(super) fn new(spec: &JobSpec) -> Result<Self, Error> {
        let task = &spec.task;
        let settings = JobSettings {
            format: spec.format,
            from: task.from.clone(),
            to: task.to.clone(),
            glossary: task.glossary.terms().to_vec(),
            instructions: task.instructions.clone(),
            context_tokens: task.context_tokens,
            chunk_tokens: spec.chunk_tokens,
            model: spec.model.clone(),
            price: spec.price,
            max_cost: spec.max_cost,
            layout: spec.layout,
            output: spec.output.clone(),
            overwrites: spec.overwrites,
            route: spec.route.clone(),
            digest: String::new(),
        };
        settings.check()?;
        let mut book = Self::cut(spec.document.clone(), settings)?;
        book.settings.digest = book.digest();
        Ok(book)
    }

    /// The book of a job in `store`, as its settings describe it.
    pub(super) async fn of(store: &dyn JobStore, id: &str) -> Result<Self, Error> {
        let job = store.job(id).await?.ok_or_else(|| no_job(id))?;
        let document = store.document(id).await?.ok_or_else(|| no_job(id))?;
        Self::open(&job, document)
    }

    fn open(job: &Job, document: Vec<u8>) -> Result<Self, Error> {
        let book = Self::cut(document, JobSettings::of(job)?)?;
        if book.digest() != book.settings.digest {
            return Err(Error::store(format!(
                "the job {:?} was made by another version of this program, which cuts the document otherwise; \
                 finish it there, or make it anew",
                job.id
            )));
        }
        Ok(book)
    }

    fn cut(document: Vec<u8>, settings: JobSettings) -> Result<Self, Error> {
        let mut document = Document::read(document, settings.format)?;
        let chunks = chunk::cut(&mut document, settings.chunk_tokens)?;
        let number = |place: usize| {
            u32::try_from(place)
                .map_err(|_| Error::document("the document has too many segments; cut it in parts"))
        };
        let chunks = chunks
            .iter()
            .map(|chunk| {
                Ok(Run { first: number(chunk.segments.start)?, end: number(chunk.segments.end)? })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        let task = Task {
            from: settings.from.clone(),
            to: settings.to.clone(),
            glossary: Glossary::new(settings.glossary.iter().cloned())?,
            instructions: settings.instructions.clone(),
            context_tokens: settings.context_tokens,
        };
        Ok(Self { document, chunks, task, settings })
    }

    fn digest(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(PROMPT_VERSION.to_le_bytes());
        for run in &self.chunks {
            hash.update(run.first.to_le_bytes());
            hash.update(run.end.to_le_bytes());
        }
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn settings_json(&self) -> Result<String, Error> {
        self.settings.to_json()
    }

    pub(super) fn chunks(&self) -> Vec<Run> {
        self.chunks.clone()
    }

    /// The language it is translated into.
    pub(super) const fn to(&self) -> &Language {
        &self.settings.to
    }

    pub(super) const fn document(&self) -> &Document {
        &self.document
    }

    fn chunk(&self, run: Run) -> Chunk {
        Chunk::of(&self.document, run.first as usize..run.end as usize)
    }

    pub(super) fn ask(&self, run: Run) -> Asking {
        let prompt = self.task.prompt(&self.document, &self.chunk(run));
        let key = Key::of(&self.settings.model, &prompt);
        let request = Request {
            model: self.settings.model.clone(),
            system: prompt.system,
            prompt: prompt.prompt,
            max_output_tokens: u64::from(prompt.max_output_tokens),
        };
        Asking { request, key, tokens: prompt.tokens, output: prompt.output_tokens }
    }

    /// What the number of tokens of a request depends on: the model and the language.
    pub(super) fn tokenized(&self) -> (&str, &Language) {
        (&self.settings.model, &self.settings.from)
    }

    pub(super) fn check(&self, run: Run, answer: &str) -> Result<Verified, Fault> {
        verify(&self.task, &self.document, &self.chunk(run), answer)
    }

    /// The first segment of the second half.
    pub(super) fn middle(&self, run: Run) -> Option<u32> {
        let [first, _] = self.chunk(run).halves(&self.document)?;
        u32::try_from(first.segments.end).ok()
    }

    /// What so many tokens cost, in millionths.
    pub(super) fn cost(&self, input: u64, output: u64) -> u64 {
        self.settings.price.map_or(0, |price| price.of(Estimate { input, output }).0)
    }

    /// Bounds the answer to `request` so that the call costs no more than `left`, and says what it costs at most.
    pub(super) fn bounded(&self, request: &mut Request, tokens: u64, left: u64) -> u64 {
        let million = u128::from(self.settings.price.map_or(0, |price| price.output));
        let for_output = u128::from(left.saturating_sub(self.cost(tokens, 0))) * 1_000_000;
        let affordable = for_output.checked_div(million).and_then(|most| u64::try_from(most).ok());
        // Whoever calls this has enough for the answer that is expected.
        let most = request.max_output_tokens.min(affordable.unwrap_or(u64::MAX));
        request.max_output_tokens = most.max(1);
        self.cost(tokens, request.max_output_tokens)
    }

    pub(super) fn max_cost(&self) -> Option<Micros> {
        self.settings.max_cost
    }
}
