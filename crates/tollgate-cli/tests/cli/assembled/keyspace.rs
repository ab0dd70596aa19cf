//! Callers who make up subjects take the room of their own policy only.

use serde_json::json;

use super::post;
use crate::clients::redis_cli;
use crate::folder::Folder;
use crate::running::{Broker, get_with};

const BOUNDED: &str = r#"
[[policy]]
name = "bounded"
subjects_max = 5
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/h" }]
"#;

const API: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/h" }]
"#;

#[test]
fn a_flood_of_keys_leaves_room_for_other_policies() {
    let config =
        format!("[server]\nthrottle_subjects_max = 20\n[store]\nkind = \"memory\"\n{BOUNDED}{API}");
    let broker = Broker::start(&Folder::with(&config), "");
    let port = broker.resp.as_deref().and_then(|at| at.rsplit(':').next()).expect("a port");
    for number in 0..30 {
        // A key that holds something back for ten years.
        let answer = redis_cli(port, &format!("CL.THROTTLE k{number} 0 1 315360000"));
        assert_eq!(answer.starts_with("FULL"), 20 <= number, "{number}: {answer}");
    }
    let ask = |policy: &str, number: u32| {
        let body = json!({ "policy": policy, "subject": format!("s{number}") });
        post(&broker.url, "/v1/acquire", "", &body.to_string())
    };
    for number in 0..10 {
        let (status, answer) = ask("bounded", number);
        assert_eq!(status, if number < 5 { 200 } else { 503 }, "{answer}");
        assert_eq!(ask("api", number).0, 200);
    }
    assert!(ask("bounded", 99).1["detail"].as_str().expect("text").contains("subjects_max"));
    // Whoever is known is not shut out.
    assert_eq!(ask("bounded", 0).0, 200);
}

/// Whoever has an address of IPv6 has 2^64 of them.
#[test]
fn addresses_of_one_network_are_one_subject() {
    let broker = Broker::start(&Folder::with(&format!("[store]\nkind = \"memory\"\n{API}")), "");
    let path = "/v1/forward-auth?policy=api&subject_header=X-Real-IP";
    let statuses: Vec<String> = ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"]
        .iter()
        .map(|address| {
            let fields = format!("x-forwarded-host: shop\r\nx-real-ip: {address}\r\n");
            get_with(&broker.url, path, &fields)[9..12].to_owned()
        })
        .collect();
    assert_eq!(statuses, ["200", "200", "429", "200"]);
}

/// A bound that the store would ignore is refused.
#[test]
fn a_bound_on_subjects_is_for_a_store_in_memory() {
    let ran = Folder::with(BOUNDED).run("policies check tollgate.toml");
    assert_eq!(ran.code, 2, "{}", ran.out);
    assert!(ran.err.starts_with("tollgate.toml:4: subjects_max holds in the store"), "{}", ran.err);
}
