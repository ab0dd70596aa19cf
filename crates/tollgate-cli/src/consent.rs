//! Asking before something is done.

use std::io::{self, IsTerminal as _, Write as _};

use tollgate::ErrorKind;

use crate::failure::Failure;

/// Whether to do it: `--yes`, or somebody at the terminal says so. The flag `look` would only show it.
pub(crate) fn given(yes: bool, look: &str, question: &str) -> Result<bool, Failure> {
    if yes {
        return Ok(true);
    }
    asked(question)?.ok_or_else(|| {
        invalid(format!("nobody is there to ask; say --yes to do it, or {look} to look"))
    })
}

/// The answer of somebody at the terminal; nothing if standard input is none.
pub(crate) fn asked(question: &str) -> Result<Option<bool>, Failure> {
    if !io::stdin().is_terminal() {
        return Ok(None);
    }
    // The answer to a program is on standard output, so the question is not.
    let unable = |error: io::Error| invalid(format!("nobody can be asked: {error}; say --yes"));
    let mut out = io::stderr();
    write!(out, "{question} [y/N] ").and_then(|()| out.flush()).map_err(unable)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(unable)?;
    Ok(Some(matches!(answer.trim(), "y" | "Y" | "yes")))
}

fn invalid(text: String) -> Failure {
    Failure::new(ErrorKind::Invalid, text)
}
