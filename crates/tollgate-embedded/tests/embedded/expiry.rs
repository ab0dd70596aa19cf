//! Entries that equal an absent one expire after an hour without changes; others do not.

use tollgate::{ErrorKind, Limit, Policy, RollingWindow, Span, Timestamp};
use tollgate_embedded::{Embedded, IDLE_MAX};

use crate::{TestFolder, admitted, bucket, pass, used};

#[tokio::test]
async fn idle_entries_are_cleaned_up_and_others_are_not() {
    let folder = TestFolder::new();
    let (bucket, month) = (bucket(), Span::from_hours(30 * 24));
    let monthly = Limit::new("rpm", "requests", RollingWindow::new(5, month));
    let monthly = Policy::new("monthly", [monthly]).unwrap();
    let gate = folder.open();
    for subject in 0..300 {
        assert!(admitted(&gate, &bucket, &format!("s{subject}")).await);
    }
    assert!(admitted(&gate, &monthly, "holds").await);
    pass(&folder, IDLE_MAX);
    folder.clock.set(tollgate::Clock::now(&folder.clock) - Span::from_micros(1));
    assert_eq!(gate.clean_up().await.unwrap(), 0, "a microsecond too early");
    assert!(admitted(&gate, &bucket, "s7").await);
    pass(&folder, Span::from_micros(1));
    assert_eq!(gate.clean_up().await.unwrap(), 299, "s7 was just changed");
    assert_eq!(gate.stats().cleaned_up, 299);
    assert_eq!(folder.rows(), 2);
    assert_eq!(used(&gate, &monthly, "holds").await, 1);
    assert!(admitted(&gate, &bucket, "s1").await);
    assert_eq!(used(&gate, &bucket, "s1").await, 1);
    assert_eq!(gate.clean_up().await.unwrap(), 0);
}

/// The rows are found in the database and not only in memory.
#[tokio::test]
async fn entries_of_an_earlier_process_are_cleaned_up() {
    let folder = TestFolder::new();
    let policy = bucket();
    for _ in 0..2 {
        let gate = folder.open();
        for subject in 0..10 {
            assert!(admitted(&gate, &policy, &format!("s{subject}")).await);
        }
    }
    pass(&folder, IDLE_MAX);
    let store = Embedded::open(&folder.path(), folder.options()).unwrap();
    assert_eq!(store.clean_up().await.unwrap(), 10);
    store.shutdown(Timestamp::MAX).await.unwrap();
    assert_eq!(folder.rows(), 0);
    assert_eq!(store.clean_up().await.unwrap_err().kind(), ErrorKind::Unavailable);
}
