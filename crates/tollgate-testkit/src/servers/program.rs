//! A program to run, once or as a server.

use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

/// The error of a launcher.
#[derive(Debug)]
pub struct Fault(String);

impl Fault {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

/// A program with its arguments, environment and user.
#[derive(Clone, Debug)]
pub struct Program {
    pub(super) path: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    user: Option<(u32, u32)>,
    folder: Option<PathBuf>,
    pub(super) stop: Signal,
}

impl Program {
    /// Names a program by its path, or by its name in `PATH`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            user: None,
            folder: None,
            stop: Signal::TERM,
        }
    }

    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments separated by single spaces.
    pub fn args(mut self, line: &str) -> Self {
        self.arguments.extend(line.split(' ').map(str::to_owned));
        self
    }

    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    pub fn within(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    /// Runs it as another user and group, which needs root.
    pub const fn run_as(mut self, user: u32, group: u32) -> Self {
        self.user = Some((user, group));
        self
    }

    /// Stops it with another signal than SIGTERM.
    pub const fn stop_with(mut self, signal: Signal) -> Self {
        self.stop = signal;
        self
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).stdin(Stdio::null());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command
    }

    pub(super) fn missing(&self, error: &std::io::Error) -> Fault {
        let path = self.path.display();
        if error.kind() == std::io::ErrorKind::NotFound {
            return Fault::new(format!(
                "{path} is not installed; `cargo xtask test` installs what the tests need, or install it by hand"
            ));
        }
        Fault::new(format!("could not start {path}: {error}"))
    }
}

/// Runs a program to completion and returns its output.
pub fn run(program: &Program) -> Result<String, Fault> {
    let output = program.command().output().map_err(|error| program.missing(&error))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(Fault::new(format!(
        "{} {} failed with {}: {}{}",
        program.path.display(),
        program.arguments.join(" "),
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    )))
}

/// Returns the path of what `cargo xtask` installed below the target folder.
pub(super) fn installed(path: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let build = option_env!("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let places = [build.join(path), root.join("target").join(path)];
    places.into_iter().find_map(|path| path.canonicalize().ok())
}
