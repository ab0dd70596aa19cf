//! The launcher of real servers: what a fault test relies on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use tollgate_testkit::servers::{
    Append, Fault, Ministack, Port, Process, Program, Redis, RedisCluster,
};

/// How long a server that runs may take on a busy machine, and how long one is looked at that does not.
const RUNS: Duration = Duration::from_secs(30);
const STANDS: Duration = Duration::from_millis(50);

/// Sends PING and says whether PONG came in time.
fn answers(redis: &mut Redis, within: Duration) -> bool {
    let Ok(mut stream) = TcpStream::connect(redis.process().address()) else { return false };
    let mut reply = [0; 7];
    stream.set_read_timeout(Some(within)).expect("a timeout above zero");
    stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut reply).is_ok()
}

/// A paused server accepts and does not answer, a killed one does not accept; both come back where they were.
#[test]
fn a_server_stops_pauses_dies_and_comes_back() -> Result<(), Fault> {
    let mut redis = Redis::start()?;
    let (url, first) = (redis.url(), redis.process().id());
    assert!(answers(&mut redis, RUNS));
    redis.process().pause()?;
    assert!(!answers(&mut redis, STANDS));
    redis.process().resume()?;
    assert!(answers(&mut redis, RUNS));
    redis.process().kill()?;
    assert!(!answers(&mut redis, STANDS));
    redis.process().restart()?;
    assert!(answers(&mut redis, RUNS));
    assert_eq!(redis.url(), url);
    assert_ne!(redis.process().id(), first);
    redis.process().stop()?;
    assert_eq!(redis.process().id(), None);
    Ok(())
}

/// What a server wrote to its folder is there after a crash.
#[test]
fn a_restart_finds_the_folder_again() -> Result<(), Fault> {
    let mut redis = Redis::start_with(Append::Always, "")?;
    redis.command(&["set", "kept", "yes"])?;
    redis.process().kill()?;
    redis.process().restart()?;
    assert_eq!(redis.command(&["get", "kept"])?, "yes\n");
    Ok(())
}

#[test]
fn a_dropped_server_is_gone_with_its_folder() -> Result<(), Fault> {
    let mut redis = Redis::start()?;
    let (address, folder) = (redis.process().address(), redis.process().folder().to_owned());
    drop(redis);
    assert!(TcpStream::connect(address).is_err());
    assert!(!folder.exists());
    Ok(())
}

#[test]
fn three_nodes_join_to_a_cluster() -> Result<(), Fault> {
    let cluster = RedisCluster::start()?;
    assert_eq!(cluster.urls().len(), 3);
    assert!(cluster.command(2, &["cluster", "info"])?.contains("cluster_slots_ok:16384"));
    Ok(())
}

/// It answers for several services on one port of loopback, and ends with its value.
#[test]
fn ministack_serves_aws() -> Result<(), Fault> {
    let mut ministack = Ministack::start()?;
    let address = ministack.process().address();
    assert_eq!(ministack.endpoint(), format!("http://{address}"));
    let mut stream = TcpStream::connect(address).unwrap();
    let ask = b"GET /_ministack/health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(ask).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    for service in
        ["dynamodb", "monitoring", "sns", "sqs", "sts", "states", "lambda", "cloudformation"]
    {
        assert!(answer.contains(&format!("\"{service}\": \"available\"")), "{service}: {answer}");
    }
    drop(ministack);
    assert!(TcpStream::connect(address).is_err());
    Ok(())
}

fn services(word: &str, folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_services"));
    command.arg(word).arg(folder).output().expect("the program starts")
}

/// Every address of a text, as in `redis://127.0.0.1:16379/`.
fn addresses(text: &str) -> Vec<&str> {
    let end = |c: char| !c.is_ascii_digit() && c != ':' && c != '.';
    text.match_indices("127.0.0.1:").filter_map(|(at, _)| text[at..].split(end).next()).collect()
}

/// `cargo xtask services up` says where four kinds of servers are, once; `down` stops all of them.
#[test]
fn services_go_up_and_down() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = services("down", folder.path());
    assert_eq!(String::from_utf8_lossy(&nothing.stdout), "nothing was up\n");
    let up = services("up", folder.path());
    let text = String::from_utf8(up.stdout).unwrap();
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    for word in ["kind = \"redis\"", "cluster = true", "kind = \"postgres\"", "kind = \"dynamodb\""]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
    let addresses = addresses(&text);
    assert_eq!(addresses.len(), 6, "{text}");
    let answering = || addresses.iter().filter(|at| TcpStream::connect(at).is_ok()).count();
    assert_eq!(answering(), 6);
    let again = services("up", folder.path());
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("up already"));
    assert!(services("down", folder.path()).status.success());
    assert_eq!(answering(), 0);
}

/// A missing server is an error that says what to do, never a skip.
#[test]
fn a_missing_binary_names_the_command_that_installs_it() -> Result<(), Fault> {
    let folder = tempfile::tempdir().unwrap();
    let missing = Process::start(Program::new("no-such-server"), Port::free()?, folder);
    let text = missing.unwrap_err().to_string();
    assert!(text.contains("no-such-server is not installed; `cargo xtask test`"), "{text}");
    Ok(())
}

/// A server that ends at once says why.
#[test]
fn a_server_that_ends_shows_its_log() {
    let text = Redis::start_with(Append::Never, "--no-such-option 1").unwrap_err().to_string();
    assert!(text.contains("no-such-option"), "{text}");
}
