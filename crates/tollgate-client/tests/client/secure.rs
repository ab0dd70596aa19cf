//! TLS, certificates on both sides, keys and scopes, against the real server on every transport.

use std::path::Path;

use tempfile::TempDir;
use tollgate::clock::ManualClock;
use tollgate::{Ask, Error, ErrorKind, GateExt, Limit, Policy, Span, Timestamp, TokenBucket};
use tollgate_client::{Client, ClientOptions};
use tollgate_server::keys::{Key, KeyHash, Keys, Scope};
use tollgate_server::{Tls, TlsFiles};
use tollgate_testkit::servers::Authority;

use crate::broker::{Broker, store};

/// An authority with a folder in which a certificate by it is.
struct Issued {
    authority: Authority,
    folder: TempDir,
}

impl Issued {
    fn new() -> Self {
        let issued = Self { authority: Authority::new().unwrap(), folder: TempDir::new().unwrap() };
        issued.authority.issue(issued.path()).unwrap();
        std::fs::write(issued.path().join("ca.crt"), issued.authority.pem()).unwrap();
        issued
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn files(&self, clients: Option<&Self>) -> TlsFiles {
        TlsFiles {
            certificate: self.path().join("server.crt"),
            key: self.path().join("server.key"),
            client_authority: clients.map(|clients| clients.path().join("ca.crt")),
        }
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path().join(name)).unwrap()
    }

    /// A broker with this certificate, which asks its clients for one by `clients`.
    fn broker(&self, clients: Option<&Self>) -> Broker {
        let clock = ManualClock::new();
        let tls = Tls::open(self.files(clients)).unwrap();
        let broker = Broker::with(store(&clock), &clock, Some(tls));
        broker.put([api()]);
        broker
    }
}

fn api() -> Policy {
    Policy::new("api", [Limit::new("burst", "requests", TokenBucket::per_minute(100))]).unwrap()
}

/// `settings` by each transport alone, with TLS.
fn each(broker: &Broker, settings: &ClientOptions) -> [Client; 3] {
    let settings = || settings.clone();
    [
        settings().grpc(format!("https://{}", broker.grpc)),
        settings().http(format!("https://{}", broker.http)),
        settings().resp(format!("rediss://{}", broker.resp)),
    ]
    .map(|settings| Client::new(&settings).unwrap())
}

/// What each transport says about an ask that fails.
async fn refused(broker: &Broker, settings: &ClientOptions) -> Vec<Error> {
    let mut errors = Vec::new();
    for client in each(broker, settings) {
        errors.push(client.acquire(&Ask::new(&api(), "a")).await.unwrap_err());
    }
    errors
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_trusted_is_asked_by_tls() {
    let issued = Issued::new();
    let broker = issued.broker(None);
    let settings = broker.settings().authority(issued.authority.pem());
    for client in each(&broker, &settings) {
        let permit = client.acquire(&Ask::new(&api(), "a")).await.unwrap().into_permit().unwrap();
        assert!(client.release(&permit).await.unwrap());
    }
    // Nobody but the authority that is named is trusted, and by default those of the machine.
    let stranger = Issued::new();
    for settings in [broker.settings(), broker.settings().authority(stranger.authority.pem())] {
        for error in refused(&broker, &settings).await {
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
            let text = error.to_string();
            assert!(text.contains("not issued by a trusted authority"), "{text}");
            assert!(text.contains("ClientOptions::authority, or authority_file"), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_asks_for_certificates_gets_the_one_that_is_set() {
    let (issued, clients, others) = (Issued::new(), Issued::new(), Issued::new());
    let broker = issued.broker(Some(&clients));
    let settings = broker.settings().authority(issued.authority.pem());
    let known =
        |by: &Issued| settings.clone().identity(by.read("server.crt"), by.read("server.key"));
    for client in each(&broker, &known(&clients)) {
        assert!(client.acquire(&Ask::new(&api(), "a")).await.unwrap().is_admitted());
    }
    for error in refused(&broker, &settings).await {
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("requires a client certificate"), "{error}");
        assert!(error.to_string().contains("set one: ClientOptions::identity"), "{error}");
    }
    for error in refused(&broker, &known(&others)).await {
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("did not accept the client certificate"), "{error}");
    }
}

/// A certificate that ran out is an outage: the caller can do nothing, and its fallback should.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_expired_says_so() {
    let issued = Issued::new();
    issued.authority.issue_expired(issued.path()).unwrap();
    let broker = issued.broker(None);
    let settings = broker.settings().authority(issued.authority.pem());
    for error in refused(&broker, &settings).await {
        assert!(error.is_unavailable(), "{error}");
        assert!(error.to_string().contains("has expired; renew it there"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_for_another_host_and_no_tls_at_all_are_told_apart() {
    let issued = Issued::new();
    issued.authority.issue_for("elsewhere.test", issued.path()).unwrap();
    let broker = issued.broker(None);
    let settings = broker.settings().authority(issued.authority.pem());
    for error in refused(&broker, &settings).await {
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("is for another host"), "{error}");
    }

    let clock = ManualClock::new();
    let plain = Broker::start(store(&clock), &clock);
    for error in refused(&plain, &settings).await {
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("does not speak TLS"), "{error}");
    }
}

#[test]
fn certificates_that_cannot_be_used_are_refused_before_anything_is_sent() {
    let (issued, other) = (Issued::new(), Issued::new());
    let (certificate, key) = (issued.read("server.crt"), issued.read("server.key"));
    let settings = || ClientOptions::new().grpc("https://127.0.0.1:1");
    let pem = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    let rows = [
        (settings().authority(""), "the authority has no certificate in PEM form in it"),
        (settings().authority(pem), "the authority is not PEM"),
        (
            settings().identity("", &*key),
            "the client certificate has no certificate in PEM form in it",
        ),
        (
            settings().identity(&*certificate, "x"),
            "the client's private key has no private key in PEM form in it",
        ),
        (
            settings().identity(&*certificate, other.read("server.key")),
            "the client's private key does not belong to the client certificate",
        ),
    ];
    for (settings, what) in rows {
        let error = Client::new(&settings).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(what), "{error}");
    }
    let shown = format!("{:?}", settings().identity(&*certificate, &*key));
    assert!(!shown.contains("PRIVATE") && !shown.contains("45, 45"), "{shown}");
}

/// An address under which a broker without keys does not answer has to be corrected by whoever set it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_the_broker_does_not_answer_to_is_named() {
    let clock = ManualClock::new();
    let broker = Broker::start(store(&clock), &clock);
    broker.put([api()]);
    // It leads to this machine, and is no name of the loopback interface.
    let at = |port: u16| format!("http://0.0.0.0:{port}");
    let settings = broker.settings();
    for settings in
        [settings.clone().grpc(at(broker.grpc.port())), settings.http(at(broker.http.port()))]
    {
        let client = Client::new(&settings).unwrap();
        let error = client.acquire(&Ask::new(&api(), "a")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("does not answer to the host \"0.0.0.0:"), "{error}");
    }
}

/// Wrong keys, expired keys, scopes and bounds: every transport says the same, and what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_does_not_do_is_refused_by_name() {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let broker = Broker::start(store(&clock), &clock);
    broker.put([api()]);
    let until = Timestamp::from_secs(1_000_060);
    let key = |text: &str, expires| Key {
        expires,
        ..Key::new(text, KeyHash::from_key(text), [Scope::Acquire].into_iter().collect())
    };
    let mut bound = key("tg_bound", None);
    bound.subjects = vec!["b".to_owned()];
    let keys = [key("tg_good", None), key("tg_short", Some(until)), bound];
    broker.app.replace_keys(Some(Keys::from_iter(keys)));
    let clients = |key: Option<&str>| {
        let settings = match key {
            // As it is read from a file.
            Some(key) => broker.settings().key(&format!("{key}\n")).unwrap(),
            None => broker.settings(),
        };
        [
            settings.clone().grpc(format!("http://{}", broker.grpc)),
            settings.clone().http(format!("http://{}", broker.http)),
            settings.resp(format!("redis://{}", broker.resp)),
        ]
        .map(|settings| Client::new(&settings).unwrap())
    };
    let policy = api();
    let ask = Ask::new(&policy, "a");
    for client in clients(Some("tg_good")) {
        assert!(client.acquire(&ask).await.unwrap().is_admitted());
        let error = client.reset(&policy, "a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Forbidden);
        assert!(error.to_string().contains("it needs the scope administer"), "{error}");
        assert!(
            error.to_string().contains("ClientOptions::key, or key_file in [store]"),
            "{error}"
        );
    }
    for key in [None, Some("tg_wrong")] {
        for client in clients(key) {
            let error = client.acquire(&ask).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misconfigured);
            assert!(error.to_string().contains("refuses the key"), "{error}");
        }
    }
    for client in clients(Some("tg_bound")) {
        let error = client.acquire(&ask).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Forbidden);
        assert!(error.to_string().contains("its subjects are b"), "{error}");
        assert!(client.acquire(&Ask::new(&policy, "b")).await.unwrap().is_admitted());
    }
    let short = clients(Some("tg_short"));
    for client in &short {
        assert!(client.acquire(&ask).await.unwrap().is_admitted());
    }
    clock.advance(Span::from_mins(1));
    for client in &short {
        let error = client.acquire(&ask).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        assert!(error.to_string().contains("expired"), "{error}");
    }
}
