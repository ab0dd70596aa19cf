//! Keys over gRPC: each method with each scope, and the errors for a missing, wrong or expired key.

use std::collections::BTreeSet;

use axum::body::Bytes;
use axum::http::Request;
use http_body_util::{BodyExt as _, Full};
use prost::Message as _;
use tollgate::Span;
use tollgate_protocol::protobuf::DESCRIPTORS;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate_protocol::protobuf::tollgate::v1::AcquireRequest;
use tollgate_server::keys::{Key, KeyHash, Scopes};
use tonic::{Code, Status};

use crate::client::Server;
use crate::envoy::{descriptor, map};
use crate::grpc::channel;
use crate::keys::guarded;

const CALLS: [(&str, &str); 12] = [
    ("tollgate.v1.Gate/Acquire", "acquire"),
    ("tollgate.v1.Gate/Settle", "acquire"),
    ("tollgate.v1.Gate/Release", "acquire"),
    ("tollgate.v1.Gate/Renew", "acquire"),
    ("tollgate.v1.Gate/ReportViolation", "acquire"),
    ("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", "acquire"),
    ("tollgate.v1.Gate/Standing", "inspect"),
    ("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "inspect"),
    ("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "inspect"),
    ("tollgate.v1.Gate/Charge", "administer"),
    ("tollgate.v1.Gate/CloseUntil", "administer"),
    ("tollgate.v1.Gate/Reset", "administer"),
];

/// How a call of `method` with an empty message ends.
async fn call(server: &Server, method: &str, authorization: Option<&str>) -> Status {
    call_with(server, method, authorization, &[]).await
}

/// How a call of `method` with `message` ends.
pub(crate) async fn call_with(
    server: &Server,
    method: &str,
    authorization: Option<&str>,
    message: &[u8],
) -> Status {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let frame = [&[0], length.as_slice(), message].concat();
    let mut request = Request::post(format!("http://{}/{method}", server.grpc))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    let message = Full::new(Bytes::from(frame));
    let request = request.body(tonic::body::Body::new(message)).unwrap();
    let (head, body) = channel().request(request).await.unwrap().into_parts();
    // What is refused before its message is read has its status in the head.
    if let Some(status) = Status::from_header_map(&head.headers) {
        return status;
    }
    let body = body.collect().await.unwrap();
    Status::from_header_map(body.trailers().unwrap()).unwrap()
}

#[tokio::test]
async fn a_key_allows_the_methods_of_its_scope_and_no_other() {
    let server = guarded().await;
    for (method, needs) in CALLS {
        for (key, scope) in [("ask", "acquire"), ("see", "inspect"), ("change", "administer")] {
            let status = call(&server, method, Some(&format!("Bearer {key}"))).await;
            if scope == needs {
                let refused = [Code::PermissionDenied, Code::Unauthenticated, Code::Unimplemented];
                assert!(!refused.contains(&status.code()), "{method} as {key}: {status:?}");
                continue;
            }
            assert_eq!(status.code(), Code::PermissionDenied, "{method} as {key}: {status:?}");
            let text = format!("the key does not allow this; it needs the scope {needs}");
            assert_eq!(status.message(), text);
            assert_eq!(status.metadata().get("tollgate-kind").unwrap(), "forbidden");
        }
    }
}

/// A key that is bound to some subjects is refused for others, and not charged.
#[tokio::test]
async fn a_bound_key_is_refused_for_other_subjects() {
    let subjects = vec!["team-a/*".to_owned()];
    let key = Key::new("team-a", KeyHash::from_key("bound"), Scopes::all());
    let server = Server::guarded([Key { subjects, ..key }]).await;
    for (subject, code) in [("team-a/x", Code::Ok), ("team-b/x", Code::PermissionDenied)] {
        let (policy, subject) = ("jobs".to_owned(), subject.to_owned());
        let ask = AcquireRequest { policy, subject, ..AcquireRequest::default() }.encode_to_vec();
        let status =
            call_with(&server, "tollgate.v1.Gate/Acquire", Some("Bearer bound"), &ask).await;
        assert_eq!(status.code(), code, "{status:?}");
    }
}

/// A request of Envoy about any subject or policy that the key is not for is refused as a whole, and nothing is charged.
#[tokio::test]
async fn a_bound_key_is_refused_for_other_subjects_of_envoy() {
    let bound = Key::new("team-a", KeyHash::from_key("bound"), Scopes::all());
    let (policies, subjects) = (vec!["gemini".to_owned()], vec!["team-a/*".to_owned()]);
    let all = Key::new("all", KeyHash::from_key("all"), Scopes::all());
    let server = Server::guarded([Key { policies, subjects, ..bound }, all]).await;
    server.app.replace_envoy(map());
    let rows: [(&[_], Code); 4] = [
        (&[("client", "team-a/x")], Code::Ok),
        (&[("client", "team-b/x")], Code::PermissionDenied),
        (&[("trial", "team-a/x")], Code::PermissionDenied),
        (&[("client", "team-a/x"), ("client", "team-b/x")], Code::PermissionDenied),
    ];
    for (descriptors, code) in rows {
        let descriptors = descriptors.iter().map(|(key, value)| descriptor(key, value)).collect();
        let request = RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 1 };
        let method = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let message = request.encode_to_vec();
        let status = call_with(&server, method, Some("Bearer bound"), &message).await;
        assert_eq!(status.code(), code, "{status:?}");
    }
    for (subject, used) in [("team-a/x", 1), ("team-b/x", 0)] {
        let path = format!("/v1/standing?policy=gemini&subject={subject}");
        let standing = server.send_as("Bearer all", "GET", &path, "").await.json();
        assert_eq!(standing["limits"][0]["used"], used, "{subject}: {standing}");
    }
}

/// A method that is added has to be in the list above.
#[test]
fn the_scope_of_every_method_is_tested() {
    let files = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap().file;
    let mut served = BTreeSet::new();
    for file in &files {
        for service in &file.service {
            for method in &service.method {
                served.insert(format!("{}.{}/{}", file.package(), service.name(), method.name()));
            }
        }
    }
    assert!(!served.is_empty());
    let tested = CALLS.map(|(method, _)| method.to_owned());
    let reflection = |method: &String| method.starts_with("grpc.reflection.");
    assert_eq!(served, tested.into_iter().filter(|method| !reflection(method)).collect());
}

#[tokio::test]
async fn without_a_right_key_nothing_but_health_is_answered() {
    let server = guarded().await;
    let missing = "this needs a key; send Authorization: Bearer KEY";
    let wrong = "the key is not one of this server's";
    let rows = [
        (None, missing),
        (Some("Bearer other"), wrong),
        (Some("bearer Ask"), wrong),
        (Some("ask"), missing),
        // `base64("any:see")`: a password is for browsers.
        (Some("Basic YW55OnNlZQ=="), missing),
    ];
    for (method, _) in CALLS {
        for (authorization, text) in rows {
            let status = call(&server, method, authorization).await;
            assert_eq!(
                (status.code(), status.message()),
                (Code::Unauthenticated, text),
                "{method}"
            );
            assert_eq!(status.metadata().get("tollgate-kind").unwrap(), "unauthenticated");
        }
    }
    let health = call(&server, "grpc.health.v1.Health/Check", None).await;
    assert_eq!(health.code(), Code::Ok, "{health:?}");
    // Without a key, a missing method is not distinguishable from an existing one.
    let nothing = |key| call(&server, "nobody.Here/Call", key);
    assert_eq!(nothing(None).await.code(), Code::Unauthenticated);
    assert_eq!(nothing(Some("Bearer change")).await.code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_key_ends_when_it_expires() {
    let server = guarded().await;
    let ask = async || call(&server, "tollgate.v1.Gate/Acquire", Some("Bearer brief")).await;
    server.clock.advance(Span::from_millis(59_999));
    // It is authorized, and then fails because its message names no policy.
    assert_eq!(ask().await.code(), Code::InvalidArgument);
    server.clock.advance(Span::from_millis(1));
    let status = ask().await;
    let text = "the key expired at 2026-11-15T05:46:00Z; ask for a new one";
    assert_eq!((status.code(), status.message()), (Code::Unauthenticated, text));
}
