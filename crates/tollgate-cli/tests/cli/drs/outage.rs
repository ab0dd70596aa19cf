//! `tollgate drs` while the service does not answer, and without credentials.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, Stdio};
use std::sync::Arc;

use tokio::runtime::Runtime;
use tollgate::Span;
use tollgate_testkit::fakes::drs::{FakeDrs, Server, Settings};
use tollgate_testkit::servers::eventually;

use crate::drs::{World, quick};
use crate::folder::Folder;

/// A recovery that runs, and the service of which nothing is left but its port.
struct Outage {
    folder: Folder,
    fake: Arc<FakeDrs>,
    endpoint: String,
    child: Child,
    errors: BufReader<ChildStderr>,
}

impl Outage {
    /// Starts a recovery with `flags`, and ends the service once a job was started.
    fn begin(flags: &str) -> Self {
        let world = World::new(Settings { running_for: Span::from_secs(1), ..quick() });
        let recover = format!("recover --servers servers.txt --yes --poll 200ms {flags}");
        let mut command = world.folder.command(&world.arguments(&recover));
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        eventually(|| (0 < world.fake().jobs_started()).then_some(())).expect("it starts a job");
        let World { folder, server, runtime } = world;
        let (fake, endpoint) = (Arc::clone(server.fake()), server.endpoint());
        drop(server);
        // With its runtime go the connections that were open.
        drop(runtime);
        let errors = BufReader::new(child.stderr.take().expect("it is piped"));
        Self { folder, fake, endpoint, child, errors }
    }

    /// The first line that says that the service does not answer.
    fn line(&mut self) -> String {
        let lines = self.errors.by_ref().lines().map(|line| line.expect("it prints text"));
        let mut lines = lines.skip_while(|line| !line.starts_with("DRS does not respond"));
        lines.next().expect("it says that it waits")
    }

    /// The service comes back on its port.
    fn end(&self) -> (Runtime, Server) {
        let port = self.endpoint.rsplit(':').next().and_then(|port| port.parse().ok());
        let runtime = Runtime::new().expect("a runtime starts");
        let server = Server::start(Arc::clone(&self.fake), port.expect("it has a port"));
        let server = runtime.block_on(server).expect("the port is free again");
        (runtime, server)
    }
}

#[test]
fn an_outage_is_waited_out_with_a_visible_line() {
    let mut outage = Outage::begin("");
    let line = outage.line();
    assert!(line.starts_with("DRS does not respond (ConnectionError: "), "{line}");
    assert!(line.contains("); retrying at 20") && line.ends_with("(attempt 2)"), "{line}");
    assert!(!line.contains('{'), "{line}");
    let _service = outage.end();
    let mut rest = String::new();
    outage.errors.read_to_string(&mut rest).expect("it prints text");
    assert!(outage.child.wait().expect("it ends").success(), "{rest}");
    assert_eq!(outage.fake.jobs_started(), 3);
}

#[test]
fn an_outage_that_does_not_end_ends_with_the_command_that_goes_on() {
    let mut outage = Outage::begin("--outage 2s");
    let mut all = String::new();
    outage.errors.read_to_string(&mut all).expect("it prints text");
    assert_eq!(outage.child.wait().expect("it ends").code(), Some(2), "{all}");
    let resume = format!(
        "recover --resume --state tollgate-recovery.json --region eu-central-1 --endpoint {}",
        outage.endpoint
    );
    assert!(all.ends_with(&format!("To go on:\n  tollgate drs {resume}\n")), "{all}");
    assert!(!all.contains("DispatchFailure") && !all.contains('{'), "{all}");
    let _service = outage.end();
    let done = outage.folder.run(&format!("drs {resume} --poll 200ms"));
    assert_eq!((done.code, outage.fake.jobs_started()), (0, 3), "{}", done.err);
}

#[test]
fn missing_credentials_are_one_sentence() {
    let world = World::new(quick());
    let mut command = world.folder.command(&world.arguments("servers"));
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    command.env_remove("AWS_PROFILE").env("HOME", world.folder.path());
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "tollgate: there are no AWS credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run it \
         where a role provides them\n"
    );
}
