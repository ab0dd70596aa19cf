//! The log of the broker on standard error: text for people, or one JSON object per line for programs.
//!
//! Text has warnings and errors only. JSON also has informational events, with the id of the request.

use std::io::{self, IsTerminal as _};
use std::panic;

use serde_json::json;
use tollgate::clock::SystemClock;
use tollgate::internal::edge::environment;
use tollgate::{Clock as _, ErrorKind};
use tracing_subscriber::filter::LevelFilter;

use crate::config::LogFormat;
use crate::startup_report::StartupReport;
use tollgate_terminal::Failure;
use tollgate_terminal::LineWriter;

/// Starts the log. Panics are logged too.
pub(crate) fn start(format: LogFormat) -> Result<LineWriter, Failure> {
    let report = match format {
        LogFormat::Text => dropped_text,
        LogFormat::Json => dropped_json,
    };
    let lines = LineWriter::start(&io::stderr(), report).map_err(|error| {
        Failure::new(ErrorKind::Unavailable, format!("could not start the log: {error}"))
    })?;
    // Colours are for terminals, unless NO_COLOR is set (no-color.org).
    let colours =
        io::stderr().is_terminal() && environment("NO_COLOR").is_none_or(|text| text.is_empty());
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(colours);
    match format {
        LogFormat::Text => log.with_max_level(LevelFilter::WARN).init(),
        LogFormat::Json => {
            log.with_max_level(LevelFilter::INFO).json().with_span_list(false).init();
        }
    }
    panic::set_hook(Box::new(|panicked| {
        let place = panicked.location().map(ToString::to_string);
        tracing::error!(place, "panicked: {}", panicked.payload_as_str().unwrap_or("no message"));
    }));
    Ok(lines)
}

fn dropped_text(count: u64) -> String {
    format!("{}  WARN {}: {count} lines dropped\n", SystemClock.now(), module_path!())
}

fn dropped_json(count: u64) -> String {
    let fields = json!({ "message": format!("{count} lines dropped"), "dropped": count });
    let (timestamp, target) = (SystemClock.now().to_string(), module_path!());
    let line =
        json!({ "timestamp": timestamp, "level": "WARN", "fields": fields, "target": target });
    format!("{line}\n")
}

/// Logs the addresses, the store and the strategy.
pub(crate) fn serving(report: &StartupReport) {
    let resp = report.resp.map(|address| address.to_string());
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        http = report.http,
        resp,
        grpc = report.grpc,
        gateway = report.gateway_url(),
        store = report.store,
        format = report.format,
        strategy = report.strategy,
        "serving"
    );
}
