//! The store: which way each operation goes, and what is seen on the way.

use std::sync::Arc;

use tollgate::core::Known;
use tollgate::{BoxFuture, Error, ErrorKind, Operation, Outcome, Policy, Store};

use crate::fast;
use crate::format::Format;
use crate::hints::Hints;
use crate::item::Item;
use crate::key::SHARED;
use crate::lanes::Lanes;
use crate::layout::Layout;
use crate::options::Options;
use crate::run::{Seen, run};
use crate::send::Wire;
use crate::skew::Guarded;
use crate::tries::Tries;

/// How often the service's time is read for one operation, if the clock is set again meanwhile.
const EVIDENCE_READS_MAX: u32 = 3;

/// tollgate on a DynamoDB table. [`Atomic`](tollgate::Atomic) makes a gate of it.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use tollgate::{Ask, Atomic, Gate, Limit, Policy, RollingWindow, Span, TokenBucket};
/// use tollgate_dynamodb::{DynamoDb, Options};
///
/// let minute = Span::from_mins(1);
/// let gemini = Policy::new("gemini", [
///     Limit::new("rpm", "requests", RollingWindow::new(5, minute).resolution(12)),
///     Limit::new("tpm", "tokens", TokenBucket::per_minute(250_000)),
/// ])?;
/// let gate = Atomic::new(DynamoDb::connect(Options::new("tollgate").region("eu-central-1")).await?);
/// let decision = gate.acquire(&Ask::new(&gemini, "project-7").cost("tokens", 3_750)).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct DynamoDb {
    pub(crate) wire: Wire,
    pub(crate) clock: Arc<Guarded>,
    pub(crate) hints: Hints,
    pub(crate) lanes: Lanes,
    pub(crate) format: Format,
}

impl DynamoDb {
    /// A store on the table of `options`. Reads once, so that the connection is warm, the clock is compared, and what is
    /// missing is said now.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Invalid`](ErrorKind::Invalid) with what is missing: the table, a
    /// permission, credentials, a region, a service at the endpoint.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        let store = Self::new(options).await?;
        store.read(&mut store.wire.watch.call(None), SHARED).await?;
        Ok(store)
    }

    /// A store on the table of `options` that has not been tried yet.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if there is no region.
    pub async fn new(options: Options) -> Result<Self, Error> {
        let format = options.format;
        let (wire, clock) = options.open().await?;
        Ok(Self { wire, clock, hints: Hints::default(), lanes: Lanes::default(), format })
    }

    /// Reports what this store cannot keep of `policy`: a rolling window of more than
    /// [`SLOTS_PER_WINDOW_MAX`](crate::SLOTS_PER_WINDOW_MAX) slots, or limits that do not fit into one item.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) with what would be right. Every operation under such a policy gets the same answer.
    pub fn check(policy: &Policy) -> Result<(), Error> {
        Layout::of(policy).check(policy)
    }

    /// What is added to the machine's clock because the service's says otherwise, in microseconds.
    #[must_use]
    pub fn clock_offset_micros(&self) -> i64 {
        self.clock.offset_micros()
    }

    async fn answer(
        &self,
        tries: &mut Tries<'_>,
        operation: &Operation<'_>,
    ) -> Result<Outcome, Error> {
        let layout = Layout::of(operation.policy());
        layout.check(operation.policy())?;
        let key = format!("{}/{}", operation.policy().name(), operation.subject());
        match operation {
            Operation::Standing { .. } => self.look(tries, operation, &key).await,
            Operation::Acquire(ask) => {
                ask.check()?;
                let never = ask.policy().effective().zip(ask.policy().places());
                let never = never.into_iter().any(|(most, place)| most < ask.amounts().at(place));
                if never {
                    return self.look(tries, operation, &key).await;
                }
                if !ask.in_front().is_empty() {
                    // It is mostly denied, so the item is read first. An expression cannot weigh those in front, so it
                    // takes a swap if all of them have room.
                    let item = self.read(tries, &key).await?;
                    return self.swap(tries, operation, &key, Some(item)).await;
                }
                if self.format == Format::New && fast::is_fast(&layout, ask) {
                    return self.acquire_fast(tries, ask, &layout, &key).await;
                }
                self.swap(tries, operation, &key, None).await
            }
            _ => self.swap(tries, operation, &key, None).await,
        }
    }

    /// Answers what changes nothing, from the item as it is.
    async fn look(
        &self,
        tries: &mut Tries<'_>,
        operation: &Operation<'_>,
        key: &str,
    ) -> Result<Outcome, Error> {
        let item = self.read(tries, key).await?;
        let now = self.clock.now();
        let future = item.as_ref().map(|item| item.at().since(now)).unwrap_or_default();
        if self.clock.apart_max().is_some_and(|most| most < future)
            && let Some(item) = &item
        {
            // What the next write will replace it by.
            let mut entry = item.entry_with(operation.policy(), None, &[])?.mended(now);
            let format = self.format.after(Some(item));
            return Ok(format.apply(operation, &mut entry, Known::New, now)?.outcome);
        }
        let seen = Seen::new(item.as_deref(), self.format);
        Ok(run(operation, seen, Known::New, now)?.0.outcome)
    }

    /// Waits for evidence if the machine's clock is suspect: a reply with a `Date`.
    pub(crate) async fn await_evidence(&self) -> Result<(), Error> {
        for _ in 0..EVIDENCE_READS_MAX {
            if !self.clock.is_suspect() {
                return Ok(());
            }
            let dates = self.clock.dates();
            let read = self.wire.read(&mut self.wire.watch.call(None), SHARED).await;
            if self.clock.dates() == dates {
                read?;
                if self.clock.do_without_evidence() {
                    return Ok(());
                }
                break;
            }
        }
        if !self.clock.is_suspect() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "dynamodb: the clock of this machine was set, and no Date header of a reply confirms its time; set the clock \
             right, or restart",
        ))
    }

    pub(crate) async fn read(
        &self,
        tries: &mut Tries<'_>,
        key: &str,
    ) -> Result<Option<Arc<Item>>, Error> {
        let item = self.wire.read(tries, key).await?;
        self.saw(key, item.as_ref());
        Ok(item)
    }

    pub(crate) fn saw(&self, key: &str, item: Option<&Arc<Item>>) {
        match item {
            Some(item) => self.hints.see(key, item),
            None => self.hints.miss(key),
        }
    }
}

impl Store for DynamoDb {
    /// Runs `operation` once the clock is checked, and does not trust the answer if it turned out to be wrong.
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            self.await_evidence().await?;
            let corrections = self.clock.corrections();
            let mut tries = self.wire.watch.call(Some(operation.policy()));
            let outcome = self.answer(&mut tries, &operation).await?;
            if self.clock.corrections() == corrections {
                return Ok(outcome);
            }
            Err(Error::new(
                ErrorKind::Unavailable,
                "dynamodb: the clock of this machine was too far from the service's, so its answer does not count; it \
                 is corrected now, ask again, and set the clock",
            ))
        })
    }
}
