//! A folder of its own for each test, and the binary run in it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tollgate::internal::edge::environment;

/// The variable that names another binary to test, such as a release build or an older one.
const BINARY_VARIABLE: &str = "TOLLGATE_BINARY";

/// The binary under test.
pub(crate) fn binary() -> String {
    environment(BINARY_VARIABLE).unwrap_or_else(|| env!("CARGO_BIN_EXE_tollgate").to_owned())
}

/// A folder that is gone with the test.
pub(crate) struct Folder(TempDir);

/// What a command printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Folder {
    /// An empty folder: commands run on the built-in sample.
    pub(crate) fn new() -> Self {
        Self(TempDir::new().expect("a temporary folder can be made"))
    }

    /// A folder with `config` as its tollgate.toml.
    pub(crate) fn with(config: &str) -> Self {
        let folder = Self::new();
        folder.write("tollgate.toml", config);
        folder
    }

    /// A folder with the same files.
    pub(crate) fn clone_of(other: &Self) -> Self {
        let folder = Self::new();
        for file in std::fs::read_dir(other.path()).expect("a folder").flatten() {
            std::fs::copy(file.path(), folder.path().join(file.file_name())).expect("a file");
        }
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path().join(file), text).expect("a temporary folder is writable");
    }

    /// The binary with `arguments`, separated by spaces, ready to start here.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(binary());
        command.args(arguments.split_whitespace()).current_dir(self.path()).stdin(Stdio::null());
        // Only a DynamoDB server looks at them, and takes any.
        command.env("AWS_ACCESS_KEY_ID", "test").env("AWS_SECRET_ACCESS_KEY", "s3cret");
        command.env("XDG_STATE_HOME", self.path().join("state-home"));
        command
    }

    /// Runs the binary with `arguments` to its end.
    pub(crate) fn run(&self, arguments: &str) -> Ran {
        self.command(arguments).output().expect("the binary starts").into()
    }

    /// Runs the binary with `arguments` as they are, also those with spaces.
    pub(crate) fn run_with(&self, arguments: &[&str]) -> Ran {
        self.command("").args(arguments).output().expect("the binary starts").into()
    }

    /// Runs the binary with `arguments` and a key for the broker.
    pub(crate) fn run_as(&self, key: &str, arguments: &str) -> Ran {
        self.command(arguments).env("TOLLGATE_KEY", key).output().expect("the binary starts").into()
    }

    /// Runs the binary with `arguments` and `--json`; what it printed is one line of JSON.
    pub(crate) fn json(&self, arguments: &str) -> (i32, Value) {
        let ran = self.run(&format!("{arguments} --json"));
        assert_eq!(ran.err, "", "{arguments}");
        assert_eq!(ran.out.matches('\n').count(), 1, "{arguments}: {}", ran.out);
        (ran.code, serde_json::from_str(&ran.out).expect("--json prints JSON"))
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("the binary ends by itself"),
            out: String::from_utf8(output.stdout).expect("the binary prints text"),
            err: String::from_utf8(output.stderr).expect("the binary prints text"),
        }
    }
}
