//! Many processes on one quota or one job, and the jobs that there are.

use std::sync::Arc;

use tollgate::clock::SystemClock;
use tollgate_testkit::fakes::gemini::{Limit, Quota, ScaledClock, Settings, Window};
use tollgate_testkit::servers::{DynamoDb, Postgres, Redis, eventually};
use tollgate_translate::Layout;

use super::{Held, World, expected, kill, prose, signal};
use crate::folder::Ran;

/// R003.8: processes on one folder share its quota, and other commands get their turn meanwhile.
#[test]
fn r003_8_two_processes_share_the_quota_of_a_folder() {
    let (world, held) = World::held(Settings::default(), "");
    let (one, two) = (prose(48), prose(52));
    world.folder.write("one.txt", &one);
    world.folder.write("two.txt", &two);
    let children =
        ["one.txt", "two.txt"].map(|file| world.start(&world.make(&format!("{file} --yes"))));
    // One process has at most ten calls at the provider, so the other is not waiting for it.
    eventually(|| (10 < world.fake.tally().at_once_max).then_some(())).expect("both call");
    assert_eq!(world.run("standing wide project").code, 0);
    held.let_go(&world.fake);
    for child in children {
        let ran: Ran = child.wait_with_output().expect("it ends").into();
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    assert_eq!(world.read("one.fr.txt"), expected(&one, Layout::Translation));
    assert_eq!(world.read("two.fr.txt"), expected(&two, Layout::Translation));
    let (_, standing) = world.folder.json("standing wide project");
    let tally = world.fake.tally();
    assert_eq!(standing["limits"][0]["used"], tally.calls, "{standing}");
    assert_eq!(standing["limits"][1]["used"], tally.input_tokens, "settled with what was counted");
}

/// R003.7, R003.8: ten processes on a quota that holds up all of them; the provider refuses none of their calls.
#[test]
fn r003_7_r003_8_ten_processes_on_a_binding_quota_see_no_429() {
    let server = Redis::start().expect("a server");
    // A minute of the provider takes five seconds. The margin is how late a call may come on a busy machine.
    let clock = ScaledClock::new(Arc::new(SystemClock), 12);
    let quota = Quota { rpm: 15, ..Quota::NONE };
    let tables = format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\n[[policy]]\nname = \"bound\"\nlimits = [{{ name = \"rpm\", \
         unit = \"requests\", rule = \"rolling-window\", limit = 15, window = \"5s\", margin = \"3s\" }}]\n",
        server.url()
    );
    let world = World::by(Arc::new(clock), Settings { quota, ..Settings::default() }, &tables);
    let volume = |number| prose(12).replace("Paragraph", &format!("In volume {number} paragraph"));
    let texts: Vec<String> = (0..10).map(volume).collect();
    let children: Vec<_> = texts
        .iter()
        .enumerate()
        .map(|(number, text)| {
            world.folder.write(&format!("{number}.txt"), text);
            let make = world.make(&format!("{number}.txt --yes"));
            world.start(&make.replace("--policy wide", "--policy bound"))
        })
        .collect();
    for child in children {
        let ran: Ran = child.wait_with_output().expect("it ends").into();
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    for (number, text) in texts.iter().enumerate() {
        let file = format!("{number}.fr.txt");
        assert_eq!(world.read(&file), expected(text, Layout::Translation));
    }
    let tally = world.fake.tally();
    assert!(tally.violations.is_empty(), "{tally:?}");
    assert_eq!(tally.peaks[&(Limit::Requests, Window::Rolling)], 15, "the quota binds: {tally:?}");
    assert!(30 <= tally.translated && tally.translated == tally.calls, "{tally:?}");
}

/// R003.11: two workers on PostgreSQL, one of them killed; any process can fetch the document.
#[test]
fn r003_11_two_workers_share_a_job_and_one_of_them_is_killed() {
    let server = Postgres::start().expect("a server");
    let database = server.database().expect("a database");
    let tables = "[translate]\njobs = \"postgres\"\nurl_file = \"jobs.url\"\nlease = \"10s\"\n";
    let (world, held) = World::held(Settings::default(), tables);
    world.folder.write("jobs.url", &server.url(&database));
    shared_by_two(&world, held);
}

/// R003.11: the same with jobs and quota in DynamoDB.
#[test]
fn r003_11_two_workers_share_a_job_in_dynamodb_and_one_of_them_is_killed() {
    let server = DynamoDb::start().expect("a server");
    let store = server.snippet();
    let place =
        store.split_once("\n").and_then(|(_, rest)| rest.split_once("\n")).expect("lines").1;
    let tables = format!("{store}[translate]\njobs = \"dynamodb\"\nlease = \"10s\"\n{place}");
    let (world, held) = World::held(Settings::default(), &tables);
    assert_eq!(world.run("dynamodb create-table").code, 0);
    shared_by_two(&world, held);
    let (_, standing) = world.folder.json("standing wide project");
    let tally = world.fake.tally();
    // The permits of the killed one are not settled, and yet counted.
    assert_eq!(standing["limits"][0]["used"], tally.calls, "{standing}");
}

fn shared_by_two(world: &World, held: Held) {
    let text = prose(60);
    world.folder.write("book.txt", &text);
    let (code, kept) = world.folder.json(&world.make("book.txt --yes --detach"));
    let id = kept["id"].as_str().expect("an id").to_owned();
    assert_eq!((code, world.fake.tally().calls), (0, 0));
    let worker = format!("translate worker --workers 2 {}", world.provided());
    let [mut mortal, other] = [world.start(&worker), world.start(&worker)];
    eventually(|| (4 <= world.fake.tally().at_once_max).then_some(())).expect("both work");
    kill(&mut mortal);
    held.let_go(&world.fake);
    let status = || world.folder.json(&format!("translate status {id}")).1["state"].clone();
    eventually(|| (status() == "completed").then_some(())).expect("the other finishes it");
    signal(&other, "-TERM");
    let ran: Ran = other.wait_with_output().expect("it ends").into();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.ends_with(&format!("{id}: completed\n")), "{}", ran.out);
    let calls = world.fake.tally().calls;
    assert_eq!(world.resume(&id, "").code, 0);
    let tally = world.fake.tally();
    assert_eq!(tally.calls, calls, "the document is there already");
    assert!(tally.repeated <= 2, "only what the killed one had under way: {tally:?}");
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
}

#[test]
fn jobs_are_listed_cancelled_and_made_anew() {
    let world = World::new(Settings::default());
    world.folder.write("My Book!.txt", &prose(6));
    assert_eq!(world.run("translate jobs").out, "there are no jobs\n");
    let flags = world.make("FILE --yes --detach");
    let flags: Vec<&str> =
        flags.split(' ').map(|word| if word == "FILE" { "My Book!.txt" } else { word }).collect();
    assert_eq!(world.folder.run_with(&flags).code, 0);
    let id = world.id();
    assert!(id.starts_with("my-book-fr-"), "{id}");
    assert_eq!(world.run(&format!("translate cancel {id}")).code, 0);
    let again = world.run(&format!("translate cancel {id}"));
    assert!(again.code == 2 && again.err.contains("is cancelled already"), "{}", again.err);
    assert_eq!(world.resume(&id, "").code, 1);
    assert_eq!(world.folder.run_with(&flags).code, 0);
    let ids: Vec<String> = world.jobs().iter().map(|job| job["id"].to_string()).collect();
    assert!(ids.contains(&format!("\"{id}-2\"")), "{ids:?}");
    assert_eq!(world.fake.tally().calls, 0);
}
