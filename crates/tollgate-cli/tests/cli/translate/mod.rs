//! `tollgate translate`, against a fake provider on real connections.

mod cost;
mod documents;
mod formats;
mod http;
mod metrics;
mod outages;
mod pauses;
mod people;
mod shared;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde_json::Value;
use tokio::runtime::Runtime;
use tollgate::clock::{ManualClock, SystemClock};
use tollgate::{Clock, Span};
use tollgate_testkit::fakes::gemini::{FakeGemini, Served, Settings, Trouble, translated};
use tollgate_testkit::servers::eventually;
use tollgate_translate::{Document, Filling, Format, Layout, chunk};

use crate::folder::{Folder, Ran};

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

    /// One whose provider keeps every call waiting until it is [let go](Held::let_go), however long a busy machine takes
    /// for what is to happen meanwhile.
    pub(crate) fn held(settings: Settings, tables: &str) -> (Self, Held) {
        let clock = ManualClock::new();
        let kept = Settings { latency: HOLD, ..settings.clone() };
        (Self::by(Arc::new(clock.clone()), kept, tables), Held { clock, settings })
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

    pub(crate) fn jobs(&self) -> Vec<Value> {
        let (_, jobs) = self.folder.json("translate jobs");
        jobs["jobs"].as_array().expect("a list").clone()
    }

    /// The only job there is.
    pub(crate) fn id(&self) -> String {
        let jobs = self.jobs();
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        jobs[0]["id"].as_str().expect("an id").to_owned()
    }

    pub(crate) fn wait_for_translated(&self, number: u64) {
        eventually(|| (number <= self.fake.tally().translated).then_some(()))
            .expect("it translates");
    }
}

/// How long a provider that is held takes, by a manual clock.
const HOLD: Span = Span::from_secs(1);

/// The clock of a provider that answers no call, and how it is to answer.
pub(crate) struct Held {
    clock: ManualClock,
    settings: Settings,
}

impl Held {
    /// From now on calls are answered at once, those that wait included.
    pub(crate) fn let_go(self, fake: &FakeGemini) {
        fake.set(self.settings);
        self.clock.advance(HOLD);
    }
}

pub(crate) fn slow(millis: u64) -> Settings {
    Settings { latency: Span::from_millis(millis), ..Settings::default() }
}

pub(crate) fn troubled(troubles: Vec<Trouble>) -> Settings {
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

pub(crate) fn signal(child: &Child, name: &str) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args([name, &id]).status().expect("kill runs").success());
}
