//! Jobs that stop before they are done, by whatever cause, and go on.

use std::io::{BufRead as _, BufReader, Read as _};

use serde_json::Value;
use tollgate_testkit::fakes::gemini::{Fault, Settings, Trouble, When};
use tollgate_testkit::servers::{Port, eventually};
use tollgate_translate::Layout;

use super::{World, expected, kill, prose, signal, slow, troubled};
use crate::folder::Ran;

/// R003.5, R003.10: killed again and again, and gone on with, by resume and by the same command.
#[test]
fn r003_5_killed_and_resumed_the_document_is_the_same_and_little_is_paid_twice() {
    let world = World::new(slow(3_600_000));
    let text = prose(100);
    world.folder.write("book.txt", &text);
    let make = world.make("book.txt --yes --workers 3");
    let mut child = world.start(&make);
    // With three calls at the provider that will not be answered.
    eventually(|| (world.fake.tally().at_once_max == 3).then_some(())).expect("it calls");
    assert_eq!(world.jobs()[0]["state"], "running");
    kill(&mut child);
    let id = world.id();
    let (_, status) = world.folder.json(&format!("translate status {id}"));
    assert_eq!((&status["state"], &status["done"]), (&"stopped".into(), &0.into()), "{status}");
    world.fake.set(slow(200));
    for translated in [1, 4, 7] {
        let mut child = world.start(&make);
        world.wait_for_translated(translated);
        kill(&mut child);
    }
    let done = world.resume(&id, "--workers 3");
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
    let tally = world.fake.tally();
    assert!(tally.repeated <= 9, "only what was at the provider: {tally:?}");
    assert_eq!(world.id(), id, "the same command is the same job");
}

/// R003.5: Ctrl-C waits for what is paid, says how to go on, and loses nothing.
#[test]
fn r003_5_ctrl_c_stops_cleanly_and_says_how_to_resume() {
    let (world, held) = World::held(Settings::default(), "");
    let text = prose(80);
    world.folder.write("book.txt", &text);
    let mut child = world.start(&world.make("book.txt --yes --workers 2"));
    eventually(|| (world.fake.tally().at_once_max == 2).then_some(())).expect("it calls");
    signal(&child, "-INT");
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let stopping = lines.find_map(|line| line.ok().filter(|line| line.contains("stopping")));
    let stopping = stopping.expect("it says so");
    assert!(stopping.contains("stopping; waits for up to"), "{stopping}");
    held.let_go(&world.fake);
    let ran: Ran = child.wait_with_output().expect("it ends").into();
    let resume = format!(
        "Resume with: tollgate translate resume {} --provider-url {} --key-file gemini.key --policy wide --workers 2\n",
        world.id(),
        world.served.url()
    );
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(
        ran.out.contains("chunks; nothing is lost. ") && ran.out.ends_with(&resume),
        "{}",
        ran.out
    );
    let done = world.run(resume.trim().trim_start_matches("Resume with: tollgate "));
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
    let tally = world.fake.tally();
    assert_eq!((tally.repeated, tally.calls), (0, tally.translated), "nothing was paid twice");
}

/// R003.3: a bound on the cost pauses the job before it is passed; more money and it goes on.
#[test]
fn r003_3_a_job_stops_before_it_costs_too_much_and_goes_on_with_more() {
    let world = World::new(Settings::default());
    let text = prose(40);
    world.folder.write("book.txt", &text);
    let (_, planned) = world.folder.json(&world.make("book.txt --plan"));
    let bound = planned["plan"]["cost_micros"].as_u64().expect("a price") / 3;
    let bounded = format!("book.txt --yes --workers 2 --max-cost 0.{bound:06}");
    let (code, report) = world.folder.json(&world.make(&bounded));
    let job = &report["job"];
    assert_eq!((code, &job["state"], &job["output"]), (1, &"paused".into(), &Value::Null));
    assert!(job["cost_micros"].as_u64().is_some_and(|cost| 0 < cost && cost <= bound), "{job}");
    assert!(job["why"].as_str().is_some_and(|why| why.contains("raise the bound")), "{job}");
    let id = world.id();
    let same = world.resume(&id, "");
    assert!(same.code == 1 && same.out.contains("an operator must act first"), "{}", same.out);
    let done = world.resume(&id, "--max-cost 5");
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
}

/// R003.5: a chunk that is given up shows in the document, the report and the exit status, and only it is redone.
#[test]
fn r003_5_a_failed_chunk_is_marked_named_and_redone_alone() {
    let doomed = When::Contains("Paragraph 17 ".to_owned());
    let world = World::new(troubled(vec![Trouble::new(Fault::Blocked, doomed)]));
    let text = prose(30);
    world.folder.write("book.txt", &text);
    let ran = world.run(&world.make("book.txt --yes"));
    assert_eq!(ran.code, 1, "{}", ran.err);
    let id = world.id();
    assert!(ran.out.contains("segments 17..18, \"Paragraph 17 says that"), "{}", ran.out);
    assert!(ran.out.contains(&format!("Try them again with: tollgate translate resume {id}")));
    let marked = world.read("book.fr.txt");
    assert_eq!(marked.matches("[NOT TRANSLATED] Paragraph 17 ").count(), 1, "{marked}");
    assert_eq!(marked.matches("[NOT TRANSLATED]").count(), 1);
    let (code, status) = world.folder.json(&format!("translate status {id}"));
    assert_eq!((code, &status["failures"][0]["segments"]), (0, &"17..18".into()), "{status}");
    let shown = world.run(&format!("translate status {id}")).out;
    assert!(shown.contains("17..18    Paragraph 17 says that"), "{shown}");
    // A document that has no place is found before anything is paid.
    let calls = world.fake.tally().calls;
    let lost = world.resume(&id, "--retry-failed --output /proc/book.txt");
    assert!(
        lost.code == 2 && lost.err.contains("/proc/book.txt cannot be written"),
        "{}",
        lost.err
    );
    assert_eq!(world.fake.tally().calls, calls);
    // Without the flag nothing is tried again.
    let calls = world.fake.tally().calls;
    assert_eq!(world.resume(&id, "").code, 1);
    assert_eq!(world.fake.tally().calls, calls);
    world.fake.set(Settings::default());
    let done = world.resume(&id, "--retry-failed");
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(world.fake.tally().calls, calls + 1);
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
    let none = world.resume(&id, "--retry-failed");
    assert!(none.code == 2 && none.err.contains("leave --retry-failed out"), "{}", none.err);
}

/// R003.3: a daily quota that is used up pauses the job: shown, waited for, or an exit.
#[test]
fn r003_3_a_daily_quota_pauses_the_job_and_says_when_it_goes_on() {
    let world = World::new(Settings::default());
    world.folder.write("book.txt", &prose(40));
    let make = world.make("book.txt --yes").replace("wide", "three");
    let (code, report) = world.folder.json(&format!("{make} --no-wait"));
    let job = &report["job"];
    assert_eq!((code, &job["state"], &job["done"]), (1, &"paused".into(), &3.into()), "{job}");
    assert_eq!(job["why"], "the limit rpd of three is used up");
    assert!(job["resume_at"].is_string(), "{job}");
    let mut child = world.start(&make);
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let paused = lines.find_map(|line| line.ok().filter(|line| line.contains("paused:")));
    let paused = paused.expect("it says so");
    for part in ["3/", "goes on at 20", ", in ", "Ctrl-C is safe; resume with: tollgate translate"]
    {
        assert!(paused.contains(part), "{part}: {paused}");
    }
    signal(&child, "-TERM");
    let mut out = String::new();
    child.stdout.take().expect("it is piped").read_to_string(&mut out).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    assert!(out.contains("stopped at 3 of "), "{out}");
    assert_eq!(world.fake.tally().calls, 3);
}

/// R003.5: an address where something else answers stops the job and is named; no chunk is given up, and the right one goes on.
#[test]
fn r003_5_a_wrong_address_is_named_and_costs_no_chunk() {
    let world = World::new(Settings::default());
    let text = prose(20);
    world.folder.write("book.txt", &text);
    let url = world.served.url();
    let elsewhere = format!("{url}/elsewhere");
    let ran = world.run(&world.make("book.txt --yes").replace(&url, &elsewhere));
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(
        ran.out.contains(&elsewhere) && ran.out.contains("an operator must act"),
        "{}",
        ran.out
    );
    let job = &world.jobs()[0];
    assert_eq!((&job["state"], &job["failed"]), (&"paused".into(), &0.into()), "{job}");
    assert_eq!(world.resume(&world.id(), "").code, 0);
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
}

/// The document of a job that is over is fetched without a key, a policy or a quota.
#[test]
fn a_job_that_is_over_is_resumed_without_a_key() {
    let world = World::new(Settings::default());
    let text = prose(8);
    world.folder.write("book.txt", &text);
    assert_eq!(world.run(&world.make("book.txt --yes")).code, 0);
    std::fs::remove_file(world.folder.path().join("book.fr.txt")).expect("it was written");
    let resume = format!("translate resume {} --key-env NO_KEY", world.id());
    let (code, report) = world.folder.json(&resume);
    assert_eq!((code, &report["job"]["state"]), (0, &"completed".into()), "{report}");
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
    // What would call the provider needs one.
    for more in ["--retry-failed", "--max-cost 9"] {
        let ran = world.run(&format!("{resume} --policy wide {more}"));
        assert!(ran.code == 2 && ran.err.contains("NO_KEY"), "{more}: {}", ran.err);
    }
}

/// R003.5: a job knows whom it calls, so that it is gone on with by its id alone, here and by a worker; flags override that.
#[test]
fn r003_5_a_job_is_resumed_by_its_id_alone() {
    let world = World::new(troubled(vec![Trouble::new(Fault::BadKey, When::Call(3))]));
    let text = prose(20);
    world.folder.write("book.txt", &text);
    let paused = world.run(&world.make("book.txt --yes --workers 1 --subject team"));
    assert_eq!(paused.code, 1, "{}", paused.err);
    let id = world.id();
    // The key is not kept, and so must be given again.
    let ran = world.run(&format!("translate resume {id}"));
    assert!(ran.code == 2 && ran.err.contains("GEMINI_API_KEY"), "{}", ran.err);
    let wrong = world.run(&format!("translate resume {id} --key-file gemini.key --policy none"));
    assert!(wrong.code == 2 && wrong.err.contains("none"), "{}", wrong.err);
    let done = world.run(&format!("translate resume {id} --key-file gemini.key"));
    assert_eq!(done.code, 0, "{}", done.err);
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
    let (_, standing) = world.folder.json("standing wide team");
    assert_eq!(standing["limits"][0]["used"], world.fake.tally().calls, "{standing}");
    let kept = std::fs::read(world.folder.path().join("tollgate-data/jobs.sqlite")).expect("jobs");
    assert!(!kept.windows(11).any(|part| part == b"project.key"), "the key is nowhere");
    // A worker has the policy and the subject of the job, but sends its key only to the configured address.
    world.folder.write("more.txt", &prose(9).replace("captain", "sailor"));
    let (_, made) = world.folder.json(&world.make("more.txt --yes --detach"));
    let more = made["id"].as_str().expect("an id");
    let mut worker = world.start("translate worker --key-file gemini.key");
    let mut lines = BufReader::new(worker.stdout.take().expect("it is piped")).lines();
    let refused = lines.find_map(|line| line.ok().filter(|line| line.contains(more)));
    let refused = refused.expect("it says so");
    assert!(refused.contains("add --provider-url http://"), "{refused}");
    signal(&worker, "-TERM");
    assert_eq!(worker.wait().expect("it ends").code(), Some(0));
    let url = world.served.url();
    let mut worker =
        world.start(&format!("translate worker --key-file gemini.key --provider-url {url}"));
    eventually(|| {
        let (_, status) = world.folder.json(&format!("translate status {more}"));
        (status["state"] == "completed").then_some(())
    })
    .expect("it is worked on");
    signal(&worker, "-TERM");
    assert_eq!(worker.wait().expect("it ends").code(), Some(0));
}

/// R003.3: a provider that cannot be reached is seen while the job runs, by who started it and by status.
#[test]
fn r003_3_a_provider_that_cannot_be_reached_is_seen_at_once() {
    let world = World::new(Settings::default());
    world.folder.write("book.txt", &prose(20));
    let free = Port::free().expect("a port is free");
    let unused = format!("http://127.0.0.1:{}", free.number());
    let make = world.make("book.txt --yes").replace(&world.served.url(), &unused);
    let mut child = world.start(&make);
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let trouble =
        lines.find_map(|line| line.ok().filter(|line| line.contains("cannot be reached")));
    let trouble = trouble.expect("it says so");
    assert!(trouble.contains(unused.trim_start_matches("http://")), "{trouble}");
    assert!(trouble.ends_with("; it is tried again"), "{trouble}");
    kill(&mut child);
    let (_, status) = world.folder.json(&format!("translate status {}", world.id()));
    assert!(status["retry"].as_str().is_some_and(|why| why.contains("refused")), "{status}");
    assert!(status["retry_at"].is_string(), "{status}");
    let (_, standing) = world.folder.json("standing wide project");
    // Calls that were under way when it was killed are not given back.
    assert!(standing["limits"][0]["used"].as_u64().is_some_and(|used| used <= 10), "{standing}");
}

/// A file that came while the job ran stays, also when only what failed is tried again.
#[test]
fn a_file_that_came_meanwhile_is_not_written_over() {
    let doomed = When::Contains("Paragraph 3 ".to_owned());
    let settings = troubled(vec![Trouble::new(Fault::Blocked, doomed)]);
    let (world, held) = World::held(settings, "");
    let text = prose(20);
    world.folder.write("book.txt", &text);
    let child = world.start(&world.make("book.txt --yes"));
    eventually(|| (0 < world.fake.tally().calls).then_some(())).expect("it calls");
    world.folder.write("book.fr.txt", "mine");
    held.let_go(&world.fake);
    let ran: Ran = child.wait_with_output().expect("it ends").into();
    assert!(ran.code == 2 && ran.err.contains("is not what was written there"), "{}", ran.err);
    assert_eq!(world.read("book.fr.txt"), "mine");
    let (id, calls) = (world.id(), world.fake.tally().calls);
    world.fake.set(Settings::default());
    let again = world.resume(&id, "--retry-failed");
    assert!(again.code == 2 && again.err.contains("move the file away"), "{}", again.err);
    assert_eq!((world.read("book.fr.txt").as_str(), world.fake.tally().calls), ("mine", calls));
    assert_eq!(world.resume(&id, "--retry-failed --output book.fr.txt").code, 0);
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
    assert!(!world.folder.path().join("book.fr.txt.part").exists());
}
