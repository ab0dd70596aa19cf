//! The document of a job with everything that is asked about it: requests, checks, prices.
//!
//! Another process, on another machine, must make the same requests of the same document. So a job keeps the document and
//! its settings, and a digest of the chunks that came of them; a program that would cut them otherwise refuses to go on.

use sha2::{Digest, Sha256};
use unicode_segmentation::UnicodeSegmentation as _;

use super::no_job;
use super::spec::{JobSettings, JobSpec};
use crate::cache::Key;
use crate::chunk;
use crate::error::Error;
use crate::job::{Draft, Drafts, Job, JobStore, Part, Run};
use crate::plan::Micros;
use crate::provider::Request;
use crate::verify::{self, Checked, Ending, Finding};
use crate::{Chunk, Document, Estimate, Glossary, Language, PROMPT_VERSION, Segment, Task};

/// A document that was read and cut, with its settings.
#[derive(Debug)]
pub(super) struct Book {
    document: Document,
    chunks: Vec<Run>,
    task: Task,
    settings: JobSettings,
}

/// A request for the open segments of a run.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) request: Request,
    pub(super) key: Key,
    /// The places of the segments in their run.
    pub(super) open: Vec<u32>,
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
        if let Some(chapters) = &settings.chapters {
            document.choose(chapters)?;
        }
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

    /// Whether `run` is a chunk as it was cut, and no part of one.
    pub(super) fn is_planned(&self, run: Run) -> bool {
        self.chunks.binary_search(&run).is_ok()
    }

    /// How many words the source of `run` has, where each character of a script without spaces is one.
    pub(super) fn words(&self, run: Run) -> u64 {
        let segments = self.document.segments_in(run.first as usize..run.end as usize);
        segments.map(|segment| segment.plain().unicode_words().count() as u64).sum()
    }

    /// How many chunks there were before any was split.
    pub(super) const fn planned(&self) -> usize {
        self.chunks.len()
    }

    fn chunk(&self, run: Run) -> Chunk {
        Chunk::of(&self.document, run.first as usize..run.end as usize)
    }

    fn segments(&self, run: Run, places: &[u32]) -> Vec<Segment<'_>> {
        let all = self.document.segments_in(run.first as usize..run.end as usize);
        let is_wanted = |place: u32| places.binary_search(&place).is_ok();
        (0..).zip(all).filter(|(place, _)| is_wanted(*place)).map(|(_, segment)| segment).collect()
    }

    /// The request for the segments of `run` at the places `open`.
    pub(super) fn ask(&self, run: Run, open: Vec<u32>) -> Asking {
        let prompt = self.task.prompt_for(&self.document, &self.segments(run, &open));
        let key = Key::of(&self.settings.model, &prompt);
        let request = Request {
            model: self.settings.model.clone(),
            system: prompt.system,
            prompt: prompt.prompt,
            max_output_tokens: u64::from(prompt.max_output_tokens),
        };
        Asking { request, key, open, tokens: prompt.tokens, output: prompt.output_tokens }
    }

    /// The key of the request for the whole of `run`.
    pub(super) fn key(&self, run: Run) -> Key {
        self.ask(run, (0..run.len()).collect()).key
    }

    /// What the number of tokens of a request depends on: the model and the language.
    pub(super) fn tokenized(&self) -> (&str, &Language) {
        (&self.settings.model, &self.settings.from)
    }

    /// Checks an answer to the request for the segments of `run` at the places `open`.
    pub(super) fn check(&self, run: Run, open: &[u32], answer: &str, ending: Ending) -> Checked {
        verify::verify_segments(&self.task, &self.segments(run, open), answer, ending)
    }

    /// What was answered before to the request for the whole of `run`, if it is still good.
    pub(super) fn recalled(&self, run: Run, texts: Vec<String>) -> Option<Drafts> {
        let places: Vec<u32> = (0..run.len()).collect();
        if texts.len() != places.len() {
            return None;
        }
        let texts = texts.into_iter().map(Ok).collect();
        let checked = verify::assess(&self.task, &self.segments(run, &places), texts);
        let mut drafts = Drafts::none(run.len());
        for (place, finding) in (0..).zip(checked.findings) {
            let (text, fault) = match finding {
                Finding::Good { text, warning } => (text, warning),
                Finding::Doubtful { text, fault } => (text, Some(fault)),
                Finding::Bad(_) => return None,
            };
            let warning = fault.map(|fault| fault.without_segment());
            drafts.put(place, Draft { text, warning, is_settled: true });
        }
        Some(drafts)
    }

    /// Two parts of `run` that each have half of what is open; nothing if that is a single segment.
    pub(super) fn halves(&self, run: Run, drafts: &Drafts) -> Option<Vec<Part>> {
        let open = drafts.open();
        let at = match open.as_slice() {
            [] | [_] => return None,
            all if all.len() == run.len() as usize => {
                let [first, _] = self.chunk(run).halves(&self.document)?;
                u32::try_from(first.segments.end).ok()? - run.first
            }
            some => some[some.len() / 2],
        };
        let part = |places: std::ops::Range<u32>| Part {
            run: Run { first: run.first + places.start, end: run.first + places.end },
            drafts: drafts.part(places),
            failed: None,
        };
        Some(vec![part(0..at), part(at..run.len())])
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

    pub(super) fn budget(&self) -> Option<Budget> {
        let JobSettings { max_cost, ask_above, .. } = &self.settings;
        let hard = |Micros(most): Micros| Budget { most, is_hard: true };
        let asks = |Micros(most): Micros| Budget { most, is_hard: false };
        max_cost.map(hard).or_else(|| ask_above.map(asks))
    }
}

/// What a job may cost, in millionths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) most: u64,
    /// Whether no call may pass it. Otherwise the job is paused where the next call is expected to.
    pub(super) is_hard: bool,
}
