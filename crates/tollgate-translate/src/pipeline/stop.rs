//! Stopping without losing anything.
//!
//! When a job is stopped, what is at the provider is waited for, since it is paid, and everything else goes back.

use tokio::sync::watch;

/// Heard by whoever should stop. Clones hear the same.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// Tells everybody who hears its [`Stop`] to stop.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

impl Stop {
    /// A way to stop, and who hears it.
    #[must_use]
    pub fn new() -> (Stopper, Self) {
        let (sender, receiver) = watch::channel(false);
        (Stopper(sender), Self(receiver))
    }

    /// One that nobody will ever tell to stop.
    #[must_use]
    pub fn never() -> Self {
        Self::new().1
    }

    /// Whether it is time to stop.
    #[must_use]
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when it is time to stop; never, if there is nobody left to say so.
    pub(super) async fn wait(&mut self) {
        if self.0.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Stopper {
    /// Says that it is time to stop.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}
