//! Operations of an event loop, which one task of the runtime runs together.
//!
//! Crossing threads costs more than a decision. Here it is done once per batch in each direction: a [flush](Batch::flush) hands
//! over everything that was submitted since the last one, and a notification everything that finished since the last one.

use std::collections::HashMap;
use std::fmt;
use std::future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::{FuturesUnordered, Stream as _};
use tollgate::gate::BoxFuture;

use crate::Error;
use crate::runtime::{self, lock};

/// The operations under way of one event loop. Dropping this does not end them: see [`close`](Self::close).
pub struct Batch<T: Send + 'static>(Arc<Shared<T>>);

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Tells the event loop that there is something to take.
    notify: Box<dyn Fn() + Send + Sync>,
}

struct State<T> {
    next_id: u32,
    submitted: Vec<Operation<T>>,
    /// What cancels an operation, until it is done.
    running: HashMap<u32, AbortHandle>,
    done: Vec<(u32, T)>,
    is_notified: bool,
    is_closed: bool,
    task: Task,
}

/// The task that polls the operations.
enum Task {
    /// None, or it ended with its runtime.
    Absent,
    /// It is spawned, and was not polled yet.
    Spawned,
    Waiting(Waker),
}

/// One operation: its number, and its result unless it was cancelled.
struct Operation<T> {
    id: u32,
    work: Abortable<BoxFuture<'static, T>>,
}

impl<T> Future for Operation<T> {
    type Output = (u32, Option<T>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let done = std::task::ready!(Pin::new(&mut self.work).poll(context));
        Poll::Ready((self.id, done.ok()))
    }
}

impl<T: Send + 'static> Batch<T> {
    /// Creates an empty batch. `notify` is called from a thread of the runtime when results can be [taken](Self::take), and not
    /// again before they were.
    pub fn new(notify: impl Fn() + Send + Sync + 'static) -> Self {
        let state = State {
            next_id: 0,
            submitted: Vec::new(),
            running: HashMap::new(),
            done: Vec::new(),
            is_notified: false,
            is_closed: false,
            task: Task::Absent,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), notify: Box::new(notify) }))
    }

    /// Adds an operation, which starts with the next [flush](Self::flush). Returns its number.
    pub fn submit(&self, work: BoxFuture<'static, T>) -> u32 {
        let (handle, registration) = AbortHandle::new_pair();
        let work = Abortable::new(work, registration);
        let mut state = lock(&self.0.state);
        let id = state.next_id;
        state.next_id = id.wrapping_add(1);
        state.running.insert(id, handle);
        state.submitted.push(Operation { id, work });
        id
    }

    /// Starts what was submitted.
    ///
    /// # Errors
    /// As [`runtime::handle`].
    pub fn flush(&self) -> Result<(), Error> {
        let mut state = lock(&self.0.state);
        match &state.task {
            Task::Spawned => {}
            Task::Waiting(waker) => {
                let waker = waker.clone();
                drop(state);
                waker.wake();
            }
            Task::Absent => {
                let runtime = runtime::handle()?;
                state.task = Task::Spawned;
                drop(state);
                runtime.spawn(run(Arc::clone(&self.0)));
            }
        }
        Ok(())
    }

    /// Returns the numbers and results of operations that finished since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<(u32, T)> {
        let mut state = lock(&self.0.state);
        state.is_notified = false;
        std::mem::take(&mut state.done)
    }

    /// Drops an operation, or its result if that was not taken yet.
    pub fn cancel(&self, id: u32) {
        let unwanted = {
            let mut state = lock(&self.0.state);
            if let Some(handle) = state.running.remove(&id) {
                handle.abort();
            }
            let place = state.done.iter().position(|(done, _)| *done == id);
            place.map(|place| state.done.swap_remove(place))
        };
        // Outside the lock and on the runtime: it may release a permit.
        drop_on_runtime(unwanted);
    }

    /// Drops every operation and every result. Nothing can be submitted from now on.
    pub fn close(&self) {
        let (submitted, done) = {
            let mut state = lock(&self.0.state);
            state.is_closed = true;
            state.running.clear();
            if let Task::Waiting(waker) = &state.task {
                waker.wake_by_ref();
            }
            (std::mem::take(&mut state.submitted), std::mem::take(&mut state.done))
        };
        drop_on_runtime((submitted, done));
    }
}

fn drop_on_runtime<T>(unwanted: T) {
    let runtime = runtime::handle();
    let _context = runtime.as_ref().map(tokio::runtime::Handle::enter);
    drop(unwanted);
}

/// Polls the operations until the batch is closed.
async fn run<T: Send + 'static>(shared: Arc<Shared<T>>) {
    let _end = OnEnd(Arc::clone(&shared));
    let mut operations = FuturesUnordered::new();
    let mut finished = Vec::new();
    future::poll_fn(|context| {
        {
            let mut state = lock(&shared.state);
            if state.is_closed {
                return Poll::Ready(());
            }
            match &mut state.task {
                Task::Waiting(waker) => waker.clone_from(context.waker()),
                task => *task = Task::Waiting(context.waker().clone()),
            }
            operations.extend(state.submitted.drain(..));
        }
        while let Poll::Ready(Some(done)) = Pin::new(&mut operations).poll_next(context) {
            finished.push(done);
        }
        if !finished.is_empty() {
            shared.finish(&mut finished);
        }
        Poll::Pending
    })
    .await;
}

impl<T> Shared<T> {
    /// Hands `finished` to the event loop, except for what was cancelled meanwhile.
    fn finish(&self, finished: &mut Vec<(u32, Option<T>)>) {
        let mut unwanted = Vec::new();
        let is_first = {
            let mut state = lock(&self.state);
            for (id, result) in finished.drain(..) {
                match (state.running.remove(&id), result) {
                    (Some(_), Some(result)) => state.done.push((id, result)),
                    (_, unclaimed) => unwanted.extend(unclaimed),
                }
            }
            !state.done.is_empty() && !std::mem::replace(&mut state.is_notified, true)
        };
        if is_first {
            (self.notify)();
        }
        drop(unwanted);
    }
}

/// Lets the next flush start another task.
struct OnEnd<T>(Arc<Shared<T>>);

impl<T> Drop for OnEnd<T> {
    fn drop(&mut self) {
        lock(&self.0.state).task = Task::Absent;
    }
}

impl<T: Send + 'static> fmt::Debug for Batch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}
