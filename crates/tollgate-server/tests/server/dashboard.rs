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
    let page = server.get("/").await.text;
    let mut files = vec!["/".to_owned()];
    files.extend(named(&page, "href=\"/dashboard/"));
    files.extend(named(&page, "src=\"/dashboard/"));
    let mut seen = 0;
    while let Some(path) = files.get(seen).cloned() {
        seen += 1;
        let answer = server.get(&path).await;
        let media_type = match path.rsplit('.').next() {
            Some("css") => "text/css; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!(
            (answer.status, answer.field("content-type")),
            (200, Some(media_type)),
            "{path}"
        );
        let policy = answer.field("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        // Names of XML are the only addresses in it.
        let text = answer.text.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("http:") && !text.contains("https:"), "{path} names an address");
        for imported in named(&answer.text, "from \"/dashboard/") {
            if !files.contains(&imported) {
                files.push(imported);
            }
        }
    }
    assert_eq!(seen, 13, "{files:?}");
}

/// The paths in `text` that stand behind `mark`, which ends with the folder.
fn named(text: &str, mark: &str) -> Vec<String> {
    let names = text.split(mark).skip(1).filter_map(|rest| rest.split('"').next());
    names.map(|name| format!("/dashboard/{name}")).collect()
}
