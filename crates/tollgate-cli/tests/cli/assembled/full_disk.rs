//! The disk under an embedded broker is full, and has room again later.

use std::process::Command;

use tollgate_testkit::servers::eventually;

use super::{Assembled, lines};
use crate::running::Broker;

/// The most asks that fill a file of the size that is allowed.
const ASKS_MAX: u32 = 5_000;

/// The broker refuses while nothing can be written, is not ready, and goes on by itself with everything it admitted.
#[test]
fn a_full_disk_stops_the_broker_until_there_is_room() {
    let folder = Assembled::folder("[store]\nkind = \"embedded\"\npath = \"data\"\n");
    let serve = folder.command("serve --http 127.0.0.1:0 --resp off --grpc off");
    // No file may grow beyond a few hundred kilobytes. The signal that would end the process is not ignored here.
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -S -f 400; exec \"$0\" \"$@\""]);
    shell.arg(serve.get_program()).args(serve.get_args()).current_dir(folder.path());
    let assembled = Assembled { broker: Broker::of(&mut shell), folder };
    let mut admitted = Vec::new();
    let full = (0..ASKS_MAX).find_map(|number| {
        let subject = format!("subject-{number}");
        let (status, body) = assembled.ask("five", &subject);
        match status {
            200 => {
                admitted.push(subject);
                None
            }
            _ => Some((status, body)),
        }
    });
    let (status, body) = full.expect("the disk is full at some time");
    assert_eq!((status, &body["kind"]), (503, &"unavailable".into()), "{body}");
    assert!(10 < admitted.len(), "{}", admitted.len());
    let (status, answer) = assembled.ready();
    assert_eq!(status, 503, "{answer}");
    for number in 0..20 {
        let (status, body) = assembled.ask("five", &format!("refused-{number}"));
        assert_eq!(status, 503, "{body}");
    }
    let id = assembled.broker.id().to_string();
    let room = Command::new("prlimit").args(["--pid", &id, "--fsize=unlimited"]).status();
    assert!(room.expect("prlimit runs").success());
    eventually(|| (assembled.ready().0 == 200).then_some(())).expect("it is ready again");
    let used = |subject: &str| {
        let line = format!("standing five {subject} --server {}", assembled.broker.url);
        assembled.folder.json(&line).1["limits"][0]["used"].clone()
    };
    for subject in admitted.iter().take(5).chain(admitted.last()) {
        assert_eq!(used(subject), 1, "{subject} was admitted and forgotten");
    }
    assert_eq!(used("refused-7"), 0, "what failed does not count");
    assembled.admits_five("refused-7");
    let log = assembled.log();
    assert!(log.contains("the store stopped; it is reopened"), "{log}");
    assert!(log.contains("the store is open again"), "{log}");
    assert!(lines(&log, "ERROR") <= 3, "{log}");
}
