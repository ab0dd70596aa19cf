//! The gateway as it is shipped, between real clients and a fake provider that is as strict as the real ones.

mod bad_input;
mod burst;
mod bytes;
mod dropped;
mod faults;
mod killed;
mod operation;
mod raw;
mod sdks;
mod secrets;
mod shares;
mod tls;

use std::sync::Arc;

use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tollgate::clock::SystemClock;
use tollgate_server::keys::KeyHash;
use tollgate_testkit::fakes::llm::{Dialect, FakeLlm, Served, Settings};
use tollgate_testkit::servers::eventually;

use crate::folder::Folder;
use crate::running::{Broker, get};

/// The key of the caller.
const KEY: &str = "tg-caller-canary-key";

/// Limits that no test reaches, and slots that show whether a call still holds its permit.
const WIDE: &str = r#"
  { name = "rate", unit = "requests", rule = "rolling-window", limit = 100000, window = "1h" },
  { name = "input", unit = "input_tokens", rule = "rolling-window", limit = 100000000, window = "1h" },
  { name = "output", unit = "output_tokens", rule = "rolling-window", limit = 100000000, window = "1h" },
  { name = "running", unit = "requests", rule = "concurrency", limit = 1000, ttl = "5m" },
"#;

/// The key of the gateway at the provider.
fn upstream_key(dialect: Dialect) -> String {
    format!("{dialect}-upstream-canary-key")
}

/// A model of each provider.
const fn model(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::OpenAi => "gpt-4o-mini",
        Dialect::Anthropic => "claude-haiku-4-5",
        Dialect::Gemini => "gemini-2.5-flash",
    }
}

/// A fake provider, on a runtime of its own.
struct Provider {
    fake: FakeLlm,
    served: Served,
    _runtime: Runtime,
}

impl Provider {
    fn start(settings: Settings) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        let fake = FakeLlm::new(Arc::new(SystemClock), settings);
        let served = runtime.block_on(fake.serve(0)).expect("it serves");
        Self { fake, served, _runtime: runtime }
    }

    /// Waits until every call has ended.
    fn idle(&self) {
        let ended = eventually(|| (self.fake.tally().at_once == 0).then_some(()));
        assert!(ended.is_some(), "calls go on: {:?}", self.fake.tally());
    }
}

/// What a gateway is configured with beside its upstreams.
struct Setup<'a> {
    store: &'a str,
    /// Lines of `[gateway]`.
    gateway: &'a str,
    /// The limits of the policy `provider`, by upstream.
    limits: &'a str,
    /// Lines of each upstream.
    upstream: &'a str,
    max_wait: &'a str,
    /// Lines at the end.
    more: &'a str,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        let store = "[store]\nkind = \"memory\"\n";
        Self { store, gateway: "", limits: WIDE, upstream: "", max_wait: "60s", more: "" }
    }
}

impl Setup<'_> {
    /// The configuration of a gateway in front of the provider at `url`.
    fn config(&self, url: &str) -> String {
        let Self { store, gateway, limits, upstream, max_wait, more } = self;
        let mut config = format!(
            "{store}[gateway]\nlisten = \"127.0.0.1:0\"\n{gateway}\n\
             [[gateway.key]]\nname = \"test\"\nhash = \"{}\"\nsubject = \"alice\"\nteam = \"blue\"\n\
             [[policy]]\nname = \"provider\"\nlimits = [{limits}]\n",
            KeyHash::from_key(KEY)
        );
        for dialect in Dialect::ALL {
            let key = upstream_key(dialect);
            config += &format!(
                "[[upstream]]\nname = \"{dialect}\"\ndialect = \"{dialect}\"\nurl = \"{url}\"\nkey = \"{key}\"\n{upstream}\n\
                 [[route]]\nname = \"{dialect}\"\nmodels = [\"{}*\", \"alias\"]\nupstreams = [\"{dialect}\"]\n\
                 charges = [{{ policy = \"provider\", subject = \"{{upstream}}\" }}]\nmax_wait = \"{max_wait}\"\n",
                model(dialect).split('-').next().unwrap_or_default()
            );
        }
        config + more
    }

    fn start(&self, settings: Settings) -> Assembled {
        let provider = Provider::start(settings);
        let gateway = RunningGateway::start(&self.config(&provider.served.url()));
        Assembled { provider, gateway }
    }
}

/// A broker with a gateway.
struct RunningGateway {
    broker: Broker,
    url: String,
    _folder: Folder,
}

impl RunningGateway {
    fn start(config: &str) -> Self {
        Self::start_in(Folder::with(config), &[])
    }

    /// Starts a gateway in `folder`, with variables of the environment.
    fn start_in(folder: Folder, env: &[(&str, &str)]) -> Self {
        let broker = Broker::start_with(&folder, "", env);
        Self { url: url_of(&broker), broker, _folder: folder }
    }

    /// The amount used of a limit of `policy` by `subject`.
    fn used(&self, policy: &str, subject: &str, limit: &str) -> u64 {
        let path = format!("/v1/standing?policy={policy}&subject={subject}");
        let answer = get(&self.broker.url, &path);
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        let standing: Value = serde_json::from_str(body).expect("JSON");
        let limits = standing["limits"].as_array().expect("limits").iter();
        let found = limits.clone().find(|other| other["name"] == limit || other["limit"] == limit);
        found.and_then(|limit| limit["used"].as_u64()).expect("a limit with its use")
    }

    /// Waits until no call holds a permit.
    fn settled(&self) {
        let held = || {
            Dialect::ALL
                .iter()
                .map(|dialect| self.used("provider", dialect.name(), "running"))
                .sum::<u64>()
        };
        let freed = eventually(|| (held() == 0).then_some(()));
        assert!(freed.is_some(), "{} permits are held", held());
    }
}

/// The URL of the gateway that `broker` printed.
fn url_of(broker: &Broker) -> String {
    let line = broker.printed().lines().find_map(|line| line.trim().strip_prefix("gateway "));
    line.and_then(|line| line.split_whitespace().next()).expect("it says where").to_owned()
}

/// A provider and a gateway in front of it.
struct Assembled {
    provider: Provider,
    gateway: RunningGateway,
}
