//! A real nginx and a real Caddy in front of an upstream, with the files in `deploy/`.

use std::sync::Arc;

use tokio::sync::mpsc::Receiver;
use tollgate::{Error, ErrorKind, Span};
use tollgate_testkit::servers::{Fault, Proxy};

use crate::client::{Answer, Pending, START, Server};
use crate::forward_auth::used;
use crate::keys::guarded;
use crate::shutdown::Broken;
use crate::upstream::upstream;

type Start = fn(String) -> Result<Proxy, Fault>;

const START_NGINX: Start = |text| Proxy::nginx(|listen| ports(&text, listen));
const START_CADDY: Start = |text| Proxy::caddy(|listen| ports(&text, listen));

fn ports(text: &str, listen: u16) -> String {
    text.replace(":8000", &format!(":{listen}"))
}

/// The proxy of a documented configuration, with the ports and the policy of this test.
async fn proxy(start: Start, text: &str, server: &Server, service: u16) -> Proxy {
    let text = text
        .replace("127.0.0.1:8080", &server.address.to_string())
        .replace("127.0.0.1:9000", &format!("127.0.0.1:{service}"))
        // The broker is this process, which a busy machine may hold up for longer.
        .replace("proxy_connect_timeout 1s", "proxy_connect_timeout 30s")
        .replace("proxy_read_timeout 2s", "proxy_read_timeout 30s")
        .replace("policy=per-address", "policy=gemini");
    tokio::task::spawn_blocking(move || start(text)).await.unwrap().unwrap()
}

async fn get(proxy: &mut Proxy) -> Answer {
    let head = "GET /orders?policy=trial&subject=x HTTP/1.1\r\nhost: x\r\nconnection: close";
    let forged = "X-Real-IP: 203.0.113.1\r\nX-Forwarded-For: 203.0.113.1";
    let request = format!("{head}\r\n{forged}\r\n\r\n");
    Pending::send(proxy.process().address(), &request).await.answer().await
}

/// What a client behind any proxy sees: five requests pass, with a permit for the service, the sixth does not.
async fn limited(server: &Server, proxy: &mut Proxy, seen: &mut Receiver<String>) -> Answer {
    for _ in 0..5 {
        let answer = get(proxy).await;
        assert_eq!((answer.status, &*answer.text), (200, "hi"));
        let request = seen.recv().await.unwrap().to_lowercase();
        assert!(request.contains("tollgate-permit: "), "{request}");
    }
    let refused = get(proxy).await;
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert_eq!(refused.field("retry-after").or(refused.field("Retry-After")), Some("60"));
    assert!(refused.text.contains("#quota-exceeded"), "{}", refused.text);
    // The caller's address counted, not what it said.
    assert_eq!(used(server, "127.0.0.1").await, [5, 0]);
    server.clock.set(START + Span::from_mins(1));
    assert_eq!(get(proxy).await.status, 200);
    refused
}

const NGINX_CONF: &str = include_str!("../../../../deploy/nginx.conf");

/// R002.4: the broker in front of a service, asked by its proxy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_nginx_in_front_of_an_upstream_is_limited() {
    let server = Server::start().await;
    let (service, mut seen) = upstream().await;
    let mut nginx = proxy(START_NGINX, NGINX_CONF, &server, service.port()).await;
    let refused = limited(&server, &mut nginx, &mut seen).await;
    assert_eq!(refused.field("Content-Type"), Some("application/problem+json"));
    assert!(refused.field("RateLimit").unwrap().starts_with("\"rpm\";r=0;t=60"));
    assert!(refused.field("RateLimit-Policy").unwrap().starts_with("\"rpm\";q=5;w=60"));
    let passed = get(&mut nginx).await;
    assert!(passed.field("RateLimit").unwrap().starts_with("\"rpm\";r=3;t=60"));
}

/// With the wrong key nginx does not say that a limit was reached; with the right one, as in the comment, it asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_sends_its_key() {
    let server = guarded().await;
    let service = upstream().await.0.port();
    for (key, status) in [("see", 403), ("ask", 200)] {
        let line = format!("proxy_set_header Authorization \"Bearer {key}\"");
        let text = NGINX_CONF.replace("# proxy_set_header Authorization \"Bearer KEY\"", &line);
        assert!(text.contains(&line));
        let mut nginx = proxy(START_NGINX, &text, &server, service).await;
        assert_eq!(get(&mut nginx).await.status, status);
    }
}

/// Without a store nginx answers 500, or lets requests pass if the lines in the comment say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_store_nginx_follows_its_configuration() {
    let broken = Broken(Error::new(ErrorKind::Unavailable, "the store is away"));
    let server = Server::around(|_| Arc::new(broken)).await;
    let service = upstream().await.0.port();
    let open = NGINX_CONF.replace("# proxy_intercept_errors", "proxy_intercept_errors");
    let open = open.replace("# error_page 500", "error_page 500");
    for (text, status) in [(NGINX_CONF, 500), (&open, 200)] {
        let mut nginx = proxy(START_NGINX, text, &server, service).await;
        assert_eq!(get(&mut nginx).await.status, status);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caddy_in_front_of_an_upstream_is_limited() {
    let server = Server::start().await;
    let (service, mut seen) = upstream().await;
    let text = include_str!("../../../../deploy/Caddyfile");
    let mut caddy = proxy(START_CADDY, text, &server, service.port()).await;
    let refused = limited(&server, &mut caddy, &mut seen).await;
    assert_eq!(refused.field("Content-Type"), Some("application/problem+json"));
    assert!(refused.field("Ratelimit").unwrap().starts_with("\"rpm\";r=0;t=60"));
    server.stop().done.await.unwrap();
    assert_eq!(get(&mut caddy).await.status, 502);
}
