//! The store: how each operation is carried out.

use std::sync::Arc;

use tollgate::core::Known;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Error, ErrorKind, Gate, Policy};

use crate::attempts::Attempts;
use crate::client::TableClient;
use crate::clock::CheckedClock;
use crate::conditional_update;
use crate::format::Format;
use crate::hints::Hints;
use crate::item::Item;
use crate::layout::Layout;
use crate::options::Options;
use crate::permit_key::SHARED;
use crate::run::{Seen, run};
use crate::swap_queue::SwapQueues;

/// The most reads of the service's time for one operation, if the clock is set repeatedly.
const EVIDENCE_READS_MAX: u32 = 3;

/// A gate that keeps its entries in a DynamoDB table.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use tollgate::{Ask, GateExt, Limit, Policy, RollingWindow, Span, TokenBucket};
/// use tollgate_dynamodb::{DynamoDb, Options};
///
/// let minute = Span::from_mins(1);
/// let gemini = Policy::new("gemini", [
///     Limit::new("rpm", "requests", RollingWindow::new(5, minute).resolution(12)),
///     Limit::new("tpm", "tokens", TokenBucket::per_minute(250_000)),
/// ])?;
/// let gate = DynamoDb::open(Options::new("tollgate").region("eu-central-1")).await?;
/// let decision = gate.acquire(&Ask::new(&gemini, "project-7").cost("tokens", 3_750)).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct DynamoDb {
    pub(crate) table: TableClient,
    pub(crate) clock: Arc<CheckedClock>,
    pub(crate) hints: Hints,
    pub(crate) queues: SwapQueues,
    pub(crate) format: Format,
}

impl DynamoDb {
    /// Opens a store on the table of `options`. Reads once to warm the connection, compare clocks and report a missing table.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Invalid`](ErrorKind::Invalid) if the table, a permission, credentials, a
    /// region or the service at the endpoint is missing.
    pub async fn open(options: Options) -> Result<Self, Error> {
        let store = Self::new(options).await?;
        store.read(&mut store.table.requests.call(None), SHARED).await?;
        Ok(store)
    }

    /// Creates a store on the table of `options` without a request.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if there is no region.
    pub async fn new(options: Options) -> Result<Self, Error> {
        let format = options.format;
        let (table, clock) = options.open().await?;
        Ok(Self { table, clock, hints: Hints::default(), queues: SwapQueues::default(), format })
    }

    /// Checks that this store supports `policy`: rolling windows of at most [`SLOTS_PER_WINDOW_MAX`](crate::SLOTS_PER_WINDOW_MAX)
    /// slots, and limits that fit into one item.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid), as every operation under such a policy.
    pub fn check(policy: &Policy) -> Result<(), Error> {
        Layout::for_policy(policy).check(policy)
    }

    /// Returns the correction of the system clock by the service's, in microseconds.
    #[must_use]
    pub fn clock_offset_micros(&self) -> i64 {
        self.clock.offset_micros()
    }

    async fn answer(
        &self,
        attempts: &mut Attempts<'_>,
        operation: &Operation<'_>,
    ) -> Result<Outcome, Error> {
        if operation.is_joint() {
            return self.answer_joint(attempts, operation).await;
        }
        let layout = Layout::for_policy(operation.policy());
        layout.check(operation.policy())?;
        let key = format!("{}/{}", operation.policy().name(), operation.subject());
        match operation {
            Operation::Standing { .. } => self.look(attempts, operation, &key).await,
            Operation::Acquire(ask) => {
                ask.check()?;
                let never = ask.policy().effective().zip(ask.policy().unit_indexes());
                let never = never.into_iter().any(|(most, place)| most < ask.amounts().at(place));
                if never {
                    return self.look(attempts, operation, &key).await;
                }
                if !ask.in_front().is_empty() {
                    // Usually denied, so the item is read first. An expression cannot consider the asks in front, so it
                    // is a swap if all of them have room.
                    let item = self.read(attempts, &key).await?;
                    return self.swap(attempts, operation, &key, Some(item)).await;
                }
                if self.format == Format::New && conditional_update::is_additive(&layout, ask) {
                    return self.acquire_by_update(attempts, ask, &layout, &key).await;
                }
                self.swap(attempts, operation, &key, None).await
            }
            _ => self.swap(attempts, operation, &key, None).await,
        }
    }

    /// Runs a read-only operation on the current item.
    async fn look(
        &self,
        attempts: &mut Attempts<'_>,
        operation: &Operation<'_>,
        key: &str,
    ) -> Result<Outcome, Error> {
        let item = self.read(attempts, key).await?;
        let now = self.clock.now();
        let future = item.as_ref().map(|item| item.at().since(now)).unwrap_or_default();
        if self.clock.apart_max().is_some_and(|most| most < future)
            && let Some(item) = &item
        {
            // Shows the item as the next write will replace it.
            let mut entry = item.entry_with(operation.policy(), None, &[])?.repaired(now);
            let format = self.format.after(Some(item));
            return Ok(format.apply(operation, &mut entry, Known::New, now)?.outcome);
        }
        let seen = Seen::new(item.as_deref(), self.format);
        Ok(run(operation, seen, Known::New, now)?.0.outcome)
    }

    /// Reads the service's time from a `Date` header if the system clock is suspect.
    pub(crate) async fn await_evidence(&self) -> Result<(), Error> {
        for _ in 0..EVIDENCE_READS_MAX {
            if !self.clock.is_suspect() {
                return Ok(());
            }
            let dates = self.clock.dates();
            let read = self.table.read(&mut self.table.requests.call(None), SHARED).await;
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
            "dynamodb: the clock of this machine was set, and no Date header of a reply confirms its time; correct the \
             clock, or restart",
        ))
    }

    pub(crate) async fn read(
        &self,
        attempts: &mut Attempts<'_>,
        key: &str,
    ) -> Result<Option<Arc<Item>>, Error> {
        let item = self.table.read(attempts, key).await?;
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

impl Gate for DynamoDb {
    /// Runs `operation` after the clock is checked, and fails if the clock turned out to be wrong meanwhile.
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            self.await_evidence().await?;
            let corrections = self.clock.corrections();
            let mut attempts = self.table.requests.call(Some(operation.policy()));
            let outcome = self.answer(&mut attempts, &operation).await?;
            if self.clock.corrections() == corrections {
                return Ok(outcome);
            }
            Err(Error::new(
                ErrorKind::Unavailable,
                "dynamodb: the clock of this machine was too far from the service's, so the outcome is void; it is \
                 corrected now: retry, and set the clock",
            ))
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
