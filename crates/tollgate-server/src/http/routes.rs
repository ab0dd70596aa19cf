//! Routes that know their paths, so that the description of the calls can be held against them.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::MethodRouter;

use super::guard::{Needs, guard};
use crate::app::App;
use crate::keys::Scope;

/// Calls, and where they are.
#[derive(Default)]
pub(super) struct Routes {
    router: Router<Arc<App>>,
    /// Every path that was added, those of [`pages`](Self::pages) aside.
    pub(super) paths: Vec<&'static str>,
}

impl Routes {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Answers `path` by `calls`.
    pub(super) fn route(mut self, path: &'static str, calls: MethodRouter<Arc<App>>) -> Self {
        self.router = self.router.route(path, calls);
        self.paths.push(path);
        self
    }

    /// Notes that `path` is a call that is answered elsewhere.
    pub(super) fn elsewhere(mut self, path: &'static str) -> Self {
        self.paths.push(path);
        self
    }

    /// Adds what people look at with a browser, which is no call.
    pub(super) fn pages(mut self, pages: Router<Arc<App>>) -> Self {
        self.router = self.router.merge(pages);
        self
    }

    /// Lets in only who has a key with `scope`.
    pub(super) fn guarded(self, app: &Arc<App>, scope: Scope) -> Self {
        self.needs(Needs { app: Arc::clone(app), scope, is_unbound: false })
    }

    /// Lets in only who has a key with `scope` that is for every policy and subject.
    pub(super) fn guarded_unbound(self, app: &Arc<App>, scope: Scope) -> Self {
        self.needs(Needs { app: Arc::clone(app), scope, is_unbound: true })
    }

    fn needs(mut self, needs: Needs) -> Self {
        self.router = self.router.route_layer(from_fn_with_state(needs, guard));
        self
    }

    pub(super) fn merge(mut self, other: Self) -> Self {
        self.router = self.router.merge(other.router);
        self.paths.extend(other.paths);
        self
    }

    pub(super) fn into_router(self) -> Router<Arc<App>> {
        self.router
    }
}
