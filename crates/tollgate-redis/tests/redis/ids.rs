//! Ids, and how many limits there may be.

use tollgate::core::bounds;
use tollgate::{
    Ask, CalendarWindow, Concurrency, Limit, Period, Policy, RollingWindow, Rule, Span, TokenBucket,
};

use crate::agrees::Both;
use crate::server;

/// The script is put together for the limits of a policy: as many as there may be, of every rule.
#[tokio::test]
async fn as_many_limits_as_there_may_be_are_decided_together() {
    let redis = server();
    let minute = Span::from_mins(1);
    let rules: [Rule; 5] = [
        CalendarWindow::new(20, Period::Day).into(),
        TokenBucket::per(7, minute).burst(20).into(),
        TokenBucket::per(3, minute).burst(20).at_boundaries().into(),
        RollingWindow::new(20, minute).into(),
        Concurrency::new(20, minute).into(),
    ];
    for first in 0..rules.len() {
        let mut both = Both::new(&redis).await;
        let limits = (0..bounds::LIMITS_MAX).map(|number| {
            let rule = rules[if number < 4 { first } else { (first + number) % 5 }].clone();
            Limit::new(format!("limit-{number}"), "requests", rule)
        });
        let policy = Policy::new(format!("all-{first}"), limits).unwrap();
        for number in 0..30_u64 {
            both.clock.advance(Span::from_secs(number % 3));
            let ask = Ask::new(&policy, "p").id(format!("id-{}", number / 2));
            let admitted = both.acquire(&ask).await.unwrap().is_admitted();
            assert!(admitted || 20 <= number, "{first}: {number}");
        }
    }
}
