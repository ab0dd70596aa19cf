//! Third-party clients in other languages, with the packages that `cargo xtask` installs.

use std::path::PathBuf;

use super::program::installed;
use super::{Fault, Program, run};

/// Runs `script` in Python and returns its output.
pub fn python(script: &str, arguments: &[&str]) -> Result<String, Fault> {
    script_of("python3", "-c", ("PYTHONPATH", "servers/python"), script, arguments)
}

/// Runs `script` in Node.js and returns its output.
pub fn node(script: &str, arguments: &[&str]) -> Result<String, Fault> {
    script_of("node", "-e", ("NODE_PATH", "servers/node/node_modules"), script, arguments)
}

pub(super) fn script_of(
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

/// Returns where `cargo xtask` installed the packages of `program`.
pub(super) fn packages_of(program: &str, path: &str) -> Result<PathBuf, Fault> {
    installed(path).ok_or_else(|| {
        Fault::new(format!(
            "the packages of {program} are not installed; `cargo xtask test` installs what the tests need"
        ))
    })
}
