//! Asking before something is done.

use std::io::{self, IsTerminal as _, Write as _};

use tollgate::ErrorKind;

use crate::failure::Failure;

/// Whether to do it: `--yes`, or somebody at the terminal says so. The flag `look` would only show it.
pub(crate) fn given(yes: bool, look: &str, question: &str) -> Result<bool, Failure> {
    let invalid = |text| Failure::new(ErrorKind::Invalid, text);
    if yes {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        let text = format!("nobody is there to ask; say --yes to do it, or {look} to look");
        return Err(invalid(text));
    }
    // The answer to a program is on standard output, so the question is not.
    let unable = |error: io::Error| invalid(format!("nobody can be asked: {error}; say --yes"));
    let mut out = io::stderr();
    write!(out, "{question} [y/N] ").and_then(|()| out.flush()).map_err(unable)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(unable)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
