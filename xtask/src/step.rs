//! What a step is: a command as one would type it, its variables, and the tool it needs.

use std::fmt;
use std::process::Command;

/// A cargo subcommand that is installed when missing. Any version that is there will do.
pub(crate) struct Tool {
    /// Succeeds when the tool is there.
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

/// A step without variables or tools. Words of `line` are separated by single spaces.
pub(crate) const fn step(name: &'static str, line: &'static str) -> Step {
    Step { name, needs: None, line, env: &[] }
}

impl Step {
    /// The same step with variables set.
    pub(crate) const fn env(self, env: &'static [(&'static str, &'static str)]) -> Self {
        Self { env, ..self }
    }

    /// The same step, after making sure of a tool.
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
