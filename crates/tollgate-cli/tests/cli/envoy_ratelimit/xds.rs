//! `CONFIG_TYPE=GRPC_XDS_SOTW`: a management server pushes, changes and withdraws limits, sends rubbish, goes away and comes back.

use tollgate_protocol::protobuf::Any;
use tollgate_protocol::protobuf::envoy::service::discovery::v3::DiscoveryRequest;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollgate_protocol::protobuf::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use tollgate_testkit::fakes::{ManagementServer, RATE_LIMIT_CONFIG};
use tollgate_testkit::servers::Authority;

use super::behind_envoy::{Upstream, envoy};
use super::service::{RateLimitClient, Service, call_with, descriptor};
use crate::folder::Folder;
use crate::running::Broker;

/// A limit on `key` of so many requests a week, which is a rolling window.
fn weekly(key: &str, requests_per_unit: u32) -> RateLimitDescriptor {
    let unit = RateLimitUnit::Week.into();
    RateLimitDescriptor {
        key: key.to_owned(),
        rate_limit: Some(RateLimitPolicy { unit, requests_per_unit, ..Default::default() }),
        ..Default::default()
    }
}

fn shop(descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig { name: "limits-of-shop".into(), domain: "shop".into(), descriptors }
}

fn start(folder: &Folder, server: &ManagementServer, more: &[(&str, &str)]) -> Service {
    let address = server.address().to_string();
    let variables = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &*address),
        ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "20ms"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "200ms"),
    ];
    let all: Vec<(&str, &str)> = variables.iter().chain(more).copied().collect();
    Service::start(folder, &all)
}

fn request(server: &ManagementServer) -> DiscoveryRequest {
    server.request().expect("a request").0
}

/// Reads the acknowledgement of `version`.
fn acknowledged(server: &ManagementServer, version: &str) {
    let request = request(server);
    assert_eq!((request.error_detail, &*request.version_info), (None, version));
    assert!(request.response_nonce.starts_with("nonce-"), "{}", request.response_nonce);
}

/// Asks for the client `a`, and returns the decision, and the limit if there is one.
fn ask(client: &RateLimitClient) -> (Code, Option<u32>) {
    let answer = client.ask(vec![descriptor([("client", "a")])]).expect("an answer");
    let limit = answer.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit);
    (answer.overall_code(), limit)
}

#[test]
fn limits_are_pushed_changed_withdrawn_and_restored() {
    let (folder, mut server) = (Folder::new(), ManagementServer::start().unwrap());
    let variables = [
        ("CONFIG_GRPC_XDS_NODE_ID", "node-1"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-tenant:t"),
    ];
    let service = start(&folder, &server, &variables);
    let client = RateLimitClient::new(service.grpc());

    // Before the first push: not healthy, and an error, so that Envoy decides by its failure mode.
    let (first, metadata) = server.request().unwrap();
    assert_eq!((&*first.type_url, &*first.version_info), (RATE_LIMIT_CONFIG, ""));
    assert!(first.response_nonce.is_empty() && first.resource_names.is_empty());
    let node = first.node.unwrap();
    assert_eq!((&*node.id, &*node.user_agent_name), ("node-1", "tollgate"));
    assert!(node.metadata.unwrap().fields.contains_key("zone"));
    assert_eq!(metadata.get("x-tenant").unwrap(), "t");
    assert_eq!(service.health(), 500);
    let status = client.ask(vec![descriptor([("client", "a")])]).unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
    assert!(status.message().contains("no limits yet"), "{status:?}");
    let errors = "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"} 1\n";
    assert!(service.metrics().contains(errors));

    server.push("1", &[shop(vec![weekly("client", 2)])]);
    acknowledged(&server, "1");
    assert_eq!(service.health(), 200);
    let codes: Vec<Code> = (0..3).map(|_| ask(&client).0).collect();
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::OverLimit]);

    // Other numbers keep what is used: one more, and no burst.
    server.push("2", &[shop(vec![weekly("client", 3)])]);
    acknowledged(&server, "2");
    assert_eq!(ask(&client), (Code::Ok, Some(3)));
    assert_eq!(ask(&client), (Code::OverLimit, Some(3)));

    // Withdrawn limits do not apply, and their use is not forgotten.
    server.push("3", &[shop(vec![weekly("other", 1)])]);
    acknowledged(&server, "3");
    assert_eq!(ask(&client), (Code::Ok, None));
    assert_eq!(
        service.limits(),
        "shop.other: unit=WEEK requests_per_unit=1, shadow_mode: false, quota_mode: false\n"
    );
    server.push("4", &[]);
    acknowledged(&server, "4");
    assert_eq!((ask(&client), service.limits()), ((Code::Ok, None), String::new()));
    service.log_until("the management server withdrew all limits");
    assert_eq!(service.health(), 200);
    server.push("5", &[shop(vec![weekly("client", 3)])]);
    acknowledged(&server, "5");
    assert_eq!(ask(&client), (Code::OverLimit, Some(3)));

    // While the server is away, the limits stay.
    server.stop();
    service.log_until("the management server is away, the limits stay in force");
    assert_eq!((ask(&client), service.health()), ((Code::OverLimit, Some(3)), 200));
    // It comes back with another configuration under the version that it sent before.
    server.push("5", &[shop(vec![weekly("client", 4)])]);
    server.restart().unwrap();
    assert_eq!(request(&server).version_info, "");
    acknowledged(&server, "5");
    service.log_until("the management server is back");
    assert_eq!(ask(&client), (Code::Ok, Some(4)));
    assert_eq!(ask(&client), (Code::OverLimit, Some(4)));
    assert!(service.metrics().contains("ratelimit_service_config_load_success 6\n"));

    let (code, printed) = service.end("-TERM");
    assert_eq!(code, Some(0));
    assert!(printed.contains("limits of version \"2\" are in force\n"), "{printed}");
    assert!(printed.ends_with("stopped\n"), "{printed}");
}

#[test]
fn a_wrong_push_is_refused_and_changes_nothing() {
    let (folder, server) = (Folder::new(), ManagementServer::start().unwrap());
    let service = start(&folder, &server, &[]);
    let client = RateLimitClient::new(service.grpc());
    request(&server);
    let any = |value: &[u8]| Any { type_url: RATE_LIMIT_CONFIG.to_owned(), value: value.to_vec() };
    // Also as the very first one.
    server.push_resources("0", vec![any(b"\x0a\xffrubbish")]);
    let refusal = request(&server);
    assert_eq!((&*refusal.version_info, &*refusal.response_nonce), ("", "nonce-0"));
    assert!(
        refusal.error_detail.unwrap().message.contains("resources[0]: is not a RateLimitConfig")
    );
    assert_eq!(service.health(), 500);

    server.push("1", &[shop(vec![weekly("client", 2)])]);
    acknowledged(&server, "1");
    assert_eq!(ask(&client), (Code::Ok, Some(2)));
    let (right, mut no_unit) = (weekly("client", 9), weekly("client", 9));
    no_unit.rate_limit.as_mut().unwrap().unit = 0;
    let configs = [
        (
            vec![shop(vec![right.clone(), right.clone()])],
            "limits-of-shop: the descriptor shop.client is given twice",
        ),
        (
            vec![shop(vec![no_unit])],
            "limits-of-shop: the limit of \"client\" needs either a unit or unlimited",
        ),
        (
            vec![RateLimitConfig { domain: String::new(), ..shop(vec![right.clone()]) }],
            "domain is missing",
        ),
        (
            vec![shop(vec![right.clone()]), shop(vec![weekly("other", 1)])],
            "the domain \"shop\" is in another file, too",
        ),
    ];
    let mut version = 1;
    let refused = |expected: &str| {
        let refusal = request(&server);
        // The version that stays in force, and the nonce of what is refused.
        assert_eq!(&*refusal.version_info, "1");
        let detail = refusal.error_detail.expect("a refusal");
        assert_eq!(detail.code, 3, "INVALID_ARGUMENT");
        assert!(detail.message.contains(expected), "{}", detail.message);
        service.log_until(expected);
        assert!(service.limits().contains("requests_per_unit=2,"));
    };
    for (configs, expected) in &configs {
        version += 1;
        server.push(&version.to_string(), configs);
        refused(expected);
    }
    let other = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    server.push_resources("other", vec![Any { type_url: other.to_owned(), value: Vec::new() }]);
    refused("the type is \"type.googleapis.com/envoy.config.cluster.v3.Cluster\"");
    assert_eq!(ask(&client), (Code::Ok, Some(2)));
    assert_eq!(ask(&client), (Code::OverLimit, Some(2)));
    let metrics = service.metrics();
    assert!(metrics.contains("ratelimit_service_config_load_error 6\n"), "{metrics}");
    // The stream goes on: what is right is taken.
    server.push("right", &[shop(vec![weekly("client", 3)])]);
    acknowledged(&server, "right");
    assert_eq!(ask(&client), (Code::Ok, Some(3)));
    let small = start(&folder, &server, &[("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "10")]);
    small.log_until("raise XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES");
}

/// The variables that Envoy Gateway sets: certificates on both sides, and a start without limits.
#[test]
fn certificates_are_checked_on_both_sides() {
    let (folder, certificates) = (Folder::new(), Folder::new());
    let authority = Authority::new().unwrap();
    certificates.write("ca.crt", authority.pem());
    authority.issue_for("envoy-gateway", certificates.path()).unwrap();
    let server = ManagementServer::start_tls(certificates.path()).unwrap();
    server.push("1", &[shop(vec![weekly("client", 2)])]);
    let file = |name: &str| certificates.path().join(name).display().to_string();
    let [ca, certificate, key] = ["ca.crt", "server.crt", "server.key"].map(file);
    let tls = ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true");
    let trusted = ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &*ca);
    let named = ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway");
    let forced = ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true");
    let identity = [
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &*certificate),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &*key),
    ];
    for (variables, expected) in [
        (
            vec![tls, trusted, identity[0], identity[1]],
            "is for another host; set CONFIG_GRPC_XDS_SERVER_TLS_SAN",
        ),
        (vec![tls, named, identity[0], identity[1]], "set CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
        (vec![tls, trusted, named], "set CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
    ] {
        let service = start(&folder, &server, &variables);
        service.log_until(expected);
        assert_eq!(service.health(), 500);
    }
    // Renewed files count with the next connection.
    let renewed = file("renewed.crt");
    certificates.write("renewed.crt", Authority::new().unwrap().pem());
    let trusted = ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &*renewed);
    let service = start(&folder, &server, &[tls, trusted, named, identity[0], identity[1], forced]);
    service.log_until("set CONFIG_GRPC_XDS_SERVER_TLS_CACERT");
    certificates.write("renewed.crt", authority.pem());
    request(&server);
    acknowledged(&server, "1");
    assert_eq!(ask(&RateLimitClient::new(service.grpc())), (Code::Ok, Some(2)));
}

#[test]
fn health_before_the_first_push_is_as_configured() {
    let folder = Folder::new();
    let mut server = ManagementServer::start().unwrap();
    // The server is away: the service starts all the same, and tries again.
    server.stop();
    let forced = start(&folder, &server, &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")]);
    forced.log_until("the management server is away, there are no limits yet");
    assert_eq!(forced.health(), 200);
    let client = RateLimitClient::new(forced.grpc());
    let status = client.ask(vec![descriptor([("client", "a")])]).unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    server.restart().unwrap();
    request(&server);
    server.push("1", &[shop(vec![weekly("client", 1)])]);
    acknowledged(&server, "1");
    assert_eq!(ask(&client), (Code::Ok, Some(1)));
    drop(forced);

    // Healthy only while there is a domain.
    let healthy = ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true");
    let service = start(&folder, &server, &[healthy]);
    request(&server);
    acknowledged(&server, "1");
    assert_eq!(service.health(), 200);
    server.push("2", &[]);
    acknowledged(&server, "2");
    assert_eq!(service.health(), 500);
    server.push("3", &[shop(Vec::new())]);
    acknowledged(&server, "3");
    assert_eq!(service.health(), 200);
}

/// A real Envoy, in front of an upstream: until there are limits it decides by its failure mode, and then follows each push.
#[test]
fn an_envoy_follows_the_pushed_limits() {
    let (folder, server) = (Folder::new(), ManagementServer::start().unwrap());
    let service = start(&folder, &server, &[]);
    let upstream = Upstream::start();
    let mut open = envoy(&upstream, service.grpc(), |text| text);
    let deny = |text: String| text.replace("failure_mode_deny: false", "failure_mode_deny: true");
    let mut strict = envoy(&upstream, service.grpc(), deny);
    let mut get = |is_strict: bool| {
        let proxy = if is_strict { &mut strict } else { &mut open };
        call_with(proxy.process().port(), "GET / HTTP/1.1", "x-client: a\r\n", "").0
    };
    request(&server);
    assert_eq!([get(false), get(true)], [200, 500]);
    server.push("1", &[shop(vec![weekly("client", 2)])]);
    acknowledged(&server, "1");
    assert_eq!([get(false), get(true), get(false), get(true)], [200, 200, 429, 429]);
    server.push("2", &[shop(vec![weekly("client", 3)])]);
    acknowledged(&server, "2");
    assert_eq!([get(true), get(false)], [200, 429]);
    server.push("3", &[]);
    acknowledged(&server, "3");
    assert_eq!([get(true), get(false)], [200, 200]);
}

/// `[envoy.xds]` of a broker: the limits are beside its policies, also after it has read its file again.
#[test]
fn a_broker_takes_limits_from_a_management_server() {
    let server = ManagementServer::start().unwrap();
    let config = |policy: &str| {
        format!(
            "[store]\nkind = \"memory\"\n[[policy]]\nname = \"{policy}\"\nlimits = [{{ name = \"all\", unit = \"requests\", \
             rule = \"rolling-window\", limit = 1, window = \"24h\" }}]\n[envoy]\nxds = {{ server = \"{}\" }}\n",
            server.address()
        )
    };
    let folder = Folder::with(&config("api"));
    let mut broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
    request(&server);
    server.push("1", &[shop(vec![weekly("client", 2)])]);
    acknowledged(&server, "1");
    let port = broker.grpc.as_ref().and_then(|url| url.rsplit_once(':')?.1.parse().ok());
    let client = RateLimitClient::new(port.expect("a port"));
    assert_eq!(ask(&client), (Code::Ok, Some(2)));
    folder.write("tollgate.toml", &config("web"));
    broker.signal("-HUP");
    while broker.line() != "reloaded\n" {}
    let policies = folder.run(&format!("policies --server {}", broker.url)).out;
    assert!(policies.contains("web") && policies.contains("envoy.shop.client"), "{policies}");
    assert_eq!(ask(&client), (Code::Ok, Some(2)));
    assert_eq!(ask(&client), (Code::OverLimit, Some(2)));
    // A policy with the name of a limit is refused, whichever comes second.
    folder.write("tollgate.toml", &config("envoy.shop.client"));
    broker.signal("-HUP");
    broker.log_until("is the name of a limit, too; rename the policy");
    server.push("2", &[shop(vec![weekly("client", 3)])]);
    acknowledged(&server, "2");
    assert_eq!(ask(&client), (Code::Ok, Some(3)));
    folder.write("tollgate.toml", &config("web").replace("server =", "node = \"other\", server ="));
    broker.signal("-HUP");
    broker.log_until("[envoy.xds] or [envoy] beside it changed, which takes a restart");
}
