//! `tollgate drs`, against a fake of the service on real connections.

mod alerts;
mod concurrent_recovery;
mod outage;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;

use serde_json::Value;
use tokio::runtime::Runtime;
use tollgate::Span;
use tollgate::clock::SystemClock;
use tollgate_testkit::fakes::drs::{Chances, FakeDrs, Fault, Server, Settings};
use tollgate_testkit::servers::eventually;

use crate::folder::{Folder, Ran};

/// A configuration has one, whatever else it is for.
pub(crate) const POLICY: &str = r#"
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 20, refill = "10/s" }]
"#;

/// The service on a port, and a folder with a list of its servers.
pub(crate) struct World {
    pub(crate) folder: Folder,
    pub(crate) server: Server,
    pub(crate) runtime: Runtime,
}

impl World {
    pub(crate) fn new(settings: Settings) -> Self {
        let runtime = Runtime::new().expect("a runtime starts");
        let servers = settings.servers;
        let fake = Arc::new(FakeDrs::new(Arc::new(SystemClock), settings));
        let server = runtime.block_on(Server::start(fake, 0)).expect("a port is free");
        let folder = Folder::new();
        let ids: Vec<String> = (0..servers).map(FakeDrs::server_id).collect();
        folder.write("servers.txt", &format!("# all of them\n{}\n", ids.join("\n")));
        Self { folder, server, runtime }
    }

    pub(crate) fn fake(&self) -> &FakeDrs {
        self.server.fake()
    }

    pub(crate) fn arguments(&self, arguments: &str) -> String {
        format!("drs {arguments} --region eu-central-1 --endpoint {}", self.server.endpoint())
    }

    pub(crate) fn run(&self, arguments: &str) -> Ran {
        self.folder.run(&self.arguments(arguments))
    }

    pub(crate) fn json(&self, arguments: &str) -> (i32, Value) {
        self.folder.json(&self.arguments(arguments))
    }
}

pub(crate) fn quick() -> Settings {
    Settings {
        servers: 230,
        pending_for: Span::from_millis(100),
        running_for: Span::from_millis(200),
        ..Settings::default()
    }
}

/// R001.7, R001.9: throttled, broken and lost answers, and yet every server is recovered once, within the rate.
#[test]
fn r001_7_a_recovery_survives_throttling_within_the_rate() {
    let chances = Chances { throttled: 10, broken: 5, cut_after: 5, seed: 7 };
    let failing = [FakeDrs::server_id(3)].into();
    let world = World::new(Settings { chances, failing, rate: Some((40, 40)), ..quick() });
    world.fake().start_foreign_jobs(2);
    let recover = "recover --servers servers.txt --drill --yes --poll 200ms --rate 4 --burst 2";
    let (code, report) = world.json(recover);
    assert_eq!(
        (code, &report["tally"]["launched"], &report["tally"]["failed"]),
        (1, &229.into(), &1.into()),
        "{report}"
    );
    let failed = &report["servers"][FakeDrs::server_id(3)]["failed"]["why"];
    assert!(failed.as_str().is_some_and(|why| why.contains("FAILED")), "{failed}");
    // Three jobs for 230 servers, however many answers were lost.
    assert_eq!(world.fake().jobs_started(), 2 + 3);
    assert_eq!(world.fake().arrivals().over(4, 2, Span::from_secs(1)), None);
}

#[test]
fn a_dry_run_shows_the_waves_and_starts_nothing() {
    let world = World::new(quick());
    let ran = world.run("recover --servers servers.txt --dry-run");
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.out.starts_with("recovery of 230 servers in eu-central-1, as 3 jobs:\n"),
        "{}",
        ran.out
    );
    assert!(ran.out.ends_with("0 of 20 jobs are under way; nothing was started\n"), "{}", ran.out);
    assert_eq!(world.fake().jobs_started(), 0);
}

#[test]
fn mistakes_are_named_and_start_nothing() {
    let world = World::new(quick());
    world.folder.write("wrong.txt", "s-00000000000000001\n\nserver-7 # no id\n");
    let cases = [
        (
            "recover --servers wrong.txt --yes",
            "wrong.txt:3: \"server-7\" is not an id; an id is s- and 17 hexadecimal digits",
        ),
        ("recover --servers none.txt --yes", "none.txt cannot be read"),
        ("recover --yes", "no ids were given; name some, as in s-0123456789abcdef0"),
        (
            "recover s-fffffffffffffffff --yes",
            "1 of 1 servers are unknown in eu-central-1: s-fffffffffffffffff",
        ),
        ("recover --servers servers.txt", "standard input is not a terminal; pass --yes"),
        ("recover --resume", "there is nothing to go on with: no file tollgate-recovery.json"),
        ("recover --servers servers.txt --yes --poll 1ms", "--poll 1ms is too short"),
        ("recover --servers servers.txt --yes --rate 0", "rate"),
        ("terminate --yes", "there is nothing to terminate"),
        ("jobs drsjob-1", "there is no job drsjob-1"),
    ];
    for (arguments, wanted) in cases {
        let ran = world.run(arguments);
        assert_eq!(ran.code, 2, "{arguments}: {}", ran.out);
        assert!(ran.err.contains(wanted), "{arguments}: {}", ran.err);
    }
    assert_eq!(world.fake().jobs_started(), 0);
    let nowhere = world.folder.run("drs capacity");
    assert!(nowhere.err.contains("no region; name one with --region"), "{}", nowhere.err);
    let broker = world.run("capacity --server http://127.0.0.1:1");
    assert!(broker.err.contains("leave --server out"), "{}", broker.err);
}

/// Killed while the answer to a start is under way, and gone on with: no job is started twice.
#[test]
fn an_interrupted_recovery_goes_on_and_starts_nothing_twice() {
    let world = World::new(quick());
    for started in 1..=3 {
        world.fake().inject(Some("StartRecovery"), 1, Fault::SilentAfter);
        let how = if started == 1 { "--servers servers.txt --yes" } else { "--resume" };
        let arguments = world.arguments(&format!("recover {how} --poll 200ms"));
        let mut command = world.folder.command(&arguments);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        eventually(|| (world.fake().jobs_started() == started).then_some(()))
            .expect("it starts a job");
        child.kill().expect("it runs");
        child.wait().expect("it was started here");
        let again = world.run("recover --servers servers.txt --yes");
        assert!(
            again.err.contains("has a recovery that is not over; go on with --resume"),
            "{}",
            again.err
        );
    }
    let (code, report) = world.json("recover --resume --poll 200ms");
    assert_eq!((code, &report["tally"]["launched"]), (0, &230.into()), "{report}");
    assert_eq!(world.fake().jobs_started(), 3);
}

#[test]
fn servers_jobs_and_capacity_are_listed_and_instances_terminated() {
    let world = World::new(Settings { servers: 2, ..quick() });
    let first = FakeDrs::server_id(0);
    assert!(world.run("servers").out.contains(&first));
    assert_eq!(world.run("jobs").out, "there are no jobs\n");
    world.fake().start_foreign_jobs(18);
    let full = world.run("capacity");
    assert_eq!(
        (full.code, &*full.out),
        (1, "18 of 20 jobs, 2 free: a new job waits until there are fewer than 18\n")
    );
    world.fake().end_foreign_jobs(18);
    assert_eq!(world.json("capacity").1["availableSlots"], 20);
    let done = world.run("recover --servers servers.txt --yes --poll 200ms");
    assert_eq!(
        (done.code, done.out.lines().last()),
        (0, Some("2 launched, 0 launching, 0 waiting, 0 failed")),
        "{}",
        done.err
    );
    let (_, jobs) = world.json("jobs");
    let id = jobs["jobs"].as_array().and_then(|jobs| jobs.iter().find(|job| job["launched"] == 2));
    let id = id.and_then(|job| job["id"].as_str()).expect("the job is listed");
    assert!(world.run(&format!("jobs {id}")).out.contains("JOB_END"));
    let plan = world.run("terminate --servers servers.txt --dry-run");
    assert!(plan.out.starts_with("2 recovery instances would be terminated:"), "{}", plan.out);
    let ended = world.run("terminate --servers servers.txt --yes");
    assert!(
        ended.out.starts_with("2 recovery instances are being terminated by drsjob-"),
        "{}",
        ended.out
    );
}

/// R001.10: what a command called is published when it ends.
#[test]
fn r001_10_calls_of_a_command_are_published_as_configured() {
    let world = World::new(Settings { servers: 2, ..quick() });
    let collector = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = collector.local_addr().expect("it listens");
    world.folder.write(
        "tollgate.toml",
        &format!(
            "[telemetry]\notlp = {{ endpoint = \"http://{address}\", interval = \"1h\" }}\n{POLICY}"
        ),
    );
    let published = std::thread::spawn(move || {
        let mut all = String::new();
        while !all.contains("DescribeSourceServers") {
            let (stream, _) = collector.accept().expect("a client publishes");
            all += &one_request(stream);
        }
        all
    });
    let ran = world.run("servers");
    assert_eq!(ran.code, 0, "{}", ran.err);
    let published = published.join().expect("it was published");
    assert!(published.contains("drs.api_calls"), "{published}");
}

/// The body of a request, which is answered.
fn one_request(stream: TcpStream) -> String {
    let mut stream = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).expect("the head is text");
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length is a number");
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).expect("the body is whole");
    let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
    stream.into_inner().write_all(answer).expect("it can be answered");
    String::from_utf8(body).expect("the body is text")
}
