//! A broker in a process of its own, for the tests that need one.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::folder::Folder;

/// How long a test waits for a line of the log.
const LINE_WAIT: Duration = Duration::from_secs(30);

/// A broker that runs, and is ended with the test.
pub(crate) struct Broker {
    child: Child,
    out: BufReader<ChildStdout>,
    /// The lines of its log, unless it goes elsewhere.
    err: Option<Mutex<Receiver<String>>>,
    /// What it printed until it was ready.
    pub(crate) printed: String,
    pub(crate) url: String,
    /// The address of the Redis protocol, if it is on.
    pub(crate) resp: Option<String>,
    /// The url of gRPC, if it is on.
    pub(crate) grpc: Option<String>,
}

impl Broker {
    /// Starts a broker in `folder` on a free port and waits until it said where it is.
    pub(crate) fn start(folder: &Folder, arguments: &str) -> Self {
        Self::start_with(folder, arguments, &[])
    }

    /// The same with variables of the environment.
    pub(crate) fn start_with(folder: &Folder, arguments: &str, env: &[(&str, &str)]) -> Self {
        let grpc = if arguments.contains("--grpc") { "" } else { "--grpc off" };
        let places = format!("--http 127.0.0.1:0 --resp 127.0.0.1:0 {grpc}");
        Self::serve(folder, &format!("{places} {arguments}"), env)
    }

    /// The same where `arguments` say.
    pub(crate) fn serve(folder: &Folder, arguments: &str, env: &[(&str, &str)]) -> Self {
        let mut command = folder.command(&format!("serve {arguments}"));
        Self::of(command.envs(env.iter().copied()))
    }

    /// The broker that `command` starts.
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::logging_to(command, Stdio::piped())
    }

    /// The same with its log going to `stderr`.
    pub(crate) fn logging_to(command: &mut Command, stderr: Stdio) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(stderr).spawn().expect("the binary starts");
        let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
        let err = child.stderr.take().map(lines_of);
        let mut printed = String::new();
        while !printed.ends_with("stops it.\n") {
            let read = out.read_line(&mut printed).expect("the broker prints text");
            let log = || err.iter().flatten().collect::<String>();
            assert_ne!(read, 0, "the broker ended early: {printed}{}", log());
        }
        let place = |name: &str| {
            let found = printed.lines().find_map(|line| line.trim().strip_prefix(name));
            found.map(|place| place.trim().to_owned())
        };
        let (url, resp) = (place("http  ").expect("it says where"), place("resp  "));
        let (grpc, err) = (place("grpc  "), err.map(Mutex::new));
        Self { child, out, err, printed, url, resp, grpc }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it printed until it was ready.
    pub(crate) fn printed(&self) -> &str {
        &self.printed
    }

    /// Ends it in the middle of whatever it does.
    pub(crate) fn kill(&self) {
        self.signal("-KILL");
    }

    /// Sends the signal, waits for the end, and returns the exit status, what else it printed, and its errors.
    pub(crate) fn end(mut self, signal: &str) -> (Option<i32>, String, String) {
        self.signal(signal);
        let status = self.child.wait().expect("the broker ends");
        let mut out = String::new();
        self.out.read_to_string(&mut out).expect("the broker prints text");
        let err = self.err.take().map(|log| log.into_inner().expect("no panic"));
        let err = err.into_iter().flatten().collect();
        (status.code(), out, err)
    }

    /// What the system says about its process in `file`.
    pub(crate) fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).expect("it runs")
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().expect("kill runs");
        assert!(sent.success());
    }

    /// Stops it in its tracks, and waits until it has stopped: on a busy machine its threads go on for a while.
    pub(crate) fn pause(&self) {
        self.signal("-STOP");
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("an id");
        waitid(WaitId::Pid(id), WaitIdOptions::STOPPED).expect("it stops");
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("the broker prints text");
        line
    }

    /// The next line of its log.
    pub(crate) fn error_line(&mut self) -> String {
        let log = self.err.as_mut().expect("the log is piped").get_mut().expect("no panic");
        log.recv_timeout(LINE_WAIT).expect("the broker logs a line")
    }

    /// Reads its log up to a line with `text`, and returns what was read.
    pub(crate) fn log_until(&mut self, text: &str) -> String {
        let mut log = String::new();
        while !log.contains(text) {
            log += &self.error_line();
        }
        log
    }
}

/// The lines of `log`, read as they come: an unread log would block the broker.
pub(crate) fn lines_of(log: ChildStderr) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let mut log = BufReader::new(log);
        loop {
            let mut line = String::new();
            match log.read_line(&mut line) {
                Ok(1..) if sender.send(line).is_ok() => {}
                _ => return,
            }
        }
    });
    lines
}

impl Drop for Broker {
    /// A test that failed leaves no broker behind; one that ended already cannot be ended again.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The whole answer to a request, head and body.
pub(crate) fn get(url: &str, path: &str) -> String {
    get_with(url, path, "")
}

/// The same with further fields, each of which ends its line.
pub(crate) fn get_with(url: &str, path: &str, fields: &str) -> String {
    let address = url.trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).expect("the broker listens");
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).expect("the broker reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the broker answers with text");
    answer
}
