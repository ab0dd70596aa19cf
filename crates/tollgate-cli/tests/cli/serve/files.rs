//! Many connections on few open files.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use crate::folder::{Folder, binary};
use crate::running::Broker;

/// A limit of open files is raised as far as it may be, and connections leave enough of it to the store.
#[test]
fn silent_connections_leave_files_for_the_store() {
    let folder = Folder::new();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -Sn 100; ulimit -Hn 160; exec \"$0\" \"$@\""]);
    shell.arg(binary()).current_dir(folder.path());
    shell.args("serve --http 127.0.0.1:0 --resp 127.0.0.1:0 --grpc off".split(' '));
    let broker = Broker::of(&mut shell);
    let limits = broker.proc("limits");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    assert_eq!(files.split_whitespace().filter(|word| *word == "160").count(), 2, "{files}");
    let resp = broker.resp.as_ref().expect("it is on");
    let mut silent: Vec<_> = (0..170).map(|_| TcpStream::connect(resp).expect("a place")).collect();
    silent[0].write_all(b"PING\r\n").expect("it is taken");
    silent[0].read_exact(&mut [0; 7]).expect("it is answered");
    for subject in ["u1", "u2"] {
        let (code, body) = folder.json(&format!("acquire api {subject} --server {}", broker.url));
        assert_eq!(code, 0, "{body}");
    }
}
