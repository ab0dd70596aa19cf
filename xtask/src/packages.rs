//! Builds and tests the packages for other languages.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::run::finish;
use crate::servers::{install, install_packages};
use crate::step::command;

/// The virtual environment of the Python package, with its tools.
const VENV: &str = "target/python";

/// Builds the native modules, the broker and the fakes. The selection is that of the tests: another one would have other
/// features, and compile most dependencies again.
const BUILD: &str = "cargo build -q --locked --workspace --lib --bins --tests";

/// What builds the release wheel.
const WHEEL_TOOLS: &str = "maturin==1.16.0 ziglang==0.17.0";

/// The wheel that the tests install.
const WHEELS: &str = "target/python/wheels";

/// Builds the wheel in the dev profile, installs it into a virtual environment, and checks and tests it from there.
pub(crate) fn python(words: &[String]) -> ExitCode {
    match python_steps(words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn python_steps(words: &[String]) -> Result<(), String> {
    make_venv()?;
    run(&format!(
        "{VENV}/bin/pip install -q --disable-pip-version-check -r bindings/python/requirements.txt"
    ))?;
    let wheels = root().join(WHEELS);
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels).map_err(|error| format!("{WHEELS}: {error}"))?;
    }
    run(&format!(
        "{VENV}/bin/maturin build -q --locked -m bindings/python/Cargo.toml -o {WHEELS}"
    ))?;
    let wheel = only_file(&wheels)?;
    let install = "install -q --disable-pip-version-check --force-reinstall --no-deps";
    run(&format!("{VENV}/bin/pip {install} {}", wheel.display()))?;
    run(BUILD)?;
    run(&format!(
        "{VENV}/bin/python -m mypy.stubtest --mypy-config-file bindings/python/pyproject.toml tollgate_rs._native"
    ))?;
    for checked in ["-p tollgate_rs", "bindings/python/tests"] {
        run(&format!("{VENV}/bin/mypy --config-file bindings/python/pyproject.toml {checked}"))?;
    }
    let mut tests =
        command(&format!("{VENV}/bin/python -m pytest -c bindings/python/pyproject.toml"));
    // Its `testpaths` only apply in the folder of the package.
    if words.iter().all(|word| word.starts_with('-')) {
        tests.arg("bindings/python/tests");
    }
    tests.args(words);
    finish(tests).map_err(|problem| format!("pytest: {problem}"))
}

/// Builds the release wheel for every Linux from glibc 2.28 on, as AWS Lambda has it. Zig links against that version.
pub(crate) fn python_wheel() -> ExitCode {
    let built = make_venv().and_then(|()| {
        run(&format!("{VENV}/bin/pip install -q --disable-pip-version-check {WHEEL_TOOLS}"))?;
        run(&format!(
            "{VENV}/bin/maturin build -q --locked --release --zig --compatibility manylinux_2_28 \
             -m bindings/python/Cargo.toml -o target/python/release"
        ))
    });
    match built {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Installs the tools of the Node package, builds it in the dev profile, and tests it: the files that are named, or all.
pub(crate) fn node(words: &[String]) -> ExitCode {
    match node_steps(words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn node_steps(words: &[String]) -> Result<(), String> {
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
    run("npm install --prefix bindings/node --no-save --no-audit --no-fund --silent")?;
    run(BUILD)?;
    run("node bindings/node/scripts/build.mjs --built")?;
    let mut tests = command("node bindings/node/test/run.mjs");
    tests.args(words);
    finish(tests).map_err(|problem| format!("tests of the Node package: {problem}"))
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

fn run(words: &str) -> Result<(), String> {
    eprintln!("==> {words}");
    finish(command(words)).map_err(|problem| format!("{words}: {problem}"))
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn only_file(folder: &Path) -> Result<PathBuf, String> {
    let files =
        std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files = files.flatten().map(|file| file.path());
    files.next().ok_or_else(|| format!("there is no wheel in {}", folder.display()))
}
