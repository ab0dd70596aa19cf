//! What the targets have in common: a server on a store in memory, and a clock that moves when everybody waits.

pub mod resp;

use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use axum::body::HttpBody;
use axum::http::Response;
use http_body_util::BodyExt as _;
use tokio::runtime::{Builder, Runtime};
use tollgate::{
    Atomic, CalendarWindow, Clock, Concurrency, Limit, ManualClock, Memory, Period, Policies,
    Policy, RollingWindow, Span, Timestamp, TokenBucket,
};
use tollgate_server::{App, EnvoyMap, EnvoyRule};

/// What seals permits here.
pub const KEY: [u8; 32] = [7; 32];

/// How often everybody else may go on before time passes.
const TURNS: usize = 16;

/// A server that nobody has asked yet.
pub struct Broker {
    /// What is served.
    pub app: Arc<App>,
    clock: ManualClock,
    runtime: Runtime,
}

impl Default for Broker {
    fn default() -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_794_721_500));
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let gate = Arc::new(Atomic::new(Memory::with(Arc::clone(&shared), 1_024)));
        let app = App::new(gate, policies(), KEY, shared).expect("names that are free");
        let keys = [("path", Some("/login")), ("ip", None)];
        let rule = EnvoyRule::new("shop", keys, "gemini", "{path}|{ip}").expect("a right rule");
        app.replace_envoy(EnvoyMap::from_iter([rule]));
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        Self { app: Arc::new(app), clock, runtime }
    }
}

/// One of each rule, one of them in shadow mode.
pub fn policies() -> Policies {
    let minute = Span::from_mins(1);
    let gemini = [
        Limit::new("rpm", "requests", RollingWindow::new(5, minute)),
        Limit::new("tpm", "tokens", RollingWindow::new(250_000, minute).resolution(12)),
        Limit::new("rpd", "requests", CalendarWindow::new(25, Period::Day)),
    ];
    let slots = [Limit::new("slots", "requests", Concurrency::new(1, minute))];
    let bucket = Limit::new("burst", "requests", TokenBucket::per_second(10).burst(2));
    let trial = Policy::builder("trial").shadow(true).limit(bucket).build();
    let made = [Policy::new("gemini", gemini), trial, Policy::new("jobs", slots)];
    Policies::new(made.map(|policy| policy.expect("a valid policy"))).expect("three names")
}

impl Broker {
    /// Runs `work` to its end. When everybody waits, time passes until somebody need not.
    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(async {
            let mut work = pin!(work);
            loop {
                for _ in 0..TURNS {
                    tokio::select! {
                        biased;
                        output = &mut work => return output,
                        () = tokio::task::yield_now() => {}
                    }
                }
                self.clock.set(self.clock.next_alarm().expect("somebody waits for something"));
            }
        })
    }

    /// The head of `answer`, and its body.
    pub fn call<B>(&self, answer: impl Future<Output = Response<B>>) -> (Response<()>, Vec<u8>)
    where
        B: HttpBody<Error: Debug>,
    {
        self.run(async {
            let (head, body) = answer.await.into_parts();
            let body = body.collect().await.expect("a body in memory").to_bytes();
            (Response::from_parts(head, ()), body.to_vec())
        })
    }
}
