//! A handler of HTTP requests on a port of loopback.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub(super) type HttpResponse = io::Result<Response<Full<Bytes>>>;

/// A server that listens until it is dropped.
#[derive(Debug)]
pub struct Served {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Served {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Serves `handle` on `port`, or on a free port for 0. An error of `handle` closes the connection.
    pub(super) async fn start<F, R, B>(port: u16, handle: F) -> io::Result<Self>
    where
        F: Fn(Request<Bytes>) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = io::Result<Response<B>>> + Send,
        B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A stream arrives chunk by chunk, as it was written.
                drop(stream.set_nodelay(true));
                let handle = handle.clone();
                tokio::spawn(async move {
                    let service = service_fn(async |request: Request<hyper::body::Incoming>| {
                        let (parts, body) = request.into_parts();
                        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
                        handle(Request::from_parts(parts, body)).await
                    });
                    drop(
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service).await,
                    );
                });
            }
        });
        Ok(Self { address, task })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A response with a JSON body.
pub(super) fn json(status: u16, headers: &[(&str, String)], body: String) -> HttpResponse {
    let mut response = Response::builder().status(status);
    response = response.header("content-type", "application/json; charset=UTF-8");
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    response.body(Full::new(Bytes::from(body))).map_err(io::Error::other)
}
