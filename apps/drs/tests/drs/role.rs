//! Cross-account calls: a role assumed at a third-party emulator of STS (R001.7).

use std::sync::{Arc, Mutex};

use aws_config::{BehaviorVersion, Region};
use aws_sdk_drs::config::Credentials;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient,
    SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use tollgate::clock::SystemClock;
use tollgate_aws::{Buckets, https};
use tollgate_drs::{DrsClient, Role};
use tollgate_testkit::fakes::drs::{FakeDrs, Server, Settings};
use tollgate_testkit::servers::Ministack;

use crate::harness::{REGION, config};

/// Records each request: its body, and the two headers that identify the caller.
#[derive(Clone, Debug)]
struct Heard<I> {
    inner: I,
    requests: Arc<Mutex<Vec<Request>>>,
}

/// Body, `Authorization` and, if there is one, `X-Amz-Security-Token`.
type Request = (String, String, Option<String>);

impl HttpClient for Heard<SharedHttpClient> {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let inner = self.inner.http_connector(settings, components);
        SharedHttpConnector::new(Heard { inner, requests: Arc::clone(&self.requests) })
    }
}

impl HttpConnector for Heard<SharedHttpConnector> {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let body = String::from_utf8_lossy(request.body().bytes().unwrap_or_default()).into_owned();
        let header = |name: &str| request.headers().get(name).map(str::to_owned);
        let heard =
            (body, header("authorization").unwrap_or_default(), header("x-amz-security-token"));
        self.requests.lock().unwrap().push(heard);
        self.inner.call(request)
    }
}

fn heard() -> Heard<SharedHttpClient> {
    Heard { inner: https(), requests: Arc::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn r001_7_a_role_of_another_account_is_assumed_with_its_external_id() {
    let emulator = Ministack::start().unwrap();
    let fake = Arc::new(FakeDrs::new(Arc::new(SystemClock), Settings::default()));
    let server = Server::start(fake, 0).await.unwrap();
    let (to_sts, to_drs) = (heard(), heard());
    let own = Credentials::new("own-key", "own-secret", None, None, "test");
    let config = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .endpoint_url(emulator.endpoint())
        .http_client(SharedHttpClient::new(to_sts.clone()))
        .credentials_provider(own)
        .load()
        .await;
    let role = Role::in_account("210987654321", "dr-operator")
        .external_id("shared-word")
        .session_name("drill");
    let client = DrsClient::builder(REGION)
        .config(config)
        .role(role)
        .endpoint(server.endpoint())
        .http_client(SharedHttpClient::new(to_drs.clone()))
        .buckets(Buckets::new())
        .open()
        .await
        .unwrap();
    assert_eq!(client.account(), "210987654321");
    for _ in 0..2 {
        assert_eq!(client.describe_source_servers(&[]).all().await.unwrap().len(), 10);
    }
    let asked = to_sts.requests.lock().unwrap().clone();
    let [(body, authorization, _)] = asked.as_slice() else {
        panic!("assumed once, and kept: {asked:?}")
    };
    assert!(authorization.contains("own-key"));
    for part in [
        "Action=AssumeRole",
        "210987654321",
        "dr-operator",
        "ExternalId=shared-word",
        "RoleSessionName=drill",
    ] {
        assert!(body.contains(part), "{part} is not in {body}");
    }
    for (_, authorization, token) in to_drs.requests.lock().unwrap().iter() {
        assert!(!authorization.contains("own-key") && token.is_some(), "{authorization} {token:?}");
    }
}

#[tokio::test]
async fn what_is_no_role_is_refused() {
    for arn in ["", "dr-operator", "arn:aws:iam::12:role/x", "arn:aws:iam::123456789012:user/x"] {
        let error = DrsClient::builder(REGION)
            .role(Role::new(arn))
            .buckets(Buckets::new())
            .open()
            .await
            .unwrap_err();
        assert!(error.to_string().contains("arn:aws:iam::123456789012:role/name"), "{error}");
    }
    // STS would fail without telling why.
    let role = Role::in_account("210987654321", "dr-operator");
    let builder = DrsClient::builder(REGION).role(role).config(config()).buckets(Buckets::new());
    let error = builder.open().await.unwrap_err();
    assert!(error.to_string().contains("aws_config::defaults"), "{error}");
}
