//! A connection of gRPC that reaches `grpc_age_max` is closed gracefully, so that clients spread over new brokers.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::folder::Folder;
use crate::running::Broker;

const CONFIG: &str = r#"
[server]
grpc_age_max = "300ms"
[store]
kind = "memory"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/h" }]
"#;

/// The type of a frame that asks the client to open another connection.
const GOAWAY: u8 = 7;

#[test]
fn an_old_connection_is_asked_to_reconnect() {
    let broker = Broker::start(&Folder::with(CONFIG), "--grpc 127.0.0.1:0");
    let address = broker.grpc.as_deref().expect("it is on").trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("the broker listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    // The preface of HTTP/2, and settings that change nothing.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("it reads");
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).expect("a frame before the connection ends");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut body = vec![0; usize::try_from(length).expect("a length")];
        stream.read_exact(&mut body).expect("the rest of the frame");
        if head[3] == GOAWAY {
            assert_eq!(body[4..8], [0; 4], "it is no error");
            break;
        }
    }
}
