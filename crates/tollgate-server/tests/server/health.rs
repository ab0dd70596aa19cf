//! `grpc.health.v1`: health follows the store and the end of the server.

use std::sync::Arc;

use serde_json::json;
use tollgate::{Error, ErrorKind};
use tollgate_protocol::json::kind_name;
use tollgate_server::bounds::{HEALTH_EVERY, READY_WAIT_MAX, WATCHERS_MAX};
use tollgate_server::keys::{Key, KeyHash, Scope, Scopes};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::client::{Server, pass};
use crate::grpc::{Channel, channel};
use crate::shutdown::{Broken, Doors, Held};

fn health(server: &Server) -> HealthClient<Channel> {
    HealthClient::with_origin(channel(), server.origin())
}

#[tokio::test]
async fn health_is_checked() {
    let error = Error::new(ErrorKind::Unavailable, "no");
    let broken = Server::around(|_| Arc::new(Broken(error))).await;
    let check = health(&broken).check(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(check.status(), ServingStatus::NotServing);

    let server = Server::start().await;
    let service = "tollgate.v1.Gate".to_owned();
    let check = health(&server).check(HealthCheckRequest { service }).await.unwrap().into_inner();
    assert_eq!(check.status(), ServingStatus::Serving);
}

/// Only a key that may inspect everything sees why a server is not ready; without keys, no caller does.
#[tokio::test]
async fn strangers_learn_only_that_the_server_is_not_ready() {
    let hidden = json!({
        "type": "about:blank", "title": "Service Unavailable", "status": 503, "kind": "unavailable", "detail": "not ready",
    });
    for kind in [ErrorKind::Misconfigured, ErrorKind::Corrupt, ErrorKind::Unavailable] {
        let broken = || Arc::new(Broken(Error::new(kind, "10.1.2.3:6379 is a teapot")));
        let open = Server::around(|_| broken()).await;
        assert_eq!(open.get("/readyz").await.json(), hidden);
        let check = health(&open).check(HealthCheckRequest::default()).await.unwrap();
        assert_eq!(check.get_ref().status(), ServingStatus::NotServing);
        assert!(!format!("{check:?}").contains("teapot"), "{check:?}");

        let [see, ask] = [("see", Scope::Inspect), ("ask", Scope::Acquire)].map(|(name, scope)| {
            Key::new(name, KeyHash::from_key(name), [scope].into_iter().collect())
        });
        let mut bound = Key::new("bound", KeyHash::from_key("bound"), Scopes::all());
        bound.subjects = vec!["alice".to_owned()];
        let guarded = Server::with(
            |_, _| broken(),
            |app| {
                app.replace_keys(Some([see, ask, bound].into_iter().collect()));
                app
            },
        );
        let guarded = guarded.await;
        for who in ["", "Bearer ask", "Bearer bound", "Bearer none"] {
            let answer = guarded.send_as(who, "GET", "/readyz", "").await;
            assert_eq!(answer.json(), hidden, "{who}");
        }
        let reply = guarded.send_as("Bearer see", "GET", "/readyz", "").await;
        assert_eq!(reply.status, 503);
        assert_eq!(reply.json()["detail"], "10.1.2.3:6379 is a teapot");
        assert_eq!(reply.json()["kind"], kind_name(kind));
        let counted = guarded.send_as("Bearer see", "GET", "/v1/audit", "").await.json();
        assert_eq!(counted["records"], json!([]), "a probe is no failed authentication");
    }
}

/// A watcher hears that the store no longer answers, that it does again, and that the server stops, which it does not
/// hold up.
#[tokio::test]
async fn health_is_watched() {
    let doors = Arc::new(Doors::default());
    let server = Server::around(|gate| Arc::new(Held { gate, doors: Arc::clone(&doors) })).await;
    let mut watched =
        health(&server).watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    let mut heard = async || watched.message().await.unwrap().map(|reply| reply.status());
    doors.open.add_permits(1);
    assert_eq!(heard().await, Some(ServingStatus::Serving));
    pass(&server.clock, HEALTH_EVERY).await;
    pass(&server.clock, READY_WAIT_MAX).await;
    assert_eq!(heard().await, Some(ServingStatus::NotServing));
    doors.open.add_permits(1);
    pass(&server.clock, HEALTH_EVERY).await;
    assert_eq!(heard().await, Some(ServingStatus::Serving));
    let stopping = server.stop();
    assert_eq!(heard().await, Some(ServingStatus::NotServing));
    assert_eq!(heard().await, None);
    assert_eq!(stopping.done.await.unwrap().cut, 0);
}

/// Watchers are bounded in number, and one that leaves makes room.
#[tokio::test]
async fn watchers_are_bounded() {
    let server = Server::start().await;
    let mut clients = Vec::new();
    let mut watched = Vec::new();
    // Each connection has a bound of its own.
    for _ in 0..2 {
        let mut client = health(&server);
        for _ in 0..WATCHERS_MAX / 2 {
            let mut one = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
            one.message().await.unwrap();
            watched.push(one);
        }
        clients.push(client);
    }
    let mut client = health(&server);
    let refused = client.watch(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(client.check(HealthCheckRequest::default()).await.is_ok());
    drop((clients, watched));
    while client.watch(HealthCheckRequest::default()).await.is_err() {
        tokio::task::yield_now().await;
    }
}
