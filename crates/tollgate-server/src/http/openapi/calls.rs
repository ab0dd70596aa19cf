//! Every call: where it is, who may make it, what it takes and gives.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::keys::Scope;
use crate::wire::{
    AcquireRequest, Admitted, AuditQuery, AuditResponse, BatchRequest, BatchResponse,
    CancelRequest, Changed, ChargeRequest, CloseRequest, ForwardAuthQuery, OverrideDescription,
    OverrideRequest, PermitRequest, PoliciesResponse, Renewed, SettleRequest, StandingQuery,
    StandingResponse, StatsResponse, TopQuery, TopResponse, Translation, TranslationRequest,
    ViolationRequest,
};

/// Describes a structure.
pub(super) type Describe = fn(&mut SchemaGenerator) -> Schema;

pub(super) struct Call {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) about: &'static str,
    pub(super) scope: Option<Scope>,
    pub(super) takes: Takes,
    pub(super) gives: Gives,
    /// The statuses of its own problems, beside those that its input and its scope bring.
    pub(super) problems: &'static [u16],
}

pub(super) enum Takes {
    Nothing,
    Body(Describe),
    Query(Describe),
}

/// What comes with status 200.
pub(super) enum Gives {
    Json(Describe),
    /// A permit, or a refusal; with the fields of a decision.
    Decision,
    /// The same, for a proxy.
    Passage,
    Text(&'static str),
    /// The bytes of a file.
    File,
    /// Any object of JSON.
    Object,
}

/// What goes wrong at the store.
const STORE: [u16; 2] = [500, 503];
/// What goes wrong with a policy that is named.
const NAMED: [u16; 3] = [404, STORE[0], STORE[1]];
const ASKED: [u16; 4] = [404, 409, STORE[0], STORE[1]];
const PERMITTED: [u16; 5] = [404, 409, 410, STORE[0], STORE[1]];

pub(super) const CALLS: &[Call] = &[
    post("/v1/acquire", "acquire", "Asks whether something may go through now.")
        .scope(Scope::Acquire)
        .body(of::<AcquireRequest>)
        .gives(Gives::Decision)
        .problems(&ASKED),
    post(
        "/v1/acquire/batch",
        "acquireBatch",
        "Many asks in one call, each decided alone, in order.",
    )
    .scope(Scope::Acquire)
    .body(of::<BatchRequest>)
    .gives(Gives::Json(of::<BatchResponse>)),
    get(
        "/v1/forward-auth",
        "forwardAuth",
        "Asks on behalf of a proxy, which sends X-Forwarded-* or X-Real-IP.",
    )
    .scope(Scope::Acquire)
    .query(of::<ForwardAuthQuery>)
    .gives(Gives::Passage)
    .problems(&NAMED),
    post("/v1/settle", "settle", "Replaces the estimate by the actual cost.")
        .scope(Scope::Acquire)
        .body(of::<SettleRequest>)
        .gives(Gives::Json(of::<Changed>))
        .problems(&PERMITTED),
    post("/v1/release", "release", "The call was not made: gives everything back.")
        .scope(Scope::Acquire)
        .body(of::<PermitRequest>)
        .gives(Gives::Json(of::<Changed>))
        .problems(&PERMITTED),
    post("/v1/renew", "renew", "Keeps a slot alive.")
        .scope(Scope::Acquire)
        .body(of::<PermitRequest>)
        .gives(Gives::Json(of::<Renewed>))
        .problems(&PERMITTED),
    post(
        "/v1/violations",
        "violation",
        "A provider refused what was admitted: closes the limit and tells people.",
    )
    .scope(Scope::Acquire)
    .body(of::<ViolationRequest>)
    .gives(Gives::Json(super::members::incident))
    .problems(&PERMITTED),
    post(
        "/v1/translations",
        "translate",
        "Creates a translation job for workers, or returns the one that an equal request created.",
    )
    .scope(Scope::Acquire)
    .body(of::<TranslationRequest>)
    .gives(Gives::Json(of::<Translation>))
    .problems(&ASKED),
    get("/v1/translations/{id}", "translation", "How far a translation job is.")
        .scope(Scope::Acquire)
        .gives(Gives::Json(of::<Translation>))
        .problems(&NAMED),
    post(
        "/v1/translations/{id}/cancel",
        "cancelTranslation",
        "Cancels a translation job; calls that are under way are finished.",
    )
    .scope(Scope::Acquire)
    .body(of::<CancelRequest>)
    .gives(Gives::Json(of::<Changed>))
    .problems(&NAMED),
    get(
        "/v1/translations/{id}/document",
        "translatedDocument",
        "The document of a finished translation job, byte for byte.",
    )
    .scope(Scope::Acquire)
    .gives(Gives::File)
    .problems(&ASKED),
    get("/v1/standing", "standing", "Where a subject stands, consuming nothing.")
        .scope(Scope::Inspect)
        .query(of::<StandingQuery>)
        .gives(Gives::Json(of::<StandingResponse>))
        .problems(&NAMED),
    delete(
        "/v1/standing",
        "reset",
        "Forgets everything about a subject, for an operator who knows why.",
    )
    .scope(Scope::Administer)
    .query(of::<StandingQuery>)
    .gives(Gives::Json(of::<Changed>))
    .problems(&NAMED),
    get("/v1/policies", "policies", "What is in force, with the effective numbers.")
        .scope(Scope::Inspect)
        .gives(Gives::Json(of::<PoliciesResponse>)),
    get("/v1/stats", "stats", "What this server answered since it started, and how its store is.")
        .scope(Scope::Inspect)
        .gives(Gives::Json(of::<StatsResponse>)),
    get("/v1/audit", "audit", "Who was limited, when and why, newest first.")
        .scope(Scope::Inspect)
        .query(of::<AuditQuery>)
        .gives(Gives::Json(of::<AuditResponse>))
        .problems(&STORE),
    get("/v1/audit/top", "auditTop", "The subjects that were limited most often.")
        .scope(Scope::Inspect)
        .query(of::<TopQuery>)
        .gives(Gives::Json(of::<TopResponse>))
        .problems(&STORE),
    post("/v1/charge", "charge", "Charges without deciding, for gates in front of this one.")
        .scope(Scope::Administer)
        .body(of::<ChargeRequest>)
        .gives(Gives::Json(of::<Admitted>))
        .problems(&ASKED),
    post("/v1/close", "close", "Closes a limit until a time.")
        .scope(Scope::Administer)
        .body(of::<CloseRequest>)
        .gives(Gives::Json(of::<Changed>))
        .problems(&NAMED),
    call(
        "put",
        "/v1/policies/{name}/overrides/{subject}",
        "override",
        "Gives a subject numbers of its own, at every broker on the store.",
    )
    .scope(Scope::Administer)
    .body(of::<OverrideRequest>)
    .gives(Gives::Json(of::<OverrideDescription>))
    .problems(&ASKED),
    delete(
        "/v1/policies/{name}/overrides/{subject}",
        "removeOverride",
        "Gives a subject the numbers of the configuration again.",
    )
    .scope(Scope::Administer)
    .gives(Gives::Json(of::<Changed>))
    .problems(&ASKED),
    get("/metrics", "metrics", "What was counted, for Prometheus; 404 where no metrics are kept.")
        .scope(Scope::Inspect)
        .gives(Gives::Text("application/openmetrics-text"))
        .problems(&[404]),
    get("/healthz", "health", "The process answers."),
    get(
        "/readyz",
        "ready",
        "Requests are taken, and the store answers. Why not is told to keys with the scope inspect only.",
    )
    .problems(&[503]),
    get("/openapi.json", "openapi", "This document."),
];

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

const fn call(
    method: &'static str,
    path: &'static str,
    id: &'static str,
    about: &'static str,
) -> Call {
    let (takes, gives) = (Takes::Nothing, Gives::Object);
    Call { method, path, id, about, scope: None, takes, gives, problems: &[] }
}

const fn get(path: &'static str, id: &'static str, about: &'static str) -> Call {
    call("get", path, id, about)
}

const fn post(path: &'static str, id: &'static str, about: &'static str) -> Call {
    call("post", path, id, about)
}

const fn delete(path: &'static str, id: &'static str, about: &'static str) -> Call {
    call("delete", path, id, about)
}

impl Call {
    const fn scope(self, scope: Scope) -> Self {
        Self { scope: Some(scope), ..self }
    }

    const fn body(self, schema: Describe) -> Self {
        Self { takes: Takes::Body(schema), ..self }
    }

    const fn query(self, schema: Describe) -> Self {
        Self { takes: Takes::Query(schema), ..self }
    }

    const fn gives(self, gives: Gives) -> Self {
        Self { gives, ..self }
    }

    const fn problems(self, problems: &'static [u16]) -> Self {
        Self { problems, ..self }
    }
}
