//! Asks with several charges: all of them are stored, or none, whatever happens to the process.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tollgate::{
    Ask, Concurrency, Costs, ErrorKind, GateExt, Limit, Permit, Policy, RollingWindow, Span,
    Timestamp, TokenBucket,
};
use tollgate_embedded::{Durability, Embedded, Options};

use crate::child::{Child, JOINT_CALLERS, Job, block_on};
use crate::{TestFolder, pass, used};

/// At most `limit` requests in any 24 hours.
pub(crate) fn daily(name: &str, limit: u64) -> Policy {
    let rule = RollingWindow::new(limit, Span::from_hours(24)).resolution(24);
    Policy::new(name, [Limit::new("rpd", "requests", rule)]).unwrap()
}

fn grants(permit: &Permit) -> Vec<tollgate::core::Grant> {
    permit.parts().map(|part| *part.grant()).collect()
}

/// Every row of the store, with its bytes.
fn rows(folder: &TestFolder) -> BTreeMap<String, String> {
    let database = folder.database();
    let sql = "SELECT hex(key), hex(value) || written_at FROM entries
               UNION SELECT hex(key), hex(value) || expires_at FROM ids";
    let mut statement = database.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

#[tokio::test]
async fn a_refused_ask_leaves_every_row_as_it_is() {
    for durability in [Durability::Strict, Durability::Relaxed] {
        let folder = TestFolder::new();
        let open = || folder.try_open(folder.options().durability(durability)).unwrap();
        let [user, team, account] = ["user", "team", "account"].map(|name| daily(name, 10));
        let gate = open();
        for (policy, subject, cost) in [(&user, "u1", 2), (&team, "t7", 3), (&account, "a", 9)] {
            let ask = Ask::new(policy, subject).cost("requests", cost).id("before");
            assert!(gate.acquire(&ask).await.unwrap().is_admitted());
        }
        gate.shutdown(Timestamp::MAX).await.unwrap();
        drop(gate);
        let before = rows(&folder);
        assert_eq!(before.len(), 6);
        let gate = open();
        pass(&folder, Span::from_mins(5));
        for subject in ["u1", "new"] {
            let ask = Ask::new(&user, subject).and(&team, "t7").and(&account, "a");
            let ask = ask.cost("requests", 2).id("refused");
            let denial = gate.acquire(&ask).await.unwrap().into_denial().unwrap();
            assert_eq!((&*denial.policy, &*denial.limit), ("account", "rpd"));
        }
        assert_eq!(gate.stats().commits, 0);
        gate.shutdown(Timestamp::MAX).await.unwrap();
        assert_eq!(rows(&folder), before, "{durability:?}");
    }
}

#[tokio::test]
async fn an_id_is_charged_once_across_a_restart() {
    let folder = TestFolder::new();
    let [user, team, account] = ["user", "team", "account"].map(|name| daily(name, 100));
    let charges = |cost| {
        let own = Costs::new().with("requests", 7);
        Ask::new(&user, "u1")
            .and(&team, "t7")
            .and_costing(&account, "a", &own)
            .cost("requests", cost)
    };
    let ask = charges(4).id("order-1");
    let gate = folder.open();
    // The stamps of the charges differ.
    for _ in 0..3 {
        assert!(gate.acquire(&Ask::new(&team, "t7")).await.unwrap().is_admitted());
    }
    let first = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    drop(gate);
    let gate = folder.open();
    let second = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    assert_eq!(grants(&first), grants(&second));
    assert_ne!(grants(&first)[0].stamp, grants(&first)[1].stamp);
    for other in [charges(5).id("order-1"), Ask::new(&user, "u1").cost("requests", 4).id("order-1")]
    {
        assert_eq!(gate.acquire(&other).await.unwrap_err().kind(), ErrorKind::Conflict);
    }
    let sums = async |gate: &Embedded| {
        [
            used(gate, &user, "u1").await,
            used(gate, &team, "t7").await,
            used(gate, &account, "a").await,
        ]
    };
    assert_eq!(sums(&gate).await, [4, 7, 7]);
    drop(gate);
    assert!(folder.open().settle(&second, &Costs::new().with("requests", 2)).await.unwrap());
    let gate = folder.open();
    assert_eq!(sums(&gate).await, [2, 5, 7], "the account has costs of its own");
    assert!(!gate.release(&second).await.unwrap());
    let ask = charges(1).id("order-2");
    let released = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    assert!(gate.release(&released).await.unwrap());
    drop(gate);
    let gate = folder.open();
    assert_eq!(sums(&gate).await, [2, 5, 7]);
    let again = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    assert_ne!(grants(&again), grants(&released), "a released id is a new ask");
}

/// The first charge owns the id, also if its policy is in shadow mode and has no entry.
#[tokio::test]
async fn the_id_of_a_shadow_charge_is_remembered_and_forgotten_across_a_restart() {
    let folder = TestFolder::new();
    let never = Limit::new("slots", "requests", Concurrency::new(1, Span::from_mins(1)));
    let shadow = Policy::builder("shadow").limit(never).shadow(true).build().unwrap();
    let team = daily("team", 100);
    let ask = Ask::new(&shadow, "u1").and(&team, "t7").cost("requests", 5).id("order-1");
    let first = folder.open().acquire(&ask).await.unwrap().into_permit().unwrap();
    assert!(first.shadow_denied.is_some());
    let gate = folder.open();
    let second = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    let charged = |permit: &Permit| -> Vec<_> {
        grants(permit).iter().map(|grant| (grant.at, grant.stamp)).collect()
    };
    assert_eq!(charged(&first), charged(&second));
    assert_eq!(used(&gate, &team, "t7").await, 5);
    assert!(gate.release(&first).await.unwrap());
    drop(gate);
    let gate = folder.open();
    assert_eq!(used(&gate, &team, "t7").await, 0);
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    assert_eq!(used(&gate, &team, "t7").await, 5, "a released id is a new ask");
    gate.shutdown(Timestamp::MAX).await.unwrap();
    assert_eq!(folder.rows(), 1, "nothing is charged to the shadow policy");
}

/// Entries that equal an absent one again after a second.
fn brief(name: &str, subjects_max: Option<u64>) -> Policy {
    let limit = Limit::new("burst", "requests", TokenBucket::per_second(1).burst(5));
    Policy::builder(name).limit(limit).subjects_max(subjects_max).build().unwrap()
}

#[tokio::test]
async fn room_is_made_for_all_keys_of_an_ask_or_for_none() {
    for (keys_max, subjects_max) in [(4, None), (100, Some(3))] {
        let folder = TestFolder::new();
        let (brief, other) = (brief("brief", subjects_max), daily("other", 100));
        let gate = folder.try_open(folder.options().keys_max(keys_max)).unwrap();
        let ask = |first: &'static str| {
            Ask::new(&brief, first).and(&other, "all").and(&brief, format!("{first}-2"))
        };
        assert!(gate.acquire(&ask("a")).await.unwrap().is_admitted());
        assert_eq!(gate.stats().keys, 3);
        // There is room for one more key, and the ask needs two.
        let full = gate.acquire(&ask("b")).await.unwrap_err();
        assert_eq!(full.kind(), ErrorKind::Full, "{full}");
        assert_eq!(gate.stats().keys, 3);
        assert_eq!(used(&gate, &other, "all").await, 1, "nothing is charged");
        assert!(gate.acquire(&ask("a")).await.unwrap().is_admitted(), "it has its keys");
        // Entries that hold nothing back make room, as many as it takes.
        pass(&folder, Span::from_secs(2));
        assert!(gate.acquire(&ask("b")).await.unwrap().is_admitted());
        assert_eq!(used(&gate, &other, "all").await, 3);
        gate.shutdown(Timestamp::MAX).await.unwrap();
        let keys = gate.stats().keys;
        assert_eq!(u64::from(folder.rows()), keys);
        assert_eq!(folder.open().stats().keys, keys, "the counts are saved with the rows");
    }
}

/// A store with so little memory that an ask's own keys evict each other.
#[tokio::test]
async fn an_ask_is_exact_with_little_memory() {
    let folder = TestFolder::new();
    let policies: Vec<Policy> = (0..8).map(|number| daily(&format!("p{number}"), 200)).collect();
    let gate = Embedded::open_with(&folder.path(), folder.options(), 1).unwrap();
    let ask = |subject: u64| {
        let first = Ask::new(&policies[0], "shared");
        policies[1..].iter().fold(first, |ask, policy| ask.and(policy, format!("s{subject}")))
    };
    for number in 0..120 {
        assert!(gate.acquire(&ask(number % 40)).await.unwrap().is_admitted());
    }
    gate.shutdown(Timestamp::MAX).await.unwrap();
    let gate = folder.open();
    assert_eq!(used(&gate, &policies[0], "shared").await, 120);
    for policy in &policies[1..] {
        for subject in 0..40 {
            assert_eq!(used(&gate, policy, &format!("s{subject}")).await, 3);
        }
    }
}

fn poll<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// A denial rests on the charges of every key that it names.
#[test]
fn a_denial_waits_for_the_charges_that_it_counts() {
    let folder = TestFolder::new();
    let (user, team) = (daily("user", 10), daily("team", 1));
    let gate = folder.open();
    let stored = Ask::new(&team, "full");
    assert!(block_on(gate.acquire(&stored)).unwrap().is_admitted());
    let busy = folder.database();
    busy.execute_batch("BEGIN IMMEDIATE").unwrap();
    let alone = Ask::new(&team, "t7");
    let mut charged = Box::pin(gate.acquire(&alone));
    assert!(poll(&mut charged).is_pending());
    let ask = Ask::new(&user, "u1").and(&team, "t7");
    let mut denied = Box::pin(gate.acquire(&ask));
    assert!(poll(&mut denied).is_pending(), "the team's charge is not written");
    let ask = Ask::new(&user, "u1").and(&team, "full");
    assert!(poll(&mut Box::pin(gate.acquire(&ask))).is_ready(), "relies on nothing unwritten");
    busy.execute_batch("COMMIT").unwrap();
    assert!(block_on(charged).unwrap().is_admitted());
    assert!(!block_on(denied).unwrap().is_admitted());
}

/// What the children charged: per user the number of ids and the use, and the use of the shared subjects.
struct Kept {
    ids: Vec<String>,
    users: Vec<(u64, u64)>,
    shared: [u64; 2],
}

fn kept(folder: &TestFolder) -> Kept {
    let gate = folder.try_open(Options::new()).expect("the state always opens");
    let (user, team, account) = crate::child::parties();
    let database = folder.database();
    // The id follows the key of the entry, which ends with the number of the user.
    let mut statement = database.prepare("SELECT CAST(substr(key, 5) AS TEXT) FROM ids").unwrap();
    let keys = statement.query_map([], |row| row.get(0)).unwrap();
    let ids: Vec<String> = keys
        .map(|key: Result<String, _>| key.unwrap().split_once("id-").unwrap().1.to_owned())
        .collect();
    let users = (0..JOINT_CALLERS).map(|number| {
        let own = ids.iter().filter(|id| id.starts_with(&format!("{number}-"))).count();
        (u64::try_from(own).unwrap(), block_on(used(&gate, &user, &format!("u{number}"))))
    });
    let shared = [(&team, "t7"), (&account, "a")];
    let shared = shared.map(|(policy, subject)| block_on(used(&gate, policy, subject)));
    Kept { users: users.collect(), ids, shared }
}

/// After a crash an id is there with every charge, or with none, in both durabilities; a strict store has every id that it
/// reported.
#[test]
fn a_killed_process_leaves_no_half_of_an_ask() {
    for job in [Job::JointStrict, Job::JointRelaxed] {
        let folder = TestFolder::new();
        let mut reported = Vec::new();
        for restart in 0..25 {
            let mut child = Child::start(job, &folder.path());
            let mut lines: Vec<_> =
                (0..1 + restart * 37 % 211).map_while(|_| child.line()).collect();
            lines.extend(child.kill());
            let Kept { ids, users, shared } = kept(&folder);
            for (number, (ids, used)) in users.iter().enumerate() {
                assert_eq!(ids, used, "{job:?}, restart {restart}: ids and use of user {number}");
            }
            let sum: u64 = users.iter().map(|(_, used)| used).sum();
            assert_eq!(shared, [sum, sum], "{job:?}, restart {restart}: the shared subjects");
            reported.extend(
                lines
                    .iter()
                    .filter_map(|line| line.strip_prefix("admitted id-").map(str::to_owned)),
            );
            if matches!(job, Job::JointStrict) {
                let missing = reported.iter().find(|id| !ids.contains(id));
                assert_eq!(missing, None, "restart {restart}: it was reported");
            }
        }
        assert!(25 < reported.len(), "{job:?}: too little happened");
    }
}
