//! A document from its plan to its last byte, whatever the provider answers, and mistakes that send nothing.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use tollgate_testkit::fakes::gemini::{Fault, Settings, Trouble, When};
use tollgate_translate::Layout;

use super::{World, expected, prose, troubled};
use crate::folder::Folder;
use crate::running::Broker;

/// A link keeps leading to its file, a file keeps its permissions, and a pipe gets the translation.
#[test]
fn the_translation_goes_where_its_output_leads() {
    let world = World::new(Settings::default());
    let text = prose(3);
    world.folder.write("in.txt", &text);
    let path = |file: &str| world.folder.path().join(file);
    world.folder.write("real.txt", "old");
    std::fs::set_permissions(path("real.txt"), std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink("real.txt", path("link.txt")).unwrap();
    let made = world.run(&world.make("in.txt --yes --output link.txt"));
    assert_eq!(made.code, 0, "{}", made.err);
    assert!(path("link.txt").is_symlink());
    assert_eq!(world.read("real.txt"), expected(&text, Layout::Translation));
    let mode = std::fs::metadata(path("real.txt")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let made = std::process::Command::new("mkfifo").arg(path("pipe")).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    let pipe = path("pipe");
    let reader = std::thread::spawn(move || std::fs::read_to_string(pipe).unwrap());
    let made = world.run(&world.make("in.txt --yes --output pipe"));
    assert_eq!(made.code, 0, "{}", made.err);
    assert_eq!(reader.join().unwrap(), expected(&text, Layout::Translation));
}

/// Names that come from others cannot steer the terminal.
#[test]
fn control_characters_are_shown_and_not_sent_to_the_terminal() {
    let world = World::new(Settings::default());
    world.folder.write("a\u{1b}[2J\nb.txt", &prose(2));
    let flags = world.make("--yes");
    let mut words: Vec<&str> = flags.split_whitespace().collect();
    words.insert(1, "a\u{1b}[2J\nb.txt");
    let made = world.folder.run_with(&words);
    assert_eq!(made.code, 0, "{}", made.err);
    let jobs = world.run("translate jobs");
    let unknown = world.folder.run_with(&["translate", "status", "\u{1b}[2J"]);
    for text in [&made.out, &made.err, &jobs.out, &unknown.err] {
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
    assert!(jobs.out.contains(r"a\u{1b}[2J\nb.txt"), "{}", jobs.out);
    assert_eq!(jobs.out.lines().count(), 2, "{}", jobs.out);
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
        (world.make("book.pdf --yes"), "use .txt, .md, .html, .srt, .vtt or .epub"),
        (world.make("latin.txt --yes"), "latin.txt: "),
        (world.make("book.txt --yes --glossary terms.csv"), "terms.csv: "),
        (world.make("book.txt --yes --glossary none.csv"), "--glossary none.csv: cannot be read"),
        (make.replace("--to fr", "--to en"), "is in \"en\" already"),
        (make.replace("--to fr", "--to klingon"), "klingon"),
        (
            make.replace("--policy wide", "--policy narrow"),
            "no policy is called \"narrow\"; known: wide, three; name one with --policy",
        ),
        (make.replace("gemini.key", "none.key"), "none.key, cannot be read"),
        (make.replace("--key-file gemini.key", "--key-env NO_KEY"), "with --key-file"),
        (make.replace("http://127.0.0.1", "http://example.com"), "must begin with https"),
        (
            make.replace(" --yes", ""),
            "standard input is not a terminal; pass --yes to confirm, or --plan to see what would be done",
        ),
        (
            world.make("book.txt --yes --max-cost 2,50"),
            "--max-cost \"2,50\" is not an amount in dollars, as in 2.50",
        ),
        (world.make("book.txt --yes --workers 0"), "invalid number of workers 0"),
        (world.make("book.txt --yes --within soon"), "soon"),
        (world.make("book.txt --yes --output book.txt"), "is the document itself"),
        (world.make("book.txt --yes --output none/book.txt"), "there is no folder for"),
        (world.make("book.txt --yes --output ."), "cannot be written: is a directory"),
        (world.make("book.txt --yes --output /proc/book.txt"), "/proc/book.txt cannot be written"),
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

/// The policies of the walk are those on the page, and with them a command works whether it names a policy or not.
#[test]
fn the_walk_on_the_page_has_the_policies_that_it_needs() {
    const WALK: &str = include_str!("../../../../../examples/translate.toml");
    let page = include_str!("../../../../../docs/translate.md");
    assert!(page.contains(&format!("```toml\n{WALK}```")), "the page shows the file");
    let folder = Folder::with(WALK);
    folder.write("book.md", page);
    for policy in ["", "--policy gemini-paid", "--policy gemini-day"] {
        let ran = folder.run(&format!("translate book.md --to fr --plan {policy}"));
        assert_eq!((ran.code, &*ran.err), (0, ""), "{policy}");
    }
}

/// Swapped --from and --to are an error before anything is paid.
#[test]
fn a_document_in_the_target_language_is_warned_of_before_it_is_paid() {
    let world = World::new(Settings::default());
    world.folder.write("book.txt", &expected(&prose(20), Layout::Translation));
    let ran = world.run(&world.make("book.txt").replace(" --yes", ""));
    let warning = "warning: the document seems to be in French already, not in English";
    assert!(ran.code == 2 && ran.out.contains(warning), "{}{}", ran.out, ran.err);
    assert_eq!(world.fake.tally().calls, 0);
    world.folder.write("other.txt", &prose(20));
    assert!(!world.run(&world.make("other.txt --yes")).out.contains("warning"));
}
