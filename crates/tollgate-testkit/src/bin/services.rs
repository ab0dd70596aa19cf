//! `cargo xtask services up|down`: the servers of the tests for work by hand.
//!
//! `up FOLDER` starts a process that holds them and returns when all answer; `down FOLDER` asks that process to end, by
//! its id, and it stops each server by its own. The holder keeps a file of the folder locked, so a stale process id
//! is never taken for it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line prints")]

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tollgate_testkit::servers::{DynamoDb, Fault, Postgres, Redis, RedisCluster};

/// The output of `up`; written last.
const READY: &str = "ready";
/// Locked by the holder, with its process id inside.
const HOLDER: &str = "holder";

/// An example policy, appended to each configuration.
const POLICY: &str = r#"
[[policy]]
name = "video-requests"
limits = [{ name = "daily", unit = "requests", rule = "rolling-window", limit = 5, window = "24h" }]
"#;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["up", folder] => up(&PathBuf::from(folder)),
        ["down", folder] => down(&PathBuf::from(folder)),
        ["hold", folder] => hold(&PathBuf::from(folder)),
        _ => Err(Fault::new("usage: services up|down FOLDER")),
    };
    match done {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(fault) => {
            eprintln!("services: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn up(folder: &Path) -> Result<String, Fault> {
    fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    if holder(folder)?.is_some() {
        return Err(Fault::new(
            "the services are up already; stop them with cargo xtask services down",
        ));
    }
    let ready = folder.join(READY);
    if ready.exists() {
        fs::remove_file(&ready).map_err(|error| failed(&ready, &error))?;
    }
    let log = folder.join("log");
    let open = |path: &Path| File::create(path).map_err(|error| failed(path, &error));
    let program = std::env::current_exe().map_err(|error| failed(folder, &error))?;
    let mut holding = Command::new(program)
        .args(["hold".as_ref(), folder.as_os_str()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(open(&log)?)
        // Keeps signals of the terminal away.
        .process_group(0)
        .spawn()
        .map_err(|error| failed(folder, &error))?;
    loop {
        if let Ok(text) = fs::read_to_string(&ready) {
            return Ok(text);
        }
        if holding.try_wait().map_err(|error| failed(folder, &error))?.is_some() {
            return Err(Fault::new(fs::read_to_string(&log).unwrap_or_default()));
        }
        nap();
    }
}

fn down(folder: &Path) -> Result<String, Fault> {
    let Some(id) = holder(folder)? else { return Ok("nothing was up".to_owned()) };
    kill_process(id, Signal::TERM).map_err(|error| failed(folder, &error.into()))?;
    while holder(folder)?.is_some() {
        nap();
    }
    Ok("stopped".to_owned())
}

/// Returns the process that holds the servers of `folder`.
fn holder(folder: &Path) -> Result<Option<Pid>, Fault> {
    let path = folder.join(HOLDER);
    let Ok(file) = File::open(&path) else { return Ok(None) };
    if file.try_lock().is_ok() {
        return Ok(None);
    }
    let text = fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
    let id = text.parse().ok().and_then(Pid::from_raw);
    id.map(Some).ok_or_else(|| Fault::new(format!("{} holds no process id", path.display())))
}

/// Starts the servers, writes their configurations, and waits for SIGTERM.
fn hold(folder: &Path) -> Result<String, Fault> {
    let path = folder.join(HOLDER);
    let lock = File::options().create(true).append(true).open(&path);
    let lock = lock.map_err(|error| failed(&path, &error))?;
    lock.try_lock().map_err(|_| Fault::new("the services are up already"))?;
    fs::write(&path, std::process::id().to_string()).map_err(|error| failed(&path, &error))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(folder, &error))?;
    // From here on the signal to end is heard, also by a holder that still starts.
    let mut end = runtime
        .block_on(async { signal(SignalKind::terminate()) })
        .map_err(|error| failed(folder, &error))?;
    let (redis, cluster) = (Redis::start()?, RedisCluster::start()?);
    let (postgres, dynamodb) = (Postgres::start()?, DynamoDb::start()?);
    let snippets = [
        ("redis", redis.snippet()),
        ("redis-cluster", cluster.snippet()),
        ("postgres", postgres.snippet()),
        ("dynamodb", dynamodb.snippet()),
    ];
    let mut text = String::new();
    for (name, snippet) in snippets {
        let file = folder.join(format!("{name}.toml"));
        fs::write(&file, format!("{snippet}{POLICY}")).map_err(|error| failed(&file, &error))?;
        text += &format!("# {}\n{snippet}\n", file.display());
    }
    text += &format!(
        "try: tollgate --config {}/redis.toml acquire video-requests alice\n\
         DynamoDB: export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test, then once: \
         tollgate --config {0}/dynamodb.toml dynamodb create-table\n\
         stop with: cargo xtask services down",
        folder.display()
    );
    // Renamed into place, so that it is never read half written.
    let (half, ready) = (folder.join("half"), folder.join(READY));
    fs::write(&half, text).map_err(|error| failed(&half, &error))?;
    fs::rename(&half, &ready).map_err(|error| failed(&ready, &error))?;
    runtime.block_on(end.recv());
    drop((redis, cluster, postgres, dynamodb));
    Ok(String::new())
}

fn failed(path: &Path, error: &std::io::Error) -> Fault {
    Fault::new(format!("{}: {error}", path.display()))
}

#[expect(clippy::disallowed_methods, reason = "another process starts or ends")]
fn nap() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}
