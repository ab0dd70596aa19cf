//! What happened to a subject before each fixture was written: the program of format 3 played these calls at these times.

use tollgate::clock::ManualClock;
use tollgate::policy::{Period, Rule};
use tollgate::{
    Ask, CalendarWindow, Clock, Concurrency, Costs, Gate, GateExt, Limit, Permit, Policy,
    RollingWindow, Span, TokenBucket,
};

pub(crate) const SUBJECT: &str = "p7";
const UNIT: &str = "units";
const SECOND: Span = Span::from_secs(1);
const MINUTE: Span = Span::from_mins(1);

/// A gate and the clock it decides by.
pub(crate) struct Stage<'a> {
    pub(crate) gate: &'a dyn Gate,
    pub(crate) clock: &'a ManualClock,
}

impl Stage<'_> {
    async fn take(&self, policy: &Policy, amount: u64) -> Permit {
        let ask = Ask::new(policy, SUBJECT).cost(UNIT, amount);
        self.gate.acquire(&ask).await.unwrap().into_permit().expect("there is room")
    }

    async fn settle(&self, permit: &Permit, actual: u64) {
        assert!(self.gate.settle(permit, &Costs::new().with(UNIT, actual)).await.unwrap());
    }

    async fn release(&self, permit: &Permit) {
        assert!(self.gate.release(permit).await.unwrap());
    }

    /// Plays the story called `name`; the policy that is in force at its end.
    pub(crate) async fn play(&self, name: &str) -> Policy {
        let policy = policy(name);
        match name {
            "closed" => {
                self.take(&policy, 30).await;
                let until = self.clock.now() + MINUTE;
                let ask = Ask::new(&policy, SUBJECT);
                assert!(self.gate.close_until(&ask, "all", until).await.unwrap());
            }
            "debt" => {
                let ask = Ask::new(&policy, SUBJECT).cost(UNIT, 150);
                self.gate.charge(&ask).await.unwrap();
            }
            "renewed" => {
                let (first, second) = (self.take(&policy, 30).await, self.take(&policy, 20).await);
                self.clock.advance(SECOND);
                self.gate.renew(&first).await.unwrap();
                self.release(&second).await;
            }
            "reset" => {
                self.take(&policy, 30).await;
                self.clock.advance(SECOND);
                assert!(self.gate.reset(&policy, SUBJECT).await.unwrap());
                self.clock.advance(SECOND);
                self.take(&policy, 5).await;
            }
            "runs" => {
                let mut permits = Vec::new();
                for _ in 0..9 {
                    permits.push(self.take(&policy, 1).await);
                    self.clock.advance(SECOND);
                }
                for place in [6, 0, 2, 7, 4] {
                    self.settle(&permits[place], 1).await;
                }
            }
            "changed" => {
                self.take(&self::policy("bucket"), 30).await;
                self.clock.advance(SECOND);
                self.take(&policy, 5).await;
            }
            _ => self.give_and_take(&policy).await,
        }
        policy
    }

    /// Charges, refunds and extra cost.
    async fn give_and_take(&self, policy: &Policy) {
        let first = self.take(policy, 30).await;
        self.clock.advance(SECOND);
        let second = self.take(policy, 20).await;
        self.clock.advance(SECOND);
        self.settle(&second, 5).await;
        let third = self.take(policy, 7).await;
        self.clock.advance(Span::from_millis(100));
        self.release(&third).await;
        self.settle(&first, 40).await;
    }
}

fn policy(name: &str) -> Policy {
    let bucket: Rule = TokenBucket::per_second(10).burst(100).into();
    let boundaries: Rule =
        TokenBucket::per(50, Span::from_secs(10)).burst(100).at_boundaries().into();
    let window: Rule = RollingWindow::new(100, MINUTE).into();
    let large: Rule = RollingWindow::new(20_000, MINUTE).into();
    let resolution: Rule = RollingWindow::new(100, MINUTE).resolution(6).into();
    let minute = CalendarWindow::new(100, Period::Minute).in_zone("America/Los_Angeles");
    let slots: Rule = Concurrency::new(100, MINUTE).into();
    let calendar = |name| Limit::new(name, UNIT, minute.clone()).margin(Span::from_secs(59));
    let one = |rule: Rule| vec![Limit::new("all", UNIT, rule)];
    let limits = match name {
        "boundaries" => one(boundaries),
        "window" => one(window),
        "window-large" => one(large),
        "window-resolution" => one(resolution),
        "calendar" => vec![calendar("all")],
        "slots" | "renewed" => one(slots),
        "changed" => one(TokenBucket::per_second(20).burst(100).into()),
        "several" => vec![
            Limit::new("bucket", UNIT, bucket),
            Limit::new("boundaries", UNIT, boundaries),
            Limit::new("window", UNIT, window),
            Limit::new("large", UNIT, large),
            Limit::new("resolution", UNIT, resolution),
            calendar("calendar"),
            Limit::new("slots", UNIT, slots),
        ],
        _ => one(bucket),
    };
    Policy::new("kept", limits).unwrap()
}
