//! The commands contributors type: `cargo xtask help`.
//!
//! Tasks are data: a step is one line in [`LINT`], [`DENY`], [`TEST`] or a list like them, a task is one line in [`TASKS`].
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a command line prints and measures durations"
)]

mod features;
mod fuzz;
mod packages;
#[cfg(test)]
mod pages;
mod run;
mod servers;
mod step;

use std::process::ExitCode;

use step::{Step, Tool, step};

/// A name a contributor types, and the steps behind it.
struct Task {
    name: &'static str,
    about: &'static str,
    steps: &'static [&'static [Step]],
}

const NEXTEST: Tool = Tool {
    probe: "cargo nextest --version",
    // Without self-update there is no TLS stack to compile.
    install: "cargo install cargo-nextest --locked --debug --version 0.9.151 --no-default-features --features default-no-update",
};
const DENY_TOOL: Tool = Tool {
    probe: "cargo deny --version",
    install: "cargo install cargo-deny --locked --debug --version 0.20.2",
};

const SERVERS: Tool =
    Tool { probe: "cargo xtask servers-there", install: "cargo xtask servers-install" };

/// The clients of LLM providers beyond one of each dialect.
const SDKS: Tool = Tool { probe: "cargo xtask sdks-there", install: "cargo xtask sdks-install" };

const LINT: &[Step] = &[
    step("format", "cargo fmt --all --check"),
    step("fuzz fmt", "cargo fmt --check --manifest-path fuzz/Cargo.toml"),
    step("clippy", "cargo clippy --workspace --all-targets -- -D warnings"),
    step("doc", "cargo doc --workspace --no-deps").env(&[("RUSTDOCFLAGS", "-D warnings")]),
];
const DENY: &[Step] = &[
    // The graph has the crates of every platform, and the check is offline.
    step("fetch", "cargo fetch"),
    step("deny", "cargo deny --offline check bans licenses sources").needs(DENY_TOOL),
];
const TEST: &[Step] = &[
    step("servers", "cargo xtask servers-there").needs(SERVERS),
    step("test", "cargo nextest run --workspace --profile ci").needs(NEXTEST),
    step("doc test", "cargo test --doc --workspace"),
    step("python", "cargo xtask python"),
    step("node", "cargo xtask node"),
    step("shuttle", "cargo test -p tollgate --test shuttle --release").env(&[
        ("RUSTFLAGS", "--cfg tollgate_shuttle"),
        // Other flags mean other artefacts: keep them from replacing the usual ones.
        ("CARGO_TARGET_DIR", "target/shuttle"),
    ]),
];
const FUZZ: &[Step] = &[
    // It has a lock file of its own, which nothing else keeps up to date.
    step("fuzz lock", "cargo fetch --locked --manifest-path fuzz/Cargo.toml"),
    step("fuzz", "cargo xtask fuzz"),
];
/// What takes too long for every change: each feature alone, every LLM client, many seeds, long fuzzing, the release build.
const LONG: &[Step] = &[
    step("features", "cargo xtask features"),
    step("sdks", "cargo nextest run --workspace --profile sdks").needs(SDKS),
    step("seeds", "cargo xtask sim --seeds 5000"),
    step("fair waiting", "cargo nextest run --workspace --profile ci --test gates queue::fair")
        .env(&[("TOLLGATE_SEEDS", "2000")])
        .needs(NEXTEST),
    step("long fuzz", "cargo xtask fuzz --seconds 120"),
    step("release", "cargo build --release"),
    step("wheel", "cargo xtask python-wheel"),
    step("tarball", "cargo xtask node-tarball"),
];
const BENCH: &[Step] = &[step("bench", "cargo run --release -p tollgate-bench").needs(SERVERS)];

const TASKS: &[Task] = &[
    Task { name: "lint", about: "format, clippy, documentation", steps: &[LINT] },
    Task { name: "deny", about: "bans, licences, sources of dependencies", steps: &[DENY] },
    Task {
        name: "test",
        about: "all tests, doc tests, shuttle tests; installs missing servers",
        steps: &[TEST],
    },
    Task {
        name: "bench",
        about: "the benchmarks, or those that are named: bench redis rows",
        steps: &[BENCH],
    },
    Task {
        name: "ci",
        about: "what CI runs: lint, deny, test, fuzz",
        steps: &[LINT, DENY, TEST, FUZZ],
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = match arguments.as_slice() {
        [] => "help",
        [name, words @ ..] if name == "fuzz" => return fuzz::run(words),
        [name, words @ ..] if name == "node" => return packages::node(words),
        [name, words @ ..] if name == "python" => return packages::python(words),
        [name] => name.as_str(),
        [name, word] if name == "services" => return servers::services(word),
        [name, flag] if name == "ci" && flag == "--long" => {
            let steps = [LINT, DENY, TEST, FUZZ, LONG];
            return run::all(steps.into_iter().flatten(), &[]);
        }
        [name, words @ ..] if name == "bench" => return run::all(BENCH.iter(), words),
        [name, words @ ..] if name == "sim" => return sim(words),
        [_, extra, ..] => return usage_error(&format!("unexpected argument {extra:?}")),
    };
    if matches!(name, "help" | "-h" | "--help") {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    match name {
        "features" => return features::run(),
        "node-tarball" => return packages::node_tarball(),
        "python-wheel" => return packages::python_wheel(),
        "servers-there" => return servers::report(),
        "servers-install" => return servers::install(),
        "sdks-there" => return servers::report_sdks(),
        "sdks-install" => return servers::install_sdks(),
        "services" => return servers::services("up"),
        _ => {}
    }
    match TASKS.iter().find(|task| task.name == name) {
        Some(task) => run::all(task.steps.iter().copied().flatten(), &[]),
        None => usage_error(&format!("no task is called {name:?}")),
    }
}

/// Simulated runs: in release, since a long mode runs a hundred thousand of them.
fn sim(words: &[String]) -> ExitCode {
    let mut command =
        step::command("cargo run --quiet --release -p tollgate-conformance --example sim --");
    match command.args(words).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => usage_error(&format!("could not start cargo: {error}")),
    }
}

fn help() -> String {
    let mut text = String::from("usage: cargo xtask TASK\n\n");
    for task in TASKS {
        text += &format!("  {:<6} {}\n", task.name, task.about);
    }
    text + "  ci --long  the same, each feature alone, every LLM client, thousands of seeds, long fuzzing and the release build\n  features  each feature of each crate alone\n  sim SEED [--strategy NAME] [--charges one|several]  repeats one simulated run with its trace; sim --seeds N runs many\n  fuzz [TARGET] [--seconds N]  every fuzz target, or one, for 20 seconds or as many\n  python [ARGUMENT...]  the Python package: types, and pytest with the arguments; python-wheel builds its release\n  node [FILE...]  the Node package: tsc, and its tests or those in the files; node-tarball builds its release\n  services up|down  real servers for work by hand, until down\n  help   this text\n"
}

fn usage_error(problem: &str) -> ExitCode {
    eprint!("xtask: {problem}\n\n{}", help());
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name is typed by hand, so it must mean one task, and `help` must list it.
    #[test]
    fn task_names_are_unique_and_listed() {
        for (index, task) in TASKS.iter().enumerate() {
            assert!(TASKS[..index].iter().all(|other| other.name != task.name), "{}", task.name);
            assert!(help().contains(task.about), "{}", task.name);
        }
    }

    /// What a failure tells the reader to repeat is what ran, variables included.
    #[test]
    fn a_step_prints_as_the_command_to_repeat() {
        let step = step("x", "cargo test").env(&[("RUSTFLAGS", "--cfg a"), ("B", "c")]);
        assert_eq!(step.to_string(), "RUSTFLAGS='--cfg a' B=c cargo test");
    }
}
