//! Formats a campaign: a line for each wave, and a summary.

use std::fmt::Write as _;

use crate::campaign::{Campaign, Outcome, Stage, Tally, Waiting, Wave};

/// The width of a bar, with which the longest line fits into 80 columns.
const BAR: usize = 10;

/// The most waves that are drawn; ended waves are left out first.
const WAVES_MAX: usize = 16;

/// Formats the plan.
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

/// Formats the progress, in lines of at most `columns`, since a line that wraps cannot be redrawn.
pub(super) fn draw(campaign: &Campaign, waiting: Option<&Waiting>, columns: usize) -> String {
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
    // At the end the report follows, which has the summary.
    if !campaign.is_over() {
        let _ = writeln!(text, "{}", summary(&campaign.tally()));
    }
    if let Some(waiting) = waiting {
        let _ = writeln!(text, "waiting: {waiting}");
    }
    let cut = |line: &str| line.chars().take(columns).collect::<String>();
    text.lines().map(cut).collect::<Vec<_>>().join("\n")
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
        Stage::Running { job } => format!("launching {job}"),
        Stage::Ended { job: Some(job) } => format!("done {job}"),
        Stage::Ended { job: None } => "not started".to_owned(),
    };
    let failed = if failed == 0 { String::new() } else { format!(", {failed} failed") };
    format!("  wave {:>3}  {bar}  {launched:>3}/{all:<3}  {stage}{failed}", number + 1)
}

/// Formats the numbers of all servers.
pub(super) fn summary(tally: &Tally) -> String {
    let Tally { waiting, launching, launched, failed } = tally;
    format!("{launched} launched, {launching} launching, {waiting} waiting, {failed} failed")
}

/// Formats the failed servers.
pub(super) fn failures(campaign: &Campaign) -> String {
    let failed = campaign.servers().filter_map(|(id, outcome)| match outcome {
        Outcome::Failed { why } => Some(format!("  {id}: {why}")),
        _ => None,
    });
    failed.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn campaign(servers: usize, failed: usize) -> Campaign {
        let ids = (0..servers).map(|number| format!("s-{number:017x}"));
        let mut campaign = Campaign::plan("test", ids, true).expect("it can be planned");
        let wave = &mut campaign.waves[0];
        wave.stage = Stage::Running { job: "drsjob-0123456789abcdef0".to_owned() };
        for outcome in wave.servers.values_mut().take(failed) {
            *outcome = Outcome::Failed { why: "for a test".to_owned() };
        }
        campaign
    }

    /// A line that wraps would not be redrawn completely.
    #[test]
    fn the_longest_line_fits_into_80_columns_and_is_cut_to_fewer() {
        let campaign = campaign(230, 100);
        let text = draw(&campaign, Some(&Waiting::ForServers { servers: 500 }), 80);
        assert_eq!(
            text,
            "  wave   1  ██████████    0/100  launching drsjob-0123456789abcdef0, 100 failed
  wave   2  ░░░░░░░░░░    0/100  waiting
  wave   3  ░░░░░░░░░░    0/30   waiting
0 launched, 0 launching, 130 waiting, 100 failed
waiting: 500 servers are in jobs, of 500 that may be"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let narrow = draw(&campaign, None, 20);
        assert!(narrow.lines().all(|line| line.chars().count() <= 20), "{narrow}");
    }

    #[test]
    fn waves_that_are_over_are_left_out_first_and_the_summary_when_all_are() {
        let mut campaign = campaign(2_000, 100);
        campaign.waves[1].stage = Stage::Ended { job: None };
        let text = draw(&campaign, None, 80);
        assert!(!text.contains("wave   2 ") && text.contains("wave   1 "), "{text}");
        assert!(text.contains("\n  and 4 waves more\n"), "{text}");
        campaign.waves.iter_mut().for_each(|wave| wave.stage = Stage::Ended { job: None });
        assert!(!draw(&campaign, None, 80).contains(" launching, "));
    }
}
