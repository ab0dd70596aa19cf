//! The overrides of a folder: what every keeper of them does, beside a store that is open, and across damage.

use std::sync::Arc;

use tollgate::ErrorKind;
use tollgate::overrides::{Document, OverrideStore};
use tollgate_conformance::overrides::check;
use tollgate_embedded::{Embedded, EmbeddedOverrides, Holder, Options};

#[tokio::test(flavor = "multi_thread")]
async fn the_overrides_of_a_folder_are_kept_while_a_broker_has_it_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let holder = Holder::Server { url: "http://127.0.0.1:1".to_owned() };
    let broker = Embedded::open(&path, Options::new().holder(holder)).unwrap();
    let keeper = || Arc::new(EmbeddedOverrides::new(&path));
    check(keeper(), keeper()).await;
    drop(broker);
}

#[tokio::test]
async fn damaged_overrides_are_reported_and_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = EmbeddedOverrides::new(folder.path());
    let first = Document { version: 1, text: "first".to_owned() };
    assert!(keeper.replace(0, &first).await.unwrap());
    let path = folder.path().join("overrides");
    let text = std::fs::read_to_string(&path).unwrap().replace("first", "worst");
    std::fs::write(&path, &text).unwrap();
    let error = keeper.read(0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("does not match its checksum"), "{error}");
    let second = Document { version: 2, text: String::new() };
    assert_eq!(keeper.replace(1, &second).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}
