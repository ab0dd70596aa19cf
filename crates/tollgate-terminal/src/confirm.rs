//! Confirmation on the terminal before something is done.

use std::io::{self, IsTerminal as _, Write as _};

use tollgate::ErrorKind;

use crate::Failure;

/// Returns whether to go on: `yes`, or the answer of the user to `question`.
///
/// # Errors
/// If standard input is not a terminal; the message names `preview_flag`, which only shows what would be done.
pub fn confirm(yes: bool, preview_flag: &str, question: &str) -> Result<bool, Failure> {
    if yes {
        return Ok(true);
    }
    ask(question)?.ok_or_else(|| {
        invalid(format!(
            "standard input is not a terminal; pass --yes to confirm, or {preview_flag} to see what would be done"
        ))
    })
}

/// Returns the user's answer to `question`; `None` if standard input is not a terminal.
pub fn ask(question: &str) -> Result<Option<bool>, Failure> {
    if !io::stdin().is_terminal() {
        return Ok(None);
    }
    // Standard output is for the result alone.
    let unable =
        |error: io::Error| invalid(format!("could not ask on the terminal: {error}; pass --yes"));
    let mut out = io::stderr();
    write!(out, "{question} [y/N] ").and_then(|()| out.flush()).map_err(unable)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(unable)?;
    Ok(Some(matches!(answer.trim(), "y" | "Y" | "yes")))
}

fn invalid(message: String) -> Failure {
    Failure::new(ErrorKind::Invalid, message)
}
