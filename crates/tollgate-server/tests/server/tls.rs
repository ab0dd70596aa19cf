//! TLS on every listener: whom the server shows itself to, whom it asks for a certificate, and what bad files do.

use std::path::Path;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tollgate_protocol::protobuf::tollgate::v1::ResetRequest;
use tollgate_server::bounds::{DRAIN_MAX, HANDSHAKE_WAIT_MAX};
use tollgate_server::keys::{Key, KeyHash, Scope};
use tollgate_server::{Tls, TlsFiles};
use tollgate_testkit::servers::Authority;
use tonic::{Code, Status};

use crate::client::{Server, pass};

/// An authority with a folder in which its certificate is.
pub(crate) struct Issued {
    authority: Authority,
    folder: TempDir,
}

impl Issued {
    pub(crate) fn new() -> Self {
        let issued = Self { authority: Authority::new().unwrap(), folder: TempDir::new().unwrap() };
        issued.authority.issue(issued.path()).unwrap();
        std::fs::write(issued.path().join("ca.crt"), issued.authority.pem()).unwrap();
        issued
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn files(&self) -> TlsFiles {
        let path = |name| self.path().join(name);
        TlsFiles {
            certificate: path("server.crt"),
            key: path("server.key"),
            client_authority: None,
        }
    }

    /// A client that trusts this authority, with the certificate of `me` and for these protocols.
    fn connector(&self, me: Option<&Self>, protocol: &str) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.authority.pem().as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match me {
            None => builder.with_no_client_auth(),
            Some(me) => {
                let files = me.files();
                let chain = vec![CertificateDer::from_pem_file(files.certificate).unwrap()];
                let key = PrivateKeyDer::from_pem_file(files.key).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        if !protocol.is_empty() {
            config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        }
        TlsConnector::from(Arc::new(config))
    }
}

async fn connect(
    to: std::net::SocketAddr,
    connector: &TlsConnector,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("localhost").unwrap();
    connector.connect(name, TcpStream::connect(to).await?).await
}

/// What the server answers to `PING` of the Redis protocol, or why it does not.
async fn ping(server: &Server, connector: &TlsConnector) -> std::io::Result<String> {
    let mut stream = connect(server.resp, connector).await?;
    stream.write_all(b"PING\r\nQUIT\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

#[tokio::test]
async fn every_protocol_and_both_versions_of_http_speak_tls() {
    let issued = Issued::new();
    let server = Server::secured(Tls::open(issued.files()).unwrap()).await;
    assert_eq!(ping(&server, &issued.connector(None, "")).await.unwrap(), "+PONG\r\n+OK\r\n");

    let mut stream = connect(server.address, &issued.connector(None, "http/1.1")).await.unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");

    let stream = connect(server.address, &issued.connector(None, "h2")).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("https://localhost/healthz").body(Full::<Bytes>::default()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), r#"{"status":"ok"}"#);
    drop(sender);

    let stream = connect(server.grpc, &issued.connector(None, "h2")).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("https://localhost/grpc.health.v1.Health/Check")
        .header("content-type", "application/grpc")
        .body(Full::new(Bytes::from_static(&[0; 5])))
        .unwrap();
    let answer = sender.send_request(request).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(answer.trailers().unwrap()["grpc-status"], "0");
    drop(sender);
    assert_eq!(server.stop().done.await.unwrap().cut, 0);
}

#[tokio::test]
async fn clients_without_the_right_certificate_are_turned_away() {
    let (issued, clients, others) = (Issued::new(), Issued::new(), Issued::new());
    let files =
        TlsFiles { client_authority: Some(clients.path().join("ca.crt")), ..issued.files() };
    let server = Server::secured(Tls::open(files).unwrap()).await;
    let answer = ping(&server, &issued.connector(Some(&clients), "")).await;
    assert_eq!(answer.unwrap(), "+PONG\r\n+OK\r\n");
    for me in [None, Some(&others)] {
        assert!(ping(&server, &issued.connector(me, "")).await.is_err());
    }
    // A client that trusts another authority fails the handshake.
    assert!(ping(&server, &others.connector(Some(&clients), "")).await.is_err());
    // Nor is anything answered in the clear.
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut bytes = Vec::new();
    plain.read_to_end(&mut bytes).await.ok();
    assert!(!bytes.starts_with(b"HTTP"), "{bytes:?}");
}

#[tokio::test]
async fn a_handshake_that_takes_too_long_is_cut() {
    let issued = Issued::new();
    let server = Server::secured(Tls::open(issued.files()).unwrap()).await;
    for address in [server.address, server.resp] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The beginning of a record, and no more.
        stream.write_all(&[22, 3, 1]).await.unwrap();
        pass(&server.clock, HANDSHAKE_WAIT_MAX).await;
        stream.read_to_end(&mut Vec::new()).await.ok();
    }
}

/// A certificate that was renewed is in force for the next connection, and one that is broken changes nothing.
#[tokio::test]
async fn reloading_takes_a_good_certificate_and_keeps_the_old_one_otherwise() {
    let (issued, renewed) = (Issued::new(), Issued::new());
    let tls = Tls::open(issued.files()).unwrap();
    let server = Server::secured(tls.clone()).await;
    std::fs::write(issued.path().join("server.crt"), "renewing").unwrap();
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.ends_with("server.crt has no certificate in PEM form in it"), "{error}");
    assert!(ping(&server, &issued.connector(None, "")).await.is_ok());

    renewed.authority.issue(issued.path()).unwrap();
    tls.reload().unwrap();
    assert!(ping(&server, &issued.connector(None, "")).await.is_err());
    assert!(ping(&server, &renewed.connector(None, "")).await.is_ok());
}

/// A connection of HTTP/2, and the task that ends with it.
async fn http2(
    to: std::net::SocketAddr,
    connector: &TlsConnector,
) -> (SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>) {
    let io = TokioIo::new(connect(to, connector).await.unwrap());
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    (sender, tokio::spawn(connection))
}

/// A certificate for the name of a key replaces that key over gRPC, in the audit too.
#[tokio::test]
async fn a_certificate_names_its_key_over_grpc() {
    let [issued, named, other] = [Issued::new(), Issued::new(), Issued::new()];
    named.authority.issue_for("workers", named.path()).unwrap();
    let pem = format!("{}{}", named.authority.pem(), other.authority.pem());
    std::fs::write(issued.path().join("clients.crt"), pem).unwrap();
    let clients = Some(issued.path().join("clients.crt"));
    let files = TlsFiles { client_authority: clients, ..issued.files() };
    let server = Server::secured(Tls::open(files).unwrap()).await;
    let scopes = [Scope::Acquire, Scope::Administer].into_iter().collect();
    let key = Key::new("workers", KeyHash::from_key("secret"), scopes);
    server.app.replace_keys(Some([key].into_iter().collect()));
    let (policy, subject) = ("jobs".to_owned(), "p7".to_owned());
    let reset = ResetRequest { policy, subject }.encode_to_vec();
    let frame = [&[0, 0, 0, 0, u8::try_from(reset.len()).unwrap()], reset.as_slice()].concat();
    for (me, method, code) in [
        (&named, "Reset", Code::Ok),
        (&named, "Standing", Code::PermissionDenied),
        (&other, "Reset", Code::Unauthenticated),
    ] {
        let (mut sender, _) = http2(server.grpc, &issued.connector(Some(me), "h2")).await;
        let request = Request::post(format!("https://localhost/tollgate.v1.Gate/{method}"))
            .header("content-type", "application/grpc")
            .body(Full::new(Bytes::from(frame.clone())))
            .unwrap();
        let (head, body) = sender.send_request(request).await.unwrap().into_parts();
        // A call that is refused before its message is read has its status in the head.
        let status = match Status::from_header_map(&head.headers) {
            Some(status) => status,
            None => {
                let body = body.collect().await.unwrap();
                Status::from_header_map(body.trailers().unwrap()).unwrap()
            }
        };
        assert_eq!(status.code(), code, "{method}: {status:?}");
    }
    // Without keys every client that the authority vouches for may read.
    server.app.replace_keys(None);
    let mut stream = connect(server.address, &issued.connector(Some(&other), "")).await.unwrap();
    let get =
        "GET /v1/audit?outcome=reset HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(get.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.contains(r#""by":"workers""#), "{text}");
}

/// Makes a call of gRPC with an empty message; the body of its answer.
async fn call(sender: &mut SendRequest<Full<Bytes>>, method: &str) -> hyper::Result<Incoming> {
    let request = Request::post(format!("https://localhost/grpc.health.v1.Health/{method}"))
        .header("content-type", "application/grpc")
        .body(Full::new(Bytes::from_static(&[0; 5])))
        .unwrap();
    sender.send_request(request).await.map(Response::into_body)
}

/// An authority that is taken away takes the connections with it that it vouched for, on every protocol; those of others stay.
#[tokio::test]
async fn connections_end_with_the_authority_of_their_client() {
    let (issued, revoked, kept) = (Issued::new(), Issued::new(), Issued::new());
    let trust = |authorities: &[&Issued]| {
        let pem: String = authorities.iter().map(|issued| issued.authority.pem()).collect();
        std::fs::write(issued.path().join("clients.crt"), pem).unwrap();
    };
    trust(&[&revoked, &kept]);
    let clients = issued.path().join("clients.crt");
    let files = TlsFiles { client_authority: Some(clients), ..issued.files() };
    let tls = Tls::open(files).unwrap();
    let server = Server::secured(tls.clone()).await;
    let connector = |me: &Issued, protocol: &str| issued.connector(Some(me), protocol);

    let mut resp = Vec::new();
    for me in [&kept, &revoked] {
        resp.push(connect(server.resp, &connector(me, "")).await.unwrap());
    }
    let mut http = connect(server.address, &connector(&revoked, "http/1.1")).await.unwrap();
    let (mut two, two_ended) = http2(server.address, &connector(&revoked, "h2")).await;
    let (mut grpc, grpc_ended) = http2(server.grpc, &connector(&revoked, "h2")).await;
    // Each of them is in use, and a reload that changes no authority ends none.
    for _ in 0..2 {
        for stream in &mut resp {
            stream.write_all(b"PING\r\n").await.unwrap();
            stream.read_exact(&mut [0; 7]).await.unwrap();
        }
        http.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert_ne!(http.read(&mut [0; 1 << 12]).await.unwrap(), 0);
        let get = Request::get("https://localhost/healthz").body(Full::default()).unwrap();
        assert_eq!(two.send_request(get).await.unwrap().status(), 200);
        let checked = call(&mut grpc, "Check").await.unwrap().collect().await.unwrap();
        assert_eq!(checked.trailers().unwrap()["grpc-status"], "0");
        tls.reload().unwrap();
    }
    trust(&[&kept]);
    tls.reload().unwrap();
    resp[1].read_to_end(&mut Vec::new()).await.ok();
    http.read_to_end(&mut Vec::new()).await.ok();
    two_ended.await.unwrap().ok();
    grpc_ended.await.unwrap().ok();
    resp[0].write_all(b"PING\r\n").await.unwrap();
    resp[0].read_exact(&mut [0; 7]).await.unwrap();
    assert!(ping(&server, &connector(&revoked, "")).await.is_err());
}

/// What is in flight may finish, but not for ever.
#[tokio::test]
async fn a_revoked_client_that_waits_is_cut() {
    let (issued, clients, others) = (Issued::new(), Issued::new(), Issued::new());
    let authority = clients.path().join("ca.crt");
    let files = TlsFiles { client_authority: Some(authority.clone()), ..issued.files() };
    let tls = Tls::open(files).unwrap();
    let server = Server::secured(tls.clone()).await;
    let (mut sender, _) = http2(server.grpc, &issued.connector(Some(&clients), "h2")).await;
    let mut watched = call(&mut sender, "Watch").await.unwrap();
    assert!(watched.frame().await.is_some());
    let watching = tokio::spawn(async move { while let Some(Ok(_)) = watched.frame().await {} });
    std::fs::write(authority, others.authority.pem()).unwrap();
    tls.reload().unwrap();
    // The client receives GOAWAY, and its open call goes on.
    while call(&mut sender, "Check").await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!watching.is_finished());
    while !watching.is_finished() {
        server.clock.advance(DRAIN_MAX);
        tokio::task::yield_now().await;
    }
}

#[test]
fn each_bad_file_is_named_with_what_is_wrong() {
    let (issued, other) = (Issued::new(), Issued::new());
    let path = |name| issued.path().join(name);
    std::fs::write(path("empty"), "").unwrap();
    std::fs::write(path("broken"), "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
        .unwrap();
    let good = issued.files();
    let rows = [
        (
            TlsFiles { certificate: path("none"), ..good.clone() },
            "certificate ",
            "cannot be read: No such file",
        ),
        (
            TlsFiles { certificate: path("empty"), ..good.clone() },
            "certificate ",
            "has no certificate in PEM form in it",
        ),
        (TlsFiles { certificate: path("broken"), ..good.clone() }, "certificate ", "is not PEM: "),
        (
            TlsFiles { key: path("empty"), ..good.clone() },
            "key ",
            "has no private key in PEM form in it",
        ),
        (
            TlsFiles { key: other.files().key, ..good.clone() },
            "key ",
            "does not belong to the certificate ",
        ),
        (
            TlsFiles { client_authority: Some(path("server.key")), ..good.clone() },
            "client_authority ",
            "has no certificate in PEM form in it",
        ),
    ];
    for (files, key, what) in rows {
        let error = Tls::open(files).unwrap_err().to_string();
        assert!(error.starts_with(key) && error.contains(what), "{error}");
    }
}
