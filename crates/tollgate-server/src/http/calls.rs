//! Every call over HTTP, from its head to the answer.
//!
//! `POST /v1/acquire` stands in the path of whatever its callers do, so it is answered here: finding a route and going
//! through the layers in front of it takes longer than deciding. For the same reason the future of an answer is kept small,
//! and what is not asked all the time is in a box.
//!
//! What changes something goes on though its client leaves. It begins before hyper looks whether the client is still there.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::header::ALLOW;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Request, Version};
use futures_util::FutureExt as _;
use http_body_util::Either;
use tonic::codegen::Service as _;

use super::acquire::Answered;
use super::peer::Peer;
use super::request_id::Name;
use super::unread::{Arriving, Unread};
use super::{acquire, host, reply, router, wrong_method};
use crate::app::App;
use crate::bounds::HEAD_BYTES_MAX;
use crate::wire::Problem;

/// The path that is answered without the router.
pub(super) const ACQUIRE: &str = "/v1/acquire";

/// What `app` answers.
#[derive(Debug)]
pub(crate) struct Calls {
    app: Arc<App>,
    others: Router,
}

impl Calls {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self { others: router(Arc::clone(&app)), app }
    }

    /// The answer to `request`.
    pub(crate) fn answer<B: Arriving>(
        self: &Arc<Self>,
        request: Request<B>,
        peer: Option<&Arc<dyn Peer>>,
    ) -> impl Future<Output = Answered> + Send + use<B> {
        let (calls, name) = (Arc::clone(self), Name::of(&request));
        let (head, body) = request.into_parts();
        let body = Unread::new(body, head.version, &self.app);
        let refused = if HEAD_BYTES_MAX < head_bytes(&head) {
            Some(too_large())
        } else {
            host::check(&self.app, &head).err()
        };
        let peer = peer.filter(|_| head.version < Version::HTTP_2).cloned();
        let asks = head.uri.path() == ACQUIRE && !self.app.serves_only_metrics();
        if !asks && !head.method.is_safe() && refused.is_none() {
            let request = Request::from_parts(head, Body::new(body));
            let answer = name.enter(|| self.app.finish(calls.others.clone().call(request)));
            return name.on(answer.map(|Ok(response)| response.map(Either::Right))).left_future();
        }
        name.on(async move {
            if let Some(problem) = refused {
                return reply::problem(&problem).map(Either::Right);
            }
            match (asks, &head.method) {
                (true, &Method::POST) => acquire::one(&calls.app, &head, body, peer.as_ref()).await,
                (true, _) => {
                    let mut response = wrong_method(head.method, head.uri).await;
                    response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
                    response.map(Either::Right)
                }
                (false, _) => {
                    let request = Request::from_parts(head, Body::new(body));
                    let Ok(response) = Box::pin(calls.others.clone().call(request)).await;
                    response.map(Either::Right)
                }
            }
        })
        .right_future()
    }
}

/// The length of the target and of all fields.
fn head_bytes(head: &Parts) -> usize {
    let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
    let fields = head.headers.iter();
    target + fields.map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>()
}

fn too_large() -> Problem {
    let detail = format!("the head of a request has at most {HEAD_BYTES_MAX} bytes; send less");
    Problem::new(431, "head-too-large", detail)
}
