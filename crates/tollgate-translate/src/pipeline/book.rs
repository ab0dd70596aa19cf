//! The document of a job with everything that is asked about it: requests, checks, prices.
//!
//! Another process, on another machine, must make the same requests of the same document. So a job keeps the document and
//! its settings, and a digest of the chunks that came of them; a program that would cut them otherwise refuses to go on.

use sha2::{Digest, Sha256};

use super::no_job;
use super::spec::{JobSettings, JobSpec};
use crate::cache::Key;
use crate::chunk;
use crate::error::Error;
use crate::job::{Job, JobStore, Run};
use crate::plan::Micros;
use crate::provider::Request;
use crate::verify::{Fault, Verified, verify};
use crate::{Chunk, Document, Estimate, Glossary, Language, PROMPT_VERSION, Task};

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
        let settings = JobSettings::new(spec);
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
