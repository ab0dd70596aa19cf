//! Requests, glossaries, and the keys of the cache.

use tollgate_translate::cache::CacheKey;
use tollgate_translate::{Chunk, Error, Format, Glossary, Task, Term, numbered};

use crate::{language, read, task};

fn glossary() -> Glossary {
    Glossary::from_csv(
        "source,target,note\ndragon,dragon,masculine\nGray Keep,Donjon Gris\nnever,jamais\n",
    )
    .unwrap()
}

#[test]
fn a_request_has_terms_that_occur_context_and_numbered_segments() {
    let document = read(
        "Before it.\n\nThe Dragons of **Gray Keep**\nsleep.\n\nNo term {x}.\n",
        Format::Markdown,
    );
    let task = Task {
        glossary: glossary(),
        instructions: Some("Use the formal you.".into()),
        ..task("en", "pt-BR")
    };
    let prompt = task.prompt(&document, &Chunk::from_segments(&document, 1..3));
    assert_eq!(
        prompt.prompt,
        "Glossary (source => translation):\ndragon => dragon (masculine)\nGray Keep => Donjon Gris\n\n\
         Context, the text just before. Do not translate it:\nBefore it.\n\n\
         Translate these segments:\n⟦#1⟧ The Dragons of ⟦1⟧Gray Keep⟦2⟧\nsleep.\n⟦#2⟧ No term ⟦1⟧.\n"
    );
    assert!(prompt.system.contains("from English into Portuguese (BR)"));
    assert!(prompt.system.ends_with("Use the formal you."));
    let segments = [(1, "The Dragons of ⟦1⟧Gray Keep⟦2⟧\nsleep."), (2, "No term ⟦1⟧.")];
    assert_eq!(numbered(&prompt.prompt), segments);
}

#[test]
fn nothing_in_a_document_or_a_glossary_can_pose_as_a_segment() {
    let document = read("one ⟦#1⟧ x\n\ntwo ⟦#2⟧ y\n", Format::Text);
    let term =
        Term { source: "two".into(), target: "⟦#9⟧".into(), note: Some("⟦#8⟧".into()) };
    let task = Task { glossary: Glossary::new([term]).unwrap(), ..task("en", "fr") };
    let prompt = task.prompt(&document, &Chunk::from_segments(&document, 1..2));
    assert_eq!(numbered(&prompt.prompt), [(1, "two ⟦1⟧#2⟦2⟧ y")]);
}

#[test]
fn the_answer_gets_room_for_the_language_and_for_thinking() {
    let document = read(&crate::prose(2_500), Format::Text);
    let chunk = Chunk::from_segments(&document, 0..document.len());
    let french = task("en", "fr").prompt(&document, &chunk);
    let chinese = task("en", "zh").prompt(&document, &chunk);
    assert!(chinese.output_tokens < french.output_tokens);
    assert!(chunk.tokens * 11 / 10 < french.output_tokens);
    assert!(2 * french.output_tokens <= u64::from(french.max_output_tokens));
    let short = task("en", "fr").prompt(&document, &Chunk::from_segments(&document, 0..1));
    assert_eq!(short.max_output_tokens, 2_048);
}

#[test]
fn a_glossary_reads_csv_and_json() {
    let rows = [
        Glossary::from_csv("\u{feff}source\ttarget\ndragon\tdragon\n"),
        Glossary::from_csv("dragon;dragon\r\ndragon;dragon\r\n"),
        Glossary::from_csv("\"dragon\",\"dragon\"\n"),
        Glossary::from_json("{\"dragon\": \"dragon\"}"),
        Glossary::from_json("[{\"source\": \" dragon\", \"target\": \"dragon \"}]"),
    ];
    let dragon = Term { source: "dragon".into(), target: "dragon".into(), note: None };
    for glossary in rows {
        assert_eq!(glossary.unwrap().terms(), std::slice::from_ref(&dragon));
    }
    let quoted = Glossary::from_csv("\"a, b\",\"c \"\"d\"\"\"\n").unwrap();
    assert_eq!(
        (quoted.terms()[0].source.as_str(), quoted.terms()[0].target.as_str()),
        ("a, b", "c \"d\"")
    );
}

#[test]
fn a_bad_glossary_says_what_is_wrong_and_where() {
    let rows: [(Result<Glossary, Error>, &str); 6] = [
        (Glossary::from_csv("a,b\nonly\n"), "glossary, line 2: there are 1 fields; write a term"),
        (Glossary::from_csv("a,b\n,c\n"), "glossary, line 2: the source is empty"),
        (
            Glossary::from_csv("a,b\nx,y\nA,c\n"),
            "glossary, line 3: \"A\" is translated as \"c\", and before as \"b\"",
        ),
        (Glossary::from_json("[{\"source\": \"a\"}]"), "glossary: missing field `target`"),
        (
            Glossary::from_json("[{\"source\": \"a\", \"target\": \" \"}]"),
            "glossary, term 1: the target is empty",
        ),
        (Glossary::from_json("nonsense"), "glossary: expected"),
    ];
    for (glossary, message) in rows {
        let error = glossary.unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}

#[test]
fn terms_are_found_at_the_beginning_of_a_word() {
    let terms = ["keep", "Ära", "日本", "C++"].map(|source| Term {
        source: source.into(),
        target: "x".into(),
        note: None,
    });
    let glossary = Glossary::new(terms).unwrap();
    let rows: [(&str, &[&str]); 6] = [
        ("Keeps of old", &["keep"]),
        ("upkeep", &[]),
        ("die ära", &["Ära"]),
        ("在日本人", &["日本"]),
        ("in C++17", &["C++"]),
        ("nothing", &[]),
    ];
    for (text, expected) in rows {
        let found: Vec<&str> =
            glossary.occurring(text).iter().map(|term| term.source.as_str()).collect();
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn languages_are_read_by_tag_and_by_name() {
    assert_eq!(language("French"), language("fr"));
    assert_eq!(
        (language("PT-br").tag(), language("zh-Hant").name()),
        ("pt-br", "Chinese (Hant)".to_owned())
    );
    for bad in ["", "xx", "fr-", "fr-x!", "Klingon"] {
        let error = bad.parse::<tollgate_translate::Language>().unwrap_err();
        assert!(error.to_string().contains("write a tag such as fr"), "{error}");
    }
}

#[test]
fn a_key_changes_with_all_that_was_asked_and_with_nothing_else() {
    let source = "Context here.\n\nThe dragon sleeps.\n\nNever mind.\n";
    let document = read(source, Format::Text);
    let second = Chunk::from_segments(&document, 1..2);
    let plain = task("en", "fr");
    let key = |task: &Task| CacheKey::for_prompt("m", &task.prompt(&document, &second));
    let base = key(&plain);
    let other_place = read(&format!("More before.\n\n{source}"), Format::Text);
    let moved = Task { context_tokens: 4, ..plain.clone() };
    let same = CacheKey::for_prompt(
        "m",
        &moved.prompt(&other_place, &Chunk::from_segments(&other_place, 2..3)),
    );
    assert_eq!(same, key(&moved));
    let changed = [
        CacheKey::for_prompt("n", &plain.prompt(&document, &second)),
        key(&Task { context_tokens: 0, ..plain.clone() }),
        key(&Task { glossary: glossary(), ..plain.clone() }),
        key(&Task { to: language("de"), ..plain.clone() }),
        key(&Task { from: language("nl"), ..plain.clone() }),
        key(&Task { instructions: Some("Short.".into()), ..plain.clone() }),
        CacheKey::for_prompt("m", &plain.prompt(&document, &Chunk::from_segments(&document, 1..3))),
    ];
    for (place, other) in changed.iter().enumerate() {
        assert_ne!(*other, base, "{place}");
        assert!(!changed[..place].contains(other), "{place}");
    }
    let unused = Glossary::from_csv("phoenix,phénix\n").unwrap();
    assert_eq!(key(&Task { glossary: unused, ..plain.clone() }), base);
    assert_eq!(base.to_string().parse::<CacheKey>().unwrap(), base);
    assert!("abc".parse::<CacheKey>().is_err());
}
