//! Ten keys of three teams on one quota: each team gets its share, however many keys it has.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_server::keys::KeyHash;
use tollgate_testkit::fakes::llm::{Dialect, Settings};
use tollgate_testkit::servers::eventually;

use super::raw::Raw;
use super::{Provider, RunningGateway, upstream_key};

/// Name, weight and keys of each team. The team with the least weight has the most keys.
const TEAMS: [(&str, u64, usize); 3] = [("gold", 3, 2), ("silver", 2, 3), ("bronze", 1, 5)];

/// The calls that are counted.
const COUNTED: usize = 120;

fn config(url: &str) -> String {
    let mut config = format!(
        "[store]\nkind = \"memory\"\n[gateway]\nlisten = \"127.0.0.1:0\"\n\
         [[policy]]\nname = \"provider\"\n\
         limits = [{{ name = \"rate\", unit = \"requests\", rule = \"rolling-window\", limit = 6, window = \"200ms\" }}]\n\
         [[upstream]]\nname = \"main\"\ndialect = \"openai\"\nurl = \"{url}\"\nkey = \"{}\"\n",
        upstream_key(Dialect::OpenAi)
    );
    for (team, weight, keys) in TEAMS {
        config += &format!(
            "[[policy]]\nname = \"{team}\"\nweight = {weight}\n\
             limits = [{{ name = \"rate\", unit = \"requests\", rule = \"rolling-window\", limit = 100000, window = \"1h\" }}]\n\
             [[route]]\nname = \"{team}\"\nmodels = [\"{team}\"]\nupstreams = [\"main\"]\n\
             charges = [{{ policy = \"{team}\", subject = \"{{key.team}}\" }}, {{ policy = \"provider\", subject = \"{{upstream}}\" }}]\n"
        );
        for number in 0..keys {
            let hash = KeyHash::from_key(&key(team, number));
            config += &format!(
                "[[gateway.key]]\nname = \"{team}-{number}\"\nhash = \"{hash}\"\nteam = \"{team}\"\nroutes = [\"{team}\"]\n"
            );
        }
    }
    config
}

fn key(team: &str, number: usize) -> String {
    format!("tg-{team}-{number}")
}

#[test]
fn ten_keys_of_three_teams_get_the_shares_of_their_teams() {
    let provider = Provider::start(Settings::default());
    let gateway = RunningGateway::start(&config(&provider.served.url()));
    let is_over = AtomicBool::new(false);
    let (url, is_over) = (gateway.url.as_str(), &is_over);
    let arrivals = std::thread::scope(|scope| {
        for (team, _, keys) in TEAMS {
            // Each key always has three calls, so that every team always waits.
            for number in (0..keys).flat_map(|number| [number; 3]) {
                scope.spawn(move || {
                    let mut raw = Raw::say(Dialect::OpenAi, "Say something.", false);
                    raw.body = format!("{{\"model\":\"{team}\",\"messages\":[{{\"role\":\"user\",\"content\":\"Hi\"}}]}}").into();
                    while !is_over.load(Ordering::SeqCst) {
                        let reply = raw.send(url, Dialect::OpenAi, &key(team, number));
                        assert_eq!(reply.status, 200, "{}", reply.text());
                    }
                });
            }
        }
        // The first calls came before every team was there.
        let arrivals = eventually(|| {
            let arrivals = provider.fake.arrivals();
            (30 + COUNTED <= arrivals.len()).then_some(arrivals)
        });
        is_over.store(true, Ordering::SeqCst);
        arrivals.expect("calls arrive")
    });
    let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
    for arrival in &arrivals[30..30 + COUNTED] {
        *calls.entry(arrival.model.as_str()).or_default() += 1;
    }
    for (team, weight, _) in TEAMS {
        let fair = COUNTED as u64 * weight / 6;
        let got = calls.get(team).copied().unwrap_or(0);
        assert!(got.abs_diff(fair) <= 6, "{team} got {got} of {fair}: {calls:?}");
    }
}
