//! The guard around unmodified SDK clients.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_drs::config::{AsyncSleep, SharedAsyncSleep, Sleep};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpClient, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;
use proptest::prelude::*;
use tollgate::clock::ManualClock;
use tollgate::{Clock, Span, TokenBucket};
use tollgate_aws::Error;
use tollgate_aws::{Buckets, Key, Rate, SdkGuard, https, operation_name};
use tollgate_testkit::fakes::drs::{Fault, Settings};
use tollgate_testkit::servers::{DynamoDb, Ministack};

use crate::harness::{ACCOUNT, Harness, REGION, config, in_process};

/// The SDK's own waits, on the clock of the test.
#[derive(Debug)]
struct Sleeps(ManualClock);

impl AsyncSleep for Sleeps {
    fn sleep(&self, duration: Duration) -> Sleep {
        let span = Span::from_micros(u64::try_from(duration.as_micros()).unwrap());
        let mut sleep = Mutex::new(self.0.sleep_until(self.0.now() + span));
        // The SDK wants a future that is `Sync`, though it is not shared.
        Sleep::new(std::future::poll_fn(move |context| {
            sleep.get_mut().unwrap().as_mut().poll(context)
        }))
    }
}

/// An unmodified client of the SDK, retries and all, behind a guard.
fn guarded(harness: &Harness, rate: Rate) -> aws_sdk_drs::Client {
    let guard = SdkGuard::new("drs", ACCOUNT, REGION).rate(rate);
    let guard = guard.buckets(harness.buckets.clone()).clock(Arc::new(harness.clock.clone()));
    let http = guard.around(in_process(&harness.fake)).unwrap();
    let settings = aws_sdk_drs::config::Builder::from(&config()).http_client(http);
    let settings = settings.sleep_impl(SharedAsyncSleep::new(Sleeps(harness.clock.clone())));
    aws_sdk_drs::Client::from_conf(settings.build())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Every attempt of every page takes a token, the SDK's own retries included: the service never sees more than the
    /// bucket gives out.
    #[test]
    fn r001_7_every_attempt_of_an_unmodified_client_takes_a_token(
        per_second in 1_u64..20, burst in 1_u64..5, servers in 0_usize..30, failures in 0_u32..3
    ) {
        let harness = Harness::new(Settings { servers, page_max: 3, ..Settings::default() });
        let client = guarded(&harness, Rate::new(TokenBucket::per_second(per_second).burst(burst)));
        harness.fake.inject(None, failures, Fault::Broken);
        let pages = client.describe_source_servers().into_paginator().items().send();
        let found = harness.run(pages.collect::<Result<Vec<_>, _>>()).unwrap();
        prop_assert_eq!(found.len(), servers);
        let arrivals = harness.fake.arrivals();
        prop_assert_eq!(arrivals.all().len(), servers.div_ceil(3).max(1) + failures as usize);
        prop_assert_eq!(arrivals.over(per_second, burst, Span::ZERO), None);
    }
}

/// Without the guard the same client is caught by the same check.
#[test]
fn r001_7_the_same_client_without_a_guard_is_caught() {
    let harness = Harness::new(Settings { servers: 90, page_max: 3, ..Settings::default() });
    let settings =
        aws_sdk_drs::config::Builder::from(&config()).http_client(in_process(&harness.fake));
    let client = aws_sdk_drs::Client::from_conf(settings.build());
    let pages = client.describe_source_servers().into_paginator().items().send();
    harness.run(pages.collect::<Result<Vec<_>, _>>()).unwrap();
    assert!(harness.fake.arrivals().over(10, 20, Span::ZERO).is_some());
}

/// A refusal of the service lowers the rate and closes the bucket for as long as it said.
#[test]
fn a_guard_gives_way_when_the_service_refuses() {
    let harness = Harness::new(Settings { retry_after: Span::from_secs(7), ..Settings::default() });
    let client = guarded(&harness, Rate::default());
    harness.fake.inject(None, 1, Fault::Throttled);
    harness.run(client.describe_jobs().send()).unwrap();
    let arrivals = harness.fake.arrivals();
    let [first, second] = arrivals.all() else { panic!("{arrivals:?}") };
    assert_eq!(
        second.at.since(first.at),
        Span::from_secs(7),
        "the SDK would have come back sooner"
    );
    let key = Key { account: ACCOUNT.into(), region: REGION.into(), class: "drs".into() };
    let clock: Arc<dyn Clock> = Arc::new(harness.clock.clone());
    let bucket = harness.buckets.get_or_create(key, Rate::default(), None, &clock).unwrap();
    assert_eq!(bucket.percent(), 55, "halved, and raised by the success after it");
}

/// Two lines for DynamoDB: the rate holds, the error is typed and not retried, and what is refused does not go out.
#[tokio::test]
async fn an_unmodified_client_of_dynamodb_is_guarded_by_operation() {
    let server = DynamoDb::start().unwrap();
    let rare = Rate::new(TokenBucket::per(3, Span::from_hours(1))).fixed();
    let guard = SdkGuard::new("dynamodb", ACCOUNT, REGION).rate_for("ListTables", rare);
    let http = guard.buckets(Buckets::new()).wait_max(Span::ZERO).around(https()).unwrap();
    let settings =
        aws_sdk_dynamodb::config::Builder::from(&config()).endpoint_url(server.endpoint());
    let client = aws_sdk_dynamodb::Client::from_conf(settings.http_client(http).build());
    for _ in 0..3 {
        client.list_tables().send().await.unwrap();
    }
    let error = client.list_tables().send().await.unwrap_err();
    let Some(Error::RateLimitTimeout(timeout)) = Error::find_source(&error) else {
        panic!("{error:?}")
    };
    assert_eq!((&*timeout.class, &*timeout.region), ("dynamodb.ListTables", REGION));
    assert_eq!(server.proxy().counts().count("ListTables"), 3);
    let other = client.describe_limits().send().await;
    assert!(
        other.as_ref().err().is_none_or(|error| Error::find_source(error).is_none()),
        "{other:?}"
    );
}

/// The same for SNS, whose protocol names the operation in a form.
#[tokio::test]
async fn an_unmodified_client_of_sns_is_guarded_by_operation() {
    let server = Ministack::start().unwrap();
    let rare = Rate::new(TokenBucket::per(1, Span::from_hours(1))).fixed();
    let guard = SdkGuard::new("sns", ACCOUNT, REGION).rate_for("CreateTopic", rare);
    let http = guard.buckets(Buckets::new()).wait_max(Span::ZERO).around(https()).unwrap();
    let settings = aws_sdk_sns::config::Builder::from(&config()).endpoint_url(server.endpoint());
    let client = aws_sdk_sns::Client::from_conf(settings.http_client(http).build());
    client.create_topic().name("one").send().await.unwrap();
    let error = client.create_topic().name("two").send().await.unwrap_err();
    assert!(matches!(Error::find_source(&error), Some(Error::RateLimitTimeout(_))), "{error:?}");
    assert_eq!(client.list_topics().send().await.unwrap().topics().len(), 1);
}

/// Answers every request with one status and body.
#[derive(Clone, Debug)]
struct Says(u16, &'static str);

impl HttpConnector for Says {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        let status = StatusCode::try_from(self.0).unwrap();
        HttpConnectorFuture::ready(Ok(HttpResponse::new(status, SdkBody::from(self.1))))
    }
}

/// Older protocols name the error in the body only; the client still gets to read it.
#[test]
fn a_refusal_is_recognised_by_its_body_too() {
    let throttled =
        r#"{"__type":"com.amazonaws.dynamodb#ThrottlingException","message":"slow down"}"#;
    let missing =
        r#"{"__type":"com.amazonaws.dynamodb#ResourceNotFoundException","message":"no table"}"#;
    for (body, percent, code) in
        [(throttled, 50, "ThrottlingException"), (missing, 100, "ResourceNotFoundException")]
    {
        let harness = Harness::new(Settings::default());
        let clock: Arc<dyn Clock> = Arc::new(harness.clock.clone());
        let guard = SdkGuard::new("dynamodb", ACCOUNT, REGION)
            .buckets(harness.buckets.clone())
            .clock(Arc::clone(&clock));
        let inner: SharedHttpClient =
            http_client_fn(move |_, _| SharedHttpConnector::new(Says(400, body)));
        let settings = aws_sdk_dynamodb::config::Builder::from(&config())
            .http_client(guard.around(inner).unwrap());
        let settings =
            settings.retry_config(aws_sdk_dynamodb::config::retry::RetryConfig::disabled());
        let client = aws_sdk_dynamodb::Client::from_conf(settings.build());
        let error = harness.run(client.list_tables().send()).unwrap_err();
        let name = aws_sdk_dynamodb::error::ProvideErrorMetadata::code(&error);
        assert_eq!(name, Some(code));
        let key = Key { account: ACCOUNT.into(), region: REGION.into(), class: "dynamodb".into() };
        assert_eq!(
            harness.buckets.get_or_create(key, Rate::default(), None, &clock).unwrap().percent(),
            percent
        );
    }
}

#[test]
fn the_operation_is_read_off_every_protocol() {
    let request = |uri: &str, target: Option<&str>, body: &'static str| {
        let mut request = HttpRequest::new(SdkBody::from(body));
        request.set_uri(uri.to_owned()).unwrap();
        if let Some(target) = target {
            request.headers_mut().insert("x-amz-target", target.to_owned());
        }
        operation_name(&request).map(std::borrow::Cow::into_owned)
    };
    let some = |name: &str| Some(name.to_owned());
    assert_eq!(request("http://h/DescribeJobs", None, "{}"), some("DescribeJobs"));
    assert_eq!(request("http://h/", Some("DynamoDB_20120810.GetItem"), "{}"), some("GetItem"));
    assert_eq!(request("http://h/", None, "Action=Publish&Version=1"), some("Publish"));
    assert_eq!(
        request("http://h/service/X/operation/PutMetricData", None, ""),
        some("PutMetricData")
    );
    assert_eq!(request("http://h/bucket/key.txt?list-type=2", None, ""), None);
    assert_eq!(request("http://h/", None, ""), None);
}
