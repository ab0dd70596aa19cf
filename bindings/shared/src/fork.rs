//! What a program that forks calls around the fork. Gates work without it, except that a data folder that is open during the
//! fork stays locked for as long as the child lives.

use std::sync::Mutex;

use crate::runtime::lock;

#[cfg(feature = "embedded")]
type Suspended = crate::folder::Suspended;
#[cfg(not(feature = "embedded"))]
type Suspended = ();

/// The folders that stay closed until the fork is over.
static SUSPENDED: Mutex<Vec<Suspended>> = Mutex::new(Vec::new());

/// Gives up the data folders of this process, which a child would keep locked, until [`after_in_parent`].
pub fn before() {
    #[cfg(feature = "embedded")]
    {
        let folders = crate::gate::open_folders();
        if folders.is_empty() {
            return;
        }
        let suspending = crate::runtime::block_on(async {
            let mut suspended = Vec::new();
            for folder in folders {
                suspended.push(folder.suspend().await);
            }
            suspended
        });
        if let Ok(suspended) = suspending {
            *lock(&SUSPENDED) = suspended;
        }
    }
}

/// Lets this process, which has forked, use its data folders again.
pub fn after_in_parent() {
    lock(&SUSPENDED).clear();
}

/// Forgets what belongs to the parent. Called in the child.
pub fn after_in_child() {
    std::mem::forget(std::mem::take(&mut *lock(&SUSPENDED)));
}
