//! Bar charts of over-issue, latency and store operations of each strategy, for a terminal and as SVG.

use std::fmt::Write as _;

use super::report::{Report, Row};
use super::text::micros;

/// The longest bar of the terminal, in characters.
const BAR: f64 = 40.0;

/// One figure of every strategy.
struct Panel {
    title: &'static str,
    value: fn(&Row) -> f64,
    shown: fn(&Row) -> String,
}

const PANELS: [Panel; 3] = [
    Panel {
        title: "over-issued, % of admitted",
        value: |row| row.figures.over_issued_percent,
        shown: |row| format!("{:.2}%", row.figures.over_issued_percent),
    },
    Panel {
        title: "added latency, p99",
        value: |row| row.figures.p99_us as f64,
        shown: |row| micros(row.figures.p99_us),
    },
    Panel {
        title: "store operations per second",
        value: |row| row.figures.store_ops_per_second,
        shown: |row| format!("{:.0}", row.figures.store_ops_per_second),
    },
];

/// Returns the length of a bar, from 0 to 1.
fn share(panel: &Panel, rows: &[Row], row: &Row) -> f64 {
    let most = rows.iter().map(panel.value).fold(0.0, f64::max);
    if most <= 0.0 { 0.0 } else { (panel.value)(row) / most }
}

/// Draws the chart for a terminal.
pub(super) fn terminal(report: &Report) -> String {
    let rows = &report.strategies;
    let name = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for panel in &PANELS {
        let _ = writeln!(text, "{}", panel.title);
        for row in rows {
            let length = (share(panel, rows, row) * BAR).round();
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share is from 0 to 1"
            )]
            let bar = "█".repeat(length as usize);
            let shown = (panel.shown)(row);
            let gap = if bar.is_empty() { "" } else { " " };
            let _ = writeln!(text, "  {:<name$}  {bar}{gap}{shown}", row.name);
        }
    }
    text
}

/// Draws the chart as SVG.
pub(super) fn svg(report: &Report) -> String {
    let rows = &report.strategies;
    let (left, width, line) = (190.0, 360.0, 24.0);
    let panel_height = 40.0 + rows.len() as f64 * line;
    let height = 40.0 + PANELS.len() as f64 * panel_height;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"720\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"13\" role=\"img\">\n<title>Strategies for policy {0}</title>\n<rect width=\"100%\" height=\"100%\" \
         fill=\"#fff\"/>\n<text x=\"16\" y=\"24\" font-weight=\"bold\">policy {0}: {1} instances, {2} asks/s, {3}</text>\n",
        report.workload.policy_names(),
        report.workload.instances,
        report.workload.rate,
        report.workload.store.name()
    );
    let mut y = 56.0;
    for panel in &PANELS {
        let _ = writeln!(text, "<text x=\"16\" y=\"{y}\" fill=\"#555\">{}</text>", panel.title);
        for (number, row) in rows.iter().enumerate() {
            let top = y + 8.0 + number as f64 * line;
            let bar = (share(panel, rows, row) * width).max(1.0);
            let (middle, end) = (top + 14.0, left + bar + 6.0);
            let (name, shown) = (&row.name, (panel.shown)(row));
            let is_advised = *name == report.recommendation.strategy;
            let fill = if is_advised { "#1a7f5a" } else { "#7a8ba3" };
            let _ = writeln!(
                text,
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{name}</text>\
                 <rect x=\"{left}\" y=\"{top}\" width=\"{bar:.1}\" height=\"18\" fill=\"{fill}\"/>\
                 <text x=\"{end:.1}\" y=\"{middle}\">{shown}</text>",
                left - 8.0
            );
        }
        y += panel_height;
    }
    text + "</svg>\n"
}
