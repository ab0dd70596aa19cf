//! `tollgate drs terminate`: recovery instances that are not needed any more.

use std::process::ExitCode;

use serde_json::json;
use tollgate_aws::drs::TERMINATE_MAX;

use super::{Desk, LOOKED_UP_MAX, ids, invalid};
use crate::DENIED;
use crate::args::Terminate;
use crate::consent;
use crate::failure::Failure;
use crate::output;

pub(super) async fn run(desk: &Desk, wanted: &Terminate) -> Result<ExitCode, Failure> {
    let mut instances: Vec<String> = Vec::new();
    if !wanted.ids.is_empty() {
        instances.extend(ids::read(&wanted.ids, None, "i-")?);
    }
    if let Some(file) = &wanted.servers {
        let servers: Vec<String> = ids::read(&[], Some(file), "s-")?.into_iter().collect();
        for some in servers.chunks(LOOKED_UP_MAX) {
            let found = desk.client.describe_recovery_instances(&[], some).all().await?;
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
    if wanted.consent.dry_run {
        output::answer(desk.reader, &json!({ "instances": instances }), || {
            format!("{count} recovery instances would be terminated:\n  {}", instances.join("\n  "))
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let question = format!("Terminate {count} recovery instances in {}?", desk.client.region());
    if !consent::given(wanted.consent.yes, "--dry-run", &question)? {
        output::line("nothing was terminated")?;
        return Ok(ExitCode::from(DENIED));
    }
    let mut jobs = Vec::new();
    for some in instances.chunks(TERMINATE_MAX) {
        jobs.push(desk.client.terminate_recovery_instances(some).await?.job_id().to_owned());
    }
    output::answer(desk.reader, &json!({ "instances": instances, "jobs": jobs }), || {
        format!("{count} recovery instances are being terminated by {}", jobs.join(", "))
    })?;
    Ok(ExitCode::SUCCESS)
}
