//! `[store] kind = "broker"`: keys, certificates, brokers in a row, and the library's client behind a fallback while the
//! broker is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::clock::SystemClock;
use tollgate::observe::{Event, Observer};
use tollgate::policy::OnStoreFailure;
use tollgate::strategy::{Fallback, FallbackOptions, Resend, ResendOptions};
use tollgate::{Ask, Clock as _, GateExt as _, Limit, Policy, Span, Timestamp, TokenBucket};
use tollgate_client::{Client, ClientOptions};
use tollgate_testkit::servers::{Authority, free_ports};

use crate::clients::redis_cli;
use crate::folder::Folder;
use crate::running::Broker;

const POLICY: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 50, refill = "1/h" }]
"#;

/// A new key with these scopes: its text, and its table for the configuration.
fn new_key(scopes: &str) -> (String, String) {
    let made = Folder::new().run(&format!("keys new workers {scopes} --json")).out;
    let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
    let hash = made["hash"].as_str().expect("text");
    let scopes = &made["scopes"];
    let table = format!("[[key]]\nname = \"workers\"\nscopes = {scopes}\nhash = \"{hash}\"\n");
    (made["key"].as_str().expect("text").to_owned(), table)
}

/// Everything that a broker can ask for, and what is said where it is missing.
#[test]
fn r002_4_a_broker_is_asked_with_a_key_and_certificates() {
    let (key, table) = new_key("--scope acquire");
    let (authority, clients) = (Authority::new().unwrap(), Authority::new().unwrap());
    let tls = "[server.tls]\ncertificate = \"server.crt\"\nkey = \"server.key\"\nclient_authority = \"clients.crt\"\n";
    let behind = Folder::with(&format!("{tls}[store]\nkind = \"memory\"\n{table}{POLICY}"));
    authority.issue(behind.path()).unwrap();
    behind.write("clients.crt", clients.pem());
    let broker = Broker::start(&behind, "--grpc 127.0.0.1:0");
    let (url, grpc) = (&broker.url, broker.grpc.as_ref().expect("it is on"));
    let resp = format!("rediss://{}", broker.resp.as_ref().expect("it is on"));
    for address in [
        format!("url = \"{url}\"\n"),
        format!("grpc = \"{grpc}\"\n"),
        format!("resp = \"{resp}\"\n"),
    ] {
        let lines = [
            "key_file = \"broker.key\"\n",
            "authority_file = \"ca.crt\"\n",
            "certificate_file = \"server.crt\"\ncertificate_key_file = \"server.key\"\n",
        ];
        let folder = |lines: &[&str]| {
            let lines = lines.concat();
            let folder =
                Folder::with(&format!("[store]\nkind = \"broker\"\n{address}{lines}{POLICY}"));
            folder.write("broker.key", &format!("{key}\n"));
            folder.write("ca.crt", authority.pem());
            clients.issue(folder.path()).unwrap();
            folder
        };
        let ran = folder(&lines).run("acquire api u1");
        assert_eq!(ran.code, 0, "{}", ran.err);
        let ran = folder(&lines).run("standing api u1");
        assert_eq!(ran.code, 2);
        assert!(ran.err.contains("it needs the scope inspect"), "{}", ran.err);
        for (without, said) in [
            (0, "this needs a key"),
            (1, "ClientOptions::authority, or authority_file in [store]"),
            (2, "certificate_file and certificate_key_file in [store]"),
        ] {
            let mut fewer = lines.to_vec();
            fewer.remove(without);
            let ran = folder(&fewer).run("acquire api u1");
            assert_eq!(ran.code, 2, "{address}{without}");
            assert!(ran.err.contains(said), "{address}{}", ran.err);
            assert!(!ran.err.contains(&key));
        }
    }
}

/// Brokers in a row: what one of them gave out is taken back by any client of the last one with the same key, and by no client
/// else.
#[test]
fn r002_4_brokers_in_a_row_hand_on_permits() {
    let (key, table) = new_key("--scope acquire --scope inspect --scope administer");
    let behind = Folder::with(&format!("{table}[store]\nkind = \"memory\"\n{POLICY}"));
    let last = Broker::start(&behind, "--grpc 127.0.0.1:0");
    let grpc = last.grpc.as_ref().expect("it is on");
    let config =
        format!("[store]\nkind = \"broker\"\ngrpc = \"{grpc}\"\nkey_env = \"LAST\"\n{POLICY}");
    let front = Folder::with(&config);
    let brokers = [(); 2].map(|()| Broker::start_with(&front, "", &[("LAST", &key)]));
    assert!(brokers[0].printed.contains("at the configured broker"), "{}", brokers[0].printed);
    // What needs no policy of the last one cannot be handed on, and is not advertised.
    let resp = brokers[0].resp.as_ref().expect("it is on");
    let answer = redis_cli(resp.rsplit(':').next().expect("a port"), "CL.THROTTLE k 15 30 60");
    assert!(answer.contains("passes asks on to another"), "{answer}");
    assert!(brokers[0].printed.contains("TG.ACQUIRE api alice\n"), "{}", brokers[0].printed);
    let permit = |at: &str| {
        let (code, body) = front.json(&format!("acquire api u1 --cost requests=9 --server {at}"));
        assert_eq!(code, 0, "{body}");
        body["permit"].as_str().expect("a permit").to_owned()
    };
    let [first, second] = [&brokers[0].url, &brokers[1].url];
    let (code, body) =
        front.json(&format!("settle {} --actual requests=2 --server {second}", permit(first)));
    assert_eq!((code, &body["changed"]), (0, &true.into()), "{body}");
    let ran = front.command(&format!("release {}", permit(second))).env("LAST", &key).output();
    assert_eq!(ran.expect("it runs").status.code(), Some(0));
    let given = permit(first);
    let ran = front.run_as(&key, &format!("release {given} --server {}", last.url));
    assert!(ran.code == 2 && ran.err.contains("under another permit key"), "{}", ran.err);
    let ran = behind.run_as(&key, &format!("standing api u1 --server {}", last.url));
    assert!(ran.out.contains("used 11 of 50"), "{}", ran.out);
    let ran =
        front.run(&format!("policies override api u1 --set burst.capacity=9 --server {first}"));
    assert!(ran.code == 2 && ran.err.contains("whose overrides count"), "{}", ran.err);
    // Two more in front of these still fit; the seal of each is checked where it was made.
    let third = format!("[store]\nkind = \"broker\"\nurl = \"{first}\"\n{POLICY}");
    let third = Folder::with(&third);
    let (code, body) = third.json("acquire api u1");
    assert_eq!(code, 0, "{body}");
    let (_, body) = third.json(&format!("release {}", body["permit"].as_str().expect("a permit")));
    assert_eq!(body["changed"], true);
}

#[test]
fn a_wrong_broker_table_is_refused_with_its_line() {
    let rows = [
        ("", "2: a broker needs an address; add url (HTTP, as in \"http://127.0.0.1:8080\")"),
        (
            "url = \"http://a\"\nkey = \"k\"\nkey_env = \"K\"",
            "2: key, key_env and key_file exclude",
        ),
        ("grpc = \"http://a\"\ncertificate_file = \"c\"", "4: a certificate needs its private key"),
        (
            "grpc = \"http://a\"\ncertificate_key_file = \"c\"",
            "4: a private key needs its certificate",
        ),
        ("grpc = \"http://a\"\ntable = \"t\"", "4: a broker store takes no table; remove it"),
    ];
    for (lines, message) in rows {
        let ran =
            Folder::with(&format!("[store]\nkind = \"broker\"\n{lines}\n{POLICY}")).run("policies");
        assert_eq!(ran.code, 2, "{lines}");
        assert!(ran.err.starts_with(&format!("tollgate.toml:{message}")), "{}", ran.err);
    }
    for (address, said) in [
        ("url = \"127.0.0.1:1\"", "write an address as in http://127.0.0.1:8080"),
        ("resp = \"http://127.0.0.1:1\"", "write an address as in redis://127.0.0.1:6380"),
        ("url = \"https://127.0.0.1:1\"\nauthority_file = \"none\"", "none cannot be read"),
    ] {
        let ran = Folder::with(&format!("[store]\nkind = \"broker\"\n{address}\n{POLICY}"))
            .run("acquire api a");
        assert!(ran.code == 2 && ran.err.contains(said), "{}", ran.err);
    }
    let ran =
        Folder::with(&format!("[store]\nkind = \"redis\"\nurl = \"x\"\ngrpc = \"y\"\n{POLICY}"))
            .run("policies");
    assert!(ran.err.starts_with("tollgate.toml:4: a redis store takes no grpc"), "{}", ran.err);
}

/// How many ask at once, and how often each in every phase.
const CALLERS: u64 = 8;
const ASKS: u64 = 25;

/// How long an attempt may take.
const ATTEMPT: Span = Span::from_secs(1);

type Application = Fallback<Resend<Client>>;

/// Every caller asks until an answer is `degraded` or not, and some more; how many were admitted.
async fn load(gate: &Arc<Application>, policy: &Policy, degraded: bool) -> u64 {
    let admitted = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..CALLERS {
        let (gate, policy, admitted) = (Arc::clone(gate), policy.clone(), Arc::clone(&admitted));
        tasks.push(tokio::spawn(async move {
            let mut seen = 0;
            while seen <= ASKS {
                let began = SystemClock.monotonic();
                let decision = gate.acquire(&Ask::new(&policy, "p7")).await.expect("an answer");
                let took = SystemClock.monotonic().as_micros() - began.as_micros();
                // The attempts of one call, and a wait for what is owed to be posted; with room for a busy machine.
                assert!(took < Span::from_secs(30).as_micros(), "an answer took {took} us");
                let permit = decision.into_permit().expect("there is room for all");
                admitted.fetch_add(1, Ordering::SeqCst);
                seen += u64::from(permit.degraded == degraded);
                // Answers without the broker take microseconds, so the test does not ask until a probe is due.
                if permit.degraded && !degraded {
                    gate.probe().await;
                    tokio::task::yield_now().await;
                }
            }
        }));
    }
    for task in tasks {
        task.await.expect("every ask is answered");
    }
    admitted.load(Ordering::SeqCst)
}

/// Counts how often the broker was given up.
#[derive(Debug, Default)]
struct Outages(AtomicU64);

impl Observer for Outages {
    fn observe(&self, event: &Event<'_>) {
        let began = matches!(event, Event::DegradedBegan { .. });
        self.0.fetch_add(u64::from(began), Ordering::SeqCst);
    }
}

/// R000.10 and R002.4: an application with the client behind its own fallback, while the broker is killed under load and
/// started again. Every ask is answered, those without the broker say so, and afterwards nothing is missing.
#[test]
fn r000_10_an_application_outlives_the_broker() {
    let limits = r#"limits = [{ name = "all", unit = "requests", rule = "token-bucket", capacity = 1000000, refill = "1/h" }]"#;
    let folder = Folder::with(&format!(
        "[store]\npath = \"data\"\n[[policy]]\nname = \"open\"\non_store_failure = \"open\"\n{limits}\n"
    ));
    let ports = free_ports(2).expect("free ports");
    let at = |place: usize| format!("127.0.0.1:{}", ports[place].number());
    let serve = || {
        let arguments = format!("--http {} --grpc {} --resp off", at(0), at(1));
        Broker::serve(&folder, &arguments, &[])
    };
    let mut broker = Some(serve());
    let settings = ClientOptions::new().deadline(ATTEMPT);
    let settings = settings.grpc(format!("http://{}", at(1))).http(format!("http://{}", at(0)));
    let attempts = ResendOptions::with_attempt_timeout(ATTEMPT);
    let limit =
        Limit::new("all", "requests", TokenBucket::per(1, Span::from_hours(1)).burst(1_000_000));
    let policy = Policy::builder("open").on_store_failure(OnStoreFailure::Open).limit(limit);
    let policy = policy.build().expect("a policy");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let outages = Arc::new(Outages::default());
    let admitted = runtime.block_on(async {
        let clock = Arc::new(SystemClock);
        let client = Client::new(&settings).expect("addresses");
        let probes = FallbackOptions {
            probe_min: Duration::from_millis(100),
            probe_max: Duration::from_millis(200),
            ..FallbackOptions::new(2)
        };
        let tried = Resend::new(client, attempts, Arc::clone(&clock) as _);
        let gate = Fallback::new(tried, probes, clock).expect("a fallback");
        let gate = Arc::new(gate.observer(Arc::clone(&outages) as _));
        let mut admitted = load(&gate, &policy, false).await;
        for _ in 0..2 {
            // Killed while callers ask, who go on until an answer comes without it.
            let under_load = tokio::spawn({
                let (gate, policy) = (Arc::clone(&gate), policy.clone());
                async move { load(&gate, &policy, true).await }
            });
            // It is killed when it is dropped.
            drop(broker.take());
            admitted += under_load.await.expect("every ask is answered");
            broker = Some(serve());
            admitted += load(&gate, &policy, false).await;
            // The gate goes on calling it one outage until it has looked once more, and an attempt from before the start
            // may fail only now.
            while gate.is_degraded() {
                gate.probe().await;
                tokio::task::yield_now().await;
            }
        }
        gate.shutdown(Timestamp::MAX).await.expect("the broker is there");
        admitted
    });
    let broker = broker.expect("it runs");
    assert_eq!(broker.end("-TERM").0, Some(0));
    let (_, body) = folder.json("standing open p7");
    let used = body["limits"][0]["used"].as_u64().expect("a number");
    let outages = outages.0.load(Ordering::SeqCst);
    assert!(2 <= outages);
    // Nothing that was admitted is missing; what was under way when it was killed may be counted though it was given up.
    assert!(
        (admitted..=admitted + outages * CALLERS).contains(&used),
        "{used} used, {admitted} admitted"
    );
}
