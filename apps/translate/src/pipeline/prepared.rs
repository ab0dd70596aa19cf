//! The document of a job, ready to be translated: its requests, their checks and their cost.
//!
//! Every process must make the same requests for the same document. So a job stores the document, its settings and a digest of its
//! chunks; a version of the program that cuts the document differently refuses the job.

use sha2::{Digest, Sha256};
use unicode_segmentation::UnicodeSegmentation as _;

use super::settings::{JobOptions, JobSpec};
use super::settle::settled;
use crate::cache::CacheKey;
use crate::chunk;
use crate::error::{Error, Result};
use crate::job::{ChunkPart, Drafts, Job, JobStore, SegmentRange, no_such_job};
use crate::plan::Micros;
use crate::provider::Request;
use crate::verify::{self, Checked, Ending};
use crate::{Chunk, Document, Estimate, Glossary, Language, PROMPT_VERSION, Segment, Task};

/// A document that was parsed and cut into chunks, with its settings.
#[derive(Debug)]
pub(super) struct PreparedDocument {
    pub(super) document: Document,
    /// The chunks before any was split.
    pub(super) chunks: Vec<SegmentRange>,
    task: Task,
    pub(super) settings: JobOptions,
}

/// A request for the open segments of a chunk.
#[derive(Debug)]
pub(super) struct ChunkRequest {
    pub(super) request: Request,
    pub(super) key: CacheKey,
    /// The indices of the segments in their chunk.
    pub(super) open: Vec<u32>,
    /// Its estimated tokens, before calibration.
    pub(super) tokens: u64,
    /// The estimated tokens of the answer, an upper estimate.
    pub(super) output: u64,
}

impl PreparedDocument {
    pub(super) fn new(spec: &JobSpec) -> Result<Self> {
        let settings = JobOptions::new(spec);
        settings.check()?;
        let mut prepared = Self::cut(spec.document.clone(), settings)?;
        prepared.settings.digest = prepared.digest();
        Ok(prepared)
    }

    /// Loads the document of a job in `store`.
    pub(super) async fn load(store: &dyn JobStore, id: &str) -> Result<Self> {
        let job = store.job(id).await?.ok_or_else(|| no_such_job(id))?;
        let document = store.document(id).await?.ok_or_else(|| no_such_job(id))?;
        Self::open(&job, document)
    }

    fn open(job: &Job, document: Vec<u8>) -> Result<Self> {
        let prepared = Self::cut(document, JobOptions::from_job(job)?)?;
        if prepared.digest() != prepared.settings.digest {
            return Err(Error::store(format!(
                "the job {:?} was created by another version of this program, which cuts the document differently; \
                 finish it there, or create it again",
                job.id
            )));
        }
        Ok(prepared)
    }

    fn cut(document: Vec<u8>, settings: JobOptions) -> Result<Self> {
        let mut document = Document::read(document, settings.format)?;
        if let Some(chapters) = &settings.chapters {
            document.choose(chapters)?;
        }
        let chunks = chunk::cut(&mut document, settings.chunk_tokens)?;
        let number = |index: usize| {
            u32::try_from(index)
                .map_err(|_| Error::document("the document has too many segments; cut it in parts"))
        };
        let chunks = chunks
            .iter()
            .map(|chunk| {
                Ok(SegmentRange {
                    first: number(chunk.segments.start)?,
                    end: number(chunk.segments.end)?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
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

    /// Returns whether `run` is a whole chunk, and not a part of one.
    pub(super) fn is_planned(&self, run: SegmentRange) -> bool {
        self.chunks.binary_search(&run).is_ok()
    }

    /// Returns the number of words in the source of `run`; each character of a script without spaces is one.
    pub(super) fn words(&self, run: SegmentRange) -> u64 {
        let segments = self.document.segments_in(run.first as usize..run.end as usize);
        segments.map(|segment| segment.plain().unicode_words().count() as u64).sum()
    }

    fn segments(&self, run: SegmentRange, indices: &[u32]) -> Vec<Segment<'_>> {
        let all = self.document.segments_in(run.first as usize..run.end as usize);
        let is_wanted = |index: u32| indices.binary_search(&index).is_ok();
        (0..).zip(all).filter(|(index, _)| is_wanted(*index)).map(|(_, segment)| segment).collect()
    }

    /// Returns the request for the segments of `run` at the indices `open`.
    pub(super) fn request(&self, run: SegmentRange, open: Vec<u32>) -> ChunkRequest {
        let prompt = self.task.prompt_for(&self.document, &self.segments(run, &open));
        let key = CacheKey::for_prompt(&self.settings.model, &prompt);
        let request = Request {
            model: self.settings.model.clone(),
            system: prompt.system,
            prompt: prompt.prompt,
            max_output_tokens: u64::from(prompt.max_output_tokens),
        };
        ChunkRequest { request, key, open, tokens: prompt.tokens, output: prompt.output_tokens }
    }

    /// Returns the cache key of the request for the whole of `run`.
    pub(super) fn cache_key(&self, run: SegmentRange) -> CacheKey {
        self.request(run, (0..run.len()).collect()).key
    }

    /// Returns the model and the language, which determine the number of tokens of a text.
    pub(super) fn tokenizer(&self) -> (&str, &Language) {
        (&self.settings.model, &self.settings.from)
    }

    /// Checks an answer to the request for the segments of `run` at the indices `open`.
    pub(super) fn check(
        &self,
        run: SegmentRange,
        open: &[u32],
        answer: &str,
        ending: Ending,
    ) -> Checked {
        verify::verify_segments(&self.task, &self.segments(run, open), answer, ending)
    }

    /// Checks the cached answer for the whole of `run`; `None` if it is not good any more.
    pub(super) fn check_cached(&self, run: SegmentRange, texts: Vec<String>) -> Option<Drafts> {
        let indices: Vec<u32> = (0..run.len()).collect();
        if texts.len() != indices.len() {
            return None;
        }
        let texts = texts.into_iter().map(Ok).collect();
        let checked = verify::assess(&self.task, &self.segments(run, &indices), texts);
        let mut drafts = Drafts::none(run.len());
        for (index, finding) in (0..).zip(checked.findings) {
            drafts.put(index, settled(finding)?);
        }
        Some(drafts)
    }

    /// Splits `run` into two parts with half of the open segments each; `None` for a single one.
    pub(super) fn halves(&self, run: SegmentRange, drafts: &Drafts) -> Option<Vec<ChunkPart>> {
        let open = drafts.open();
        let at = match open.as_slice() {
            [] | [_] => return None,
            all if all.len() == run.len() as usize => {
                let range = run.first as usize..run.end as usize;
                let chunk = Chunk::from_segments(&self.document, range);
                let [first, _] = chunk.halves(&self.document)?;
                u32::try_from(first.segments.end).ok()? - run.first
            }
            some => some[some.len() / 2],
        };
        let part = |indices: std::ops::Range<u32>| ChunkPart {
            run: SegmentRange { first: run.first + indices.start, end: run.first + indices.end },
            drafts: drafts.part(indices),
            failed: None,
        };
        Some(vec![part(0..at), part(at..run.len())])
    }

    /// Returns the cost of the tokens, in millionths.
    pub(super) fn cost(&self, input: u64, output: u64) -> u64 {
        self.settings.price.map_or(0, |price| price.cost(Estimate { input, output }.into()).0)
    }

    /// Limits the answer to `request` so that the call costs at most `left`, and returns its maximum cost.
    pub(super) fn limit_output(&self, request: &mut Request, tokens: u64, left: u64) -> u64 {
        let million = u128::from(self.settings.price.map_or(0, |price| price.output));
        let for_output = u128::from(left.saturating_sub(self.cost(tokens, 0))) * 1_000_000;
        let affordable = for_output.checked_div(million).and_then(|most| u64::try_from(most).ok());
        // The caller has checked that the expected answer is affordable.
        let most = request.max_output_tokens.min(affordable.unwrap_or(u64::MAX));
        request.max_output_tokens = most.max(1);
        self.cost(tokens, request.max_output_tokens)
    }

    /// Returns the budget of the job.
    pub(super) fn budget(&self) -> Option<Budget> {
        let JobOptions { max_cost, ask_above, .. } = &self.settings;
        let budget = |is_hard| move |Micros(most): Micros| Budget { most, is_hard };
        max_cost.map(budget(true)).or_else(|| ask_above.map(budget(false)))
    }
}

/// The budget of a job, in millionths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) most: u64,
    /// Whether no call may exceed it. A soft budget pauses the job when the next call is expected to exceed it.
    pub(super) is_hard: bool,
}
