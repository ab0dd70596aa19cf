//! A campaign as a person sees it: a line for each wave, and one for all.

use std::fmt::Write as _;

use tollgate_aws::campaign::{Campaign, Outcome, Stage, Tally, Waiting, Wave};

/// How wide a bar is.
const BAR: usize = 20;

/// The most waves that are drawn; those that are over are left out first.
const WAVES_MAX: usize = 16;

/// What would be done.
pub(super) fn plan(campaign: &Campaign, place: &str) -> String {
    let servers: usize = campaign.waves.iter().map(|wave| wave.servers.len()).sum();
    let what = if campaign.is_drill { "drill" } else { "recovery" };
    let mut text =
        format!("{what} of {servers} servers in {place}, as {} jobs:\n", campaign.waves.len());
    for (number, wave) in campaign.waves.iter().enumerate() {
        let first = wave.servers.keys().next().map_or("", String::as_str);
        let last = wave.servers.keys().next_back().map_or("", String::as_str);
        let size = wave.servers.len();
        let _ = writeln!(text, "  wave {:>3}  {size:>3} servers  {first} … {last}", number + 1);
    }
    text.truncate(text.trim_end().len());
    text
}

/// Where it is.
pub(super) fn draw(campaign: &Campaign, waiting: Option<&Waiting>) -> String {
    let mut text = String::new();
    let over = |wave: &Wave| matches!(wave.stage, Stage::Ended { .. });
    let hidden = campaign.waves.len().saturating_sub(WAVES_MAX);
    let mut left_out = 0;
    for (number, wave) in campaign.waves.iter().enumerate() {
        if left_out < hidden && (over(wave) || campaign.waves.len() - number <= hidden - left_out) {
            left_out += 1;
            continue;
        }
        let _ = writeln!(text, "{}", line(number, wave));
    }
    if 0 < left_out {
        let _ = writeln!(text, "  and {left_out} waves more");
    }
    let _ = write!(text, "{}", summary(&campaign.tally()));
    if let Some(waiting) = waiting {
        let _ = write!(text, "\nwaiting: {waiting}");
    }
    text
}

fn line(number: usize, wave: &Wave) -> String {
    let all = wave.servers.len();
    let launched =
        wave.servers.values().filter(|one| matches!(one, Outcome::Launched { .. })).count();
    let failed = wave.servers.values().filter(|one| matches!(one, Outcome::Failed { .. })).count();
    let filled = (launched + failed) * BAR / all.max(1);
    let bar = format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled));
    let stage = match &wave.stage {
        Stage::Waiting => "waiting".to_owned(),
        Stage::Starting { .. } => "starting".to_owned(),
        Stage::Running { job } => format!("launching in {job}"),
        Stage::Ended { job: Some(job) } => format!("done in {job}"),
        Stage::Ended { job: None } => "not started".to_owned(),
    };
    let failed = if failed == 0 { String::new() } else { format!(", {failed} failed") };
    format!("  wave {:>3}  {bar}  {launched:>3}/{all:<3}  {stage}{failed}", number + 1)
}

/// All servers in one line.
pub(super) fn summary(tally: &Tally) -> String {
    let Tally { waiting, launching, launched, failed } = tally;
    format!("{launched} launched, {launching} launching, {waiting} waiting, {failed} failed")
}

/// What went wrong, server by server.
pub(super) fn failures(campaign: &Campaign) -> String {
    let failed = campaign.servers().filter_map(|(id, outcome)| match outcome {
        Outcome::Failed { why } => Some(format!("  {id}: {why}")),
        _ => None,
    });
    failed.collect::<Vec<_>>().join("\n")
}
