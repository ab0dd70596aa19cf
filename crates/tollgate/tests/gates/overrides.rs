//! Overrides in memory, and that the check of their keepers finds one that loses changes.

use std::sync::Arc;

use tollgate::Error;
use tollgate::gate::BoxFuture;
use tollgate::overrides::{Document, MemoryOverrides, OverrideStore};
use tollgate_conformance::overrides::check;

#[tokio::test(flavor = "multi_thread")]
async fn memory_keeps_overrides() {
    let keeper = Arc::new(MemoryOverrides::default());
    check(Arc::clone(&keeper) as _, keeper).await;
}

/// Looks at the version, lets others run, and then writes.
#[derive(Debug, Default)]
struct Hasty(MemoryOverrides);

impl OverrideStore for Hasty {
    fn read(&self, known: u64) -> BoxFuture<'_, Result<Option<Document>, Error>> {
        self.0.read(known)
    }

    fn replace<'a>(&'a self, known: u64, next: &'a Document) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let found = self.0.read(u64::MAX).await?.unwrap_or_default();
            tokio::task::yield_now().await;
            if found.version != known {
                return Ok(false);
            }
            let now = self.0.read(u64::MAX).await?.unwrap_or_default();
            self.0.replace(now.version, next).await
        })
    }
}

#[tokio::test]
async fn a_keeper_that_looks_and_then_writes_is_found() {
    let keeper = Arc::new(Hasty::default());
    let checked = tokio::spawn(check(Arc::clone(&keeper) as _, keeper)).await;
    let panic = checked.unwrap_err().into_panic();
    let said = panic.downcast_ref::<String>().unwrap();
    assert!(said.contains("no change was lost"), "{said}");
}
