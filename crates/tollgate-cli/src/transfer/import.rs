//! `tollgate import`: reads a document into a store. Where the store has an entry already, the strict side wins.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::task::JoinSet;
use tollgate::core::Entry;
use tollgate::entries::EntryStore;
use tollgate::repair::{self, AHEAD_MAX_DEFAULT};
use tollgate::{Clock, Error, ErrorKind, Policy, SystemClock, Timestamp};
use tollgate_server::overrides::Overrides;

use super::document::{Moved, Reader as DocumentReader, Summary};
use super::progress;
use crate::args::Import;
use crate::config::Config;
use crate::consent;
use crate::failure::Failure;
use crate::open::{self, OpenedEntries, Purpose};
use crate::output::{self, Reader};
use crate::show::plain;

/// How many entries are written at once.
const WRITES_MAX: usize = 32;

/// How many entries an error names.
const NAMED_MAX: usize = 10;

/// Reads the named document into the configured store, after it was read and checked as a whole.
pub(crate) async fn import(config: &Config, flags: &Import, reader: Reader) -> Result<(), Failure> {
    let source = Source::open(flags.file.as_deref())?;
    // One of each shape; there are few.
    let mut policies: HashMap<(String, Vec<u8>), Policy> = HashMap::new();
    let mut latest = Timestamp::EPOCH;
    let mut lines = DocumentReader::begin(source.lines()?, flags.partial)?;
    while let Some(Moved { policy, entry, .. }) = lines.next()? {
        latest = latest.max(entry.at());
        let shape = (policy, entry.policy().shape_bytes().to_vec());
        policies.entry(shape).or_insert_with(|| entry.policy().clone());
    }
    let summary = lines.summary;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let purpose = Purpose::Import { dry_run: flags.dry_run };
    let opened = open::entries(&config.store, &config.fallback, Arc::clone(&clock), purpose);
    let target = Box::pin(opened).await?;
    let now = match &target {
        Some(target) => {
            for policy in policies.values() {
                target.entries.check(policy)?;
            }
            target.entries.now().await?
        }
        None => clock.now(),
    };
    if now + AHEAD_MAX_DEFAULT < latest && !flags.mend_future {
        return Err(from_the_future(&source, flags, now)?.into());
    }
    if !flags.dry_run && !consent::given(flags.yes, "--dry-run", &question(&summary, config))? {
        return Err(Failure::new(ErrorKind::Invalid, "nothing was imported"));
    }
    let mut report = Report::new(config, flags, &summary);
    match &target {
        Some(target) => fill(target, &source, flags, &summary, &mut report, now).await?,
        None => {
            report.entries.new = summary.entries;
            report.overrides.added = summary.overrides.as_ref().map_or(0, Overrides::len);
        }
    }
    output::answer(reader, &report, || report.text())
}

async fn fill(
    OpenedEntries { entries, overrides }: &OpenedEntries,
    source: &Source,
    flags: &Import,
    summary: &Summary,
    report: &mut Report,
    now: Timestamp,
) -> Result<(), Error> {
    if let Some(key) = summary.origin.permit_key.filter(|_| !flags.dry_run) {
        let is_adopted = entries.adopt_permit_key(key).await?;
        report.permit_key = if is_adopted { PermitKey::Adopted } else { PermitKey::Kept };
    }
    if let Some(moved) = &summary.overrides {
        let taken = Cell::new(0);
        let merge = |overrides: &mut Overrides| {
            taken.set(overrides.merge(moved, flags.overwrite_overrides)?);
            Ok(0 < taken.get())
        };
        if flags.dry_run {
            merge(&mut Overrides::read(&**overrides).await?)?;
        } else {
            Overrides::change(&**overrides, now, merge).await?;
        }
        report.overrides = Taken { added: taken.get(), kept: moved.len() - taken.get() };
    }
    let mut writes = Writes { running: JoinSet::new(), counted: Counted::default() };
    let written = writes.all(entries, source, flags).await;
    report.entries = writes.counted;
    written.map_err(|error| {
        let text = format!(
            "{error}; {} of {} entries were imported. Import again: what is there already stays as it is",
            writes.counted.sum(),
            summary.entries
        );
        Error::new(error.kind(), text).caused_by(error)
    })
}

/// The writes that are under way.
struct Writes {
    running: JoinSet<Result<Became, Error>>,
    counted: Counted,
}

impl Writes {
    /// Writes every entry, or says what came between, when none is under way any more.
    async fn all(
        &mut self,
        target: &Arc<dyn EntryStore>,
        source: &Source,
        flags: &Import,
    ) -> Result<(), Error> {
        let written = self.start_all(target, source, flags).await;
        let mut ended = Ok(());
        while let Some(one) = self.next().await {
            ended = ended.and(one);
        }
        written.and(ended)
    }

    async fn start_all(
        &mut self,
        target: &Arc<dyn EntryStore>,
        source: &Source,
        flags: &Import,
    ) -> Result<(), Error> {
        let mut lines = DocumentReader::begin(source.lines()?, flags.partial)?;
        while let Some(moved) = lines.next()? {
            if WRITES_MAX <= self.running.len()
                && let Some(ended) = self.next().await
            {
                ended?;
            }
            self.running.spawn(put(Arc::clone(target), moved, flags.dry_run));
        }
        Ok(())
    }

    /// How the next one ended; nothing if none is under way.
    async fn next(&mut self) -> Option<Result<(), Error>> {
        let ended = self.running.join_next().await?.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Unavailable, format!("a write ended early: {error}")))
        });
        Some(ended.map(|became| {
            *self.counted.of(became) += 1;
            progress(self.counted.sum(), "imported");
        }))
    }
}

/// Writes one entry, unless this is a dry run.
async fn put(target: Arc<dyn EntryStore>, moved: Moved, dry_run: bool) -> Result<Became, Error> {
    let Moved { policy, subject, entry } = moved;
    let became = Mutex::new(Became::Unchanged);
    let rewrite = |found: Option<&Entry>, now: Timestamp| {
        let (next, is) = merged(found, &entry, now);
        *became.lock().unwrap_or_else(PoisonError::into_inner) = is;
        next.filter(|_| !dry_run)
    };
    target.rewrite(&policy, &subject, &rewrite).await?;
    Ok(became.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// What takes the place of `found` at `now` when `moved` is imported, and what to call that.
fn merged(found: Option<&Entry>, moved: &Entry, now: Timestamp) -> (Option<Entry>, Became) {
    if moved.is_absent(now) {
        return (None, Became::Unchanged);
    }
    let mended = repair::mended(Some(moved), now, AHEAD_MAX_DEFAULT);
    let moved = mended.as_ref().unwrap_or(moved);
    match found.filter(|found| !found.is_absent(now)) {
        None if mended.is_some() => (mended, Became::Mended),
        None => (Some(moved.clone()), Became::New),
        Some(found) => {
            let next = found.strictest(moved);
            let is_same = next.parts() == found.parts();
            let became = if is_same { Became::Unchanged } else { Became::Merged };
            (Some(next).filter(|_| !is_same), became)
        }
    }
}

/// What an import did to an entry of the target.
#[derive(Clone, Copy, Debug)]
enum Became {
    /// There was none, so it moved as it is.
    New,
    /// There was one, and the strict side of both is kept.
    Merged,
    /// There is nothing to do.
    Unchanged,
    /// It was from the future and is used up now.
    Mended,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Counted {
    new: u64,
    merged: u64,
    unchanged: u64,
    mended: u64,
}

impl Counted {
    const fn of(&mut self, became: Became) -> &mut u64 {
        match became {
            Became::New => &mut self.new,
            Became::Merged => &mut self.merged,
            Became::Unchanged => &mut self.unchanged,
            Became::Mended => &mut self.mended,
        }
    }

    const fn sum(&self) -> u64 {
        self.new + self.merged + self.unchanged + self.mended
    }
}

/// Overrides that were taken over, and those of the target that stay.
#[derive(Debug, Default, Serialize)]
struct Taken {
    added: usize,
    kept: usize,
}

/// What became of the key of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum PermitKey {
    /// The export has none.
    NotExported,
    /// The export has one, which a dry run does not try.
    Exported,
    /// It is the target's, too.
    Adopted,
    /// The target keeps another.
    Kept,
}

#[derive(Debug, Serialize)]
struct Report {
    applied: bool,
    store: String,
    from: String,
    taken_at: String,
    entries: Counted,
    overrides: Taken,
    permit_key: PermitKey,
}

impl Report {
    fn new(config: &Config, flags: &Import, summary: &Summary) -> Self {
        Self {
            applied: !flags.dry_run,
            store: config.store.name(),
            from: summary.origin.store.clone(),
            taken_at: summary.origin.taken_at.to_string(),
            entries: Counted::default(),
            overrides: Taken::default(),
            permit_key: match summary.origin.permit_key {
                Some(_) => PermitKey::Exported,
                None => PermitKey::NotExported,
            },
        }
    }

    fn text(&self) -> String {
        let Self { store, from, taken_at, entries, overrides, .. } = self;
        let Counted { new, merged, unchanged, mended } = entries;
        let (total, Taken { added, kept }) = (entries.sum(), overrides);
        let did = if self.applied { "imported" } else { "would be imported; nothing was changed" };
        let key = match self.permit_key {
            PermitKey::NotExported => "not in the export, so permits in flight are not valid here",
            PermitKey::Exported => "in the export; adopted unless the store has one in use",
            PermitKey::Adopted => "adopted, so permits in flight stay valid",
            PermitKey::Kept => "the store has its own, so permits in flight are not valid here",
        };
        format!(
            "{store}: {total} entries of {taken_at} from {from} {did}\n\
             \x20 entries     {new} new, {merged} merged to the strict side, {unchanged} unchanged, {mended} from the future \
             written as used up\n\
             \x20 overrides   {added} taken over, {kept} left as they are here\n\
             \x20 permit key  {key}"
        )
    }
}

fn question(summary: &Summary, config: &Config) -> String {
    let Summary { origin, overrides, entries } = summary;
    let overrides = overrides.as_ref().map_or(0, Overrides::len);
    format!(
        "Import {entries} entries and {overrides} overrides of {} from {} into {}?",
        origin.taken_at,
        origin.store,
        config.store.name()
    )
}

/// The error that names the entries of `source` which are ahead of `now`.
fn from_the_future(source: &Source, flags: &Import, now: Timestamp) -> Result<Error, Error> {
    let (mut named, mut count) = (Vec::new(), 0_u64);
    let mut lines = DocumentReader::begin(source.lines()?, flags.partial)?;
    while let Some(Moved { policy, subject, entry }) = lines.next()? {
        let ahead = entry.at().since(now);
        if ahead <= AHEAD_MAX_DEFAULT {
            continue;
        }
        count += 1;
        if named.len() < NAMED_MAX {
            named.push(format!("{policy} {} ({} ahead)", plain(&subject), ahead.for_people()));
        }
    }
    let more = if (named.len() as u64) < count { ", and more" } else { "" };
    Ok(Error::new(
        ErrorKind::Invalid,
        format!(
            "{count} entries are from the future at the target, whose time is {now}: {}{more}; nothing was imported. Check the \
             clocks of both stores first. If the target's is right, import with --mend-future, which writes them as used up now",
            named.join(", ")
        ),
    ))
}

/// A document that can be read more than once.
enum Source {
    File(PathBuf),
    /// Standard input, kept whole.
    Input(Vec<u8>),
}

impl Source {
    fn open(file: Option<&Path>) -> Result<Self, Error> {
        if let Some(file) = file.filter(|file| *file != Path::new("-")) {
            return Ok(Self::File(file.to_owned()));
        }
        if io::stdin().is_terminal() {
            let text = "there is no export to read; name its file, or pipe one in: tollgate export … | tollgate import --yes";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes).map_err(|error| {
            let text = format!("standard input cannot be read: {error}");
            Error::new(ErrorKind::Unavailable, text)
        })?;
        Ok(Self::Input(bytes))
    }

    /// The document from its beginning.
    fn lines(&self) -> Result<Box<dyn BufRead + '_>, Error> {
        Ok(match self {
            Self::Input(bytes) => Box::new(bytes.as_slice()),
            Self::File(file) => Box::new(BufReader::new(File::open(file).map_err(|error| {
                let text = format!("{} cannot be read: {error}", file.display());
                Error::new(ErrorKind::Invalid, text)
            })?)),
        })
    }
}
