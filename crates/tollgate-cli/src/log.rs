//! The log of the broker, on standard error: lines for people, or one JSON object per line for programs.
//!
//! What goes wrong between requests has no answer to stand in, so it is logged. Somebody at a terminal is told what needs
//! attention; a program that collects logs also gets what was done, and the request it was done for.

use std::io::{self, IsTerminal as _};

use tollgate::edge::environment;
use tracing_subscriber::filter::LevelFilter;

use crate::config::LogFormat;
use crate::place::Place;

/// Starts the log.
pub(crate) fn start(format: LogFormat) {
    // Colours are for eyes: a file or a pipe gets none, nor who asks for none (no-color.org).
    let colours =
        io::stderr().is_terminal() && environment("NO_COLOR").is_none_or(|text| text.is_empty());
    let log = tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(colours);
    match format {
        LogFormat::Text => log.with_max_level(LevelFilter::WARN).init(),
        LogFormat::Json => {
            log.with_max_level(LevelFilter::INFO).json().with_span_list(false).init();
        }
    }
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
        strategy = place.strategy,
        "serving"
    );
}
