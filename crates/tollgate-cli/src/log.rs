//! The log of the broker, on standard error: lines for people, or one JSON object per line for programs.
//!
//! What goes wrong between requests has no answer to stand in, so it is logged. Somebody at a terminal is told what needs
//! attention; a program that collects logs also gets what was done, and the request it was done for.

use std::io::{self, IsTerminal as _};
use std::panic;

use serde_json::json;
use tollgate::edge::environment;
use tollgate::{Clock as _, ErrorKind, SystemClock};
use tracing_subscriber::filter::LevelFilter;

use crate::config::LogFormat;
use crate::failure::Failure;
use crate::lines::Lines;
use crate::place::Place;

/// Starts the log. A panic is a line of it like any other.
pub(crate) fn start(format: LogFormat) -> Result<Lines, Failure> {
    let report = match format {
        LogFormat::Text => dropped_text,
        LogFormat::Json => dropped_json,
    };
    let lines = Lines::start(&io::stderr(), report).map_err(|error| {
        Failure::new(ErrorKind::Unavailable, format!("could not start the log: {error}"))
    })?;
    // Colours are for eyes: a file or a pipe gets none, nor who asks for none (no-color.org).
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

/// Says where everything is.
pub(crate) fn serving(place: &Place) {
    let resp = place.resp.map(|address| address.to_string());
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        http = place.http,
        resp,
        grpc = place.grpc,
        store = place.store,
        format = place.format,
        strategy = place.strategy,
        "serving"
    );
}
