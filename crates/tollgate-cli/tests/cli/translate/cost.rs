//! A job that costs more than was planned asks before it goes on.

use std::fs::File;
use std::io::{BufReader, Read as _, Write as _};
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tollgate_testkit::fakes::gemini::Settings;
use tollgate_translate::Layout;

use super::{World, expected, prose};
use crate::folder::Ran;

/// What only tokens that are sent cost, so that a provider that counts more of them than were planned is dearer than was planned.
const PRICES: &str =
    r#"{"as_of": "2026-11", "models": {"gemini-2.5-flash": {"input": 300000, "output": 0}}}"#;

const MAKE: &str = "book.txt --yes --workers 2 --prices prices.json";

/// A provider that counts so many percent of the tokens it should, and a document.
fn counting(tokens_percent: u64) -> (World, String) {
    let world = World::new(Settings { tokens_percent, ..Settings::default() });
    let text = prose(60);
    world.folder.write("book.txt", &text);
    world.folder.write("prices.json", PRICES);
    (world, text)
}

/// R003.3: without a terminal the job is paused before it costs twice what was planned, and names the command that goes on.
#[test]
fn r003_3_a_job_that_costs_twice_the_plan_is_paused_with_the_command_that_goes_on() {
    let (world, text) = counting(400);
    let (_, planned) = world.folder.json(&world.make(&format!("{MAKE} --plan")));
    let planned = planned["plan"]["cost_micros"].as_u64().expect("a price");
    let (code, report) = world.folder.json(&world.make(MAKE));
    let job = &report["job"];
    assert_eq!((code, &job["state"]), (1, &"paused".into()), "{job}");
    assert_eq!(job["ask_above_micros"], 2 * planned);
    let cost = job["cost_micros"].as_u64().expect("a number");
    assert!(planned < cost && cost <= 2 * planned, "{job}");
    assert!(job["why"].as_str().is_some_and(|why| why.contains("needs your consent")), "{job}");
    let resume = job["resume"].as_str().expect("a command").to_owned();
    // Without more money it is paused again, and no call is made.
    let calls = world.fake.tally().calls;
    let shown = world.resume(&world.id(), "");
    assert_eq!(shown.code, 1, "{}", shown.out);
    assert!(shown.out.contains(" --max-cost 0.0"), "{}", shown.out);
    assert_eq!(world.fake.tally().calls, calls);
    let raised = resume.strip_prefix("tollgate ").expect("a command of tollgate");
    assert!(raised.contains(" --max-cost 0.0"), "{raised}");
    world.fake.set(Settings::default());
    let done = world.run(raised);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
}

/// R003.3: at a terminal the command asks for confirmation, and goes on or ends.
#[test]
fn r003_3_a_job_that_costs_twice_the_plan_asks_at_a_terminal() {
    for (answer, code) in [("y\n", 0), ("n\n", 1)] {
        let (world, text) = counting(300);
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it is ours");
        let name = ptsname(&master, Vec::new()).expect("it has a name");
        let terminal = File::options().read(true).write(true).open(name.to_str().expect("a path"));
        let mut command = world.folder.command(&world.make(MAKE));
        command.stdin(Stdio::from(terminal.expect("it opens")));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("the binary starts");
        let mut output = BufReader::new(child.stderr.take().expect("it is piped"));
        let (mut shown, mut byte) = (String::new(), [0]);
        while !shown.contains("? [y/N] ") {
            output.read_exact(&mut byte).unwrap_or_else(|error| panic!("{error}: {shown}"));
            shown.push(char::from(byte[0]));
        }
        assert!(shown.contains(" was planned. Continue up to $0.0"), "{shown}");
        let calls = world.fake.tally().calls;
        File::from(master).write_all(answer.as_bytes()).expect("it is read");
        let mut rest = Vec::new();
        output.read_to_end(&mut rest).expect("it ends");
        let ran: Ran = child.wait_with_output().expect("it ends").into();
        assert_eq!(ran.code, code, "{answer}: {}", ran.out);
        if code == 0 {
            assert_eq!(world.read("book.fr.txt"), expected(&text, Layout::Translation));
        } else {
            assert!(
                ran.out.contains("Resume with: ") && ran.out.contains(" --max-cost "),
                "{}",
                ran.out
            );
            assert_eq!(world.fake.tally().calls, calls);
        }
    }
}
