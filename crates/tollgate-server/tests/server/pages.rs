//! Health, readiness and the dashboard.

use serde_json::json;

use crate::client::Server;

#[tokio::test]
async fn health_and_readiness_answer() {
    let server = Server::start().await;
    let health = server.get("/healthz").await;
    assert_eq!((health.status, health.json()), (200, json!({ "status": "ok" })));
    let ready = server.get("/readyz").await;
    assert_eq!((ready.status, ready.json()), (200, json!({ "status": "ready" })));
}

/// The dashboard works without a network: the page loads nothing but what the server has, and says so to the browser.
#[tokio::test]
async fn the_dashboard_needs_nothing_but_the_server() {
    let server = Server::start().await;
    let assets = [
        ("/", "text/html; charset=utf-8"),
        ("/dashboard.css", "text/css; charset=utf-8"),
        ("/dashboard.js", "text/javascript; charset=utf-8"),
    ];
    for (path, media_type) in assets {
        let answer = server.get(path).await;
        assert_eq!((answer.status, answer.field("content-type")), (200, Some(media_type)));
        let policy = answer.field("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        // Names of XML are the only addresses in it.
        let text = answer.text.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("http:") && !text.contains("https:"), "{path} names an address");
    }
}
