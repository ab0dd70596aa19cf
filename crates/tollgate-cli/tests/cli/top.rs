//! `tollgate top`: what it says of several charges, and a terminal that is killed under it.

use std::fs::File;
use std::io::Read as _;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OutputModes, tcgetattr};

use crate::dashboard::SEVERAL;
use crate::folder::Folder;
use crate::running::Broker;

/// A killed `top` leaves a terminal that echoes, breaks lines and shows its cursor.
#[test]
fn top_puts_the_terminal_back_when_it_is_killed() {
    let folder = Folder::new();
    let broker = Broker::start(&folder, "");
    for (signal, code) in [("-TERM", 143), ("-HUP", 129), ("-INT", 130)] {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it is ours");
        let name = ptsname(&master, Vec::new()).expect("it has a name");
        let terminal = File::options().read(true).write(true).open(name.to_str().expect("a path"));
        let terminal = terminal.expect("it opens");
        let before = tcgetattr(&terminal).expect("a terminal");
        let mut child = folder
            .command(&format!("top --server {}", broker.url))
            .stdin(Stdio::from(terminal.try_clone().expect("a copy")))
            .stdout(Stdio::from(terminal.try_clone().expect("a copy")))
            .spawn()
            .expect("the binary starts");
        let (mut screen, mut drawn, mut bytes) = (File::from(master), String::new(), [0; 4_096]);
        let mut until = |mark: &str| {
            while !drawn.contains(mark) {
                let read = screen.read(&mut bytes).expect("it draws");
                drawn += &String::from_utf8_lossy(&bytes[..read]);
            }
        };
        until("POLICIES ◂");
        let raw = tcgetattr(&terminal).expect("a terminal");
        assert!(!raw.local_modes.contains(LocalModes::ECHO), "it is raw while top runs");
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        assert_eq!(child.wait().expect("it ends").code(), Some(code), "{signal}");
        until("\u{1b}[?25h\u{1b}[?1049l");
        let after = tcgetattr(&terminal).expect("a terminal");
        assert!(after.local_modes.contains(LocalModes::ECHO | LocalModes::ICANON), "{signal}");
        assert_eq!(after.local_modes, before.local_modes, "{signal}");
        assert_eq!(after.output_modes, before.output_modes, "{signal}");
        assert!(after.output_modes.contains(OutputModes::OPOST), "{signal}");
    }
}

/// A refusal is listed under the charge that refused, waiting asks under their tenant, and everything fits one screen.
#[test]
fn top_names_the_charge_that_refused_and_the_tenants_that_wait() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{SEVERAL}"));
    let broker = Broker::start(&folder, "");
    let server = format!("--server {}", broker.url);
    let asks = [0, 1, 2].map(|_| folder.run(&format!("acquire user:u1 account:all {server}")).code);
    assert_eq!(asks, [0, 0, 1]);
    let mut waiting = folder
        .command(&format!("acquire vip:v1 account:all --wait 5m {server}"))
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let out = loop {
        let ran = folder.run(&format!("top --once {server}"));
        assert_eq!(ran.code, 0, "{}", ran.err);
        if ran.out.contains("WAITING") {
            break ran.out;
        }
    };
    waiting.kill().expect("it runs");
    waiting.wait().expect("it ends");
    assert!(out.lines().count() < 24, "{out}");
    let words = |start: &str| {
        let line = out.lines().find(|line| line.starts_with(start)).expect("a line");
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(words("v1 "), ["v1", "5", "1", "account", "all"]);
    assert_eq!(words("20")[1..4], ["all", "account", "slots"]);
    assert_eq!(words("all ")[..3], ["all", "account", "1"]);
}
