//! `tollgate drs recover` beside another one: no server is started twice.

use std::process::{Child, Command, Stdio};

use serde_json::json;
use tollgate::Span;
use tollgate_testkit::fakes::drs::{FakeDrs, Fault, Settings};
use tollgate_testkit::servers::{Redis, eventually};

use crate::drs::{POLICY, World, quick};
use crate::folder::Folder;

const RECOVER: &str = "recover --servers servers.txt --yes --poll 200ms";

/// Starts a recovery that waits for the answer to its first start, which is not carried out.
fn stuck(world: &World, arguments: &str) -> Child {
    world.fake().inject(Some("StartRecovery"), 1, Fault::Silent);
    let mut command = world.folder.command(&world.arguments(arguments));
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let is_sent = || (0 < world.fake().arrivals().count("StartRecovery")).then_some(());
    eventually(is_sent).expect("it starts a job");
    child
}

#[test]
fn a_second_command_on_the_same_state_file_is_refused_by_the_process_that_has_it() {
    let world = World::new(quick());
    let mut first = stuck(&world, RECOVER);
    let wanted = format!(
        "tollgate: process {} is working on the recovery in tollgate-recovery.json; wait for it, or stop it",
        first.id()
    );
    for arguments in [RECOVER, "recover --resume --poll 200ms"] {
        let second = world.run(arguments);
        assert_eq!(second.code, 2, "{arguments}: {}", second.out);
        assert!(second.err.starts_with(&wanted), "{arguments}: {}", second.err);
    }
    first.kill().expect("it runs");
    first.wait().expect("it was started here");
    let (code, report) = world.json("recover --resume --poll 200ms");
    assert_eq!((code, &report["tally"]["launched"]), (0, &230.into()), "{report}");
    assert_eq!(world.fake().jobs_started(), 3);
}

/// Two machines share nothing but the store.
#[test]
fn a_second_machine_is_refused_by_the_lease_in_the_shared_store() {
    let redis = Redis::start().expect("a server starts");
    let config = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n{POLICY}", redis.url());
    let world = World::new(quick());
    let other = Folder::with(&config);
    world.folder.write("tollgate.toml", &config);
    let ids: Vec<String> = (0..230).map(FakeDrs::server_id).collect();
    other.write("servers.txt", &ids.join("\n"));
    let recover = format!("{RECOVER} --shared");
    let mut first = stuck(&world, &recover);
    let second = other.run(&world.arguments(&recover));
    assert_eq!(second.code, 2, "{}", second.out);
    assert!(
        second.err.contains("another process recovers these servers and has their lease"),
        "{}",
        second.err
    );
    assert_eq!(world.fake().jobs_started(), 0);
    let stop = Command::new("kill").arg("-INT").arg(first.id().to_string()).status();
    assert!(stop.expect("kill runs").success());
    first.wait().expect("it was started here");
    let second = other.run(&world.arguments(&recover));
    assert_eq!(second.code, 0, "{}", second.err);
    assert_eq!(world.fake().jobs_started(), 3);
}

#[test]
fn servers_that_are_being_launched_are_refused_and_recent_ones_warned_of() {
    let world = World::new(Settings { servers: 2, running_for: Span::from_secs(3), ..quick() });
    let server = json!({ "sourceServers": [{ "sourceServerID": FakeDrs::server_id(1) }] });
    world.fake().handle("StartRecovery", server.to_string().as_bytes());
    let refused = world.run("recover --servers servers.txt --yes");
    assert_eq!(refused.code, 2, "{}", refused.out);
    assert!(
        refused.err.contains(
            "1 of these servers are being launched by drsjob-00000000000000001; nothing was started"
        ),
        "{}",
        refused.err
    );
    eventually(|| (world.fake().active_jobs() == 0).then_some(())).expect("the job ends");
    let warning = "warning: 1 of these servers were recovered within the last hour, the last ";
    let looked = world.run("recover --servers servers.txt --dry-run");
    assert!(looked.out.contains(warning), "{}", looked.out);
    assert_eq!(world.fake().jobs_started(), 1);
    let done = world.run(RECOVER);
    assert_eq!((done.code, world.fake().jobs_started()), (0, 2), "{}", done.err);
    assert!(done.err.starts_with(warning), "{}", done.err);
}

/// Commands of one user share one bucket, whether they follow each other or run at once.
#[test]
fn commands_of_one_user_share_the_burst() {
    let world = World::new(quick());
    let servers = world.arguments("servers --rate 2 --burst 5");
    let start = || {
        let mut command = world.folder.command(&servers);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    for child in [start(), start()] {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(world.run("servers --rate 2 --burst 5").code, 0);
    let arrivals = world.fake().arrivals();
    assert_eq!(arrivals.count("DescribeSourceServers"), 15);
    assert_eq!(arrivals.over(2, 5, Span::from_millis(500)), None);
}
