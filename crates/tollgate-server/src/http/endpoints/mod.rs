//! The table of endpoints. A new endpoint is a handler and an [`Endpoint`] in a file of this folder, and one line of
//! [`ENDPOINTS`]: the router, the check of keys and the OpenAPI document follow from it.

pub(super) mod acquire;
mod audit;
mod forward_auth;
mod health;
mod history;
mod operations;
mod plans;
mod policies;
mod translations;

use std::sync::Arc;

use axum::routing::MethodRouter;
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::openapi;
use crate::app::App;
use crate::keys::Scope;

/// Every endpoint, in the order of the OpenAPI document.
pub(super) const ENDPOINTS: &[Endpoint] = &[
    acquire::ACQUIRE,
    acquire::BATCH,
    forward_auth::FORWARD_AUTH,
    operations::SETTLE,
    operations::RELEASE,
    operations::RENEW,
    operations::VIOLATION,
    translations::CREATE,
    translations::LIST,
    translations::GET,
    translations::CANCEL,
    translations::DOCUMENT,
    operations::STANDING,
    operations::RESET,
    policies::LIST,
    health::STATS,
    health::QUEUES,
    health::ACCESS,
    history::HISTORY,
    history::SUBJECT,
    audit::RECORDS,
    audit::TOP,
    operations::CHARGE,
    operations::CLOSE,
    policies::PUT_POLICY,
    policies::DELETE_POLICY,
    policies::PUT_OVERRIDE,
    policies::DELETE_OVERRIDE,
    plans::PUT_PLAN,
    plans::DELETE_PLAN,
    health::METRICS,
    health::HEALTH,
    health::READY,
    openapi::OPENAPI,
];

/// One method of one path.
pub(super) struct Endpoint {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// Its `operationId`.
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    /// The scope that its key needs; `None` if it needs no key.
    pub(super) scope: Option<Scope>,
    /// Whether the key must be for every policy and subject.
    pub(super) is_unbound: bool,
    pub(super) input: Input,
    pub(super) output: Output,
    /// The statuses of its problems, beside those of its input and its scope.
    pub(super) problems: &'static [u16],
    /// Its handler; `None` for [`acquire::ACQUIRE`], which bypasses the router.
    pub(super) handler: Option<fn() -> MethodRouter<Arc<App>>>,
}

#[derive(Clone, Copy)]
pub(super) enum Method {
    Get,
    Post,
    Put,
    Delete,
}

/// Returns the schema of a structure.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What a request carries.
pub(super) enum Input {
    Nothing,
    Body(SchemaOf),
    Query(SchemaOf),
}

/// The body of a response with status 200.
pub(super) enum Output {
    Json(SchemaOf),
    /// A permit or a denial, with the headers of a decision.
    Decision,
    /// A decision for a proxy, with the permit in a header.
    ProxyDecision,
    Text(&'static str),
    /// The bytes of a file.
    File,
    /// Any JSON object.
    Object,
}

/// Problems of the store.
pub(super) const STORE_PROBLEMS: &[u16] = &[500, 503];
/// Problems of a request that names a policy.
pub(super) const POLICY_PROBLEMS: &[u16] = &[404, 500, 503];
/// Problems of an ask.
pub(super) const ASK_PROBLEMS: &[u16] = &[404, 409, 500, 503];
/// Problems of a request about a permit.
pub(super) const PERMIT_PROBLEMS: &[u16] = &[404, 409, 410, 500, 503];

impl Endpoint {
    /// Declares `method` of `path`, open to everybody, without input; its response is an object.
    pub(super) const fn new(
        method: Method,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
        handler: fn() -> MethodRouter<Arc<App>>,
    ) -> Self {
        Self { handler: Some(handler), ..Self::unrouted(method, path, id, summary) }
    }

    /// Declares an endpoint that bypasses the router.
    const fn unrouted(
        method: Method,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
    ) -> Self {
        Self {
            method,
            path,
            id,
            summary,
            scope: None,
            is_unbound: false,
            input: Input::Nothing,
            output: Output::Object,
            problems: &[],
            handler: None,
        }
    }

    /// Requires a key with `scope`.
    const fn scope(self, scope: Scope) -> Self {
        Self { scope: Some(scope), ..self }
    }

    /// Requires a key with `scope` for every policy and subject.
    const fn unbound_scope(self, scope: Scope) -> Self {
        Self { scope: Some(scope), is_unbound: true, ..self }
    }

    const fn body<T: JsonSchema>(self) -> Self {
        Self { input: Input::Body(schema_of::<T>), ..self }
    }

    const fn query<T: JsonSchema>(self) -> Self {
        Self { input: Input::Query(schema_of::<T>), ..self }
    }

    const fn returns<T: JsonSchema>(self) -> Self {
        self.output(Output::Json(schema_of::<T>))
    }

    const fn output(self, output: Output) -> Self {
        Self { output, ..self }
    }

    const fn problems(self, problems: &'static [u16]) -> Self {
        Self { problems, ..self }
    }
}

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}
