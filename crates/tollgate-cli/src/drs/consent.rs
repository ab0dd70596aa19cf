//! Asking before something is done.

use std::io::{self, IsTerminal as _, Write as _};

use super::invalid;
use crate::args::Consent;
use crate::failure::Failure;

/// Whether to do it: `--yes`, or somebody at the terminal says so.
pub(super) fn given(consent: &Consent, question: &str) -> Result<bool, Failure> {
    if consent.yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(invalid("nobody is there to ask; say --yes to do it, or --dry-run to look"));
    }
    // The answer to a program is on standard output, so the question is not.
    let unable = |error: io::Error| invalid(format!("nobody can be asked: {error}; say --yes"));
    let mut out = io::stderr();
    write!(out, "{question} [y/N] ").and_then(|()| out.flush()).map_err(unable)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(unable)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
