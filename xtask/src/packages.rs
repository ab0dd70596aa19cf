//! Builds and tests the packages for other languages.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::run::finish;
use crate::servers::{install, install_packages};
use crate::step::command;

/// The virtual environment of the Python package, with its tools.
const VENV: &str = "target/python";

/// Builds the native modules, the broker and the fakes. The selection is that of the tests: another one would have other
/// features, and compile most dependencies again.
const BUILD: &str = "cargo build -q --locked --workspace --lib --bins --tests";

/// What builds the native modules of releases. Zig links against any version of glibc.
const RELEASE_TOOLS: &str = "maturin==1.16.0 cargo-zigbuild==0.24.0 ziglang==0.17.0";

/// The glibc of the oldest systems that releases run on: Debian 10 and RHEL 8. The runtimes of AWS Lambda on Amazon Linux 2023
/// have a newer one.
const GLIBC: &str = "2.28";

/// The tests of the Python package; relative to the programs of its environment.
const PYTEST: &str = "python -m pytest -c bindings/python/pyproject.toml";

/// The wheel that the tests install.
const WHEELS: &str = "target/python/wheels";

/// The release wheel.
const RELEASE_WHEELS: &str = "target/python/release";

/// The release tarball.
const TARBALLS: &str = "target/node";

/// Builds the wheel in the dev profile, installs it into a virtual environment, and checks and tests it from there.
pub(crate) fn python(words: &[String]) -> ExitCode {
    report(python_steps(words))
}

/// Builds the release wheel for every Linux from [`GLIBC`] on, and uses it from a clean environment.
pub(crate) fn python_wheel() -> ExitCode {
    report(python_wheel_steps())
}

/// Installs the tools of the Node package, builds it in the dev profile, and tests it: the files that are named, or all.
pub(crate) fn node(words: &[String]) -> ExitCode {
    report(node_steps(words))
}

/// Builds the release tarball for every Linux from [`GLIBC`] on, and uses it from a clean folder.
pub(crate) fn node_tarball() -> ExitCode {
    report(node_tarball_steps())
}

fn report(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn python_steps(words: &[String]) -> Result<(), String> {
    make_venv()?;
    pip_install("-r bindings/python/requirements.txt")?;
    empty(WHEELS)?;
    run(&format!(
        "{VENV}/bin/maturin build -q --locked -m bindings/python/Cargo.toml -o {WHEELS}"
    ))?;
    let wheel = only_file(WHEELS)?;
    pip_install(&format!("--force-reinstall --no-deps {}", wheel.display()))?;
    run(BUILD)?;
    run(&format!(
        "{VENV}/bin/python -m mypy.stubtest --mypy-config-file bindings/python/pyproject.toml tollgate_rs._native"
    ))?;
    for checked in ["-p tollgate_rs", "bindings/python/tests"] {
        run(&format!("{VENV}/bin/mypy --config-file bindings/python/pyproject.toml {checked}"))?;
    }
    let mut tests = command(&format!("{VENV}/bin/{PYTEST}"));
    // Its `testpaths` only apply in the folder of the package.
    if words.iter().all(|word| word.starts_with('-')) {
        tests.arg("bindings/python/tests");
    }
    tests.args(words);
    finish(tests).map_err(|problem| format!("pytest: {problem}"))
}

fn python_wheel_steps() -> Result<(), String> {
    make_venv()?;
    pip_install("-r bindings/python/requirements.txt")?;
    pip_install(RELEASE_TOOLS)?;
    empty(RELEASE_WHEELS)?;
    run_with_zig(&format!(
        "{VENV}/bin/maturin build -q --locked --release --zig --compatibility manylinux_{} \
         -m bindings/python/Cargo.toml -o {RELEASE_WHEELS}",
        GLIBC.replace('.', "_")
    ))?;
    let mut tests = command(&format!("{VENV}/bin/{PYTEST} bindings/python/tests/test_wheel.py"));
    tests.env("TOLLGATE_WHEELS", root().join(RELEASE_WHEELS)).env("TOLLGATE_GLIBC", GLIBC);
    finish(tests).map_err(|problem| format!("tests of the wheel: {problem}"))
}

fn node_steps(words: &[String]) -> Result<(), String> {
    install_node_tools()?;
    run(BUILD)?;
    run("node bindings/node/scripts/build.mjs --built")?;
    let mut tests = command("node bindings/node/test/run.mjs");
    tests.args(words);
    finish(tests).map_err(|problem| format!("tests of the Node package: {problem}"))
}

fn node_tarball_steps() -> Result<(), String> {
    install_node_tools()?;
    make_venv()?;
    pip_install(RELEASE_TOOLS)?;
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    run_with_zig(&format!(
        "{VENV}/bin/cargo-zigbuild zigbuild -q --locked --release -p tollgate-node --target {target}.{GLIBC}"
    ))?;
    run(&format!("node bindings/node/scripts/build.mjs --built --release --target={target}"))?;
    empty(TARBALLS)?;
    run(&format!("npm pack ./bindings/node --silent --pack-destination {TARBALLS}"))?;
    // The broker, the fakes and the servers of the examples.
    run(BUILD)?;
    let mut tests = command("node bindings/node/test/run.mjs bindings/node/test/package.test.mjs");
    tests.env("TOLLGATE_TARBALL", only_file(TARBALLS)?).env("TOLLGATE_GLIBC", GLIBC);
    finish(tests).map_err(|problem| format!("tests of the tarball: {problem}"))
}

/// Installs Node, the servers of the tests, and the packages of package-lock.json.
fn install_node_tools() -> Result<(), String> {
    const IS_NEW: &str = "node --eval process.exit(+(parseInt(process.versions.node)<20))";
    if run(IS_NEW).is_err() || run("npm --version").is_err() {
        if install_packages(&["nodejs", "npm"]) != ExitCode::SUCCESS {
            return Err("nodejs and npm cannot be installed".to_owned());
        }
        run(IS_NEW).map_err(|_| {
            "the Node of this system is older than 20; put a newer one into PATH, such as that of the npm package \"node\""
        })?;
    }
    if install() != ExitCode::SUCCESS {
        return Err("the servers of the tests cannot be installed".to_owned());
    }
    // Versions and hashes are those of package-lock.json; what is installed already stays.
    run("npm install --prefix bindings/node --no-save --no-audit --no-fund --silent")
}

/// Creates the environment. Debian has the module for it in a package of its own.
fn make_venv() -> Result<(), String> {
    if root().join(VENV).join("bin/pip").exists() {
        return Ok(());
    }
    let make = format!("python3 -m venv {VENV}");
    if run(&make).is_ok() {
        return Ok(());
    }
    if install_packages(&["python3-venv"]) != ExitCode::SUCCESS {
        return Err("python3-venv cannot be installed".to_owned());
    }
    run(&make)
}

fn pip_install(words: &str) -> Result<(), String> {
    run(&format!("{VENV}/bin/pip install -q --disable-pip-version-check {words}"))
}

fn run(words: &str) -> Result<(), String> {
    run_command(words, command(words))
}

/// Runs a command that links by the Zig of the environment, which is not in PATH.
fn run_with_zig(words: &str) -> Result<(), String> {
    let mut command = command(words);
    command.env("CARGO_ZIGBUILD_PYTHON_PATH", root().join(VENV).join("bin/python"));
    run_command(words, command)
}

fn run_command(words: &str, command: Command) -> Result<(), String> {
    eprintln!("==> {words}");
    finish(command).map_err(|problem| format!("{words}: {problem}"))
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Makes `folder` an empty one, so that it has nothing of another version.
fn empty(folder: &str) -> Result<(), String> {
    let path = root().join(folder);
    if path.exists() {
        std::fs::remove_dir_all(&path).map_err(|error| format!("{folder}: {error}"))?;
    }
    std::fs::create_dir_all(&path).map_err(|error| format!("{folder}: {error}"))
}

fn only_file(folder: &str) -> Result<PathBuf, String> {
    let path = std::fs::canonicalize(root().join(folder));
    let files = path.and_then(std::fs::read_dir).map_err(|error| format!("{folder}: {error}"))?;
    let mut files = files.flatten().map(|file| file.path());
    files.next().ok_or_else(|| format!("nothing was built in {folder}"))
}
