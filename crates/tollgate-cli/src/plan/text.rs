//! Formats a plan as text: the workload, the tables, the chart and the recommendation.

use std::fmt::Write as _;

use tollgate::{Policy, Span};
use tollgate_protocol::json::counted;
use unicode_width::UnicodeWidthStr as _;

use super::chart;
use super::measure::Measured;
use super::price::{BROKER_ASK_MICROS, POSTGRES_OP_MICROS, REDIS_OP_MICROS};
use super::report::{Report, Row};
use super::workload::{Parent, Workload, dynamodb_item_bytes};

/// The explanation of the columns.
const COLUMNS: &str = "
of ideal: admitted asks, of those that an exact limiter without a network would admit
over-issued: admitted asks that such a limiter at the provider would deny
worst window: the largest excess of a subject in one window, of its limit
refused with room: denied asks for which the limit had room at that instant
p50, p99: the latency that an ask adds to a call
";

/// What asks with several charges cost.
const SEVERAL_CHARGES: &str = "\
store ops/s: one operation decides all charges of an ask; the cores count one operation per charge, an upper bound
DynamoDB/month: an admitted ask is one TransactWriteItems, at 2 write units per item and KB, and one BatchGetItem; a refused \
one is the BatchGetItem alone, if this process knew that the ask does not fit
";

/// Formats the whole plan.
pub(super) fn page(report: &Report) -> String {
    let workload = &report.workload;
    let mut text = format!(
        "policy {}{}, {}, {} asks/s in bursts of {} over {}, {} at {}, {} simulated, seed {}\n\n",
        workload.policy.name(),
        parents(workload),
        counted(workload.instances, "instances"),
        workload.rate,
        workload.burstiness,
        counted(workload.subjects, "subjects"),
        workload.store.name(),
        workload.latency,
        workload.duration,
        workload.seed
    );
    text += &table(&cells(&report.strategies));
    if workload.has_parents() {
        text += "\nrefused, of all asks, by the charge that binds:\n";
        text += &table(&refusals(&report.strategies));
    }
    let cut = match workload.outage < workload.outage_wanted {
        true => format!(
            " (a third of the simulated time; --outage {} takes a longer --duration or a lower --rate)",
            workload.outage_wanted
        ),
        false => String::new(),
    };
    let _ = write!(
        text,
        "\nwhile the store is unavailable for {}{cut}:\n",
        micros(workload.outage.as_micros())
    );
    text += &table(&outages(&report.strategies));
    text += COLUMNS;
    if workload.has_parents() {
        text += SEVERAL_CHARGES;
    }
    text += "\n";
    for row in &report.strategies {
        let over = match row.over_max {
            0 => "never over while the store answers".to_owned(),
            most => format!("can be over by at most {most} per window of a subject"),
        };
        let _ = writeln!(text, "{}: {over}; {}", row.name, row.note);
        let _ = writeln!(text, "  effort {}\n  fails  {}", row.effort, row.failure_modes);
    }
    let prices = &report.prices;
    let _ = write!(
        text,
        "DynamoDB on demand at ${} per million writes and ${} per million reads (--price-write, --price-read), with items of {}\n\
         cores of the store at {REDIS_OP_MICROS} us of Redis or {POSTGRES_OP_MICROS} us of PostgreSQL per operation; one Redis server uses one core\n\
         brokers at ${} per hour (--price-broker); their asks keep {:.2} cores busy in all, at {BROKER_ASK_MICROS} us each\n\n",
        prices.write_dollars_per_million,
        prices.read_dollars_per_million,
        items(workload),
        prices.broker_dollars_per_hour,
        report.strategies.iter().find_map(|row| row.brokers).map_or(0.0, |brokers| brokers.cores)
    );
    text += &chart::terminal(report);
    if let Some(measured) = &report.measured {
        let _ = write!(text, "\n{}", self::measured(measured));
    }
    let advice = &report.recommendation;
    let _ = write!(text, "\nrecommended: {}, because {}", advice.strategy, advice.reason);
    text
}

/// Formats the parents, as in ` and 20 subjects of team`.
fn parents(workload: &Workload) -> String {
    let parent = |Parent { policy, subjects }: &Parent| {
        format!(" and {} of {}", counted(*subjects, "subjects"), policy.name())
    };
    workload.parents.iter().map(parent).collect()
}

/// Formats the size of items, by policy if there are several.
fn items(workload: &Workload) -> String {
    let item = |(policy, _): (&Policy, u64)| {
        let bytes = format!("{} bytes", dynamodb_item_bytes(policy));
        if workload.has_parents() { format!("{bytes} ({})", policy.name()) } else { bytes }
    };
    workload.charges().map(item).collect::<Vec<_>>().join(", ")
}

fn refusals(rows: &[Row]) -> Vec<Vec<String>> {
    let policies = rows.iter().take(1).flat_map(|row| &row.figures.refused_by);
    let policies = policies.map(|one| one.policy.clone());
    let mut cells: Vec<Vec<String>> =
        vec![std::iter::once("strategy".into()).chain(policies).collect()];
    cells.extend(rows.iter().map(|row| {
        let percents = row.figures.refused_by.iter().map(|one| format!("{:.2}%", one.percent));
        std::iter::once(row.name.clone()).chain(percents).collect()
    }));
    cells
}

fn cells(rows: &[Row]) -> Vec<Vec<String>> {
    let head = [
        "strategy",
        "admitted/s",
        "of ideal",
        "over-issued",
        "worst window",
        "refused with room",
        "p50",
        "p99",
        "store ops/s",
        "DynamoDB/month",
        "Redis cores",
        "PostgreSQL cores",
        "brokers/month",
    ];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let figures = &row.figures;
        cells.push(vec![
            row.name.clone(),
            format!("{:.1}", figures.admitted_per_second),
            format!("{:.1}%", figures.of_ideal_percent),
            format!("{:.2}%", figures.over_issued_percent),
            format!("{:.0}%", figures.worst_window_percent),
            format!("{:.2}%", figures.refused_with_room_percent),
            micros(figures.p50_us),
            micros(figures.p99_us),
            format!("{:.0}", figures.store_ops_per_second),
            format!("${:.0}", row.dynamodb_dollars_per_month),
            format!("{:.2}", row.redis_cores),
            format!("{:.2}", row.postgres_cores),
            row.brokers
                .map_or_else(|| "-".to_owned(), |it| format!("${:.0}", it.dollars_per_month)),
        ]);
    }
    cells
}

fn outages(rows: &[Row]) -> Vec<Vec<String>> {
    let head = ["strategy", "asks", "admitted", "failed", "over-issued", "worst window", "p99"];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let away = &row.outage;
        cells.push(vec![
            row.name.clone(),
            away.asks.to_string(),
            away.admitted.to_string(),
            format!("{:.1}%", away.failed_percent),
            format!("{:.2}%", away.over_issued_percent),
            format!("{:.0}%", away.worst_window_percent),
            micros(away.p99_us),
        ]);
    }
    cells
}

fn measured(measured: &Measured) -> String {
    let mut text = format!(
        "for real on {} with {} processes for {}, beside a simulation of the same arrivals and round trips, around {}:\n",
        measured.store,
        measured.processes,
        Span::from_micros(measured.lasted_us),
        micros(measured.latency_us)
    );
    let head = ["strategy", "figure", "simulated", "measured", "within"];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    for line in &measured.comparisons {
        let verdict = match (line.is_held, line.agrees) {
            (false, _) => "-".to_owned(),
            (true, true) => format!("{}: yes", line.tolerance),
            (true, false) => format!("{}: NO", line.tolerance),
        };
        cells.push(vec![
            line.strategy.clone(),
            line.figure.clone(),
            format!("{:.1}", line.simulated),
            format!("{:.1}", line.measured),
            verdict,
        ]);
    }
    text += &table(&cells);
    text
}

/// Aligns columns: the first to the left, the others to the right.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].width()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let blank = " ".repeat(width.saturating_sub(cell.width()));
            line +=
                &if column == 0 { format!("{cell}{blank}") } else { format!("  {blank}{cell}") };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Formats a short time, as in 340us, 1.2ms or 3.4s.
pub(crate) fn micros(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros}us"),
        1_000..1_000_000 => format!("{:.1}ms", micros as f64 / 1e3),
        _ => format!("{:.1}s", micros as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_terminal_width() {
        let rows = [["翻訳", "n"], ["abc", "12"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "翻訳   n\nabc   12\n");
    }
}
