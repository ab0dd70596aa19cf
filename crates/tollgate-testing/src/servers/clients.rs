//! Scripts of other languages, with the packages that `cargo xtask` installed: clients that somebody else wrote.

use std::path::PathBuf;

use super::program::installed;
use super::{Fault, Program, run};

/// Runs `script` in Python with `arguments`, and returns what it printed.
///
/// # Errors
/// If Python or its packages are not installed, or the script fails, with what it said.
pub fn python(script: &str, arguments: &[&str]) -> Result<String, Fault> {
    script_of("python3", "-c", ("PYTHONPATH", "servers/python"), script, arguments)
}

/// Runs `script` in Node.js with `arguments`, and returns what it printed.
///
/// # Errors
/// If Node.js or its packages are not installed, or the script fails, with what it said.
pub fn node(script: &str, arguments: &[&str]) -> Result<String, Fault> {
    script_of("node", "-e", ("NODE_PATH", "servers/node/node_modules"), script, arguments)
}

fn script_of(
    program: &str,
    option: &str,
    (variable, packages): (&str, &str),
    script: &str,
    arguments: &[&str],
) -> Result<String, Fault> {
    let packages = packages_of(program, packages)?;
    let program = Program::new(program).arg(option).arg(script);
    let program = arguments.iter().fold(program, |program, argument| program.arg(*argument));
    run(&program.env(variable, packages.to_string_lossy()))
}

/// Where the packages of `program` are that `cargo xtask` installed at `path`.
pub(super) fn packages_of(program: &str, path: &str) -> Result<PathBuf, Fault> {
    installed(path).ok_or_else(|| {
        Fault::new(format!(
            "the packages of {program} are not installed; `cargo xtask test` installs what the tests need"
        ))
    })
}
