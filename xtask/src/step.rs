//! A step of a task: a command, its environment, and the tool it needs.

use std::fmt;
use std::process::Command;

/// A tool that is installed if it is missing; any installed version is accepted.
pub(crate) struct Tool {
    /// Succeeds if the tool is installed.
    pub(crate) probe: &'static str,
    /// Unoptimised: about 40 % less time to compile, and fast enough to use.
    pub(crate) install: &'static str,
}

/// One command.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) needs: Option<Tool>,
    line: &'static str,
    env: &'static [(&'static str, &'static str)],
}

/// A step without environment or tool. The words of `line` are separated by single spaces.
pub(crate) const fn step(name: &'static str, line: &'static str) -> Step {
    Step { name, needs: None, line, env: &[] }
}

impl Step {
    /// Sets environment variables.
    pub(crate) const fn env(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { env, ..self }
    }

    /// Installs `tool` first if it is missing.
    pub(crate) const fn needs(self, tool: Tool) -> Self {
        Self { needs: Some(tool), ..self }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = command(self.line);
        command.envs(self.env.iter().copied());
        command
    }
}

/// The command to repeat by hand.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.env {
            let quote = if value.contains(' ') { "'" } else { "" };
            write!(f, "{name}={quote}{value}{quote} ")?;
        }
        f.write_str(self.line)
    }
}

/// Runs at the root of the workspace, wherever the caller is.
pub(crate) fn command(line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    command
}
