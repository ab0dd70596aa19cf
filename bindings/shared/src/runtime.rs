//! One lazy runtime with two threads per process.
//!
//! After a fork the child has none of the threads of its parent, so it gets a runtime of its own. That of the parent is leaked
//! there: shutting it down would wait for threads that do not exist.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;
use tollgate::gate::BoxFuture;

use crate::{Error, ErrorKind, gate};

const THREADS: usize = 2;

/// How long [`shutdown`] waits for tasks of the runtime.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(1);

struct Current {
    process: u32,
    runtime: Runtime,
}

static CURRENT: Mutex<Option<Current>> = Mutex::new(None);

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Seeds the random numbers of this thread anew if it is in another process than before. Ids of asks are drawn from them, so a
/// child that went on with the numbers of its parent would repeat the asks of its parent, which are charged once.
fn seed_thread(process: u32) {
    thread_local! {
        static SEEDED_IN: Cell<u32> = const { Cell::new(0) };
    }
    if SEEDED_IN.replace(process) != process
        && let Ok(seed) = tollgate_config::open::random_bytes()
    {
        fastrand::seed(u64::from_le_bytes(seed));
    }
}

/// Returns the runtime of this process, and starts it if it is not running.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) if the system gives no threads.
pub fn handle() -> Result<Handle, Error> {
    let process = process::id();
    seed_thread(process);
    let mut current = lock(&CURRENT);
    if let Some(current) = current.as_ref().filter(|current| current.process == process) {
        return Ok(current.runtime.handle().clone());
    }
    let built = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("tollgate")
        .on_thread_start(|| seed_thread(process::id()))
        .enable_io()
        .enable_time()
        .build();
    let runtime = built.map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("could not start threads: {error}"))
    })?;
    let handle = runtime.handle().clone();
    std::mem::forget(current.replace(Current { process, runtime }));
    Ok(handle)
}

/// Closes every gate of this process and ends the runtime. The next operation starts another one.
pub fn shutdown() {
    let gates = gate::open_gates();
    if !gates.is_empty() {
        // Errors have no receiver: the process ends. What was not posted is charged already, or logged.
        let _ = block_on(async {
            for gate in gates {
                drop(gate.close().await);
            }
        });
    }
    let current = lock(&CURRENT).take();
    match current {
        Some(Current { process, runtime }) if process == process::id() => {
            runtime.shutdown_timeout(SHUTDOWN_WAIT);
        }
        inherited => std::mem::forget(inherited),
    }
}

/// Blocks this thread until `future` is done.
///
/// # Errors
/// As [`handle`].
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Error> {
    let mut future = std::pin::pin!(future);
    block_on_pinned(future.as_mut(), Duration::MAX, || Ok(()))
}

/// Blocks this thread until `future` is done, and calls `check` whenever it has waited for `interval`. An error of `check` drops
/// the future.
///
/// # Errors
/// Those of `check`, and as [`handle`].
pub fn block_on_checking<T, E: From<Error>>(
    mut future: BoxFuture<'_, T>,
    interval: Duration,
    check: impl FnMut() -> Result<(), E>,
) -> Result<T, E> {
    block_on_pinned(future.as_mut(), interval, check)
}

fn block_on_pinned<T, E: From<Error>>(
    mut future: Pin<&mut (impl Future<Output = T> + ?Sized)>,
    interval: Duration,
    mut check: impl FnMut() -> Result<(), E>,
) -> Result<T, E> {
    let handle = handle()?;
    let unpark = Arc::new(Unpark { thread: thread::current(), is_woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&unpark));
    loop {
        let polled = {
            let _context = handle.enter();
            future.as_mut().poll(&mut Context::from_waker(&waker))
        };
        if let Poll::Ready(done) = polled {
            return Ok(done);
        }
        while !unpark.is_woken.swap(false, Ordering::AcqRel) {
            thread::park_timeout(interval);
            if unpark.is_woken.load(Ordering::Acquire) {
                continue;
            }
            check()?;
        }
    }
}

/// Wakes a thread that polls a future.
struct Unpark {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// A future that was polled once: done, or running on the runtime.
#[derive(Debug)]
pub enum Started<T: Send + 'static> {
    /// It was done at the first poll, without another thread.
    Done(T),
    /// It runs on the runtime.
    Running(Running<T>),
}

/// A future on the runtime. Dropping this drops the future, or its result.
#[derive(Debug)]
pub struct Running<T: Send + 'static> {
    shared: Arc<Mutex<State<T>>>,
    task: AbortHandle,
}

#[derive(Debug)]
enum State<T> {
    Running,
    Done(T),
    /// The result was taken, or nobody wants it.
    Over,
}

/// Polls `future` once. Returns the result if it was done without waiting; otherwise [`run`] or [`block_on`] finish it.
///
/// # Errors
/// As [`handle`].
pub fn poll_once<T>(future: &mut BoxFuture<'static, T>) -> Result<Option<T>, Error> {
    let handle = handle()?;
    let _context = handle.enter();
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Ok(Some(done)),
        Poll::Pending => Ok(None),
    }
}

/// Polls `future` once, and [runs](run) it on the runtime if it is not done.
///
/// # Errors
/// As [`handle`].
pub fn start<T: Send + 'static>(
    mut future: BoxFuture<'static, T>,
    notify: impl FnOnce() + Send + 'static,
) -> Result<Started<T>, Error> {
    match poll_once(&mut future)? {
        Some(done) => Ok(Started::Done(done)),
        None => run(future, notify).map(Started::Running),
    }
}

/// Runs `future` on the runtime. `notify` is called once, from a thread of the runtime, when [`Running::take`] has the result; not
/// if that was dropped before.
///
/// # Errors
/// As [`handle`].
pub fn run<T: Send + 'static>(
    future: BoxFuture<'static, T>,
    notify: impl FnOnce() + Send + 'static,
) -> Result<Running<T>, Error> {
    let shared = Arc::new(Mutex::new(State::Running));
    let result = Arc::clone(&shared);
    let task = handle()?.spawn(async move {
        let done = future.await;
        // Dropped outside the lock: what nobody wants may release a permit.
        let unwanted = {
            let mut state = lock(&result);
            match *state {
                State::Running => {
                    *state = State::Done(done);
                    None
                }
                _ => Some(done),
            }
        };
        if unwanted.is_none() {
            notify();
        }
    });
    Ok(Running { shared, task: task.abort_handle() })
}

impl<T: Send + 'static> Running<T> {
    /// Returns the result, once.
    #[must_use]
    pub fn take(&self) -> Option<T> {
        let mut state = lock(&self.shared);
        match std::mem::replace(&mut *state, State::Over) {
            State::Done(done) => Some(done),
            other => {
                *state = other;
                None
            }
        }
    }
}

impl<T: Send + 'static> Drop for Running<T> {
    fn drop(&mut self) {
        let last = std::mem::replace(&mut *lock(&self.shared), State::Over);
        if matches!(last, State::Running) {
            self.task.abort();
        }
        if let State::Done(unwanted) = last {
            let context = handle();
            let _context = context.as_ref().map(Handle::enter);
            drop(unwanted);
        }
    }
}
