//! Which transport is used when, what an outage looks like, and what errors say.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tollgate::clock::ManualClock;
use tollgate::core::Wait;
use tollgate::strategy::{Resend, ResendOptions};
use tollgate::{
    Ask, Clock as _, Concurrency, Costs, Decision, ErrorKind, GateExt, Limit, Memory, Policy,
    Queue, Span, TokenBucket,
};
use tollgate_client::{AWAY, Client};
use tollgate_testkit::servers::Port;

use crate::broker::{Broker, store};

fn api() -> Policy {
    let bucket = TokenBucket::per_minute(2);
    Policy::new("api", [Limit::new("burst", "requests", bucket)]).unwrap()
}

fn broker(clock: &ManualClock) -> Broker {
    let broker = Broker::start(store(clock), clock);
    broker.put([api()]);
    broker
}

/// Where nobody listens.
fn nowhere() -> (Port, String) {
    let port = Port::free().unwrap();
    let address = format!("http://127.0.0.1:{}", port.number());
    (port, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_grpc_the_calls_go_by_http() {
    let clock = ManualClock::new();
    let (broker, policy) = (broker(&clock), api());
    let (_port, nowhere) = nowhere();
    let both = broker.settings().grpc(nowhere).http(format!("http://{}", broker.http));
    let client = Client::new(&both).unwrap();
    let permit = client.acquire(&Ask::new(&policy, "a")).await.unwrap().into_permit().unwrap();
    assert!(client.settle(&permit, &Costs::new()).await.unwrap());
}

/// Whoever speaks HTTP/2 and has no such service did nothing, so the call goes by HTTP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_there_is_no_such_service_the_calls_go_by_http() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let not_found = service_fn(async |_: Request<Incoming>| {
            Response::builder().status(404).body(Empty::<Bytes>::new())
        });
        let server = http2::Builder::new(TokioExecutor::new());
        server.serve_connection(TokioIo::new(stream), not_found).await.ok();
    });
    let clock = ManualClock::new();
    let (broker, policy) = (broker(&clock), api());
    let both = broker.settings().grpc(other).http(format!("http://{}", broker.http));
    let client = Client::new(&both).unwrap();
    assert!(client.acquire(&Ask::new(&policy, "a")).await.unwrap().is_admitted());
    assert_eq!(client.standing(&policy, "a").await.unwrap()[0].used, 1);
}

/// gRPC is tried again after a while, and used once it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_is_tried_again() {
    let clock = ManualClock::new();
    let (first, policy) = (broker(&clock), api());
    let (port, address) = nowhere();
    let both = first.settings().grpc(address).http(format!("http://{}", first.http));
    let client = Client::new(&both).unwrap();
    assert!(client.standing(&policy, "a").await.is_ok());
    let listener = TcpListener::bind(("127.0.0.1", port.number())).unwrap();
    assert!(client.standing(&policy, "a").await.is_ok());
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "gRPC was tried although it was away");
    clock.advance(AWAY);
    // Somebody listens who says nothing of HTTP/2: the connection fails, after it was made.
    listener.set_nonblocking(false).unwrap();
    let answered = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        preface
    });
    assert_eq!(client.standing(&policy, "a").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(&answered.join().unwrap(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_keep_their_kind_on_every_transport() {
    let clock = ManualClock::new();
    let (broker, policy) = (broker(&clock), api());
    for client in broker.by_each() {
        let stranger =
            Policy::new("apl", [Limit::new("burst", "requests", TokenBucket::per_second(1))])
                .unwrap();
        let error = client.acquire(&Ask::new(&stranger, "a")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownPolicy);
        assert!(error.to_string().contains("did you mean api?"), "{error}");

        let twice = |cost| Ask::new(&policy, "twice").cost("requests", cost).id("x").into_owned();
        let first = client.acquire(&twice(1)).await.unwrap().into_permit().unwrap();
        let error = client.acquire(&twice(2)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);

        let local = Memory::with(Arc::new(clock.clone()), 16);
        let permit = local.acquire(&Ask::new(&policy, "a")).await.unwrap().into_permit().unwrap();
        let error = client.settle(&permit, &Costs::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("no seal"), "{error}");
        let forged = first.with_seal("AAAA");
        assert_eq!(client.release(&forged).await.unwrap_err().kind(), ErrorKind::Invalid);
        client.reset(&policy, "twice").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_unavailable_and_says_where() {
    let clock = ManualClock::new();
    let (_port, nowhere) = nowhere();
    let settings = tollgate_client::ClientOptions::new().clock(Arc::new(clock));
    let by_resp = nowhere.replace("http", "redis");
    let settings = [
        settings.clone().grpc(&*nowhere),
        settings.clone().http(&*nowhere),
        settings.resp(by_resp),
    ];
    for settings in settings {
        let client = Client::new(&settings).unwrap();
        let error = client.standing(&api(), "a").await.unwrap_err();
        assert!(error.is_unavailable());
        assert!(error.to_string().contains(nowhere.trim_start_matches("http")), "{error}");
    }
}

/// Somebody accepts and never answers: the deadline ends the call, on the clock that was given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_ends_at_its_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let settings = tollgate_client::ClientOptions::new().deadline(Span::from_secs(2));
    let settings = [
        settings.clone().grpc(&*address),
        settings.clone().http(&*address),
        settings.resp(address.replace("http", "redis")),
    ];
    for settings in settings {
        let clock = ManualClock::new();
        let settings = settings.clock(Arc::new(clock.clone()));
        let client = Client::new(&settings).unwrap();
        let policy = api();
        let call = tokio::spawn(async move { client.standing(&policy, "a").await });
        while clock.next_alarm().is_none() {
            tokio::task::yield_now().await;
        }
        clock.advance(Span::from_secs(2));
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("did not respond within 2s"), "{error}");
    }
}

/// What was spent without the broker may be posted again an hour later, and is charged once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_is_remembered_for_as_long_as_its_id_says() {
    let clock = ManualClock::new();
    let (broker, policy) = (broker(&clock), api());
    for client in broker.by_each() {
        let debt = || Ask::new(&policy, "late").id_for("debt", Span::from_hours(1)).into_owned();
        let first = client.charge(&debt()).await.unwrap();
        clock.advance(Span::from_mins(59));
        let again = client.charge(&debt()).await.unwrap();
        assert_eq!(again.grant(), first.grant());
        clock.advance(Span::from_mins(2));
        assert_ne!(client.charge(&debt()).await.unwrap().grant(), first.grant());
        client.reset(&policy, "late").await.unwrap();
    }
}

/// A connection of the Redis protocol that the broker closed meanwhile is not used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_was_closed_is_not_used_again() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let address = format!("redis://{at}");
    let served = tokio::spawn(async move {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            for answer in ["%0\r\n", "%1\r\n$7\r\nchanged\r\n#t\r\n"] {
                let mut bytes = [0; 256];
                assert_ne!(
                    tokio::io::AsyncReadExt::read(&mut stream, &mut bytes).await.unwrap(),
                    0
                );
                let written = tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes());
                written.await.unwrap();
            }
            drop(stream);
            // Whoever hears this has heard of the end before.
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"closed").await.unwrap();
        }
    });
    let settings = tollgate_client::ClientOptions::new().resp(address);
    let client = Client::new(&settings).unwrap();
    for _ in 0..2 {
        assert!(client.reset(&api(), "a").await.unwrap());
        let mut stream = tokio::net::TcpStream::connect(at).await.unwrap();
        let mut word = [0; 6];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut word).await.unwrap();
    }
    served.await.unwrap();
}

/// Many calls at once share one connection of gRPC, and resends go around the client as around a store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resends_are_charged_once() {
    let clock = ManualClock::new();
    let (broker, policy) = (broker(&clock), api());
    let attempts = ResendOptions::with_attempt_timeout(Span::from_secs(1));
    let gate = Resend::new(broker.by_grpc(), attempts, Arc::new(clock.clone()));
    assert!(matches!(gate.acquire(&Ask::new(&policy, "a")).await.unwrap(), Decision::Admitted(_)));
    assert!(matches!(gate.acquire(&Ask::new(&policy, "a")).await.unwrap(), Decision::Admitted(_)));
    let denial = gate.acquire(&Ask::new(&policy, "a")).await.unwrap().into_denial().unwrap();
    assert_eq!(denial.retry_after(), Some(Span::from_secs(30)));
}

/// What a denial says of slots and of asks ahead is the same by every transport.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn estimates_and_asks_ahead_cross_the_wire() {
    let clock = ManualClock::new();
    let broker = broker(&clock);
    let slots = Limit::new("slots", "requests", Concurrency::new(1, Span::from_mins(5)));
    let jobs = Policy::new("jobs", [slots]).unwrap();
    broker.put([api(), jobs.clone()]);
    let ask = Ask::new(&jobs, "a");
    let client = broker.by_grpc();
    let permit = client.acquire(&ask).await.unwrap().into_permit().unwrap();
    clock.advance(Span::from_secs(3));
    assert!(client.release(&permit).await.unwrap());
    assert!(client.acquire(&ask).await.unwrap().is_admitted());
    let behind = ask.clone().behind(vec![*ask.amounts(); 2]);
    let now = clock.now();
    for client in broker.by_each() {
        let denial = client.acquire(&ask).await.unwrap().into_denial().unwrap();
        assert_eq!((denial.is_estimated(), denial.waiting_ahead), (true, 0), "{client:?}");
        assert_eq!(denial.retry_after(), Some(Span::from_secs(3)));
        assert_eq!(denial.bound(), Wait::Until(now + Span::from_mins(5)));
        let denial = client.acquire(&behind).await.unwrap().into_denial().unwrap();
        assert_eq!((denial.is_estimated(), denial.waiting_ahead), (true, 2), "{client:?}");
        assert_eq!(denial.retry_after(), Some(Span::from_secs(9)));
        // A queue in front of the client keeps the estimate of the broker, which knows more.
        let queue = Queue::new(client, Arc::new(clock.clone()));
        let denial = queue.acquire(&ask).await.unwrap().into_denial().unwrap();
        assert_eq!(denial.retry_after(), Some(Span::from_secs(3)));
        let denial = Ask::new(&api(), "a").cost("requests", 3).into_owned();
        let denial = queue.acquire(&denial).await.unwrap().into_denial().unwrap();
        assert_eq!((denial.wait, denial.is_estimated()), (Wait::Never, false));
    }
}

/// A broker of an earlier version knows neither estimates nor asks ahead: its wait is taken as it is.
#[test]
fn a_denial_of_an_earlier_version_is_understood() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert_ne!(stream.read(&mut [0; 4_096]).unwrap(), 0);
        let body = r#"{"type": "t", "title": "t", "status": 429, "detail": "d", "admitted": false, "policy": "api",
            "limit": "burst", "violated-policies": ["burst"], "unit": "requests", "asked": 1, "most": 2,
            "retry_after_ms": 300000, "reset_at": "2026-11-15T05:50:00Z", "decided_at": "2026-11-15T05:45:00Z",
            "limits": [], "degraded": false}"#;
        let head = "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/problem+json";
        let length = body.len();
        let answer = format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let client = Client::new(&tollgate_client::ClientOptions::new().http(address)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let policy = api();
    let denial =
        runtime.block_on(client.acquire(&Ask::new(&policy, "a"))).unwrap().into_denial().unwrap();
    assert_eq!(denial.retry_after(), Some(Span::from_mins(5)));
    assert_eq!((denial.is_estimated(), denial.waiting_ahead), (false, 0));
    served.join().unwrap();
}

#[test]
fn settings_that_lead_nowhere_are_refused() {
    let refused =
        |settings: tollgate_client::ClientOptions| Client::new(&settings).unwrap_err().to_string();
    let settings = tollgate_client::ClientOptions::new;
    assert!(refused(settings()).contains("name no broker"));
    assert!(refused(settings().http("redis://a:1")).contains("does not name the protocol"));
    assert!(refused(settings().resp("http://a:1")).contains("as in redis://127.0.0.1:6380"));
    assert!(refused(settings().resp("redis://a")).contains("has no port"));
    assert!(refused(settings().grpc("127.0.0.1:1")).contains("write an address"));
    assert!(refused(settings().http("http://a/b")).contains("has a path"));
    assert!(settings().key("a\nb").is_err());
    let shown = format!("{:?}", settings().key("geheim").unwrap());
    assert!(!shown.contains("geheim"), "{shown}");
}
