//! Requests with two descriptors, one of which refuses, from several callers at once, while the server is killed again and again:
//! the other descriptor is never charged by a refused request.
//!
//! Each request has a descriptor of its caller, with room for all, and one that all callers share. Every admitted request charges
//! both, and no other one charges any, also if its answer was lost. So the charges of all callers add up to that of the shared
//! descriptor, after every kill.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::clock::SystemClock;
use tollgate::{Clock as _, Span};
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tollgate_testkit::servers::Redis;

use super::service::{RateLimitClient, Service, descriptor};
use crate::folder::Folder;
use crate::running::Broker;

/// How often the server is killed.
const LIVES: u64 = 8;

/// Answers in a life before the server is killed.
const ANSWERS: u64 = 80;

/// How long a life may last on a slow machine.
const LIFE_MAX: Span = Span::from_secs(60);

const CALLERS: usize = 6;

/// The limit of a caller, which is never reached.
const ROOM: u32 = 1_000_000;

/// What all callers share, which is used up in the middle of the test.
const SHARED: u32 = 300;

fn limits() -> String {
    format!(
        "
domain: shop
descriptors:
  - {{ key: caller, rate_limit: {{ unit: week, requests_per_unit: {ROOM} }} }}
  - {{ key: shared, rate_limit: {{ unit: week, requests_per_unit: {SHARED} }} }}
"
    )
}

/// A server that can be killed.
trait Life {
    fn port(&self) -> u16;
    fn kill(&self);
}

impl Life for Service {
    fn port(&self) -> u16 {
        self.grpc()
    }

    fn kill(&self) {
        self.signal("-KILL");
    }
}

impl Life for Broker {
    fn port(&self) -> u16 {
        let url = self.grpc.as_ref().expect("it is on");
        url.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a port")
    }

    fn kill(&self) {
        Self::kill(self);
    }
}

#[derive(Clone, Copy, Default)]
struct Caller {
    admitted: u32,
    refused: u32,
    lost: u32,
}

impl Caller {
    /// Asks until the server is gone.
    fn load(&mut self, number: usize, port: u16, answered: &AtomicU64) {
        let (client, name) = (RateLimitClient::new(port), format!("c{number}"));
        loop {
            let own = descriptor([("caller", name.as_str())]);
            let shared = descriptor([("shared", "all")]);
            // Either may come first.
            let both = if number.is_multiple_of(2) { vec![own, shared] } else { vec![shared, own] };
            match client.ask(both).map(|answer| answer.overall_code()) {
                Ok(Code::Ok) => self.admitted += 1,
                Ok(_) => self.refused += 1,
                Err(_) => {
                    self.lost += 1;
                    return;
                }
            }
            answered.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// What is used of a descriptor, without a charge.
fn used(client: &RateLimitClient, key: &str, value: &str) -> u32 {
    let mut looked = descriptor([(key, value)]);
    looked.hits_addend = Some(0);
    let status = client.ask(vec![looked]).expect("an answer").statuses[0].clone();
    status.current_limit.expect("a limit").requests_per_unit - status.limit_remaining
}

/// Returns what is used of the descriptor of each caller, and of the shared one.
fn charges(client: &RateLimitClient) -> ([u32; CALLERS], u32) {
    let shared = || used(client, "shared", "all");
    loop {
        let before = shared();
        let own = std::array::from_fn(|number| used(client, "caller", &format!("c{number}")));
        // A store may still run what the killed server had sent.
        if shared() == before {
            return (own, before);
        }
    }
}

/// Checks the charges of all callers against the shared one, and returns it.
fn check(port: u16, callers: &[Caller; CALLERS]) -> u32 {
    let (own, shared) = charges(&RateLimitClient::new(port));
    for (own, Caller { admitted, lost, .. }) in own.iter().zip(callers) {
        // A lost answer may have been an admission.
        assert!((*admitted..=admitted + lost).contains(own), "{own}, {admitted} and {lost} lost");
    }
    assert_eq!(own.iter().sum::<u32>(), shared, "a charge is there without the other");
    assert!(shared <= SHARED, "{shared}");
    shared
}

fn killed_again_and_again<L: Life>(start: impl Fn() -> L) {
    let mut callers = [Caller::default(); CALLERS];
    for life in 0..LIVES {
        let server = start();
        check(server.port(), &callers);
        let answered = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (number, caller) in callers.iter_mut().enumerate() {
                let (port, answered) = (server.port(), &answered);
                scope.spawn(move || caller.load(number, port, answered));
            }
            let until = SystemClock.monotonic().plus(LIFE_MAX);
            // Not always after the same number, so that each life ends elsewhere in a commit.
            while answered.load(Ordering::SeqCst) < ANSWERS + 7 * life
                && SystemClock.monotonic() < until
            {
                std::thread::yield_now();
            }
            server.kill();
        });
    }
    let server = start();
    assert_eq!(check(server.port(), &callers), SHARED, "all of it was used");
    for Caller { admitted, refused, lost } in callers {
        assert!(0 < admitted && 0 < refused && 0 < lost, "{admitted}, {refused}, {lost}");
    }
}

#[test]
fn a_refused_request_charges_nothing_on_redis() {
    let redis = Redis::start().expect("a server");
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("config")).expect("a folder");
    folder.write("config/shop.yaml", &limits());
    let address = redis.address().to_string();
    let variables =
        [("BACKEND_TYPE", "redis"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &*address)];
    killed_again_and_again(|| Service::start(&folder, &variables));
}

#[test]
fn a_refused_request_charges_nothing_on_a_strict_folder() {
    let folder = Folder::with(
        "[store]\nkind = \"embedded\"\ndurability = \"strict\"\n[envoy]\nratelimit_config = \"limits.yaml\"\n",
    );
    folder.write("limits.yaml", &limits());
    killed_again_and_again(|| Broker::start(&folder, "--grpc 127.0.0.1:0"));
}
