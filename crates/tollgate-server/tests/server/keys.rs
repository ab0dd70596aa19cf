//! Keys: missing, wrong, expired and too weak ones, over HTTP and over the Redis protocol.

use tollgate::{Span, Timestamp};
use tollgate_server::keys::{Key, KeyHash, Scope};

use crate::client::{START, Server};
use crate::resp::{Line, request};

const ASK: &str = r#"{"policy": "jobs", "subject": "p7"}"#;
const OVERRIDE: &str = "/v1/policies/jobs/overrides/p7";
const STANDING: &str = "/v1/standing?policy=jobs&subject=p7";

/// `base64("any:see")`.
const BASIC: &str = "Basic YW55OnNlZQ==";

fn key(text: &str, scope: Scope, expires: Option<Timestamp>) -> Key {
    Key { expires, ..Key::new(text, KeyHash::from_key(text), [scope].into_iter().collect()) }
}

/// A key for each scope, and one that ends in a minute.
pub(crate) async fn guarded() -> Server {
    let soon = Some(START + Span::from_mins(1));
    Server::guarded([
        key("ask", Scope::Acquire, None),
        key("see", Scope::Inspect, None),
        key("change", Scope::Administer, None),
        key("brief", Scope::Acquire, soon),
    ])
    .await
}

/// Each call with each key: what its scope allows is answered, everything else is a 403, and a refused ask is not charged.
#[tokio::test]
async fn a_key_allows_its_scope_and_nothing_else() {
    let server = guarded().await;
    let calls = [
        ("POST", "/v1/acquire", ASK, "acquire"),
        ("POST", "/v1/acquire/batch", r#"{"asks": []}"#, "acquire"),
        ("GET", "/v1/forward-auth", "", "acquire"),
        ("POST", "/v1/settle", "{}", "acquire"),
        ("POST", "/v1/release", "{}", "acquire"),
        ("POST", "/v1/renew", "{}", "acquire"),
        ("POST", "/v1/translations", "{}", "acquire"),
        ("GET", "/v1/translations/book", "", "acquire"),
        ("POST", "/v1/translations/book/cancel", "{}", "acquire"),
        ("GET", "/v1/translations/book/document", "", "acquire"),
        ("GET", STANDING, "", "inspect"),
        ("GET", "/v1/policies", "", "inspect"),
        ("GET", "/v1/stats", "", "inspect"),
        ("GET", "/", "", "inspect"),
        ("GET", "/dashboard/style.css", "", "inspect"),
        ("GET", "/dashboard/page.js", "", "inspect"),
        ("GET", "/v1/audit", "", "inspect"),
        ("GET", "/v1/audit/top", "", "inspect"),
        ("GET", "/metrics", "", "inspect"),
        ("POST", "/v1/violations", "{}", "acquire"),
        ("POST", "/v1/charge", "{}", "administer"),
        ("POST", "/v1/close", "{}", "administer"),
        ("DELETE", STANDING, "", "administer"),
        ("PUT", OVERRIDE, "{}", "administer"),
        ("DELETE", OVERRIDE, "", "administer"),
    ];
    for (method, path, body, needs) in calls {
        for (key, scope) in [("ask", "acquire"), ("see", "inspect"), ("change", "administer")] {
            let who = format!("Bearer {key}");
            let answer = server.send_as(&who, method, path, body).await;
            if scope == needs {
                // This server has no metrics page; only a key that may inspect sees that.
                assert!(matches!(answer.status, 200 | 400 | 404), "{path}: {}", answer.text);
                continue;
            }
            assert_eq!(answer.status, 403, "{method} {path} as {key}: {}", answer.text);
            let problem = answer.json();
            assert_eq!(problem["kind"], "forbidden");
            let detail = format!("the key does not allow this; it needs the scope {needs}");
            assert_eq!(problem["detail"], detail);
        }
    }
    let answer = server.send_as("Bearer see", "GET", STANDING, "").await;
    assert_eq!(answer.json()["limits"][0]["used"], 0, "the last call reset what the first took");
}

#[tokio::test]
async fn without_a_right_key_nothing_but_the_probes_is_answered() {
    let server = guarded().await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.get(path).await.status, 200);
    }
    let missing = "this needs a key; send Authorization: Bearer KEY";
    let wrong = "the key is not one of this server's";
    let rows = [
        ("Bearer other", wrong),
        ("Bearer ", missing),
        ("bearer Ask", wrong),
        ("Basic YW55OmFzaw==", missing),
        ("Digest x", missing),
        ("ask", missing),
    ];
    for (who, detail) in rows {
        let answer = server.send_as(who, "POST", "/v1/acquire", ASK).await;
        assert_eq!((answer.status, &answer.json()["detail"]), (401, &detail.into()), "{who}");
        assert_eq!(answer.json()["kind"], "unauthenticated");
        assert!(answer.field("www-authenticate").unwrap().starts_with("Bearer realm="));
    }
    assert_eq!(server.post("/v1/acquire", ASK).await.json()["detail"], missing);
    assert_eq!(server.get("/nothing").await.status, 404);
    let standing = server.send_as("bearer see", "GET", STANDING, "").await;
    assert_eq!(standing.json()["limits"][0]["used"], 0);
}

/// A browser asks for a password, which is the key. It also sends it for pages of other origins, so the password only allows reading.
#[tokio::test]
async fn a_browser_may_look_with_the_key_as_its_password() {
    let server = guarded().await;
    let answer = server.get("/").await;
    assert_eq!(answer.status, 401);
    assert!(answer.fields("www-authenticate").any(|value| value.starts_with("Basic realm=")));
    assert_eq!(server.send_as(BASIC, "GET", "/", "").await.status, 200);
    assert_eq!(server.send_as(BASIC, "GET", "/v1/stats", "").await.status, 200);
    let answer = server.send_as(BASIC, "DELETE", STANDING, "").await;
    assert_eq!(answer.status, 401);
    assert!(!answer.fields("www-authenticate").any(|value| value.starts_with("Basic")));
}

#[tokio::test]
async fn a_key_ends_when_it_expires_and_connections_with_it() {
    let server = guarded().await;
    let mut line = Line::to(&server).await;
    line.says(&request(&["AUTH", "brief"]), "+OK\r\n").await;
    server.clock.advance(Span::from_millis(59_999));
    line.says("PING\r\n", "+PONG\r\n").await;
    assert_eq!(server.send_as("Bearer brief", "POST", "/v1/acquire", ASK).await.status, 200);
    server.clock.advance(Span::from_millis(1));
    let answer = server.send_as("Bearer brief", "POST", "/v1/acquire", ASK).await;
    let detail = "the key expired at 2026-11-15T05:46:00Z; ask for a new one";
    assert_eq!((answer.status, &answer.json()["detail"]), (401, &detail.into()));
    line.says("PING\r\n", &format!("-NOAUTH {detail}\r\n")).await;
    let again = line.ask(&["AUTH", "brief"]).await;
    assert_eq!(again, format!("-WRONGPASS {detail}\r\n"));
}

/// Errors begin as those of Redis do, because clients look at the first word.
#[tokio::test]
async fn a_connection_says_its_key_once() {
    let server = guarded().await;
    let mut line = Line::to(&server).await;
    let no_auth = "-NOAUTH Authentication required.\r\n";
    for words in [&["PING"][..], &["TG.ACQUIRE", "jobs", "p7"], &["COMMAND"], &["GET", "x"]] {
        assert_eq!(line.ask(words).await, no_auth, "{words:?}");
    }
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    for words in
        [&["AUTH", "other"][..], &["AUTH", "ask", "other"], &["HELLO", "3", "AUTH", "a", "b"]]
    {
        assert_eq!(line.ask(words).await, wrong, "{words:?}");
    }
    assert!(line.ask(&["HELLO", "3"]).await.starts_with("-NOAUTH HELLO must be called with "));
    assert!(line.ask(&["HELLO", "3", "AUTH", "a"]).await.starts_with("-ERR Syntax error in HELLO"));
    assert_eq!(line.ask(&["PING"]).await, no_auth);

    let hello = line.ask(&["HELLO", "3", "AUTH", "anybody", "ask", "SETNAME", "worker"]).await;
    assert!(hello.starts_with("%6\r\n"), "{hello}");
    assert!(line.ask(&["TG.ACQUIRE", "jobs", "p7"]).await.contains("$8\r\nadmitted\r\n#t"));
    let weak = line.ask(&["TG.STANDING", "jobs", "p7"]).await;
    assert!(
        weak.starts_with("-NOPERM this key has no permissions to run the 'tg.standing'"),
        "{weak}"
    );
    // A wrong key changes nothing, a right one takes the place of the former.
    assert_eq!(line.ask(&["AUTH", "other"]).await, wrong);
    line.says("PING\r\n", "+PONG\r\n").await;
    line.says(&request(&["AUTH", "user", "see"]), "+OK\r\n").await;
    assert!(line.ask(&["TG.STANDING", "jobs", "p7"]).await.starts_with('%'));
    assert!(line.ask(&["TG.ACQUIRE", "jobs", "p7"]).await.starts_with("-NOPERM "));
    line.says(&request(&["RESET"]), "+RESET\r\n").await;
    assert_eq!(line.ask(&["PING"]).await, no_auth);
    line.says("QUIT\r\n", "+OK\r\n").await;
}

/// A key that is taken away ends at once, also on connections that said it before.
#[tokio::test]
async fn replacing_the_keys_reaches_open_connections() {
    let server = guarded().await;
    let mut line = Line::to(&server).await;
    line.says(&request(&["AUTH", "see"]), "+OK\r\n").await;
    line.says("PING\r\n", "+PONG\r\n").await;
    server.app.replace_keys(Some([key("ask", Scope::Acquire, None)].into_iter().collect()));
    line.says("PING\r\n", "-WRONGPASS the key is not one of this server's\r\n").await;
    assert_eq!(server.send_as("Bearer see", "GET", STANDING, "").await.status, 401);
    assert_eq!(server.send_as("Bearer ask", "POST", "/v1/acquire", ASK).await.status, 200);
    server.app.replace_keys(None);
    line.says("PING\r\n", "+PONG\r\n").await;
}

#[tokio::test]
async fn a_server_without_keys_says_that_it_asks_for_none() {
    let server = Server::start().await;
    let answer = "-ERR this server asks for no password; leave AUTH out\r\n";
    Line::to(&server).await.says(&request(&["AUTH", "x"]), answer).await;
    assert_eq!(server.send_as("Bearer x", "POST", "/v1/acquire", ASK).await.status, 200);
}
