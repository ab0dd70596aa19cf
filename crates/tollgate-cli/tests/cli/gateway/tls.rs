//! TLS on both sides: clients with HTTP/1.1 and HTTP/2, providers behind HTTPS, and the proxy of the environment.

use std::net::SocketAddr;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::runtime::Runtime;
use tollgate_testkit::fakes::llm::{Dialect, Fault, Settings, Trouble, When};
use tollgate_testkit::servers::{Authority, ConnectProxy, TlsFront, eventually};
use tollgate_transport::http::{Connector, Version, connector};
use tollgate_transport::tls::{ClientTls, TlsOptions};

use super::raw::{Raw, Reply};
use super::{KEY, Provider, RunningGateway, Setup};
use crate::folder::Folder;
use crate::running::Broker;

/// A client of one HTTP version that trusts one authority.
struct TlsClient {
    runtime: Runtime,
    pool: Client<Connector, Full<Bytes>>,
    version: Version,
}

impl TlsClient {
    fn new(authority: &Authority, version: Version) -> Self {
        let tls = ClientTls::new(&TlsOptions::default().authority(authority.pem()));
        let tls = tls.expect("the authority is usable");
        let pool = Client::builder(TokioExecutor::new())
            .http2_only(version == Version::Http2)
            .build(connector(Some(&tls), version, None));
        Self { runtime: Runtime::new().expect("a runtime starts"), pool, version }
    }

    /// Sends `raw`, and returns the head of the response.
    fn open(&self, url: &str, raw: &Raw) -> Response<Incoming> {
        let request = Request::post(format!("{url}{}", raw.path))
            .header("authorization", format!("Bearer {KEY}"))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(raw.body.clone())))
            .expect("a request");
        let response = self.runtime.block_on(self.pool.request(request)).expect("a response");
        let wanted = match self.version {
            Version::Http1 => hyper::Version::HTTP_11,
            Version::Http2 => hyper::Version::HTTP_2,
        };
        assert_eq!(response.version(), wanted);
        assert_eq!(response.status(), 200);
        response
    }

    fn text(&self, response: Response<Incoming>) -> String {
        let body = self.runtime.block_on(response.into_body().collect()).expect("a whole body");
        String::from_utf8(body.to_bytes().to_vec()).expect("text")
    }
}

/// The amount used of a limit at a broker with TLS.
fn used(folder: &Folder, broker: &Broker, dialect: Dialect, limit: &str) -> u64 {
    let (code, standing) = folder
        .json(&format!("standing provider {dialect} --server {} --authority ca.crt", broker.url));
    assert_eq!(code, 0, "{standing}");
    let mut limits = standing["limits"].as_array().expect("limits").iter();
    let found = limits.find(|it| it["name"] == limit || it["limit"] == limit);
    found.and_then(|it| it["used"].as_u64()).expect("a limit with its use")
}

#[test]
fn clients_of_both_http_versions_call_over_tls() {
    let provider = Provider::start(Settings::default());
    let store = "[server.tls]\ncertificate = \"server.crt\"\nkey = \"server.key\"\n[store]\nkind = \"memory\"\n";
    let config = Setup { store, ..Setup::default() }.config(&provider.served.url());
    let (folder, authority) = (Folder::with(&config), Authority::new().expect("an authority"));
    authority.issue(folder.path()).expect("a certificate");
    folder.write("ca.crt", authority.pem());
    let broker = Broker::start(&folder, "");
    let url = super::url_of(&broker);
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    for version in [Version::Http1, Version::Http2] {
        let client = TlsClient::new(&authority, version);
        for dialect in Dialect::ALL {
            for is_stream in [false, true] {
                let raw = Raw::say(dialect, "Say hello.", is_stream);
                let through = client.text(client.open(&url, &raw));
                let direct = raw.direct(&provider.served.url(), dialect).text();
                assert_eq!(through, direct, "{version:?} {dialect}");
            }
        }
        // A client that leaves a stream, by a reset of its stream or the end of its connection.
        let before = used(&folder, &broker, Dialect::OpenAi, "output");
        let troubles = vec![Trouble::new(Fault::Stall { after: 6 }, When::Every(1))];
        provider.fake.set(Settings { troubles, ..Settings::default() });
        let mut response = client.open(&url, &Raw::say(Dialect::OpenAi, "A story.", true));
        let mut read = String::new();
        while read.matches("data: {").count() < 5 {
            let frame = client.runtime.block_on(response.frame()).expect("the stream goes on");
            let bytes = frame.expect("the stream is whole").into_data().expect("data");
            read += &String::from_utf8_lossy(&bytes);
        }
        drop((response, client));
        provider.idle();
        let freed = || used(&folder, &broker, Dialect::OpenAi, "running") == 0;
        assert!(eventually(|| freed().then_some(())).is_some(), "{version:?}: a permit is held");
        assert!(before < used(&folder, &broker, Dialect::OpenAi, "output"), "{version:?}");
        provider.fake.set(Settings::default());
    }
    assert_eq!(broker.end("-TERM").0, Some(0));
}

/// A provider behind HTTPS with a certificate of an authority of its own.
struct Secured {
    provider: Provider,
    front: TlsFront,
    folder: Folder,
}

impl Secured {
    fn start(issue: impl FnOnce(&Authority, &std::path::Path)) -> Self {
        let provider = Provider::start(Settings::default());
        let (folder, authority) = (Folder::new(), Authority::new().expect("an authority"));
        issue(&authority, folder.path());
        folder.write("ca.crt", authority.pem());
        let address: SocketAddr = provider.served.url()[7..].parse().expect("an address");
        let front = TlsFront::start(folder.path(), address).expect("a port");
        Self { provider, front, folder }
    }

    /// Writes the configuration of a gateway that calls the provider as `host`.
    fn configure(&self, host: &str, upstream: &str) {
        let url = format!("https://{host}:{}", self.front.address().port());
        let setup = Setup { upstream, max_wait: "1s", ..Setup::default() };
        self.folder.write("tollgate.toml", &setup.config(&url));
    }
}

const TRUSTED: &str = "authority_file = \"ca.crt\"";

#[test]
fn a_provider_behind_https_is_trusted_by_its_authority() {
    let secured = Secured::start(|authority, path| authority.issue(path).expect("a certificate"));
    secured.configure("127.0.0.1", TRUSTED);
    let ran = secured.folder.run("gateway check");
    assert_eq!((ran.code, &*ran.err), (0, ""), "{}", ran.out);
    let before = secured.front.handshakes();
    let gateway = RunningGateway::start_in(Folder::clone_of(&secured.folder), &[]);
    for dialect in Dialect::ALL {
        for is_stream in [false, true] {
            let raw = Raw::say(dialect, "Say hello.", is_stream);
            let through = raw.through(&gateway.url, dialect);
            let direct = raw.direct(&secured.provider.served.url(), dialect);
            assert_eq!((through.status, through.text()), (200, direct.text()), "{dialect}");
        }
    }
    gateway.settled();
    assert_eq!(secured.front.handshakes() - before, 3, "one connection per upstream is reused");
}

#[test]
fn a_wrong_certificate_is_an_error_that_costs_nothing_and_that_the_operator_reads() {
    let valid = |authority: &Authority, path: &std::path::Path| authority.issue(path);
    let expired = |authority: &Authority, path: &std::path::Path| authority.issue_expired(path);
    let other =
        |authority: &Authority, path: &std::path::Path| authority.issue_for("other.test", path);
    type Issue = fn(&Authority, &std::path::Path) -> Result<(), tollgate_testkit::servers::Fault>;
    let rows: [(Issue, &str, &str, &str); 3] = [
        (valid, "", "its certificate is not trusted: ", "name its authority with authority_file"),
        (expired, TRUSTED, "its certificate has expired", "renew it, or check the clock"),
        (other, TRUSTED, "its certificate is for another host", "check url"),
    ];
    for (issue, upstream, problem, advice) in rows {
        let secured = Secured::start(|authority, path| issue(authority, path).expect("issued"));
        secured.configure("127.0.0.1", upstream);
        let ran = secured.folder.run("gateway check openai");
        assert_eq!((ran.code, &*ran.err), (1, ""), "{}", ran.out);
        assert!(ran.out.contains(problem) && ran.out.contains(advice), "{}", ran.out);
        let mut gateway = RunningGateway::start_in(Folder::clone_of(&secured.folder), &[]);
        for dialect in Dialect::ALL {
            let reply: Reply = Raw::say(dialect, "Hi", false).through(&gateway.url, dialect);
            assert!([502, 503, 529].contains(&reply.status), "{}", reply.text());
            let message = reply.error(dialect).unwrap_or_default();
            assert!(message.contains(problem), "{dialect}: {}", reply.text());
            gateway.settled();
            for limit in ["rate", "input", "output"] {
                assert_eq!(gateway.used("provider", dialect.name(), limit), 0, "{dialect}");
            }
            let log = gateway.broker.log_until(&format!("cannot be used upstream=\"{dialect}\""));
            let line = log.lines().last().unwrap_or_default();
            assert!(line.contains(problem) && line.contains(advice), "{log}");
        }
        assert_eq!(secured.provider.fake.tally().calls, 0);
    }
}

#[test]
fn the_proxy_of_the_environment_opens_the_way_to_a_provider() {
    let secured = Secured::start(|authority, path| {
        authority.issue_for("models.test", path).expect("a certificate");
    });
    let proxy = ConnectProxy::start(Ok(secured.front.address())).expect("a proxy");
    let url = proxy.url();
    let env = [("HTTPS_PROXY", url.as_str()), ("NO_PROXY", "")];
    // The name exists for the proxy only.
    secured.configure("models.test", TRUSTED);
    let gateway = RunningGateway::start_in(Folder::clone_of(&secured.folder), &env);
    let raw = Raw::say(Dialect::OpenAi, "Say hello.", true);
    let reply = raw.through(&gateway.url, Dialect::OpenAi);
    let direct = raw.direct(&secured.provider.served.url(), Dialect::OpenAi);
    assert_eq!((reply.status, reply.text()), (200, direct.text()));
    gateway.settled();
    let port = secured.front.address().port();
    let heads = proxy.heads();
    assert!(heads[0].starts_with(&format!("CONNECT models.test:{port} HTTP/1.1\r\n")), "{heads:?}");
    assert!(heads[0].to_lowercase().contains("proxy-authorization: basic dxnlcjp3b3jk"));
    assert!(!heads.concat().contains("canary"), "keys are inside the tunnel: {heads:?}");
    let check = |env: &[(&str, &str)]| {
        let mut command = secured.folder.command("gateway check openai");
        crate::folder::Ran::from(command.envs(env.iter().copied()).output().expect("it starts"))
    };
    let ran = check(&env);
    assert_eq!((ran.code, &*ran.err), (0, ""), "{}", ran.out);

    // Hosts of NO_PROXY are called directly.
    let asked = proxy.heads().len();
    let ran = check(&[("HTTPS_PROXY", &url), ("NO_PROXY", "elsewhere.test,models.test")]);
    assert!(ran.code == 1 && ran.out.contains("its host is not known (DNS)"), "{}", ran.out);
    secured.configure("127.0.0.1", "");
    let env = [("HTTPS_PROXY", url.as_str()), ("NO_PROXY", "127.0.0.1")];
    let gateway = RunningGateway::start_in(Folder::clone_of(&secured.folder), &env);
    let reply = raw.through(&gateway.url, Dialect::OpenAi);
    assert!(reply.text().contains("its certificate is not trusted"), "{}", reply.text());
    assert_eq!(proxy.heads().len(), asked, "the proxy is not asked");

    // A proxy that refuses, and one that cannot be used.
    secured.configure("models.test", TRUSTED);
    let refuses = ConnectProxy::start(Err("407 Proxy Authentication Required")).expect("a proxy");
    let ran = check(&[("HTTPS_PROXY", &refuses.url()), ("NO_PROXY", "")]);
    let wanted = "the proxy did not connect to it: proxy authorization required; check HTTPS_PROXY";
    assert!(ran.code == 1 && ran.out.contains(wanted), "{}", ran.out);
    let ran = check(&[("HTTPS_PROXY", "https://127.0.0.1:1"), ("NO_PROXY", "")]);
    let wanted = "only proxies that begin with http:// can be used";
    assert!(ran.code == 2 && ran.err.contains(wanted), "{}", ran.err);
}
