//! Envoy's rate limit service: asked by hand, and by a real Envoy in front of an upstream.

use std::sync::Arc;

use tollgate::policy::Policies;
use tollgate::{Error, ErrorKind, Limit, Policy, RollingWindow, Span};
use tollgate_server::keys::{Key, KeyHash, Scope};
use tollgate_protocol::protobuf::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate_protocol::protobuf::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus,
};
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate_server::{EnvoyMap, EnvoyRule, ServerOptions, Tls, TlsFiles};
use tollgate_testkit::servers::Proxy;
use tonic::Status;

use crate::client::{Answer, Pending, Server};
use crate::grpc::channel;
use crate::shutdown::Broken;
use crate::tls::Issued;
use crate::upstream::upstream;

pub(crate) fn map() -> EnvoyMap {
    let rule = |entries: [(&'static str, Option<&'static str>); 1], policy, key| {
        EnvoyRule::new("shop", entries, policy, key).unwrap()
    };
    [
        rule([("remote_address", None)], "gemini", "ip:{remote_address}"),
        rule([("client", None)], "gemini", "{client}").legacy_fields(true),
        rule([("tokens_of", None)], "gemini", "{tokens_of}").unit("tokens"),
        rule([("trial", None)], "trial", "{trial}"),
    ]
    .into_iter()
    .collect()
}

pub(crate) fn descriptor(key: &str, value: &str) -> RateLimitDescriptor {
    let entries = vec![Entry { key: key.into(), value: value.into() }];
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}

fn hits(hits: u64, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor }
}

impl Server {
    async fn limited(&self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        self.should_limit(descriptors, 0).await.unwrap()
    }

    async fn should_limit(
        &self,
        descriptors: Vec<RateLimitDescriptor>,
        hits_addend: u32,
    ) -> Result<RateLimitResponse, Status> {
        self.app.replace_envoy(map());
        let mut limits = RateLimitServiceClient::with_origin(channel(), self.origin());
        let request = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend };
        limits.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    async fn used(&self, subject: &str) -> Vec<u64> {
        let path = format!("/v1/standing?policy=gemini&subject={subject}");
        let answer = self.get(&path).await.json();
        let limits = answer["limits"].as_array().unwrap();
        limits.iter().map(|limit| limit["used"].as_u64().unwrap()).collect()
    }
}

fn codes(response: &RateLimitResponse) -> Vec<Code> {
    response.statuses.iter().map(DescriptorStatus::code).collect()
}

fn field<'a>(response: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    let mut fields = response.response_headers_to_add.iter();
    fields.find(|field| field.key == name).map(|field| &*field.value)
}

/// One status per descriptor in their order; one that no rule knows is OK and has no limit.
#[tokio::test]
async fn each_descriptor_has_a_status() {
    let server = Server::start().await;
    let descriptors = vec![
        descriptor("client", "a"),
        descriptor("unknown", "a"),
        hits(3, descriptor("client", "b")),
    ];
    let response = server.limited(descriptors).await;
    assert_eq!(response.overall_code(), Code::Ok);
    assert_eq!(codes(&response), [Code::Ok, Code::Ok, Code::Ok]);
    let [first, unknown, third] = &response.statuses[..] else { panic!("{response:?}") };
    assert_eq!((first.limit_remaining, third.limit_remaining), (4, 2));
    assert_eq!(unknown.current_limit, None);
    let limit = first.current_limit.as_ref().unwrap();
    assert_eq!((&*limit.name, limit.requests_per_unit, limit.unit()), ("rpm", 5, Unit::Minute));
    assert_eq!(first.duration_until_reset.unwrap().seconds, 60);
    let field = |name: &str| field(&response, name);
    // Those of the descriptor with the least left.
    assert!(field("ratelimit").unwrap().starts_with("\"rpm\";r=2;t=60, "), "{response:?}");
    assert!(field("ratelimit-policy").unwrap().starts_with("\"rpm\";q=5;w=60, "), "{response:?}");
    assert_eq!(field("retry-after"), None);
    assert_eq!(field("x-ratelimit-remaining"), Some("2"));
}

/// No hits on the request mean one; no hits on a descriptor only look.
#[tokio::test]
async fn hits_are_those_of_the_descriptor_or_the_request_or_one() {
    let server = Server::start().await;
    server.should_limit(vec![descriptor("client", "a")], 0).await.unwrap();
    assert_eq!(server.used("a").await, [1, 0, 1]);
    server.should_limit(vec![descriptor("client", "a")], 2).await.unwrap();
    assert_eq!(server.used("a").await, [3, 0, 3]);
    let looked = server.should_limit(vec![hits(0, descriptor("client", "a"))], 9).await.unwrap();
    assert_eq!((looked.overall_code(), looked.statuses[0].limit_remaining), (Code::Ok, 2));
    assert_eq!(server.used("a").await, [3, 0, 3]);
    server.limited(vec![hits(2, descriptor("client", "a"))]).await;
    let looked = server.limited(vec![hits(0, descriptor("client", "a"))]).await;
    assert_eq!(looked.overall_code(), Code::OverLimit);
    server.limited(vec![hits(700, descriptor("tokens_of", "b"))]).await;
    assert_eq!(server.used("b").await, [0, 700, 0]);
}

/// A request that is refused costs nothing: its descriptors are one ask.
#[tokio::test]
async fn a_refused_request_takes_nothing() {
    let server = Server::start().await;
    server.limited(vec![hits(5, descriptor("client", "full"))]).await;
    let response = server
        .limited(vec![
            hits(2, descriptor("client", "before")),
            descriptor("client", "full"),
            hits(2, descriptor("client", "after")),
        ])
        .await;
    assert_eq!(response.overall_code(), Code::OverLimit);
    assert_eq!(codes(&response), [Code::Ok, Code::OverLimit, Code::Ok]);
    assert_eq!(response.statuses[1].duration_until_reset.unwrap().seconds, 60);
    for subject in ["before", "after"] {
        assert_eq!(server.used(subject).await, [0, 0, 0], "{subject}");
    }
    assert_eq!(server.used("full").await, [5, 0, 5]);
    assert_eq!(field(&response, "retry-after"), Some("60"));
}

/// Hits of descriptors with the same policy and subject are summed, and more than eight others are an error.
#[tokio::test]
async fn descriptors_of_one_subject_are_summed() {
    let server = Server::start().await;
    let twice = || {
        vec![
            hits(2, descriptor("client", "a")),
            hits(700, descriptor("tokens_of", "a")),
            hits(3, descriptor("client", "a")),
        ]
    };
    let response = server.limited(twice()).await;
    assert_eq!(codes(&response), [Code::Ok, Code::Ok, Code::Ok]);
    assert_eq!(server.used("a").await, [5, 700, 5]);
    assert_eq!(codes(&server.limited(twice()).await), [Code::OverLimit; 3]);
    assert_eq!(server.used("a").await, [5, 700, 5]);
    let many = |count: usize| {
        (0..count).map(|number| descriptor("client", &format!("c{number}"))).collect::<Vec<_>>()
    };
    assert_eq!(server.limited(many(8)).await.overall_code(), Code::Ok);
    let status = server.should_limit(many(9), 0).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(status.message().contains("at most 8 are decided together"), "{}", status.message());
    assert_eq!(server.used("c0").await, [1, 0, 1]);
    assert_eq!(server.used("c8").await, [0, 0, 0]);
}

/// A policy in shadow mode refuses nothing: not when it is only looked at, and not beside one that refuses.
#[tokio::test]
async fn a_policy_in_shadow_mode_is_never_over() {
    let server = Server::start().await;
    server
        .limited(vec![hits(2, descriptor("trial", "a")), hits(5, descriptor("client", "full"))])
        .await;
    for looked in [descriptor("trial", "a"), hits(0, descriptor("trial", "a"))] {
        let response = server.limited(vec![looked]).await;
        assert_eq!((response.overall_code(), codes(&response)), (Code::Ok, vec![Code::Ok]));
        assert_eq!(response.statuses[0].limit_remaining, 0);
        assert_eq!(field(&response, "retry-after"), None);
    }
    let both = vec![descriptor("client", "full"), descriptor("trial", "a")];
    assert_eq!(codes(&server.limited(both).await), [Code::OverLimit, Code::Ok]);
}

/// A request is admitted once the last of those that refused it has room, and that is the wait that is promised,
/// whichever of them is asked first: who asks again at it is admitted, and not a second earlier.
#[tokio::test]
async fn the_longest_wait_is_promised() {
    let server = Server::start().await;
    server.limited(vec![descriptor("client", "late"), hits(5, descriptor("client", "soon"))]).await;
    server.clock.advance(Span::from_secs(30));
    server.limited(vec![hits(3, descriptor("client", "late"))]).await;
    server.clock.advance(Span::from_secs(10));
    // One of the five is back in 20 s, all of them in 50 s.
    let late = || hits(5, descriptor("client", "late"));
    let soon = || descriptor("client", "soon");
    for both in [vec![late(), soon()], vec![soon(), late()]] {
        let response = server.limited(both).await;
        assert_eq!(codes(&response), [Code::OverLimit, Code::OverLimit]);
        assert_eq!(field(&response, "retry-after"), Some("50"));
        assert!(
            field(&response, "ratelimit").unwrap().starts_with("\"rpm\";r=1;t=20, "),
            "{response:?}"
        );
    }
    // What never fits has no wait, and then neither has the request.
    let never = vec![hits(6, descriptor("client", "never")), soon()];
    let response = server.limited(never).await;
    assert_eq!((response.overall_code(), field(&response, "retry-after")), (Code::OverLimit, None));
    server.clock.advance(Span::from_secs(49));
    assert_eq!(server.limited(vec![late(), soon()]).await.overall_code(), Code::OverLimit);
    server.clock.advance(Span::from_secs(1));
    assert_eq!(server.limited(vec![late(), soon()]).await.overall_code(), Code::Ok);
}

/// Of several limits that have nothing left, the one that takes longest is the one that a look shows.
#[tokio::test]
async fn a_look_shows_the_limit_that_takes_longest() {
    let server = Server::start().await;
    for _ in 0..4 {
        server.limited(vec![hits(5, descriptor("client", "a"))]).await;
        server.clock.advance(Span::from_mins(1));
    }
    server.limited(vec![hits(5, descriptor("client", "a"))]).await;
    let looked = server.limited(vec![hits(0, descriptor("client", "a"))]).await;
    assert_eq!(looked.statuses[0].current_limit.as_ref().unwrap().name, "rpd");
    // It is 2 h 11 min to midnight.
    assert_eq!(field(&looked, "retry-after"), Some("7860"));
}

/// What cannot be meant is refused before anything is taken; a store that fails is for Envoy to judge.
#[tokio::test]
async fn what_cannot_be_answered_is_a_status() {
    let server = Server::start().await;
    let limit = Some(RateLimitOverride { requests_per_unit: 1_000, unit: 1 });
    let wrong = [
        (RateLimitDescriptor { limit, ..descriptor("client", "x") }, "descriptors[1].limit"),
        (
            RateLimitDescriptor { is_negative_hits: true, ..descriptor("client", "x") },
            "descriptors[1].is_negative_hits",
        ),
    ];
    for (wrong, named) in wrong {
        let both = vec![descriptor("client", "a"), wrong];
        let status = server.should_limit(both, 0).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().contains(named), "{}", status.message());
    }
    assert!(server.should_limit(vec![], 0).await.is_err());
    assert_eq!(server.used("a").await, [0, 0, 0]);
    let broken = Error::new(ErrorKind::Unavailable, "the store is away");
    let broken = Server::around(|_| Arc::new(Broken(broken))).await;
    let status = broken.should_limit(vec![descriptor("client", "a")], 0).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
}

/// The documented configuration, with the ports of this test.
pub(crate) async fn envoy(server: &Server, failure_mode_deny: bool) -> Proxy {
    let deny = format!("failure_mode_deny: {failure_mode_deny}");
    envoy_with(server, move |text| text.replace("failure_mode_deny: false", &deny)).await
}

/// The same, changed by `change`.
async fn envoy_with(
    server: &Server,
    change: impl FnOnce(String) -> String + Send + 'static,
) -> Proxy {
    server.app.replace_envoy(map());
    let port = |number: u16| format!("port_value: {number}");
    let (upstream, grpc) = (upstream().await.0.port(), server.grpc.port());
    let start = move || {
        Proxy::envoy(|listen| {
            let text = include_str!("../../../../deploy/envoy.yaml")
                .replace(&port(10_000), &port(listen))
                .replace(&port(9_000), &port(upstream))
                .replace(&port(8_081), &port(grpc))
                .replace("timeout: 1s", "timeout: 30s");
            change(text)
        })
    };
    tokio::task::spawn_blocking(start).await.unwrap().unwrap()
}

pub(crate) async fn get(envoy: &mut Proxy, client: &str) -> Answer {
    let head = format!("GET / HTTP/1.1\r\nhost: x\r\nx-client: {client}\r\nconnection: close");
    Pending::send(envoy.process().address(), &format!("{head}\r\n\r\n")).await.answer().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_in_front_of_an_upstream_is_limited() {
    // The name under which the test itself asks.
    let hosts = vec!["test".to_owned()];
    let loopback = ServerOptions { is_loopback: true, hosts, ..ServerOptions::default() };
    let server = Server::serving(|app| app.with_options(loopback)).await;
    let mut envoy = envoy(&server, false).await;
    for left in (0..5).rev() {
        let answer = get(&mut envoy, "alice").await;
        assert_eq!((answer.status, &*answer.text), (200, "hi"));
        let field = answer.field("ratelimit").unwrap();
        assert!(field.starts_with(&format!("\"rpm\";r={left};t=60")), "{field}");
        assert_eq!(answer.field("x-ratelimit-remaining"), None);
    }
    let answer = get(&mut envoy, "alice").await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.field("x-envoy-ratelimited"), Some("true"));
    assert_eq!(answer.field("retry-after"), Some("60"));
    assert!(answer.field("ratelimit").unwrap().starts_with("\"rpm\";r=0;t=60"));
    assert!(answer.field("ratelimit-policy").unwrap().starts_with("\"rpm\";q=5;w=60"));
    // All came from one address, and nothing was taken from it for the request that was refused.
    assert_eq!(server.used("ip:127.0.0.1").await, [5, 0, 5]);
    server.clock.advance(Span::from_mins(1));
    assert_eq!(get(&mut envoy, "alice").await.status, 200);
}

/// The story of a client that keeps asking although it is refused: it takes nothing from the limit that it shares with
/// others, so all of them are let through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_client_does_not_charge_the_others() {
    let server = Server::start().await;
    let limit =
        |count| Limit::new("rpm", "requests", RollingWindow::new(count, Span::from_mins(1)));
    let policies = [("per-client", 3), ("shared", 30)]
        .map(|(name, count)| Policy::new(name, [limit(count)]).unwrap());
    server.app.replace_policies(Policies::new(policies).unwrap()).unwrap();
    let mut envoy = envoy(&server, false).await;
    let rule =
        |key, policy, subject| EnvoyRule::new("shop", [(key, None)], policy, subject).unwrap();
    let rules = [
        rule("remote_address", "shared", "{remote_address}"),
        rule("client", "per-client", "{client}"),
    ];
    server.app.replace_envoy(rules.into_iter().collect());
    let used = async || {
        let path = "/v1/standing?policy=shared&subject=127.0.0.1";
        server.get(path).await.json()["limits"][0]["used"].as_u64().unwrap()
    };
    for status in std::iter::repeat_n(200, 3).chain(std::iter::repeat_n(429, 40)) {
        assert_eq!(get(&mut envoy, "greedy").await.status, status);
    }
    assert_eq!(used().await, 3);
    for number in 0..27 {
        let client = format!("client-{}", number % 9);
        assert_eq!(get(&mut envoy, &client).await.status, 200, "{client}");
    }
    assert_eq!(used().await, 30);
    // Now the shared limit refuses, and the client is not charged.
    let answer = get(&mut envoy, "late").await;
    assert!(answer.field("ratelimit").unwrap().starts_with("\"rpm\";r=0"), "{}", answer.status);
    assert_eq!(answer.status, 429);
    let late = server.get("/v1/standing?policy=per-client&subject=late").await.json();
    assert_eq!(late["limits"][0]["used"], 0);
}

/// With TLS, a certificate and a key, as docs/envoy.md says; without the certificate nothing is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_asks_over_tls_with_a_certificate_and_a_key() {
    let (issued, clients) = (Issued::new(), Issued::new());
    let files =
        TlsFiles { client_authority: Some(clients.path().join("ca.crt")), ..issued.files() };
    let server = Server::secured(Tls::open(files).unwrap()).await;
    let scopes = [Scope::Acquire].into_iter().collect();
    let key = Key::new("envoy", KeyHash::from_key("tg_envoy"), scopes);
    server.app.replace_keys(Some([key].into_iter().collect()));

    let page = include_str!("../../../../docs/envoy.md");
    let socket = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let file = |issued: &Issued, name: &str| issued.path().join(name).display().to_string();
    let socket = socket
        .replace("ca.crt", &file(&issued, "ca.crt"))
        .replace("client.crt", &file(&clients, "server.crt"))
        .replace("client.key", &file(&clients, "server.key"));
    let metadata = page.split('`').find(|code| code.starts_with("initial_metadata")).unwrap();
    let metadata = metadata.replace("KEY", "tg_envoy");
    let secured = move |socket: String| {
        move |text: String| {
            let cluster = "- name: tollgate\n      type: STATIC\n";
            let service = "envoy_grpc: { cluster_name: tollgate, authority: localhost }";
            assert!(text.contains(cluster) && text.contains(service));
            let signed = format!("{service}\n                          {metadata}");
            text.replace(cluster, &format!("{cluster}{socket}"))
                .replace(service, &signed)
                .replace("failure_mode_deny: false", "failure_mode_deny: true")
        }
    };
    let mut known = envoy_with(&server, secured.clone()(socket.clone())).await;
    let answer = get(&mut known, "alice").await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert!(answer.field("ratelimit").unwrap().starts_with("\"rpm\";r=4;t=60"));
    for _ in 0..4 {
        get(&mut known, "alice").await;
    }
    assert_eq!(get(&mut known, "alice").await.status, 429);

    let begin = socket.find("            tls_certificates").unwrap();
    let end = socket.find("            validation_context").unwrap();
    let anonymous = socket[..begin].to_owned() + &socket[end..];
    let mut stranger = envoy_with(&server, secured(anonymous)).await;
    assert_eq!(get(&mut stranger, "bob").await.status, 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_store_envoy_does_as_its_failure_mode_says() {
    let broken = || Arc::new(Broken(Error::new(ErrorKind::Unavailable, "the store is away")));
    let server = Server::around(|_| broken()).await;
    assert_eq!(get(&mut envoy(&server, false).await, "alice").await.status, 200);
    assert_eq!(get(&mut envoy(&server, true).await, "alice").await.status, 500);
}
