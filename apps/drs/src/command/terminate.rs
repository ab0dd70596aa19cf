//! `tollgate drs terminate`: terminates recovery instances.

use std::process::ExitCode;

use crate::client::TERMINATE_MAX;
use serde_json::json;

use super::args::Terminate;
use super::{IDS_MAX, Session, ids, invalid};
use tollgate_terminal::EXIT_DENIED;
use tollgate_terminal::Failure;
use tollgate_terminal::confirm;
use tollgate_terminal::output;

pub(super) async fn run(session: &Session, wanted: &Terminate) -> Result<ExitCode, Failure> {
    let mut instances: Vec<String> = Vec::new();
    if !wanted.ids.is_empty() {
        instances.extend(ids::read(&wanted.ids, None, "i-")?);
    }
    if let Some(file) = &wanted.servers {
        let servers: Vec<String> = ids::read(&[], Some(file), "s-")?.into_iter().collect();
        for some in servers.chunks(IDS_MAX) {
            let found = session.client.describe_recovery_instances(&[], some).all().await?;
            instances.extend(
                found.iter().filter_map(|one| one.recovery_instance_id().map(str::to_owned)),
            );
        }
    }
    if instances.is_empty() {
        return Err(invalid(
            "there is nothing to terminate; name instances, or servers that have some with --servers FILE",
        ));
    }
    let count = instances.len();
    if wanted.confirmation.dry_run {
        output::print(session.format, &json!({ "instances": instances }), || {
            format!("{count} recovery instances would be terminated:\n  {}", instances.join("\n  "))
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let question = format!("Terminate {count} recovery instances in {}?", session.client.region());
    if !confirm::confirm(wanted.confirmation.yes, "--dry-run", &question)? {
        output::print_line("nothing was terminated")?;
        return Ok(ExitCode::from(EXIT_DENIED));
    }
    let mut jobs = Vec::new();
    for some in instances.chunks(TERMINATE_MAX) {
        jobs.push(session.client.terminate_recovery_instances(some).await?.job_id().to_owned());
    }
    output::print(session.format, &json!({ "instances": instances, "jobs": jobs }), || {
        format!("{count} recovery instances are being terminated by {}", jobs.join(", "))
    })?;
    Ok(ExitCode::SUCCESS)
}
