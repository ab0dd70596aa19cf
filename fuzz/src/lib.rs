//! Shared by the targets: a server on a memory store, and a clock that advances when all tasks wait.

pub mod llm;
pub mod resp;

use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use axum::body::HttpBody;
use axum::http::Response;
use http_body_util::BodyExt as _;
use tokio::runtime::{Builder, Runtime};
use tollgate::clock::ManualClock;
use tollgate::policy::{Period, Policies};
use tollgate::{
    CalendarWindow, Clock, Concurrency, Limit, Memory, Policy, RollingWindow, Span, Timestamp,
    TokenBucket,
};
use tollgate_server::{App, EnvoyMap, EnvoyRule};

/// What seals permits here.
pub const KEY: [u8; 32] = [7; 32];

/// Polls of other tasks before time advances.
const TURNS: usize = 16;

/// A fresh server.
pub struct Broker {
    /// The served application.
    pub app: Arc<App>,
    clock: ManualClock,
    runtime: Runtime,
}

impl Default for Broker {
    fn default() -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_794_721_500));
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let gate = Arc::new(Memory::with(Arc::clone(&shared), 1_024));
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
    /// Runs `work` to completion, and advances the clock when all tasks wait.
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
                self.clock.set(self.clock.next_alarm().expect("a task waits for the clock"));
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
