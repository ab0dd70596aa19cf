//! schemathesis: calls a server in every way that its OpenAPI document allows, and in many that it does not.

use std::path::Path;

use super::clients::packages_of;
use super::{Fault, Program, run};

/// Where `cargo xtask` puts it, below the folder of the build.
const PACKAGES: &str = "servers/schemathesis";

/// Validates responses against the document by path, method, status and media type, and prints a line per violation.
const VALIDATE: &str = r##"
import json, sys
from jsonschema_rs import Draft202012Validator

document, answers = (json.load(open(path)) for path in sys.argv[1:])

def resolve(node):
    while "$ref" in node:
        target = document
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part.replace("~1", "/").replace("~0", "~")]
        node = target
    return node

# The document allows unknown members for compatibility; here each must be described.
for schema in document["components"]["schemas"].values():
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)

for answer in answers:
    name = "{method} {path} {status}".format(**answer)
    responses = document["paths"][answer["path"]][answer["method"]]["responses"]
    if str(answer["status"]) not in responses:
        print(name, "has a status that is not described")
        continue
    response = resolve(responses[str(answer["status"])])
    content = response["content"].get(answer["media_type"])
    if content is None:
        print(name, "has a media type that is not described:", answer["media_type"])
        continue
    described = {field.lower() for field in response.get("headers", {})}
    for field in set(answer["fields"]) - described:
        print(name, "has a field that is not described:", field)
    schema = {**content["schema"], "components": document["components"]}
    for error in Draft202012Validator(schema, validate_formats=True).iter_errors(answer["body"]):
        print(name, error.message)
"##;

/// Calls the server at `url` by its document there, with `key`, and returns the report. `config` is its configuration and
/// `hooks` a module of Python; both are written to `folder`.
pub fn schemathesis(
    url: &str,
    key: &str,
    config: &str,
    hooks: &str,
    folder: &Path,
) -> Result<String, Fault> {
    let packages = packages_of("schemathesis", PACKAGES)?;
    let config = written(folder, "schemathesis.toml", config)?;
    written(folder, "hooks.py", hooks)?;
    let program = Program::new("python3").args("-m schemathesis.cli --no-color --config-file");
    let program = program.arg(config).args("run --header");
    let program = program.arg(format!("Authorization: Bearer {key}"));
    let paths = format!("{}:{}", packages.display(), folder.display());
    let program = program.arg(format!("{url}/openapi.json")).env("PYTHONPATH", paths);
    // It keeps a cache in the folder it runs in.
    run(&program.env("SCHEMATHESIS_HOOKS", "hooks").within(folder))
}

/// Returns the violations of `document` by `answers`, a line each. An answer has `path`, `method`, `status`, `media_type`,
/// the names of its `fields`, and a `body`.
pub fn violations(document: &str, answers: &str, folder: &Path) -> Result<String, Fault> {
    let packages = packages_of("schemathesis", PACKAGES)?;
    let program = Program::new("python3").arg("-c").arg(VALIDATE);
    let program = program.arg(written(folder, "document.json", document)?);
    let program = program.arg(written(folder, "answers.json", answers)?);
    run(&program.env("PYTHONPATH", packages.to_string_lossy()))
}

fn written(folder: &Path, name: &str, text: &str) -> Result<String, Fault> {
    let file = folder.join(name);
    let done = std::fs::write(&file, text);
    done.map_err(|error| Fault::new(format!("could not write for schemathesis: {error}")))?;
    Ok(file.to_string_lossy().into_owned())
}
