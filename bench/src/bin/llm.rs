//! The other side of the benchmark of the gateway: a provider that answers at once (`upstream`), or a bare reverse proxy in
//! front of one (`proxy ADDRESS`). Prints its address on its first line and serves until its input ends.
#![allow(clippy::print_stdout, reason = "it says where it is")]
#![allow(clippy::disallowed_methods, reason = "its parent says which side it is")]

use std::convert::Infallible;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Collected, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

type Body = BoxBody<Bytes, Infallible>;

const ANSWER: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1763400000,"model":"gpt-4o","choices":[{"index":0,"message":{"role":"assistant","content":"Hello! How can I help you today?","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":9,"total_tokens":21,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}"#;
const CHUNK: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1763400000,\"model\":\"gpt-4o\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"},\"finish_reason\":null}]}\n\n";
const END: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1763400000,\"model\":\"gpt-4o\",\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":9,\"total_tokens\":21}}\n\ndata: [DONE]\n\n";
const END_WITHOUT_USAGE: &str = "data: [DONE]\n\n";
const CHUNKS: usize = 8;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("an address"));
        let serving = match words.as_slice() {
            [side, at] if side == "proxy" => tokio::spawn(proxy(listener, at.clone())),
            _ => tokio::spawn(upstream(listener)),
        };
        let ended = tokio::task::spawn_blocking(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        });
        let _ = ended.await;
        serving.abort();
    });
}

/// Serves each connection of `listener` by `service`.
macro_rules! serve {
    ($listener:expr, $service:expr) => {
        loop {
            let Ok((stream, _)) = $listener.accept().await else { continue };
            let _ = stream.set_nodelay(true);
            let service = $service;
            tokio::spawn(async move {
                let http = hyper::server::conn::http1::Builder::new();
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    };
}

async fn upstream(listener: TcpListener) {
    let calls = Arc::new(AtomicU64::new(0));
    serve!(listener, {
        let calls = Arc::clone(&calls);
        service_fn(move |request| answer(request, Arc::clone(&calls)))
    })
}

/// A body with `"user":"hold"` gets a stream that begins and never ends. `GET` returns the number of calls.
async fn answer(
    request: Request<Incoming>,
    calls: Arc<AtomicU64>,
) -> Result<Response<Body>, Infallible> {
    if request.method() == Method::GET {
        return Ok(response("text/plain", calls.load(Ordering::Relaxed).to_string().into()));
    }
    let body = request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
    calls.fetch_add(1, Ordering::Relaxed);
    let has = |text: &str| memchr::memmem::find(&body, text.as_bytes()).is_some();
    if !has("\"stream\":true") && !has("\"stream\": true") {
        return Ok(response("application/json", Bytes::from_static(ANSWER.as_bytes())));
    }
    let holds = has("hold");
    let end = if has("include_usage") { END } else { END_WITHOUT_USAGE };
    let (sender, mut chunks) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
    tokio::spawn(async move {
        for _ in 0..if holds { 1 } else { CHUNKS } {
            let _ = sender.send(Ok(Frame::data(Bytes::from_static(CHUNK.as_bytes())))).await;
        }
        if holds {
            sender.closed().await;
        }
        let _ = sender.send(Ok(Frame::data(Bytes::from_static(end.as_bytes())))).await;
    });
    let body =
        StreamBody::new(futures_util::stream::poll_fn(move |context| chunks.poll_recv(context)));
    let mut response = Response::new(body.boxed());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(response)
}

fn response(kind: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).boxed());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Forwards with a pool of connections, and looks at nothing.
async fn proxy(listener: TcpListener, at: String) {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Client<_, Incoming> = Client::builder(TokioExecutor::new()).build(connector);
    serve!(listener, {
        let (client, at) = (client.clone(), at.clone());
        service_fn(move |mut request: Request<Incoming>| {
            let (client, at) = (client.clone(), at.clone());
            async move {
                let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
                *request.uri_mut() = format!("http://{at}{path}").parse::<Uri>().expect("a URI");
                request.headers_mut().remove(HOST);
                client.request(request).await
            }
        })
    })
}
