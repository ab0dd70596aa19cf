//! The checks of answers, and the next step after each finding.

use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, proptest};
use tollgate_translate::verify::{
    ATTEMPTS_SAME, ATTEMPTS_SINGLE, Ending, MarkerFault, NextStep, Tried, detect, next_step,
    parse_answer as read_answer,
};
use tollgate_translate::{Chunk, Document, Fault, Finding, Format, verify};

use crate::{language, prose, read, task};

const ENGLISH: &str = "The river ran between old houses, and nobody knew where it came from, although people often talked \
    about its source in winter evenings, when there was little else to do.";
const FRENCH: &str = "La rivière coulait entre de vieilles maisons et personne ne savait d'où elle venait, bien que l'on parlât \
    souvent de sa source pendant les soirées d'hiver, quand il n'y avait guère autre chose à faire.";

fn fault(source: &str, answer: &str) -> Option<Fault> {
    let document = read(source, Format::Markdown);
    let chunk = Chunk::from_segments(&document, 0..document.len());
    verify(&task("en", "fr"), &document, &chunk, answer).into_texts().err()
}

/// The text of each of three segments, or its fault, or the fault of the answer.
fn three(answer: &str, ending: Ending) -> Result<Vec<Result<String, Fault>>, Fault> {
    read_answer(answer, 3, ending)
}

#[test]
fn r003_5_a_good_answer_passes_and_is_read_by_its_numbers() {
    let document = read("See *the* {x} of 1,500.\n\nSecond\nlines.", Format::Markdown);
    let chunk = Chunk::from_segments(&document, 0..2);
    let answer = "⟦#1⟧ Voir ⟦3⟧ de 1 500, ⟦1⟧le⟦2⟧.\n\n⟦#2⟧\nDeuxièmes\nlignes.\n";
    let checked = verify(&task("en", "fr"), &document, &chunk, answer);
    assert_eq!(checked.translated, 2);
    let texts = checked.into_texts().unwrap();
    assert_eq!(texts, ["Voir ⟦3⟧ de 1 500, ⟦1⟧le⟦2⟧.", "Deuxièmes\nlignes."]);
}

#[test]
fn r003_5_segments_must_all_be_there_once_and_in_order() {
    let rows = [
        ("", Fault::NoSegments),
        ("Voici la traduction.", Fault::NoSegments),
        ("⟦#1⟧ a", Fault::Missing { segments: vec![2, 3] }),
        ("⟦#1⟧ a ⟦#2⟧ b ⟦#2⟧ b ⟦#3⟧ c", Fault::Doubled { segment: 2 }),
        ("⟦#1⟧ a ⟦#2⟧ b ⟦#3⟧ c ⟦#4⟧ d", Fault::Unknown { segment: 4 }),
        ("⟦#0⟧ a ⟦#1⟧ b ⟦#2⟧ c ⟦#3⟧ c", Fault::Unknown { segment: 0 }),
        ("⟦#2⟧ b ⟦#1⟧ a ⟦#3⟧ c", Fault::OutOfOrder { segment: 2 }),
    ];
    for (answer, expected) in rows {
        assert_eq!(three(answer, Ending::Whole).unwrap_err(), expected);
    }
    let texts = three("Sure:\n```\n⟦#1⟧ a\n⟦#2⟧ b\n⟦#3⟧ c\n```", Ending::Whole).unwrap();
    assert_eq!(texts, ["a", "b", "c"].map(|text| Ok(text.to_owned())));
}

#[test]
fn r003_5_one_bad_segment_does_not_cost_the_others() {
    let good = |text: &str| Ok(text.to_owned());
    let empty = "⟦#1⟧ a ⟦#2⟧ ⟦#3⟧ c";
    let rows = [
        (empty, Ending::Whole, [good("a"), Err(Fault::Empty { segment: 2 }), good("c")]),
        (
            "⟦#1⟧ a ⟦#2⟧ b\n \nd ⟦#3⟧ c",
            Ending::Whole,
            [good("a"), Err(Fault::Paragraphs { segment: 2, found: 2 }), good("c")],
        ),
        // The last one was cut off, and may be half of itself.
        (
            "⟦#1⟧ a ⟦#2⟧ b",
            Ending::CutOff,
            [good("a"), Err(Fault::Truncated), Err(Fault::Truncated)],
        ),
    ];
    for (answer, ending, expected) in rows {
        assert_eq!(three(answer, ending).unwrap(), expected, "{answer}");
    }
    assert_eq!(three("⟦#1⟧ a", Ending::CutOff).unwrap_err(), Fault::Truncated);
    // The text of a missing segment may stand in a neighbour.
    let found = read_answer("⟦#1⟧ a ⟦#2⟧ b c ⟦#4⟧ d ⟦#5⟧ e", 5, Ending::Whole).unwrap();
    let missing = || Err(Fault::Missing { segments: vec![3] });
    assert_eq!(found, [good("a"), missing(), missing(), missing(), good("e")]);
}

#[test]
fn markers_must_all_be_there_once_and_nested() {
    let source = "a *b **c** d* {x}";
    let good = "⟦#1⟧ ⟦5⟧ a ⟦1⟧b ⟦2⟧c⟦3⟧⟦4⟧";
    assert_eq!(fault(source, good), None);
    let rows = [
        ("⟦#1⟧ a ⟦1⟧b ⟦2⟧c⟦3⟧ d⟦4⟧", 5, MarkerFault::Lost),
        ("⟦#1⟧ a ⟦1⟧b ⟦2⟧c⟦3⟧ d⟦4⟧ ⟦5⟧ ⟦5⟧", 5, MarkerFault::Doubled),
        ("⟦#1⟧ a ⟦1⟧b ⟦2⟧c⟦3⟧ d⟦4⟧ ⟦5⟧ ⟦6⟧", 6, MarkerFault::Invented),
        ("⟦#1⟧ a ⟦1⟧b ⟦2⟧c⟦4⟧ d⟦3⟧ ⟦5⟧", 4, MarkerFault::Crossed),
        ("⟦#1⟧ a ⟦4⟧b ⟦2⟧c⟦3⟧ d⟦1⟧ ⟦5⟧", 4, MarkerFault::Crossed),
        ("⟦#1⟧ a ⟦1⟧b ⟦2⟧c⟦3⟧ d⟦4⟧ ⟦5", 0, MarkerFault::Damaged),
    ];
    for (answer, marker, what) in rows {
        assert_eq!(
            fault(source, answer),
            Some(Fault::Marker { segment: 1, marker, what }),
            "{answer}"
        );
    }
}

#[test]
fn text_that_was_lost_added_or_left_in_the_source_language_is_found() {
    let long = format!("{ENGLISH} {ENGLISH}");
    let rows = [
        (ENGLISH, FRENCH.to_owned(), None),
        (&long, "La rivière coulait.".to_owned(), Some("segment 1 has")),
        (ENGLISH, FRENCH.repeat(4), Some("segment 1 has")),
        (ENGLISH, ENGLISH.to_owned(), Some("segment 1 was not translated")),
        (
            ENGLISH,
            ENGLISH.replace("houses", "buildings"),
            Some("segment 1 is in English, not in French"),
        ),
        (
            "to be or not to be",
            "To be, or not to be".to_owned(),
            Some("segment 1 was not translated"),
        ),
        ("Victor Hugo, Paris", "Victor Hugo, Paris".to_owned(), None),
    ];
    for (source, answer, expected) in rows {
        let found = fault(source, &format!("⟦#1⟧ {answer}")).map(|fault| fault.to_string());
        match (&found, expected) {
            (None, None) => {}
            (Some(found), Some(expected)) if found.starts_with(expected) => {}
            _ => panic!("{found:?} instead of {expected:?}"),
        }
    }
    // One paragraph of many that was left as it was.
    let source = format!("{ENGLISH}\n\nShort one here today.\n\n{ENGLISH}");
    let answer = format!("⟦#1⟧ {FRENCH}\n⟦#2⟧ Short one here today.\n⟦#3⟧ {FRENCH}");
    assert_eq!(fault(&source, &answer), Some(Fault::Untranslated { segment: 2 }));
}

#[test]
fn numbers_that_are_gone_are_a_doubt() {
    let doubts = |source: &str, to: &str, answer: &str| {
        let document = read(source, Format::Text);
        let chunk = Chunk::from_segments(&document, 0..1);
        let mut found = verify(&task("en", to), &document, &chunk, &format!("⟦#1⟧ {answer}"));
        match found.findings.remove(0) {
            Finding::Good { warning, .. } => (None, warning),
            Finding::Doubtful { fault, .. } => (Some(fault), None),
            Finding::Bad(fault) => panic!("{fault}"),
        }
    };
    let lost = |number: &str| Some(Fault::Number { segment: 1, number: number.into() });
    let none = (None, None);
    assert_eq!(doubts("In 1984 it cost 12,500.75.", "fr", "En 1984 : 12 500,75."), none);
    assert_eq!(doubts("In 1984 it was so.", "fr", "Ce fut ainsi en 1948."), (lost("1984"), None));
    assert_eq!(doubts("Page 45 of it.", "ar", "صفحة ٤٥ منه."), none);
    assert_eq!(doubts("About 1,500,000 people.", "zh", "约150万人。"), none);
    assert_eq!(doubts("All 3 of them.", "fr", "Tous les trois."), none);
    // One that may be written in words is not asked for again.
    assert_eq!(doubts("All 12 of them.", "fr", "Tous les douze."), (None, lost("12")));
}

#[test]
fn r003_5_the_ladder_goes_from_the_same_chunk_to_halves_to_single_segments() {
    let missing = Fault::Missing { segments: vec![1] };
    let step = |fault: &Fault, attempts: u32, open: usize, settled: usize| {
        next_step(fault, Tried { attempts, open, settled })
    };
    assert_eq!(step(&missing, 1, 20, 0), NextStep::Retry);
    assert_eq!(step(&missing, ATTEMPTS_SAME, 20, 0), NextStep::Split);
    assert_eq!(step(&missing, ATTEMPTS_SAME + 7, 20, 1), NextStep::Retry, "as long as it goes on");
    assert_eq!(step(&Fault::Truncated, 1, 20, 0), NextStep::Split);
    assert_eq!(step(&Fault::Truncated, 1, 20, 3), NextStep::Retry);
    assert_eq!(step(&Fault::Truncated, 1, 1, 0), NextStep::Retry);
    assert_eq!(step(&missing, ATTEMPTS_SINGLE - 1, 1, 0), NextStep::Retry);
    assert_eq!(step(&missing, ATTEMPTS_SINGLE, 1, 0), NextStep::Fail);
    assert_eq!(step(&Fault::Echoed, ATTEMPTS_SAME - 1, 20, 0), NextStep::Retry);
    assert_eq!(step(&Fault::Echoed, ATTEMPTS_SAME, 20, 0), NextStep::Accept);
}

#[test]
fn faults_are_kept_as_json_and_read_back() {
    let faults = [
        Fault::Truncated,
        Fault::Missing { segments: vec![1, 2] },
        Fault::Marker { segment: 1, marker: 2, what: MarkerFault::Lost },
        Fault::Language { segment: None, expected: language("fr"), found: language("en") },
    ];
    for fault in faults {
        let json = serde_json::to_string(&fault).unwrap();
        assert_eq!(serde_json::from_str::<Fault>(&json).unwrap(), fault);
    }
}

#[test]
fn the_language_of_a_document_is_recognised() {
    assert_eq!(detect(&read(ENGLISH, Format::Text)), Some(language("en")));
    assert_eq!(detect(&read(FRENCH, Format::Text)), Some(language("fr")));
    assert_eq!(detect(&read("1234", Format::Text)), None);
}

/// An answer that a faultless model gives: each segment in words that are not the source's.
fn faultless(document: &Document, chunk: &Chunk) -> Vec<String> {
    let other = |letter: char| match letter {
        'a' => 'á',
        'e' => 'é',
        'i' => 'í',
        'o' => 'ó',
        letter => letter,
    };
    let text = |number: usize| document.segment(number).text().chars().map(other).collect();
    chunk.segments.clone().map(text).collect()
}

fn joined(numbers: &[usize], texts: &[String]) -> String {
    numbers.iter().map(|number| format!("⟦#{number}⟧ {}\n", texts[number - 1])).collect()
}

/// How an answer goes wrong, and at which segment.
#[derive(Clone, Copy, Debug)]
enum Damage {
    None,
    Drop(usize),
    Double(usize),
    Swap(usize),
    Merge(usize),
    Swallow(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    (0_usize..6, 0_usize..1_000).prop_map(|(kind, place)| match kind {
        0 => Damage::None,
        1 => Damage::Drop(place),
        2 => Damage::Double(place),
        3 => Damage::Swap(place),
        4 => Damage::Merge(place),
        _ => Damage::Swallow(place),
    })
}

proptest! {
    /// R003.5: no segment is lost, doubled, swapped, merged or shortened without a fault.
    #[test]
    fn r003_5_damaged_answers_are_found(words in 200_usize..1_500, damage in damage()) {
        let document = read(&prose(words), Format::Text);
        let chunk = Chunk::from_segments(&document, 0..document.len());
        let mut texts = faultless(&document, &chunk);
        let count = texts.len();
        let mut numbers: Vec<usize> = (1..=count).collect();
        match damage {
            Damage::None => {}
            Damage::Drop(place) => drop(numbers.remove(place % count)),
            Damage::Double(place) => numbers.insert(place % count, place % count + 1),
            Damage::Swap(place) => numbers.swap(place % (count - 1), place % (count - 1) + 1),
            Damage::Merge(place) => {
                let place = place % (count - 1);
                let next = texts.remove(place + 1);
                texts[place].push_str(&format!("\n\n{next}"));
                numbers.pop();
            }
            Damage::Swallow(place) => {
                let text = &mut texts[place % (count - 1)];
                text.truncate(text.find(' ').unwrap());
            }
        }
        let answer = joined(&numbers, &texts);
        // A language whose texts are neither recognised nor expected to be of the source's length would hide nothing here.
        let result = verify(&task("en", "is"), &document, &chunk, &answer);
        match damage {
            Damage::None => prop_assert_eq!(result.into_texts().unwrap(), texts),
            _ => prop_assert!(result.into_texts().is_err(), "{damage:?}"),
        }
    }

    #[test]
    fn any_answer_is_read_without_panic(answer in "[⟦⟧#0-9a-z \n]{0,60}", count in 0_usize..4) {
        for ending in [Ending::Whole, Ending::CutOff] {
            if let Ok(texts) = read_answer(&answer, count, ending) {
                prop_assert_eq!(texts.len(), count);
            }
        }
    }
}
