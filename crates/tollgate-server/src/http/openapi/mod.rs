//! The OpenAPI 3.1 document at `GET /openapi.json`, built from the table of endpoints.
//!
//! The structures of `tollgate_protocol::json` describe bodies and queries. This module adds what they cannot express:
//! bounds, statuses and headers. Tests compare the document with real responses.

mod members;
mod responses;

use std::sync::LazyLock;

use axum::response::Response;
use axum::routing::get;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::endpoints::{ENDPOINTS, Endpoint, Input, Method};
use super::reply;
use crate::keys::Scope;

const ABOUT: &str = "May this go through now, and if not, when? Limits are decided together: all of them are charged, \
    or none. Times are RFC 3339 in UTC. Everything that is not a 200 is a problem document (RFC 9457): programs look at \
    `kind`, people read `detail`. A server without keys asks for none. A head that is no HTTP, or is too large, is \
    answered by its status alone (400, 431).";

static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());

pub(super) use members::incident;

pub(super) const OPENAPI: Endpoint =
    Endpoint::new(Method::Get, "/openapi.json", "openapi", "This document.", || get(openapi));

async fn openapi() -> Response {
    reply::text("application/json", DOCUMENT.clone())
}

fn document() -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        let method = match endpoint.method {
            Method::Get => "get",
            Method::Post => "post",
            Method::Put => "put",
            Method::Delete => "delete",
        };
        path[method] = operation(endpoint, &mut schemas);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "tollgate",
            "version": env!("CARGO_PKG_VERSION"),
            "description": ABOUT,
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        // Where the document came from.
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "responses": responses::problems(&mut schemas),
            "headers": responses::headers(),
            "securitySchemes": {
                "key": { "type": "http", "scheme": "bearer" },
                "password": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "The key as the password of a browser, for read-only calls.",
                },
            },
            "schemas": schemas.into_definitions(),
        },
    })
}

fn operation(endpoint: &Endpoint, schemas: &mut Schemas) -> Value {
    let mut operation = json!({
        "operationId": endpoint.id,
        "summary": endpoint.summary,
        "tags": [endpoint.scope.map_or("open", Scope::name)],
        "security": security(endpoint.scope),
        "responses": responses::of_endpoint(endpoint, schemas),
    });
    let mut parameters = members::of_path(endpoint.path);
    match endpoint.input {
        Input::Nothing => {}
        Input::Body(schema) => {
            let schema = schema(&mut schemas.requests);
            operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        }
        Input::Query(schema) => parameters.extend(members::query(schema, &mut schemas.requests)),
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    operation
}

/// Returns the `security` of an endpoint that requires `scope`.
fn security(scope: Option<Scope>) -> Value {
    match scope {
        None => json!([]),
        Some(Scope::Inspect) => json!([{ "key": ["inspect"] }, { "password": ["inspect"] }]),
        Some(scope) => json!([{ "key": [scope.name()] }]),
    }
}

/// The schemas of requests and of responses: a member may be optional in one and not in the other.
struct Schemas {
    requests: SchemaGenerator,
    responses: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
        Self {
            requests: settings.clone().for_deserialize().into_generator(),
            responses: settings.for_serialize().into_generator(),
        }
    }

    fn into_definitions(mut self) -> Map<String, Value> {
        let mut all = self.responses.take_definitions(true);
        let mut requests = self.requests.take_definitions(true);
        for schema in requests.values_mut() {
            members::bound(schema);
        }
        all.append(&mut requests);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_path_are_parameters() {
        let parameters = members::of_path("/v1/policies/{name}/overrides/{subject}");
        let [name, subject] = &parameters[..] else { panic!("{parameters:?}") };
        assert_eq!((&name["name"], &name["in"]), (&json!("name"), &json!("path")));
        assert_eq!(name["schema"], json!({ "type": "string", "minLength": 1, "maxLength": 64 }));
        assert_eq!(subject["schema"]["maxLength"], 256);
        assert!(members::of_path("/v1/policies").is_empty());
    }
}
