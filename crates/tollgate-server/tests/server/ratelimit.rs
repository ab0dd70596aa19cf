//! Domains of an envoyproxy/ratelimit configuration: its behaviours, and where tollgate is stricter.

use tollgate::Span;
use tollgate::policy::Policies;
use tollgate_protocol::protobuf::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_protocol::protobuf::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus,
};
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse,
};
use tollgate_ratelimit_config::{DomainFile, Options, RateLimitConfig, Readiness};
use tollgate_server::{
    App, EnvoyAnswer, EnvoyMap, EnvoyRule, MetricsPage, RateLimitOptions, RateLimits,
};
use tonic::Status;

use crate::client::{Server, policies};
use crate::envoy;
use crate::grpc::channel;

const LIMITS: &str = "
domain: shop
descriptors:
  - { key: client, rate_limit: { unit: minute, requests_per_unit: 5, name: per-client } }
  - { key: client, value: vip, rate_limit: { unlimited: true } }
  - { key: client, value: mallory, rate_limit: { unit: minute, requests_per_unit: 0 } }
  - { key: client, value: trial, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: trusted }
  - { key: tenant, rate_limit: { unit: week, requests_per_unit: 3 } }
  - { key: endpoint, rate_limit: { unit: minute, requests_per_unit: 9, replaces: [{ name: per-client }] } }
  - { key: remote_address, rate_limit: { unit: day, requests_per_unit: 1000 } }
  - key: service
    value: one
    quota_mode: true
    metadata: { route: { name: one } }
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: service
    value: two
    quota_mode: true
    metadata: { route: { name: two, weight: 2 } }
    rate_limit: { unit: minute, requests_per_unit: 2 }
";

async fn server(options: RateLimitOptions) -> Server {
    let page = || MetricsPage { media_type: "text/plain", text: "# EOF\n".to_owned() };
    let server = Server::serving(|app| app.metrics(page)).await;
    install(&server, options);
    server
}

fn install(server: &Server, options: RateLimitOptions) {
    let file = DomainFile::parse("shop.yaml", LIMITS).unwrap();
    let config = RateLimitConfig::new(vec![file], Options::default()).unwrap();
    let policies = policies();
    let all = policies.iter().chain(config.policies()).cloned();
    server.app.replace_policies(Policies::new(all).unwrap()).unwrap();
    server.app.replace_envoy(EnvoyMap::default().rate_limits(RateLimits::new(config, options)));
    server.app.limit_stats().loaded(true);
}

fn descriptor(key: &str, value: &str) -> RateLimitDescriptor {
    let entries = vec![Entry { key: key.into(), value: value.into() }];
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}

fn hits(hits: u64, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor }
}

async fn try_ask(
    server: &Server,
    descriptors: Vec<RateLimitDescriptor>,
    hits_addend: u32,
) -> Result<RateLimitResponse, Status> {
    let mut limits = RateLimitServiceClient::with_origin(channel(), server.origin());
    let request = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend };
    limits.should_rate_limit(request).await.map(tonic::Response::into_inner)
}

async fn ask<const N: usize>(server: &Server, pairs: [(&str, &str); N]) -> RateLimitResponse {
    let descriptors = pairs.into_iter().map(|(key, value)| descriptor(key, value)).collect();
    try_ask(server, descriptors, 0).await.unwrap()
}

fn codes(response: &RateLimitResponse) -> (Code, Vec<Code>) {
    (response.overall_code(), response.statuses.iter().map(DescriptorStatus::code).collect())
}

fn remaining(response: &RateLimitResponse) -> Vec<u32> {
    response.statuses.iter().map(|status| status.limit_remaining).collect()
}

/// The metrics that begin with `name` and are not zero.
async fn metrics(server: &Server, name: &str) -> Vec<String> {
    let text = server.get("/metrics").await.text;
    let lines = text.lines().filter(|line| line.starts_with(name) && !line.ends_with(" 0"));
    lines.map(|line| line.trim_start_matches("ratelimit_service_").to_owned()).collect()
}

#[tokio::test]
async fn statuses_describe_the_limits_of_the_file() {
    let server = server(RateLimitOptions::default()).await;
    let pairs = [("client", "a"), ("client", "vip"), ("tenant", "t"), ("other", "x")];
    let response = ask(&server, pairs).await;
    assert_eq!(codes(&response), (Code::Ok, vec![Code::Ok; 4]));
    assert_eq!(remaining(&response), [4, u32::MAX, 2, 0]);
    let [client, vip, tenant, other] = &response.statuses[..] else { panic!("{response:?}") };
    let limit = client.current_limit.as_ref().unwrap();
    let shown = (&*limit.name, limit.requests_per_unit, limit.unit());
    assert_eq!(shown, ("per-client", 5, Unit::Minute));
    assert_eq!(tenant.current_limit.as_ref().unwrap().unit(), Unit::Week);
    assert!((1..=60).contains(&client.duration_until_reset.unwrap().seconds));
    assert_eq!((&vip.current_limit, &other.current_limit), (&None, &None));
    assert!(response.response_headers_to_add.is_empty(), "they are off");
}

#[tokio::test]
async fn a_refused_request_charges_no_limit() {
    let server = server(RateLimitOptions::default()).await;
    for _ in 0..3 {
        ask(&server, [("tenant", "t")]).await;
    }
    for _ in 0..3 {
        let response = ask(&server, [("client", "a"), ("tenant", "t")]).await;
        assert_eq!(codes(&response), (Code::OverLimit, vec![Code::Ok, Code::OverLimit]));
    }
    let response = ask(&server, [("client", "a")]).await;
    assert_eq!(remaining(&response), [4], "only this one was charged");
    // A week is a rolling window.
    server.clock.advance(Span::from_hours(7 * 24));
    assert_eq!(codes(&ask(&server, [("tenant", "t")]).await).0, Code::Ok);
}

#[tokio::test]
async fn zero_blocks_and_a_replaced_limit_does_not_apply() {
    let server = server(RateLimitOptions::default()).await;
    let response = ask(&server, [("client", "mallory"), ("tenant", "t")]).await;
    assert_eq!(codes(&response), (Code::OverLimit, vec![Code::OverLimit, Code::Ok]));
    let limit = response.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (0, Unit::Minute));
    assert_eq!(remaining(&ask(&server, [("tenant", "t")]).await), [2], "the block charged nothing");
    for _ in 0..9 {
        let response = ask(&server, [("client", "a"), ("endpoint", "/x")]).await;
        assert_eq!(codes(&response).0, Code::Ok);
        assert_eq!(response.statuses[0].current_limit, None);
    }
    assert_eq!(
        codes(&ask(&server, [("client", "a"), ("endpoint", "/x")]).await).0,
        Code::OverLimit
    );
    assert_eq!(remaining(&ask(&server, [("client", "a")]).await), [4]);
}

/// Service one has one request a minute and service two has two: a request passes while one of them has room.
#[tokio::test]
async fn quotas_refuse_only_together() {
    let options = RateLimitOptions { dynamic_metadata: true, ..RateLimitOptions::default() };
    let server = server(options).await;
    let both = [("service", "one"), ("service", "two")];
    let response = ask(&server, both).await;
    assert_eq!(codes(&response), (Code::Ok, vec![Code::Ok, Code::Ok]));
    let metadata = format!("{:?}", response.dynamic_metadata.unwrap());
    assert!(metadata.contains("weight") && metadata.contains("service=one"), "{metadata}");
    let response = ask(&server, both).await;
    assert_eq!(codes(&response), (Code::Ok, vec![Code::OverLimit, Code::Ok]));
    assert_eq!(remaining(&response), [0, 0]);
    let response = ask(&server, both).await;
    assert_eq!(codes(&response), (Code::OverLimit, vec![Code::OverLimit, Code::OverLimit]));
    // A limit without quota mode refuses on its own, and then the quotas are not charged.
    server.clock.advance(Span::from_mins(1));
    let response = ask(&server, [("service", "two"), ("client", "mallory")]).await;
    assert_eq!(codes(&response), (Code::OverLimit, vec![Code::Ok, Code::OverLimit]));
    assert_eq!(remaining(&ask(&server, [("service", "two")]).await), [1]);
}

#[tokio::test]
async fn in_shadow_mode_nothing_is_refused() {
    let server = self::server(RateLimitOptions::default()).await;
    for _ in 0..3 {
        assert_eq!(codes(&ask(&server, [("client", "trial")]).await).0, Code::Ok);
    }
    let found = metrics(&server, "ratelimit_service_rate_limit_shadow_mode").await;
    assert_eq!(found, ["rate_limit_shadow_mode{domain=\"shop\",key1=\"client_trial\"} 2"]);
    let server =
        self::server(RateLimitOptions { shadow: true, ..RateLimitOptions::default() }).await;
    let response = ask(&server, [("client", "mallory")]).await;
    assert_eq!(codes(&response), (Code::Ok, vec![Code::OverLimit]));
    assert_eq!(metrics(&server, "ratelimit_service_global").await, ["global_shadow_mode 1"]);
}

/// Four of five is 80 %, so the last hit is near the limit.
#[tokio::test]
async fn hits_are_counted_by_the_names_of_the_original() {
    let server = server(RateLimitOptions::default()).await;
    for _ in 0..6 {
        ask(&server, [("client", "a")]).await;
    }
    try_ask(&server, vec![descriptor("tenant", "t")], 2).await.unwrap();
    let labels = "{domain=\"shop\",key1=\"client\"}";
    let tenant = "{domain=\"shop\",key1=\"tenant\"}";
    assert_eq!(
        metrics(&server, "ratelimit_service_rate_limit").await,
        [
            format!("rate_limit_total_hits{labels} 6"),
            format!("rate_limit_total_hits{tenant} 2"),
            format!("rate_limit_over_limit{labels} 1"),
            format!("rate_limit_near_limit{labels} 1"),
            format!("rate_limit_within_limit{labels} 5"),
            format!("rate_limit_within_limit{tenant} 2"),
        ]
    );
    let requests = "total_requests{grpc_method=\"ShouldRateLimit\"} 7";
    assert_eq!(metrics(&server, "ratelimit_service_total").await, [requests]);
    assert!(server.get("/metrics").await.text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn headers_describe_the_limit_with_the_least_left() {
    let names = ["x-limit", "x-left", "x-reset"].map(str::to_owned);
    let options = RateLimitOptions {
        response_headers: Some(names),
        request_headers: Some(["u-limit", "u-left", "u-reset"].map(str::to_owned)),
        ..RateLimitOptions::default()
    };
    let server = server(options).await;
    let shown = |response: &RateLimitResponse| -> Vec<(String, String)> {
        let headers = response.response_headers_to_add.iter();
        headers.map(|header| (header.key.clone(), header.value.clone())).take(2).collect()
    };
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let response = ask(&server, [("client", "a"), ("tenant", "t")]).await;
    assert_eq!(shown(&response), [pair("x-limit", "3"), pair("x-left", "2")]);
    assert_eq!(response.request_headers_to_add[0].key, "u-limit");
    let response = ask(&server, [("client", "mallory"), ("tenant", "t")]).await;
    assert_eq!(shown(&response), [pair("x-limit", "0"), pair("x-left", "0")]);
}

/// What a stream used is reported when it is over; a report that does not fit is charged, so that the next request is refused.
#[tokio::test]
async fn hits_that_a_descriptor_names_are_charged_even_if_they_do_not_fit() {
    let server = server(RateLimitOptions::default()).await;
    let read = || vec![hits(0, descriptor("client", "a"))];
    assert_eq!(codes(&try_ask(&server, read(), 0).await.unwrap()).0, Code::Ok);
    let report = vec![hits(8, descriptor("client", "a"))];
    assert_eq!(codes(&try_ask(&server, report, 0).await.unwrap()).0, Code::OverLimit);
    assert_eq!(codes(&try_ask(&server, read(), 0).await.unwrap()).0, Code::OverLimit);
    // The hits of a request that is refused are not.
    let response = try_ask(&server, vec![descriptor("client", "b")], 8).await.unwrap();
    assert_eq!(codes(&response).0, Code::OverLimit);
    assert_eq!(remaining(&ask(&server, [("client", "b")]).await), [4]);
}

#[tokio::test]
async fn descriptors_that_nothing_matches_are_counted_and_may_be_denied() {
    let server = server(RateLimitOptions::default()).await;
    ask(&server, [("misspelt", "a"), ("trusted", "a")]).await;
    let name = "tollgate_envoy_unmatched_descriptors_total";
    let found = metrics(&server, name).await;
    assert_eq!(found, [format!("{name}{{domain=\"shop\",known=\"true\"}} 1")]);
    let rules = [
        EnvoyRule::always("shop", [("path", Some("/health*"))], EnvoyAnswer::Allow).unwrap(),
        EnvoyRule::new("shop", [("client", None)], "gemini", "{client}").unwrap(),
    ];
    let map: EnvoyMap = rules.into_iter().collect();
    server.app.replace_envoy(map.clone());
    assert_eq!(codes(&ask(&server, [("misspelt", "a")]).await).0, Code::Ok);
    server.app.replace_envoy(map.unmatched(EnvoyAnswer::Deny));
    assert_eq!(codes(&ask(&server, [("path", "/healthz")]).await).0, Code::Ok);
    let response = ask(&server, [("client", "c"), ("misspelt", "a")]).await;
    assert_eq!(codes(&response), (Code::OverLimit, vec![Code::Ok, Code::OverLimit]));
    assert_eq!(remaining(&ask(&server, [("client", "c")]).await), [4], "nothing was charged");
}

/// A reload replaces the policies first. A request in between still meets a limit that is withdrawn, and no error.
#[tokio::test]
async fn a_limit_is_decided_while_it_is_withdrawn() {
    let server = server(RateLimitOptions::default()).await;
    ask(&server, [("client", "a")]).await;
    server.app.replace_policies(policies()).unwrap();
    let response = ask(&server, [("client", "a")]).await;
    assert_eq!((codes(&response).0, remaining(&response)), (Code::Ok, vec![3]));
}

/// Before a management server has sent limits, domains that no rule names are an error.
#[tokio::test]
async fn limits_that_are_expected_are_an_error_until_they_come() {
    let server = Server::start().await;
    let rule = EnvoyRule::new("shop", [("client", None)], "gemini", "{client}").unwrap();
    let map: EnvoyMap = [rule].into_iter().collect();
    let ready = async || server.get("/readyz").await.status;
    for (readiness, before) in
        [(Readiness::Loaded, 503), (Readiness::Always, 200), (Readiness::Domains, 503)]
    {
        server.app.replace_envoy(EnvoyMap::default().expect_rate_limits(readiness));
        assert_eq!(ready().await, before, "{readiness:?}");
        let status = try_ask(&server, vec![descriptor("client", "a")], 0).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable);
        server.app.replace_envoy(map.clone().expect_rate_limits(readiness));
        assert_eq!(codes(&ask(&server, [("client", "a")]).await).0, Code::Ok, "a rule knows it");
        let none = RateLimits::new(RateLimitConfig::default(), RateLimitOptions::default());
        let loaded = EnvoyMap::default().expect_rate_limits(readiness).rate_limits(none);
        server.app.replace_envoy(loaded);
        assert_eq!(codes(&ask(&server, [("client", "a")]).await).0, Code::Ok);
        let after = if readiness == Readiness::Domains { 503 } else { 200 };
        assert_eq!(ready().await, after, "{readiness:?}");
    }
}

/// The pages of the service, and nothing of the broker.
#[tokio::test]
async fn only_the_pages_of_the_service_are_served() {
    let server = Server::serving(App::only_rate_limits).await;
    let file = DomainFile::parse("shop.yaml", LIMITS).unwrap();
    let config = RateLimitConfig::new(vec![file], Options::default()).unwrap();
    server.app.replace_policies(Policies::new(config.policies().cloned()).unwrap()).unwrap();
    let limits = RateLimits::new(config, RateLimitOptions::default());
    server.app.replace_envoy(EnvoyMap::default().rate_limits(limits));
    assert_eq!(server.get("/healthcheck").await.status, 200);
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"tenant","value":"t"}]}],"hitsAddend":"2"}"#;
    let answer = server.post("/json", body).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json()["statuses"][0]["limitRemaining"], 1);
    assert_eq!(answer.json()["statuses"][0]["currentLimit"]["unit"], "WEEK");
    let answer = server.post("/json", body).await;
    assert_eq!((answer.status, &answer.json()["overallCode"]), (429, &"OVER_LIMIT".into()));
    for (body, wanted) in [
        ("{", "not a RateLimitRequest"),
        ("{\"domian\":1}", "unknown field"),
        ("{}", "descriptors"),
    ] {
        let answer = server.post("/json", body).await;
        assert_eq!(answer.status, 400, "{}", answer.text);
        assert!(answer.text.contains(wanted), "{}", answer.text);
    }
    for path in ["/", "/v1/acquire", "/v1/policies", "/metrics"] {
        assert_eq!(server.get(path).await.status, 404, "{path}");
    }
    let body = r#"{"policy":"envoy.shop.tenant","subject":"t"}"#;
    assert_eq!(server.post("/v1/acquire", body).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_is_limited_by_the_files_of_the_original() {
    let server = server(RateLimitOptions::default()).await;
    let mut proxy = envoy::envoy(&server, false).await;
    install(&server, RateLimitOptions::default());
    for _ in 0..5 {
        assert_eq!(envoy::get(&mut proxy, "alice").await.status, 200);
    }
    assert_eq!(envoy::get(&mut proxy, "alice").await.status, 429);
    assert_eq!(envoy::get(&mut proxy, "mallory").await.status, 429);
    assert_eq!(envoy::get(&mut proxy, "vip").await.status, 200);
    // Refused requests charged nothing to the address, either.
    let found = metrics(&server, "ratelimit_service_rate_limit_within_limit").await;
    assert!(
        found.contains(
            &"rate_limit_within_limit{domain=\"shop\",key1=\"remote_address\"} 8".to_owned()
        ),
        "{found:?}"
    );
    let path = "/v1/standing?policy=envoy.shop.remote_address&subject=127.0.0.1";
    assert_eq!(server.get(path).await.json()["limits"][0]["used"], 6);
}
