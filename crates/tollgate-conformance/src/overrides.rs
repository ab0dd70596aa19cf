//! The conformance check of an [`OverrideStore`].

use std::sync::Arc;

use tollgate::overrides::{DOCUMENT_BYTES_MAX, Document, OverrideStore};

/// Concurrent writers.
const WRITERS: u64 = 8;

/// Changes of each writer.
const CHANGES: u64 = 5;

/// Checks an empty store through two handles: one reads what the other writes; a known version is not returned again;
/// replacing an old version changes nothing; concurrent changes are not lost.
pub async fn check(one: Arc<dyn OverrideStore>, other: Arc<dyn OverrideStore>) {
    assert_eq!(one.read(0).await.expect("reads"), None, "it starts empty");
    let odd = "{\"o'd\\\\d\": \"\u{1f6a7}\\u0000\n\"}";
    let first = Document { version: 1_794_721_500_000_000, text: odd.to_owned() };
    assert!(one.replace(0, &first).await.expect("writes"));
    assert_eq!(other.read(0).await.expect("reads"), Some(first.clone()));
    assert_eq!(other.read(first.version).await.expect("reads"), None);

    let large = Document { version: 7, text: "x".repeat(DOCUMENT_BYTES_MAX) };
    assert!(!other.replace(0, &large).await.expect("answers"), "there is one already");
    assert!(!other.replace(8, &large).await.expect("answers"), "it is of another version");
    assert_eq!(one.read(0).await.expect("reads"), Some(first.clone()), "nothing changed");
    assert!(other.replace(first.version, &large).await.expect("writes"), "the largest fits");
    assert_eq!(one.read(first.version).await.expect("reads"), Some(large.clone()));

    // Each writer increments the number that it read, and signs.
    let zero = Document { version: 100, text: "0 by the test".to_owned() };
    assert!(one.replace(large.version, &zero).await.expect("writes"));
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = Arc::clone(if writer % 2 == 0 { &one } else { &other });
            tokio::spawn(async move {
                for _ in 0..CHANGES {
                    add_one(&*store, writer).await;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("it ends");
    }
    let last = one.read(0).await.expect("reads").expect("it is there");
    assert_eq!(number(&last.text), WRITERS * CHANGES, "no change was lost");
}

fn number(text: &str) -> u64 {
    text.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

async fn add_one(store: &dyn OverrideStore, writer: u64) {
    loop {
        let Document { version, text } = store.read(0).await.expect("reads").expect("it is there");
        let text = format!("{} by {writer}", number(&text) + 1);
        let next = Document { version: version + 1, text };
        if store.replace(version, &next).await.expect("writes") {
            return;
        }
    }
}
