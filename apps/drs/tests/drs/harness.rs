//! The test harness: the fake service in process, a clock that jumps to the next timer, and a recording monitor.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_drs::config::{Credentials, SharedCredentialsProvider};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpClient, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;
use tollgate::clock::ManualClock;
use tollgate::{Clock, Gate, Memory};
use tollgate_aws::Buckets;
use tollgate_drs::DrsClient;
use tollgate_drs::client::Builder;
use tollgate_drs::journal::Entry;
use tollgate_drs::monitor::{Event, Monitor};
use tollgate_testkit::fakes::drs::{FakeDrs, Reply, Response, Settings};

pub(crate) const REGION: &str = "eu-central-1";
pub(crate) const ACCOUNT: &str = "123456789012";

/// One account of the fake service, and everything a client of it needs.
#[derive(Clone, Debug)]
pub(crate) struct Harness {
    pub(crate) clock: ManualClock,
    pub(crate) fake: Arc<FakeDrs>,
    pub(crate) seen: Arc<RecordedLog>,
    pub(crate) buckets: Buckets,
}

impl Harness {
    pub(crate) fn new(settings: Settings) -> Self {
        let clock = ManualClock::new();
        let fake = Arc::new(FakeDrs::new(Arc::new(clock.clone()), settings));
        Self { clock, fake, seen: Arc::default(), buckets: Buckets::new() }
    }

    pub(crate) fn builder(&self, region: &str) -> Builder {
        DrsClient::builder(region)
            .account(ACCOUNT)
            .config(config())
            .http_client(in_process(&self.fake))
            .buckets(self.buckets.clone())
            .clock(Arc::new(self.clock.clone()))
            .monitor(Arc::clone(&self.seen) as Arc<dyn Monitor>)
    }

    pub(crate) fn client(&self, set: impl FnOnce(Builder) -> Builder) -> DrsClient {
        self.run(set(self.builder(REGION)).open()).expect("the settings are in bounds")
    }

    /// Slots in memory on the harness's clock.
    pub(crate) fn slots(&self) -> Arc<dyn Gate> {
        Arc::new(Memory::with(Arc::new(self.clock.clone()), 100))
    }

    /// Runs `work` to its end; whenever nothing can go on, the clock goes to the next alarm.
    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(tokio::task::unconstrained(async {
            let mut work = pin!(work);
            poll_fn(|context| {
                let mut idle = 0;
                loop {
                    // The SDK sometimes yields without waiting for anything.
                    for _ in 0..8 {
                        if let Poll::Ready(done) = work.as_mut().poll(context) {
                            return Poll::Ready(done);
                        }
                    }
                    match self.clock.next_alarm() {
                        Some(alarm) if self.clock.now() < alarm => {
                            self.clock.set(alarm);
                            idle = 0;
                        }
                        _ => idle += 1,
                    }
                    assert!(idle < 1_000, "everybody waits for something that never comes");
                }
            })
            .await
        }))
    }
}

pub(crate) fn config() -> SdkConfig {
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new(
            "test", "test", None, None, "test",
        )))
        .build()
}

/// An HTTP client whose every request goes to `fake`.
pub(crate) fn in_process(fake: &Arc<FakeDrs>) -> SharedHttpClient {
    let wire = Wire(Arc::clone(fake));
    http_client_fn(move |_, _| SharedHttpConnector::new(wire.clone()))
}

#[derive(Clone, Debug)]
struct Wire(Arc<FakeDrs>);

impl HttpConnector for Wire {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let fake = Arc::clone(&self.0);
        HttpConnectorFuture::new(async move {
            let operation = request.uri().rsplit('/').next().unwrap_or_default().to_owned();
            match fake.handle(&operation, request.body().bytes().unwrap_or_default()) {
                Reply::Now(answer) => Ok(response(answer)),
                Reply::Later(span, answer) => {
                    fake.clock().sleep_until(fake.clock().now() + span).await;
                    Ok(response(answer))
                }
                Reply::Never => std::future::pending().await,
                Reply::Cut => Err(ConnectorError::io("cut on command".into())),
            }
        })
    }
}

fn response(answer: Response) -> HttpResponse {
    let status = StatusCode::try_from(answer.status).expect("the fake has real statuses");
    let mut response = HttpResponse::new(status, SdkBody::from(answer.body.to_string()));
    for (name, value) in answer.headers {
        response.headers_mut().insert(name.to_ascii_lowercase(), value);
    }
    response
}

/// Records the entries of the log.
#[derive(Debug, Default)]
pub(crate) struct RecordedLog(Mutex<Vec<Entry>>);

impl RecordedLog {
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, word: &str) -> usize {
        self.entries().iter().filter(|entry| entry.event == word).count()
    }
}

impl Monitor for RecordedLog {
    fn observe(&self, event: &Event<'_>) {
        let entry = Entry::from_event(event, tollgate::Timestamp::EPOCH);
        self.0.lock().unwrap().extend(entry);
    }
}
