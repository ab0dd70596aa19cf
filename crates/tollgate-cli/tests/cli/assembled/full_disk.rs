//! The disk under an embedded broker is full, and has room again later.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use tollgate_testkit::servers::eventually;

use super::{Answers, Assembled, FIVE, ask, lines, note, only};
use crate::running::Broker;
use crate::strategies::Caller;

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

/// A broker whose data folder is a file system of its own, as its process sees it.
struct SmallDisk {
    assembled: Assembled,
    data: PathBuf,
}

impl SmallDisk {
    /// Mounts the file system in a namespace of the process, which needs no rights.
    fn start() -> Self {
        let folder = Assembled::folder("[store]\nkind = \"embedded\"\npath = \"data\"\n");
        fs::create_dir(folder.path().join("data")).expect("a folder");
        let serve = folder.command("serve --http 127.0.0.1:0 --resp off --grpc off");
        let mount = "mount -t tmpfs -o size=12m none data && exec \"$0\" \"$@\"";
        let mut shell = Command::new("unshare");
        shell.args(["--map-root-user", "--mount", "sh", "-c", mount]);
        shell.arg(serve.get_program()).args(serve.get_args()).current_dir(folder.path());
        let broker = Broker::of(&mut shell);
        let path = folder.path().strip_prefix("/").expect("an absolute path").join("data");
        let data = PathBuf::from(format!("/proc/{}/root", broker.id())).join(path);
        Self { assembled: Assembled { broker, folder }, data }
    }

    fn fill(&self) {
        let mut file = File::create(self.data.join("filler")).expect("a file");
        for size in [1 << 16, 1 << 12, 1] {
            while file.write_all(&vec![1; size]).is_ok() {}
        }
    }

    fn empty(&self) {
        fs::remove_file(self.data.join("filler")).expect("the file is there");
    }

    /// Waits until the broker tries to open its folder again; it is never ready meanwhile.
    fn is_tried_again(&self) {
        let opened = || {
            fs::metadata(self.data.join("lock")).and_then(|file| file.modified()).expect("a file")
        };
        let before = opened();
        let again = || {
            let (status, answer) = self.assembled.ready();
            assert_eq!(status, 503, "{answer}");
            (before < opened()).then_some(())
        };
        eventually(again).expect("it is tried again");
    }
}

/// While the disk stays full, the broker is not ready, and no ask is denied for charges that were never written.
#[test]
fn a_disk_that_stays_full_keeps_the_broker_unready() {
    let disk = SmallDisk::start();
    let assembled = &disk.assembled;
    assert_eq!(assembled.ask("five", "hot").0, 200);
    disk.fill();
    // The log of writes has some room left, which other subjects use up.
    let is_refused = |number: &u32| assembled.ask("five", &format!("other-{number}")).0 == 503;
    (0..1_000).find(is_refused).expect("the disk is full");
    let answers = Mutex::<Answers>::default();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| note(&answers, &ask(&Caller::of(&assembled.broker), "five", "hot")));
        }
    });
    let answers = answers.into_inner().expect("no panic");
    assert!(only(&answers, &[(503, "unavailable")]), "{answers:?}");
    // The first attempt has ended when the second begins.
    disk.is_tried_again();
    disk.is_tried_again();
    disk.empty();
    eventually(|| (assembled.ready().0 == 200).then_some(())).expect("it is ready again");
    let admitted = (0..2 * FIVE).filter(|_| assembled.ask("five", "hot").0 == 200).count();
    assert_eq!(u64::try_from(admitted), Ok(FIVE - 1), "only what was admitted counts");
    let log = disk.assembled.log();
    assert_eq!(log.matches("the store is open again").count(), 1, "{log}");
}
