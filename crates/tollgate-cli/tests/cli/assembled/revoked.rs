//! A client authority that is taken away, while clients that it vouched for are connected.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tollgate_testkit::servers::Authority;

use crate::folder::Folder;
use crate::running::Broker;

const CONFIG: &str = r#"
[server]
watch = false
[server.tls]
certificate = "server.crt"
key = "server.key"
client_authority = "clients.crt"
[store]
kind = "memory"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/h" }]
"#;

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Connects with the certificate in `me` to a server whose certificate is by `authority`.
fn connect(address: &str, authority: &Authority, me: &Path) -> Stream {
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("PEM");
    roots.add(root).expect("an authority");
    let chain = vec![CertificateDer::from_pem_file(me.join("server.crt")).expect("PEM")];
    let key = PrivateKeyDer::from_pem_file(me.join("server.key")).expect("PEM");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .expect("a certificate");
    let name = ServerName::try_from("localhost").expect("a name");
    let client = ClientConnection::new(Arc::new(config), name).expect("a client");
    let stream = TcpStream::connect(address).expect("the broker listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    StreamOwned::new(client, stream)
}

/// Sends `request`, and reads what is answered at once.
fn say(stream: &mut Stream, request: &str) -> std::io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut room = [0; 1 << 12];
    let read = stream.read(&mut room)?;
    Ok(String::from_utf8_lossy(&room[..read]).into_owned())
}

/// Connections of the Redis protocol and of HTTP end soon after the reload that takes their authority away; others stay.
#[test]
fn a_revoked_authority_ends_the_connections_that_it_vouched_for() {
    let folder = Folder::with(CONFIG);
    let [server, revoked, kept] = ["server", "revoked", "kept"].map(|name| {
        let (authority, path) = (Authority::new().expect("an authority"), folder.path().join(name));
        std::fs::create_dir(&path).expect("a folder");
        authority.issue(&path).expect("a certificate");
        (authority, path)
    });
    server.0.issue(folder.path()).expect("a certificate");
    folder.write("clients.crt", &format!("{}{}", revoked.0.pem(), kept.0.pem()));
    let mut broker = Broker::start(&folder, "");
    let resp = broker.resp.clone().expect("it is on");
    let http = broker.url.trim_start_matches("https://").to_owned();
    let (ping, get) = ("PING\r\n", "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut staying = connect(&resp, &server.0, &kept.1);
    let mut ending = [(&resp, ping), (&http, get)]
        .map(|(address, request)| (connect(address, &server.0, &revoked.1), request));
    assert_eq!(say(&mut staying, ping).expect("an answer"), "+PONG\r\n");
    for (stream, request) in &mut ending {
        assert_ne!(say(stream, request).expect("an answer"), "");
    }
    folder.write("clients.crt", kept.0.pem());
    broker.signal("-HUP");
    assert_eq!(broker.line(), "reloaded\n");
    for (stream, request) in &mut ending {
        let ended = stream.read(&mut [0; 1 << 12]);
        assert!(matches!(ended, Ok(0)), "still open, which {request:?} could use: {ended:?}");
    }
    assert_eq!(say(&mut staying, ping).expect("an answer"), "+PONG\r\n");
}
