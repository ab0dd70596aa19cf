//! Faults of the surroundings of the assembled binary, and attacks on it: one file for each.

mod drain;
mod host;
mod keyspace;
mod log;
mod readiness;
mod violations;

use serde_json::Value;

/// Sends `body` to `path` of the broker at `url`, with `key` if it is not empty; the status and the answer.
pub(crate) fn post(url: &str, path: &str, key: &str, body: &str) -> (u16, Value) {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(std::time::Duration::from_secs(30)))
        .build()
        .into();
    let mut request = agent.post(format!("{url}{path}")).content_type("application/json");
    if !key.is_empty() {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let mut answer = request.send(body).expect("the broker answers");
    let text = answer.body_mut().read_to_string().expect("text");
    (answer.status().as_u16(), serde_json::from_str(&text).expect("JSON"))
}
