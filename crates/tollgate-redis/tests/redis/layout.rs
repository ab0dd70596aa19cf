//! What is stored: entries of the version before, and how many bytes an entry takes.

use redis::AsyncCommands;
use tollgate::clock::ManualClock;
use tollgate::core::bounds::EXACT_LIMIT_MAX;
use tollgate::policy::Rule;
use tollgate::{
    Ask, Clock, Costs, ErrorKind, GateExt, Limit, Permit, Policy, RollingWindow, Span, TokenBucket,
};
use tollgate_redis::Options;

use crate::{admitted, connect, open_at, server, used};

fn words(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(7)).collect()
}

/// An entry as version 3 of the layout had it: a bucket with 30 used, a window with one entry, one permit settled, one id.
async fn store_version_3(url: &str, key: &str, policy: &Policy, at: u64) {
    let hot = [
        vec![3],
        words(&[at, at + 2]),
        9_u32.to_le_bytes().to_vec(),
        // How many ids there are, when they are looked through, when the first and the last is forgotten.
        [1_u16, 32].iter().flat_map(|number| number.to_le_bytes()).collect(),
        words(&[at + 120_000_000, at + 120_000_000]),
        words(&[at + 3_600_000_000, 0, 0]),
        vec![0; 6],
        words(&[0]),
        // 30 tokens of 100,000 fine units each, and a log of one entry.
        words(&[30 * 100_000, 0]),
        words(&[5, 0]),
        14_u32.to_le_bytes().to_vec(),
        words(&[at, 5]),
    ];
    let number = |number: u64| [&[0xcf], number.to_be_bytes().as_slice()].concat();
    let settled = [vec![0x94, 0x00], number(at), number(at), number(at)].concat();
    let id = words(&[at + 1, at, at + 120_000_000, 1, 10]);
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let fields: [(&str, Vec<u8>); 4] =
        [("e", hot.concat()), ("p", policy.shape_bytes().to_vec()), ("s", settled), ("iold", id)];
    let () = connection.hset_multiple(key, &fields).await.unwrap();
}

/// Each verb answers on an entry of version 3 as on one that was written anew; ids and refunds of a bucket are forgotten.
#[tokio::test]
async fn entries_of_the_version_before_are_read() {
    let redis = server();
    let clock = ManualClock::new();
    let gate = open_at(Options::single(redis.url()), &clock).await;
    let limits = [
        Limit::new("bucket", "tokens", TokenBucket::per_second(10).burst(100)),
        Limit::new("window", "requests", RollingWindow::new(50, Span::from_mins(1))),
    ];
    let policy = Policy::new("before", limits).unwrap();
    let at = clock.now().as_micros();
    clock.advance(Span::from_secs(1));
    let permit = |stamp| {
        let ask = Ask::new(&policy, "p").cost("tokens", 10);
        let grant = tollgate::core::Grant {
            at: tollgate::Timestamp::from_micros(at),
            stamp,
            use_by: None,
            expires_at: None,
        };
        Permit::for_ask(&ask, grant, Vec::new())
    };
    let key = gate.key(&policy, "p");
    let version =
        || redis.command(&["--no-raw", "hget", &key, "e"]).unwrap().starts_with("\"\\x04");
    for verb in 0..6 {
        redis.command(&["flushall"]).unwrap();
        store_version_3(&redis.url(), &key, &policy, at).await;
        let standings = gate.standing(&policy, "p").await.unwrap();
        assert_eq!(standings.iter().map(|limit| limit.used).collect::<Vec<_>>(), [20, 5]);
        assert!(!version(), "looking writes nothing");
        match verb {
            0 => {
                let ask = Ask::new(&policy, "p").cost("tokens", 10).id("old");
                let permit = admitted(gate.acquire(&ask).await.unwrap());
                assert_eq!(permit.grant().stamp, at + 2);
                let again = admitted(gate.acquire(&ask).await.unwrap());
                assert_eq!(permit.grant(), again.grant());
                assert!(gate.release(&permit).await.unwrap());
                assert_eq!(used(&gate, &policy, "p").await, 20);
            }
            1 => assert!(!gate.settle(&permit(at), &Costs::new()).await.unwrap()),
            2 => assert!(gate.release(&permit(at + 1)).await.unwrap()),
            3 => assert!(gate.reset(&policy, "p").await.unwrap()),
            4 => {
                let until = clock.now() + Span::from_mins(1);
                assert!(gate.close_until(&Ask::new(&policy, "p"), "bucket", until).await.unwrap());
            }
            _ => {
                let ask = Ask::new(&policy, "p").cost("tokens", 90);
                assert!(!gate.acquire(&ask).await.unwrap().is_admitted());
            }
        }
        let expected: [u64; 2] = match verb {
            2 => [20, 4],
            3 => [0, 0],
            _ => [20, 5],
        };
        let standings = gate.standing(&policy, "p").await.unwrap();
        assert_eq!(
            standings.iter().map(|limit| limit.used).collect::<Vec<_>>(),
            expected,
            "{verb}"
        );
        assert_eq!(version(), [0, 2, 3, 4].contains(&verb), "{verb}");
        let ids = redis.command(&["hexists", &key, "iold"]).unwrap();
        assert_eq!(ids, if version() { "0\n" } else { "1\n" }, "{verb}");
    }
}

/// An entry of a version from the future is an error that names both versions.
#[tokio::test]
async fn entries_of_a_later_version_are_refused() {
    let redis = server();
    let gate = connect(Options::single(redis.url())).await;
    let rule = TokenBucket::per_second(10);
    let policy = Policy::new("later", [Limit::new("burst", "requests", rule)]).unwrap();
    let ask = Ask::new(&policy, "p");
    admitted(gate.acquire(&ask).await.unwrap());
    let key = gate.key(&policy, "p");
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut hot: Vec<u8> = connection.hget(&key, "e").await.unwrap();
    hot[0] = 5;
    hot[53..60].fill(0);
    let () = connection.hset(&key, "e", hot).await.unwrap();
    for error in
        [gate.acquire(&ask).await.unwrap_err(), gate.standing(&policy, "p").await.unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("version is 5 and this program reads 4"), "{error}");
    }
}

/// The figures of the README: an entry is no larger than it says.
#[tokio::test]
async fn an_entry_takes_no_more_bytes_than_documented() {
    let (redis, clock) = (server(), ManualClock::new());
    let gate = open_at(Options::single(redis.url()), &clock).await;
    let policy = |rule: Rule| Policy::new("sizes", [Limit::new("only", "requests", rule)]).unwrap();
    let minute = Span::from_mins(1);
    let bucket = || policy(TokenBucket::per_minute(1_000).into());
    // How many asks fill the entry, and how far they are apart.
    let slot = Span::from_micros(minute.as_micros().div_ceil(64));
    let apart = Span::from_micros(100);
    let exact = policy(RollingWindow::new(EXACT_LIMIT_MAX, minute).into());
    let cases = [
        ("bucket", bucket(), 1, apart, 336),
        ("bucket-in-flight", bucket(), 80, apart, 1_280),
        ("grid", policy(RollingWindow::new(20_000, minute).into()), 65, slot, 1_280),
        ("exact", exact, EXACT_LIMIT_MAX, apart, 2_304),
    ];
    let size = |key: &str| -> u64 {
        let bytes = redis.command(&["memory", "usage", key, "samples", "0"]).unwrap();
        bytes.trim().parse().unwrap()
    };
    for (name, policy, asks, apart, documented) in cases {
        for _ in 0..asks {
            let ask = Ask::new(&policy, name);
            let ask = if name == "bucket" { ask.without_refund() } else { ask };
            admitted(gate.acquire(&ask).await.unwrap());
            clock.advance(apart);
        }
        let bytes = size(&gate.key(&policy, name));
        println!("{name}: {bytes} bytes");
        assert!(bytes <= documented, "{name}: {bytes}");
    }
    let (policy, id) = (bucket(), "0b7e6bb4-5b2c-4f6e-8c11-3a2f4a6b9a10");
    admitted(gate.acquire(&Ask::new(&policy, "id").id(id)).await.unwrap());
    let bytes = size(&format!("tg:id2:{{sizes/id}}{id}"));
    println!("id: {bytes} bytes");
    assert!(bytes <= 136, "{bytes}");
}
