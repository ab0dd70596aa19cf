//! `tollgate import`: reads a document into a store. Where the store has an entry already, the stricter state wins.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::task::JoinSet;
use tollgate::clock::SystemClock;
use tollgate::core::Entry;
use tollgate::entries::EntryStore;
use tollgate::repair::{self, AHEAD_MAX_DEFAULT};
use tollgate::{Clock, Error, ErrorKind, Policy, Timestamp};
use tollgate_server::overrides::Overrides;

use super::document::{DocumentReader, Moved, Summary};
use super::progress;
use crate::args::Import;
use tollgate_config::Config;
use tollgate_config::open::{self, OpenedEntries, Purpose};
use tollgate_terminal::Failure;
use tollgate_terminal::confirm;
use tollgate_terminal::escape_controls;
use tollgate_terminal::output::{self, OutputFormat};

/// The most concurrent writes.
const WRITES_MAX: usize = 32;

/// The most entries that an error lists.
const NAMED_MAX: usize = 10;

/// Imports the document into the configured store, after the whole document was checked.
pub(crate) async fn import(
    config: &Config,
    flags: &Import,
    format: OutputFormat,
) -> Result<(), Failure> {
    let source = Source::open(flags.file.as_deref())?;
    // One policy of each shape; there are few.
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
    if !flags.dry_run && !confirm::confirm(flags.yes, "--dry-run", &question(&summary, config))? {
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
    output::print(format, &report, || report.text())
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
            "{error}; {} of {} entries were imported. Importing again is safe",
            writes.counted.sum(),
            summary.entries
        );
        Error::new(error.kind(), text).caused_by(error)
    })
}

/// Concurrent writes.
struct Writes {
    running: JoinSet<Result<Change, Error>>,
    counted: Counted,
}

impl Writes {
    /// Writes every entry. Returns the first error after all writes in flight have ended.
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

    /// Waits for the next write; `None` if none is in flight.
    async fn next(&mut self) -> Option<Result<(), Error>> {
        let ended = self.running.join_next().await?.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Unavailable, format!("a write ended early: {error}")))
        });
        Some(ended.map(|change| {
            *self.counted.counter(change) += 1;
            progress(self.counted.sum(), "imported");
        }))
    }
}

/// Writes one entry, unless this is a dry run.
async fn put(target: Arc<dyn EntryStore>, moved: Moved, dry_run: bool) -> Result<Change, Error> {
    let Moved { policy, subject, entry } = moved;
    let change = Mutex::new(Change::Unchanged);
    let rewrite = |found: Option<&Entry>, now: Timestamp| {
        let (next, is) = merged(found, &entry, now);
        *change.lock().unwrap_or_else(PoisonError::into_inner) = is;
        next.filter(|_| !dry_run)
    };
    target.rewrite(&policy, &subject, &rewrite).await?;
    Ok(change.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the entry that replaces `found` at `now` when `moved` is imported, and what that is called.
fn merged(found: Option<&Entry>, moved: &Entry, now: Timestamp) -> (Option<Entry>, Change) {
    if moved.is_absent(now) {
        return (None, Change::Unchanged);
    }
    let mended = repair::repaired(Some(moved), now, AHEAD_MAX_DEFAULT);
    let moved = mended.as_ref().unwrap_or(moved);
    match found.filter(|found| !found.is_absent(now)) {
        None if mended.is_some() => (mended, Change::Mended),
        None => (Some(moved.clone()), Change::New),
        Some(found) => {
            let next = found.strictest(moved);
            let is_same = next.parts() == found.parts();
            let change = if is_same { Change::Unchanged } else { Change::Merged };
            (Some(next).filter(|_| !is_same), change)
        }
    }
}

/// What an import did to an entry of the target.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// It was added.
    New,
    /// It was merged with the entry of the target, to the stricter state.
    Merged,
    /// It was left as it is.
    Unchanged,
    /// It was from the future, and was written as used up.
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
    const fn counter(&mut self, change: Change) -> &mut u64 {
        match change {
            Change::New => &mut self.new,
            Change::Merged => &mut self.merged,
            Change::Unchanged => &mut self.unchanged,
            Change::Mended => &mut self.mended,
        }
    }

    const fn sum(&self) -> u64 {
        self.new + self.merged + self.unchanged + self.mended
    }
}

/// Overrides that were imported, and those of the target that were kept.
#[derive(Debug, Default, Serialize)]
struct Taken {
    added: usize,
    kept: usize,
}

/// What was done with the key of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum PermitKey {
    /// The export has none.
    NotExported,
    /// The export has one, which a dry run does not try.
    Exported,
    /// The target uses it too.
    Adopted,
    /// The target keeps its own.
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
            store: config.store.describe(),
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
        config.store.describe()
    )
}

/// Returns the error that lists the entries of `source` that are ahead of `now`.
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
            named.push(format!(
                "{policy} {} ({} ahead)",
                escape_controls(&subject),
                ahead.humanize()
            ));
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

    /// Opens the document at its beginning.
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
