//! Two brokers on one Redis under load, one of them killed: callers ask the other again under the same id, and in all exactly
//! the limit is admitted.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tollgate_testkit::servers::Redis;

use crate::folder::Folder;
use crate::running::Broker;
use crate::strategies::Caller;

/// Fewer than the ids that a store remembers of a subject.
const LIMIT: u64 = 900;

/// Callers at each broker, by each protocol.
const CALLERS: u64 = 2;

/// How often a caller is refused before it goes.
const REFUSALS: u64 = 10;

fn on(redis: &Redis) -> Folder {
    let store = redis.snippet();
    let limit = format!(
        r#"{{ name = "hourly", unit = "requests", rule = "rolling-window", limit = {LIMIT}, window = "1h" }}"#
    );
    Folder::with(&format!("{store}[[policy]]\nname = \"hot\"\nlimits = [{limit}]\n"))
}

/// A connection over which asks are sent. An ask returns whether it was admitted, or nothing if the broker is gone.
pub(crate) enum Connection {
    Http(Box<Caller>),
    Resp(TcpStream),
}

impl Connection {
    pub(crate) fn http(broker: &Broker) -> Self {
        Self::Http(Box::new(Caller::of(broker)))
    }

    pub(crate) fn resp(broker: &Broker) -> Self {
        let address = broker.resp.as_deref().expect("it is on");
        Self::Resp(TcpStream::connect(address).expect("it listens"))
    }

    fn ask(&mut self, id: &str) -> Option<bool> {
        let body = json!({ "policy": "hot", "subject": "alice", "id": id });
        self.send(&body, &format!("TG.ACQUIRE hot alice ID {id}"))
    }

    /// Sends an ask, which is `body` over HTTP and `words` over the Redis protocol.
    pub(crate) fn send(&mut self, body: &Value, words: &str) -> Option<bool> {
        match self {
            Self::Http(caller) => {
                let (status, body) = caller.post("/v1/acquire", body)?;
                assert!(status == 200 || status == 429, "{body}");
                Some(status == 200)
            }
            Self::Resp(stream) => {
                // The second answer says that the first one is whole.
                stream.write_all(format!("{words}\r\nPING\r\n").as_bytes()).ok()?;
                let (mut text, mut bytes) = (String::new(), [0; 4_096]);
                while !text.ends_with("+PONG\r\n") {
                    let read = stream.read(&mut bytes).ok().filter(|read| 0 < *read)?;
                    text += &String::from_utf8_lossy(&bytes[..read]);
                }
                assert!(text.contains("$8\r\nadmitted\r\n:"), "{text}");
                Some(text.contains("$8\r\nadmitted\r\n:1\r\n"))
            }
        }
    }
}

/// Returns how many asks are admitted in all by `goes`, which is killed, and `stays`.
fn one_is_killed([stays, goes]: [&Broker; 2]) -> u64 {
    let (admitted, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    let loads = |name: &str, mut line: Connection, mut other: Option<Connection>| {
        let (mut number, mut refused) = (0, 0);
        // Who asks the one that goes stays until it is gone, so that it is always killed under load.
        while other.is_some() || refused < REFUSALS {
            let id = format!("{name}-{number}");
            match line.ask(&id) {
                Some(true) => drop(admitted.fetch_add(1, Ordering::SeqCst)),
                Some(false) => refused += 1,
                // Whatever came of it, the other broker says so under the same id.
                None => {
                    line = other.take().expect("only one of them was killed");
                    continue;
                }
            }
            answered.fetch_add(u64::from(other.is_some()), Ordering::SeqCst);
            number += 1;
        }
    };
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let loads = &loads;
            for (protocol, open) in [
                ("http", Connection::http as fn(&Broker) -> Connection),
                ("resp", Connection::resp),
            ] {
                let (one, [first, then]) = (open(stays), [open(goes), open(stays)]);
                scope.spawn(move || loads(&format!("a-{protocol}-{caller}"), one, None));
                scope.spawn(move || {
                    loads(&format!("b-{protocol}-{caller}"), first, Some(then));
                });
            }
        }
        // The other may admit a tenth before any ask here was answered.
        while admitted.load(Ordering::SeqCst) < LIMIT / 10 || answered.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        goes.kill();
    });
    admitted.into_inner()
}

/// R002.4 and promises 1 and 5.
#[test]
fn r002_4_two_brokers_on_one_redis_with_one_killed_under_load_are_exact() {
    let redis = Redis::start().expect("a server");
    let folder = on(&redis);
    let [stays, goes] = [Broker::start(&folder, ""), Broker::start(&folder, "")];
    let admitted = one_is_killed([&stays, &goes]);
    let (_, body) = folder.json("standing hot alice");
    assert_eq!((admitted, &body["limits"][0]["used"]), (LIMIT, &LIMIT.into()));
    assert_eq!(stays.end("-TERM").0, Some(0));
}

/// The sabotaged variant: brokers that share no store are caught.
#[test]
fn two_brokers_on_two_servers_with_one_killed_are_caught() {
    let servers = [(); 2].map(|()| Redis::start().expect("a server"));
    let folders = servers.each_ref().map(on);
    let brokers = folders.each_ref().map(|folder| Broker::start(folder, ""));
    let admitted = one_is_killed(brokers.each_ref());
    assert!(LIMIT < admitted, "{admitted} admitted");
}
