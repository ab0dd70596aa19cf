//! The description of the calls in OpenAPI 3.1, at `GET /openapi.json`.
//!
//! Bodies and queries are described by the structures that read and write them (`wire`), so only what a structure cannot
//! say is written here: which call takes and gives which of them, with which statuses and fields. Tests hold it against
//! the router and against real answers.

mod answers;
mod calls;
mod members;

pub(crate) use members::limit_specs;

use std::sync::LazyLock;

use axum::response::Response;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use self::calls::{CALLS, Call, Takes};
use super::reply;
use crate::keys::Scope;

const ABOUT: &str = "May this go through now, and if not, when? Limits are decided together: all of them are charged, \
    or none. Times are RFC 3339 in UTC. Everything that is not a 200 is a problem document (RFC 9457): programs look at \
    `kind`, people read `detail`. A server without keys asks for none. A head that is no HTTP, or is too large, is \
    answered by its status alone (400, 431).";

static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());

/// `GET /openapi.json`.
pub(super) async fn serve() -> Response {
    reply::text("application/json", DOCUMENT.clone())
}

fn document() -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    for call in CALLS {
        let path = paths.entry(call.path).or_insert_with(|| json!({}));
        path[call.method] = operation(call, &mut schemas);
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
            "responses": answers::problems(&mut schemas),
            "headers": answers::fields(),
            "securitySchemes": {
                "key": { "type": "http", "scheme": "bearer" },
                "password": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "The key as the password of a browser, for what merely looks.",
                },
            },
            "schemas": schemas.into_definitions(),
        },
    })
}

fn operation(call: &Call, schemas: &mut Schemas) -> Value {
    let mut operation = json!({
        "operationId": call.id,
        "summary": call.about,
        "tags": [call.scope.map_or("open", Scope::name)],
        "security": security(call.scope),
        "responses": answers::of(call, schemas),
    });
    let mut parameters = members::of_path(call.path);
    match call.takes {
        Takes::Nothing => {}
        Takes::Body(schema) => {
            let schema = schema(&mut schemas.requests);
            operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        }
        Takes::Query(schema) => parameters.extend(members::query(schema, &mut schemas.requests)),
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    operation
}

/// What a call needs on a server with keys.
fn security(scope: Option<Scope>) -> Value {
    match scope {
        None => json!([]),
        Some(Scope::Inspect) => json!([{ "key": ["inspect"] }, { "password": ["inspect"] }]),
        Some(scope) => json!([{ "key": [scope.name()] }]),
    }
}

/// The structures that calls take, and those that they give: a member may be left out of one and not of the other.
struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
        Self {
            requests: settings.clone().for_deserialize().into_generator(),
            answers: settings.for_serialize().into_generator(),
        }
    }

    fn into_definitions(mut self) -> Map<String, Value> {
        let mut all = self.answers.take_definitions(true);
        let mut taken = self.requests.take_definitions(true);
        for schema in taken.values_mut() {
            members::bound(schema);
        }
        all.append(&mut taken);
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use tollgate::{Atomic, Memory, Policies, SystemClock};

    use super::*;
    use crate::app::App;

    #[test]
    fn names_in_a_path_are_parameters() {
        let parameters = members::of_path("/v1/policies/{name}/overrides/{subject}");
        let [name, subject] = &parameters[..] else { panic!("{parameters:?}") };
        assert_eq!((&name["name"], &name["in"]), (&json!("name"), &json!("path")));
        assert_eq!(name["schema"], json!({ "type": "string", "minLength": 1, "maxLength": 64 }));
        assert_eq!(subject["schema"]["maxLength"], 256);
        assert!(members::of_path("/v1/policies").is_empty());
    }

    /// Each path of the router is described, and each path that is described is one of the router. Which methods they
    /// take is asked of a server in `tests/server/openapi.rs`.
    #[test]
    fn the_paths_of_the_router_are_those_of_the_document() {
        let gate = Arc::new(Atomic::new(Memory::new()));
        let app = App::new(gate, Policies::default(), [0; 32], Arc::new(SystemClock)).unwrap();
        let routed: BTreeSet<&str> =
            super::super::routes(&Arc::new(app)).paths.into_iter().collect();
        let document = document();
        let described: BTreeSet<&str> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(routed, described);
    }
}
