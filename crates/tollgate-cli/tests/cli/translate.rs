//! `tollgate translate`, against a fake provider on real connections.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde_json::Value;
use tokio::runtime::Runtime;
use tollgate::{Clock, Span, SystemClock};
use tollgate_testing::fakes::gemini::{
    FakeGemini, Fault, Served, Settings, Trouble, When, translated,
};
use tollgate_testing::servers::{Postgres, eventually};
use tollgate_translate::{Document, Filling, Format, Layout, chunk};

use crate::folder::{Folder, Ran};
use crate::serve::Broker;

/// A policy that nothing reaches, and one whose day is three requests.
pub(crate) const POLICIES: &str = r#"
[[policy]]
name = "wide"
limits = [{ name = "rpd", unit = "requests", rule = "rolling-window", limit = 100_000, window = "24h" },
          { name = "tpd", unit = "tokens", rule = "rolling-window", limit = 100_000_000, window = "24h" }]
[[policy]]
name = "three"
limits = [{ name = "rpd", unit = "requests", rule = "rolling-window", limit = 3, window = "24h" }]
"#;

const SIZE: u64 = 200;

/// A provider on a port, and a folder with a document.
pub(crate) struct World {
    pub(crate) folder: Folder,
    pub(crate) fake: FakeGemini,
    pub(crate) served: Served,
    _runtime: Runtime,
}

impl World {
    pub(crate) fn new(settings: Settings) -> Self {
        Self::on(settings, "")
    }

    pub(crate) fn on(settings: Settings, tables: &str) -> Self {
        Self::by(Arc::new(SystemClock), settings, tables)
    }

    /// The same with a provider that lives by `clock`.
    pub(crate) fn by(clock: Arc<dyn Clock>, settings: Settings, tables: &str) -> Self {
        let runtime = Runtime::new().expect("a runtime starts");
        let fake = FakeGemini::new(clock, settings);
        let served = runtime.block_on(fake.serve(0)).expect("a port is free");
        let folder = Folder::with(&format!("{tables}{POLICIES}"));
        folder.write("gemini.key", "project.key\n");
        Self { folder, fake, served, _runtime: runtime }
    }

    /// The flags that say where the provider is.
    pub(crate) fn provided(&self) -> String {
        format!("--policy wide --key-file gemini.key --provider-url {}", self.served.url())
    }

    pub(crate) fn make(&self, arguments: &str) -> String {
        format!("translate {arguments} --to fr --chunk-tokens {SIZE} {}", self.provided())
    }

    pub(crate) fn run(&self, arguments: &str) -> Ran {
        self.folder.run(arguments)
    }

    pub(crate) fn resume(&self, id: &str, arguments: &str) -> Ran {
        self.run(&format!("translate resume {id} {} {arguments}", self.provided()))
    }

    pub(crate) fn start(&self, arguments: &str) -> Child {
        let mut command = self.folder.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    }

    pub(crate) fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(file)).expect("it is written")
    }

    fn jobs(&self) -> Vec<Value> {
        let (_, jobs) = self.folder.json("translate jobs");
        jobs["jobs"].as_array().expect("a list").clone()
    }

    /// The only job there is.
    fn id(&self) -> String {
        let jobs = self.jobs();
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        jobs[0]["id"].as_str().expect("an id").to_owned()
    }

    fn wait_for_translated(&self, number: u64) {
        eventually(|| (number <= self.fake.tally().translated).then_some(()))
            .expect("it translates");
    }
}

pub(crate) fn slow(millis: u64) -> Settings {
    Settings { latency: Span::from_millis(millis), ..Settings::default() }
}

fn troubled(troubles: Vec<Trouble>) -> Settings {
    Settings { troubles, ..Settings::default() }
}

/// Paragraphs of English, no two alike, of about 25 words each.
pub(crate) fn prose(paragraphs: usize) -> String {
    const WORDS: [&str; 16] = [
        "the", "river", "was", "quiet", "and", "nobody", "had", "seen", "boats", "since", "early",
        "morning", "when", "captain", "walked", "along",
    ];
    let paragraph = |number: usize| {
        let word = |place: usize| WORDS[(number * 7 + place * (number % 5 + 1) + place / 4) % 16];
        let words: Vec<&str> = (0..24 + number % 7).map(word).collect();
        format!("Paragraph {number} says that {}.", words.join(" "))
    };
    (0..paragraphs).map(paragraph).collect::<Vec<_>>().join("\n\n") + "\n"
}

/// What the document must become: every segment as the fake translates it, and everything else as it was.
pub(crate) fn expected(text: &str, layout: Layout) -> String {
    let mut document =
        Document::read(text.as_bytes().to_vec(), Format::Text).expect("it is a text");
    chunk::cut(&mut document, SIZE).expect("it can be cut");
    let texts: Vec<String> =
        document.segments().map(|segment| translated(&segment.text())).collect();
    let bytes = document.write(layout, |segment| Filling::Text(&texts[segment]));
    String::from_utf8(bytes.expect("it is written")).expect("it is text")
}

/// `kill -9`.
pub(crate) fn kill(child: &mut Child) {
    child.kill().expect("it was started here");
    child.wait().expect("it was started here");
}

fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([name, &id]).status().expect("kill runs").success());
}

/// R003.6: what a book of 400,000 words takes on the free tier, said before anything is kept or sent.
#[test]
fn r003_6_the_plan_of_a_book_on_the_free_tier_says_how_many_days_it_takes() {
    let folder = Folder::new();
    let book = prose(13_000);
    let words = book.split_whitespace().count();
    assert!((390_000..420_000).contains(&words), "{words} words");
    folder.write("book.txt", &book);
    let (code, shown) = folder.json("translate book.txt --to fr --plan");
    let plan = &shown["plan"];
    let (requests, days) = (plan["requests"].as_u64().unwrap(), plan["days"].as_u64().unwrap());
    assert_eq!(code, 0);
    // One more if it starts a few minutes before midnight of the provider.
    let least = requests.div_ceil(25);
    assert!(6 <= least && (least..=least + 1).contains(&days), "{plan}");
    let ran = folder.run("translate book.txt --to fr --plan --within 24h");
    assert!(ran.out.contains(&format!(", on {days} days\n")), "{}", ran.out);
    for part in ["25 per day take", "resumes by itself", "--fit-rpd", "not 1d"] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    let (_, fitting) = folder.json("translate book.txt --to fr --plan --fit-rpd");
    assert!(fitting["plan"]["days"].as_u64().unwrap() < days, "{fitting}");
    assert!(!folder.path().join("tollgate-data").exists(), "a plan keeps nothing");
}

/// R003.4, R003.5, R003.7: refused, overloaded, cut off and damaged answers, and the document is whole all the same.
#[test]
fn r003_7_a_document_survives_refusals_and_damaged_answers() {
    let world = World::new(troubled(vec![
        Trouble::new(Fault::BareQuota, When::Call(2)),
        Trouble::new(Fault::Overloaded, When::Call(4)),
        Trouble::new(Fault::Truncated, When::Call(6)),
        Trouble::new(Fault::Dropped, When::Call(8)),
    ]));
    let text = prose(40);
    world.folder.write("book.txt", &text);
    let (code, report) = world.folder.json(&world.make("book.txt --yes"));
    assert_eq!((code, &report["job"]["state"]), (0, &"completed".into()), "{report}");
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
    assert_eq!(world.fake.tally().faults.len(), 4);
    assert_eq!(report["job"]["chunks"], report["job"]["done"]);
    let output = report["job"]["output"].as_str().expect("a path");
    assert!(output.ends_with("book.fr.txt"), "{output}");
    // The same command again finds everything done.
    let calls = world.fake.tally().calls;
    assert_eq!(world.run(&world.make("book.txt --yes")).code, 0);
    assert_eq!(world.fake.tally().calls, calls);
    world.folder.write("book.fr.txt", "edited");
    let edited = world.run(&world.make("book.txt --yes"));
    assert!(edited.code == 2 && edited.err.contains("was changed since"), "{}", edited.err);
    assert_eq!(world.read("book.fr.txt"), "edited");
    // A refusal of what was admitted is an incident.
    let (_, incidents) = world.folder.json("audit incidents");
    assert_eq!(incidents.as_array().map(Vec::len), Some(1), "{incidents}");
}

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
    kill(&mut child);
    let id = world.id();
    let (_, status) = world.folder.json(&format!("translate status {id}"));
    assert_eq!((&status["state"], &status["done"]), (&"running".into(), &0.into()), "{status}");
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
    let world = World::new(slow(1_000));
    let text = prose(80);
    world.folder.write("book.txt", &text);
    let child = world.start(&world.make("book.txt --yes --workers 2"));
    eventually(|| (world.fake.tally().at_once_max == 2).then_some(())).expect("it calls");
    signal(&child, "-INT");
    let ran: Ran = child.wait_with_output().expect("it ends").into();
    world.fake.set(Settings::default());
    let resume = format!(
        "Resume with: tollgate translate resume {} --provider-url {} --key-file gemini.key --policy wide --workers 2\n",
        world.id(),
        world.served.url()
    );
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(
        ran.out.contains("chunks; nothing is lost. ") && ran.out.ends_with(&resume),
        "{}",
        ran.out
    );
    assert!(ran.err.contains("stopping; waits for up to"), "{}", ran.err);
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
    assert!(same.code == 1 && same.out.contains("somebody must act first"), "{}", same.out);
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

#[test]
fn terms_that_occur_are_sent_and_a_bilingual_document_has_both() {
    let world = World::new(Settings::default());
    let text = prose(12);
    world.folder.write("book.txt", &text);
    world.folder.write("terms.csv", "captain,capitaine,the old one\nzeppelin,dirigeable,\n");
    world.folder.write("none.json", "{\"zeppelin\": \"dirigeable\"}");
    let tokens = |glossary: &str| {
        let (_, plan) = world.folder.json(&world.make(&format!("book.txt --plan {glossary}")));
        plan["plan"]["input_tokens"].as_u64().expect("a number")
    };
    assert!(tokens("") < tokens("--glossary terms.csv"));
    assert_eq!(tokens(""), tokens("--glossary none.json"));
    let both = "book.txt --yes --glossary terms.csv --bilingual --output both.txt";
    let ran = world.run(&world.make(both));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(world.read("both.txt"), expected(&text, Layout::Bilingual));
}

#[test]
fn a_compatible_provider_and_a_broker_as_the_gate() {
    let world = World::new(Settings::default());
    let text = prose(12);
    world.folder.write("book.txt", &text);
    let broker = Broker::start(&world.folder, "");
    // The folder belongs to the broker now.
    let held = world.run(&world.make("book.txt --yes"));
    assert!(held.code == 2 && held.err.contains("--server http://"), "{}", held.err);
    let through =
        format!("book.txt --yes --provider openai --model gpt-4o-mini --server {}", broker.url);
    let ran = world.run(&world.make(&through));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
    let standing = format!("standing wide project --server {}", broker.url);
    let (_, standing) = world.folder.json(&standing);
    let calls = world.fake.tally().calls;
    assert_eq!(standing["limits"][0]["used"], calls, "{standing}");
}

/// R003.8: processes on one folder share its quota, and other commands get their turn meanwhile.
#[test]
fn r003_8_two_processes_share_the_quota_of_a_folder() {
    let world = World::new(slow(4_000));
    let (one, two) = (prose(48), prose(52));
    world.folder.write("one.txt", &one);
    world.folder.write("two.txt", &two);
    let children =
        ["one.txt", "two.txt"].map(|file| world.start(&world.make(&format!("{file} --yes"))));
    // One process has at most ten calls at the provider, so the other is not waiting for it.
    eventually(|| (10 < world.fake.tally().at_once_max).then_some(())).expect("both call");
    assert_eq!(world.run("standing wide project").code, 0);
    world.fake.set(Settings::default());
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

/// R003.11: two workers on PostgreSQL, one of them killed; whoever asks fetches the document.
#[test]
fn r003_11_two_workers_share_a_job_and_one_of_them_is_killed() {
    let server = Postgres::start().expect("a server");
    let database = server.database().expect("a database");
    let tables = "[translate]\njobs = \"postgres\"\nurl_file = \"jobs.url\"\nlease = \"5s\"\n";
    let world = World::on(slow(200), tables);
    world.folder.write("jobs.url", &server.url(&database));
    let text = prose(60);
    world.folder.write("book.txt", &text);
    let (code, kept) = world.folder.json(&world.make("book.txt --yes --detach"));
    let id = kept["id"].as_str().expect("an id").to_owned();
    assert_eq!((code, world.fake.tally().calls), (0, 0));
    let worker = format!("translate worker --workers 2 {}", world.provided());
    let [mut mortal, other] = [world.start(&worker), world.start(&worker)];
    eventually(|| (4 <= world.fake.tally().at_once_max).then_some(())).expect("both work");
    kill(&mut mortal);
    let status = || world.folder.json(&format!("translate status {id}")).1["state"].clone();
    eventually(|| (status() == "completed").then_some(())).expect("the other finishes it");
    signal(&other, "-TERM");
    let ran: Ran = other.wait_with_output().expect("it ends").into();
    assert_eq!((ran.code, &*ran.out), (0, &*format!("{id}: completed\n")), "{}", ran.err);
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

#[test]
fn mistakes_are_named_and_send_nothing() {
    let world = World::new(Settings::default());
    world.folder.write("book.txt", &prose(6));
    world.folder.write("book.pdf", "%PDF");
    world.folder.write("terms.csv", "only-one-column\n");
    std::fs::write(world.folder.path().join("latin.txt"), b"one\ncaf\xe9\n").expect("written");
    let make = world.make("book.txt --yes");
    let cases = [
        (world.make("none.txt --yes"), "none.txt cannot be read"),
        (world.make("book.pdf --yes"), "use .txt, .md, .srt or .epub"),
        (world.make("latin.txt --yes"), "latin.txt: "),
        (world.make("book.txt --yes --glossary terms.csv"), "terms.csv: "),
        (world.make("book.txt --yes --glossary none.csv"), "--glossary none.csv: cannot be read"),
        (make.replace("--to fr", "--to en"), "is in \"en\" already"),
        (make.replace("--to fr", "--to klingon"), "klingon"),
        (make.replace("--policy wide", "--policy narrow"), "narrow"),
        (make.replace("gemini.key", "none.key"), "none.key, cannot be read"),
        (make.replace("--key-file gemini.key", "--key-env NO_KEY"), "NO_KEY"),
        (make.replace("http://127.0.0.1", "http://example.com"), "must begin with https"),
        (
            make.replace(" --yes", ""),
            "nobody is there to ask; say --yes to do it, or --plan to look",
        ),
        (
            world.make("book.txt --yes --max-cost 2,50"),
            "--max-cost \"2,50\" is no amount in dollars, as in 2.50",
        ),
        (world.make("book.txt --yes --workers 0"), "0 workers cannot translate"),
        (world.make("book.txt --yes --within soon"), "soon"),
        (world.make("book.txt --yes --output book.txt"), "is the document itself"),
        (world.make("book.txt --yes --output none/book.txt"), "there is no folder for"),
        (world.make("book.txt --yes --provider openai"), "name one with --model"),
        (make.replace("--chunk-tokens 200", "--fit-rpd"), "no limit of requests per day to fit"),
        (
            "translate status none".to_owned(),
            "there is no job none; tollgate translate jobs lists them",
        ),
        (format!("translate resume none {}", world.provided()), "there is no job none"),
        ("translate jobs --server http://127.0.0.1:1".to_owned(), "leave --server out"),
        ("translate cancel none".to_owned(), "there is no job none"),
        ("translate book.txt".to_owned(), "--to <LANGUAGE>"),
    ];
    for (arguments, wanted) in cases {
        let ran = world.run(&arguments);
        assert_eq!(ran.code, 2, "{arguments}: {}", ran.out);
        assert!(ran.err.contains(wanted), "{arguments}: {}", ran.err);
    }
    world.folder.write("book.fr.txt", "mine");
    let there = world.run(&make);
    assert!(there.code == 2 && there.err.contains("is there already"), "{}", there.err);
    assert_eq!(world.read("book.fr.txt"), "mine");
    assert_eq!(world.fake.tally().calls, 0);
    assert_eq!(world.run("translate jobs").out, "there are no jobs\n");
}
