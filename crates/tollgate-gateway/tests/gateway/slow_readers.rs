//! Clients that read slowly, or not at all: the upstream waits for them, and one that stopped reading is disconnected.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tollgate::Span;
use tollgate_providers::Dialect;
use tollgate_testkit::fakes::llm::Settings;

use crate::support::{Harness, KEY, Setup};

/// More than the buffers of both connections hold.
const WORDS: u64 = 60_000;

async fn start() -> Harness {
    Setup::new(Dialect::OpenAi)
        .fake(Settings { length: WORDS, ..Settings::default() })
        .start()
        .await
}

/// Opens a stream on a connection with a small buffer, and reads its first bytes.
async fn open(harness: &Harness) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(harness.address.parse().unwrap()).await.unwrap();
    let body = harness.request("hello", 500_000, true).to_string();
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        harness.path(true),
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut first = [0; 64];
    stream.read_exact(&mut first).await.unwrap();
    assert!(first.starts_with(b"HTTP/1.1 200 OK"));
    stream
}

async fn pass(harness: &Harness, span: Span) {
    harness.clock.advance(span);
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_client_that_stops_reading_is_disconnected_and_charged() {
    let harness = start().await;
    let stream = open(&harness).await;
    let mut silent = Span::ZERO;
    while harness.gateway.snapshot().in_flight == 1 {
        pass(&harness, Span::from_secs(30)).await;
        silent = silent.plus(Span::from_secs(30));
        assert!(silent <= Span::from_mins(15), "it is still connected after {silent}");
    }
    assert!(Span::from_mins(5) <= silent, "it was disconnected after {silent}");
    harness.quiet().await;
    harness.until(|harness| harness.fake().tally().unfinished == 1).await;
    let sent = harness.fake().tally().output_tokens;
    assert!(0 < sent && sent < WORDS, "{sent} tokens were sent to nobody");
    let used = harness.used("user", "caller", "tpm").await;
    assert!(0 < used && used < 500_000, "{used}");
    assert!(harness.events.all().iter().any(|event| event.contains("ClientGone")));
    drop(stream);
}

#[tokio::test]
async fn a_client_that_reads_a_little_now_and_then_stays() {
    let harness = start().await;
    let mut stream = open(&harness).await;
    let mut some = vec![0; 1 << 20];
    for _ in 0..5 {
        pass(&harness, Span::from_mins(4)).await;
        assert_eq!(harness.gateway.snapshot().in_flight, 1, "it was disconnected");
        stream.read_exact(&mut some).await.unwrap();
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(String::from_utf8_lossy(&rest).contains("[DONE]"));
    harness.quiet().await;
    assert!(harness.events.all().iter().any(|event| event.contains("Complete")));
}
