//! What strategies and operators do over the Redis protocol, and the options of an ask that clients of ours send.

use tollgate_server::keys::{Key, KeyHash, Scope};

use crate::client::Server;
use crate::resp::Line;

#[tokio::test]
async fn charging_closing_and_resetting_over_resp() {
    let server = Server::start().await;
    let mut line = Line::to(&server).await;
    line.ask(&["HELLO", "3"]).await;
    let charge = ["TG.CHARGE", "gemini", "p7", "COST", "requests", "7", "ID", "arrears"];
    let charged = line.ask(&charge).await;
    assert!(charged.contains("$4\r\nused\r\n:7\r\n"), "{charged:?}");
    assert_eq!(line.ask(&charge).await, charged);
    let changed = |changed| format!("%1\r\n$7\r\nchanged\r\n#{changed}\r\n");
    assert_eq!(line.ask(&["TG.RESET", "gemini", "p7"]).await, changed("t"));
    assert_eq!(line.ask(&["TG.RESET", "gemini", "p7"]).await, changed("f"));
    let close = ["TG.CLOSE", "gemini", "p7", "rpm", "2026-11-15T05:50:00Z"];
    assert_eq!(line.ask(&close).await, changed("t"));
    let refused = line.ask(&["TG.ACQUIRE", "gemini", "p7"]).await;
    assert!(refused.contains("$14\r\nretry_after_ms\r\n:300000\r\n"), "{refused:?}");

    // Behind one who wants the only slot there is no room, although it is free.
    let behind = ["TG.ACQUIRE", "jobs", "p7", "BEHIND", "[{\"requests\": 1}]"];
    assert!(line.ask(&behind).await.contains("$8\r\nadmitted\r\n#f\r\n"));
    let short = ["TG.ACQUIRE", "jobs", "p7", "ID", "a", "IDTTL", "1000"];
    assert!(line.ask(&short).await.contains("$8\r\nadmitted\r\n#t\r\n"));
    for (words, answer) in [
        (&["TG.RESET", "gemini"][..], "-INVALID wrong number of arguments; write TG.RESET policy"),
        (
            &["TG.CLOSE", "gemini", "p7", "rpm"],
            "-INVALID wrong number of arguments; write TG.CLOSE",
        ),
        (&["TG.CLOSE", "gemini", "p7", "rpm", "soon"], "-INVALID \"soon\" is not a time"),
        (&["TG.CLOSE", "gemini", "p7", "rpx", "2026-11-15T05:50:00Z"], "-INVALID "),
        (&["TG.CHARGE", "jobs", "p7", "WAIT", "1"], "-INVALID a charge never waits"),
        (&["TG.ACQUIRE", "jobs", "p7", "BEHIND", "{"], "-INVALID BEHIND "),
    ] {
        let got = line.ask(words).await;
        assert!(got.starts_with(answer), "{words:?}: {got}");
    }
}

/// These need the scope to administer, as over HTTP and gRPC.
#[tokio::test]
async fn a_key_that_may_only_ask_does_not_administer_over_resp() {
    let key =
        |text: &str, scope| Key::new(text, KeyHash::from_key(text), [scope].into_iter().collect());
    let keys = [key("ask", Scope::Acquire), key("rule", Scope::Administer)];
    let server = Server::guarded(keys).await;
    let mut line = Line::to(&server).await;
    let calls = [
        &["TG.CHARGE", "jobs", "p7"][..],
        &["TG.CLOSE", "jobs", "p7", "slots", "2026-11-15T05:50:00Z"],
        &["TG.RESET", "jobs", "p7"],
        &["DEL", "p7"],
    ];
    line.ask(&["AUTH", "ask"]).await;
    for words in calls {
        let refused = line.ask(words).await;
        assert!(refused.starts_with("-NOPERM "), "{words:?}: {refused}");
        assert!(refused.contains("it needs the scope administer"), "{refused}");
    }
    line.ask(&["AUTH", "rule"]).await;
    for words in calls {
        assert!(line.ask(words).await.starts_with(['*', ':']), "{words:?}");
    }
}
