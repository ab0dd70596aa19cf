//! Chunks as items.

use std::collections::HashMap;

use tollgate::Timestamp;
use tollgate_translate::Error;
use tollgate_translate::job::{ChunkRecord, ChunkState, Drafts, Run, Texts};

use crate::DynamoDbJobs;
use crate::blob::join;
use crate::item::{Item, Key, number, string, text};
use crate::table::unusable;

/// A chunk as it is kept, without its texts.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) run: Run,
    pub(crate) state: ChunkState,
    pub(crate) due: u64,
    pub(crate) calls: u32,
    pub(crate) faults: u32,
    pub(crate) passing: u32,
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) cost: u64,
    pub(crate) expected: u64,
    pub(crate) fence: u64,
    pub(crate) lease_until: u64,
    pub(crate) reason: Option<String>,
    /// The reference to what is translated of it.
    pub(crate) texts: Option<String>,
}

pub(crate) fn partition(body: &str) -> String {
    format!("chunks#{body}")
}

pub(crate) fn texts_of(body: &str) -> String {
    format!("texts#{body}")
}

pub(crate) fn key(body: &str, run: Run) -> Key {
    Key::new(partition(body), format!("{:010}-{:010}", run.first, run.end))
}

/// A chunk that nobody has begun.
pub(crate) fn fresh(body: &str, run: Run) -> Item {
    let mut item = key(body, run).item();
    item.insert("state".to_owned(), string(ChunkState::Pending.word()));
    item
}

fn read(item: &Item) -> Result<Chunk, Error> {
    let small = |name| u32::try_from(number(item, name)).unwrap_or(u32::MAX);
    let sk = text(item, "sk")?;
    let run = sk
        .split_once('-')
        .and_then(|(first, end)| Some(Run { first: first.parse().ok()?, end: end.parse().ok()? }));
    Ok(Chunk {
        run: run.ok_or_else(|| unusable(format!("{sk:?} is no chunk")))?,
        state: text(item, "state")?.parse()?,
        due: number(item, "due"),
        calls: small("calls"),
        faults: small("faults"),
        passing: small("passing"),
        input: number(item, "input"),
        output: number(item, "output"),
        cost: number(item, "cost"),
        expected: number(item, "expected"),
        fence: number(item, "fence"),
        lease_until: number(item, "lease_until"),
        reason: text(item, "reason").ok(),
        texts: text(item, "texts").ok(),
    })
}

fn drafts(bytes: Vec<u8>, run: Run) -> Result<Drafts, Error> {
    let json = String::from_utf8(bytes);
    let json = json.map_err(|_| unusable("a stored translation is not text"))?;
    Drafts::from_json(Some(&json), run.len())
}

impl DynamoDbJobs {
    /// The chunks of `body`, in order, those that were split included.
    pub(crate) async fn chunk_items(&self, body: &str) -> Result<Vec<Chunk>, Error> {
        self.table.query(&partition(body), "").await?.iter().map(read).collect()
    }

    /// What is translated of `chunk`.
    pub(crate) async fn drafts(&self, body: &str, chunk: &Chunk) -> Result<Drafts, Error> {
        match &chunk.texts {
            None => Ok(Drafts::none(chunk.run.len())),
            Some(texts) => drafts(self.table.get_blob(&texts_of(body), texts).await?, chunk.run),
        }
    }

    pub(crate) async fn read_chunks(&self, id: &str) -> Result<Vec<ChunkRecord>, Error> {
        let Some(body) = self.body(id).await? else { return Ok(Vec::new()) };
        // The chunks first: a text is there before its chunk refers to it.
        let chunks = self.chunk_items(&body).await?;
        let pieces = self.table.query(&texts_of(&body), "").await?;
        let mut blobs: HashMap<String, Vec<&Item>> = HashMap::new();
        for piece in &pieces {
            let sk = text(piece, "sk")?;
            let (reference, _) = sk.rsplit_once('#').unwrap_or((&sk, ""));
            blobs.entry(reference.to_owned()).or_default().push(piece);
        }
        let mut records = Vec::new();
        for chunk in chunks.into_iter().filter(|chunk| chunk.state != ChunkState::Split) {
            let Chunk { run, state, calls, reason, .. } = chunk;
            let due = (chunk.due != 0).then(|| Timestamp::from_micros(chunk.due));
            let mut whole = None;
            if let Some(reference) = chunk.texts.filter(|_| state == ChunkState::Done) {
                let pieces = blobs.get(&reference).map(Vec::as_slice).unwrap_or_default();
                whole = drafts(join(pieces.iter().copied(), &reference)?, run)?.whole();
            }
            let Texts { texts, warnings } = whole.unwrap_or_default();
            let again_at = due.filter(|_| state == ChunkState::Again);
            records.push(ChunkRecord { run, state, texts, warnings, reason, calls, again_at, due });
        }
        Ok(records)
    }
}
