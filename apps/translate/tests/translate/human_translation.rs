//! A handbook with translations that a person made, answered by the fake over HTTP: good answers cost what was planned, bad ones are found.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tollgate::clock::SystemClock;
use tollgate_testkit::fakes::gemini::{FakeGemini, Fault, Phrases, Settings, Trouble, When};
use tollgate_translate::job::{Counts, EmbeddedJobs};
use tollgate_translate::pipeline::{JobSpec, Output, RunOutcome};
use tollgate_translate::{Document, FAILED_MARK, Filling, Format, Layout, Task, chunk};

use crate::child_process::{JOB, pipeline};
use crate::harness::{MODEL, prose};

const HANDBOOK: &str = include_str!("handbook.txt");

const LANGUAGES: [&str; 5] = ["ja", "zh", "ar", "ru", "de"];

/// About a dozen chunks.
const SIZE: u64 = 100;

/// The paragraphs of the handbook in a language. Command lines are the same in all of them.
fn paragraphs(language: &str) -> Vec<&'static str> {
    let paragraph = |block: &'static str| {
        let line = |wanted: &str| {
            block.lines().find_map(|line| line.strip_prefix(wanted)?.strip_prefix(' '))
        };
        line("==").or_else(|| line(language)).unwrap()
    };
    HANDBOOK.split("\n\n").map(paragraph).collect()
}

fn source() -> String {
    paragraphs("en").join("\n\n") + "\n"
}

/// What the fake answers: the translation into `language` of each segment.
fn phrases(language: &str) -> Phrases {
    let document = document(&source(), SIZE);
    let sources = document.segments().map(|segment| segment.text());
    // A command line has markers in the source, and they stay.
    let answer = |(source, (english, text)): (String, (&str, &str))| {
        let text = if english == text { source.clone() } else { text.to_owned() };
        (source, text)
    };
    sources.zip(paragraphs("en").into_iter().zip(paragraphs(language))).map(answer).collect()
}

fn document(text: &str, size: u64) -> Document {
    let mut document = Document::read(text.as_bytes().to_vec(), Format::Text).unwrap();
    chunk::cut(&mut document, size).unwrap();
    document
}

/// The document that the translations make.
fn expected(language: &str) -> String {
    let document = document(&source(), SIZE);
    let (english, texts) = (paragraphs("en"), paragraphs(language));
    let bytes = document.write(Layout::Translation, |number| match texts[number] {
        text if text == english[number] => Filling::Source,
        text => Filling::Text(text),
    });
    String::from_utf8(bytes.unwrap()).unwrap()
}

/// What became of a job.
struct Done {
    planned: u64,
    calls: u64,
    ended: RunOutcome,
    counts: Counts,
    output: Output,
}

impl Done {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.output.bytes).unwrap()
    }
}

/// Translates `text` from English over HTTP, in chunks of `size`.
async fn translate(text: &str, to: &str, size: u64, settings: Settings) -> Done {
    let fake = FakeGemini::new(Arc::new(SystemClock), settings);
    let served = fake.serve(0).await.unwrap();
    let store = Arc::new(EmbeddedJobs::in_memory().unwrap());
    let pipeline = pipeline(&served.url(), store);
    let task = Task::new("en".parse().unwrap(), to.parse().unwrap());
    let mut spec = JobSpec::new(JOB, text.as_bytes().to_vec(), Format::Text, task, MODEL);
    spec.chunk_tokens = size;
    pipeline.submit(&spec).await.unwrap();
    let planned = pipeline.store().counts(JOB).await.unwrap().all();
    let ended = pipeline.run(JOB, &CancellationToken::new()).await.unwrap();
    let counts = pipeline.store().counts(JOB).await.unwrap();
    let output = pipeline.output(JOB, Layout::Translation).await.unwrap();
    Done { planned, calls: fake.tally().calls, ended, counts, output }
}

fn answering(language: &str) -> Settings {
    Settings { phrases: phrases(language), ..Settings::default() }
}

/// R003.5: every command line is echoed, as every translator does, and each chunk takes one call.
#[tokio::test]
async fn r003_5_translations_that_people_made_are_accepted_at_once() {
    assert_eq!(paragraphs("en").len(), 51);
    // Numbers that the translator wrote in words: 12, 20, 500.
    for (to, column, warnings) in
        [("ja", "ja", 0), ("zh-Hans", "zh", 2), ("ar", "ar", 2), ("ru", "ru", 1), ("de", "de", 1)]
    {
        let done = translate(&source(), to, SIZE, answering(column)).await;
        println!("{to}: {} calls of {} planned", done.calls, done.planned);
        assert_eq!((done.calls, done.planned), (12, 12), "{to}");
        assert_eq!(done.ended, RunOutcome::Completed, "{to}");
        assert_eq!(done.text(), expected(column), "{to}");
        assert!(!done.text().contains(FAILED_MARK), "{to}");
        assert_eq!(done.output.warnings.len(), warnings, "{to}: {:?}", done.output.warnings);
    }
}

/// R003.5: one echoed command line among sixty paragraphs used to take 21 calls, and an echoed paragraph as many.
#[tokio::test]
async fn r003_5_an_echoed_line_costs_at_most_one_more_call_for_itself() {
    let mut text = prose(60);
    let paragraph = text.split("\n\n").nth(30).unwrap().to_owned();
    text += "\n$ dpkg -l\n";
    let echoing = |lines: &[&str]| {
        let phrases = lines.iter().map(|line| ((*line).to_owned(), (*line).to_owned())).collect();
        Settings { phrases, ..Settings::default() }
    };
    let command = translate(&text, "fr", 3_500, echoing(&["$ dpkg -l"])).await;
    assert_eq!((command.planned, command.calls), (1, 1));
    assert_eq!((command.ended, command.output.warnings.len()), (RunOutcome::Completed, 0));
    let prose = translate(&text, "fr", 3_500, echoing(&["$ dpkg -l", &paragraph])).await;
    assert_eq!((prose.planned, prose.calls), (1, 2));
    let [warning] = prose.output.warnings.as_slice() else { panic!("{:?}", prose.output) };
    assert_eq!(
        (warning.run.to_string().as_str(), &*warning.reason),
        ("30..31", "it was not translated")
    );
    assert!(paragraph.starts_with(&warning.source), "{warning:?}");
    assert!(prose.text().contains(&paragraph) && !prose.text().contains(FAILED_MARK));
}

/// R003.5: whichever of the languages is wanted, an answer in another one of them is found, and the job is paused after five.
#[tokio::test]
async fn r003_5_an_answer_in_another_language_is_found() {
    for to in LANGUAGES {
        for found in LANGUAGES.into_iter().filter(|found| *found != to) {
            let done = translate(&source(), to, 200, answering(found)).await;
            let RunOutcome::Paused { resume_at: None, why, .. } = done.ended else {
                panic!("{found} for {to}: {:?}", done.ended)
            };
            assert!(why.starts_with("5 answers in a row were useless: "), "{why}");
            assert!(why.contains(" is in "), "{found} for {to}: {why}");
            assert_eq!(
                (done.calls, done.counts.done, done.counts.failed),
                (5, 0, 0),
                "{found} for {to}"
            );
        }
    }
}

/// R003.5: answers that are cut off, empty or without their markers once are asked for again, as far as they are bad.
#[tokio::test]
async fn r003_5_a_damaged_answer_is_found_and_only_the_damage_is_asked_for_again() {
    for fault in [
        Fault::Truncated,
        Fault::Emptied,
        Fault::Unmarked,
        Fault::Dropped,
        Fault::Merged,
        Fault::Untranslated,
    ] {
        let when = When::Contains("The example copies".to_owned());
        let troubles = vec![Trouble::new(fault, when).times(1)];
        let done = translate(&source(), "de", SIZE, Settings { troubles, ..answering("de") }).await;
        assert_eq!((done.calls, done.planned), (13, 12), "{fault:?}");
        assert_eq!(done.ended, RunOutcome::Completed, "{fault:?}");
        assert_eq!(done.text(), expected("de"), "{fault:?}");
    }
}

/// R003.5: a placeholder that is lost whenever it is asked for costs its own paragraph, and no other.
#[tokio::test]
async fn r003_5_what_is_bad_to_the_end_is_marked_and_nothing_else() {
    let lost = When::Contains("The example copies".to_owned());
    let troubles = vec![Trouble::new(Fault::Unmarked, lost)];
    let done = translate(&source(), "de", SIZE, Settings { troubles, ..answering("de") }).await;
    assert_eq!(done.ended, RunOutcome::CompletedWithErrors);
    let [failure] = done.output.failures.as_slice() else { panic!("{:?}", done.output.failures) };
    assert_eq!(failure.run.len(), 1);
    assert!(failure.source.starts_with("The example copies"), "{failure:?}");
    assert!(failure.reason.contains("lost the marker ⟦1⟧"), "{failure:?}");
    assert_eq!(done.text().matches(FAILED_MARK).count(), 1);
    assert_eq!((done.calls, done.planned), (14, 12), "twice more, for it alone");
}
