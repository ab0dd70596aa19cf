//! HTML, or a page of a book that is not well-formed: parsed as browsers do.
//!
//! The tokenizer follows the HTML standard and reports the position of each tag. No tree is built: an element ends a sentence, is part
//! of one, or is opaque.

use std::ops::Range;

use html5gum::emitters::default::DefaultEmitter;
use html5gum::{Error as Flaw, State, Token, Tokenizer};

use super::table::Table;
use super::warning::Mistake;
use super::xhtml::{INLINE, Page, Run, VERBATIM};
use super::{BOM, attributes};

/// Elements without content.
const VOID: &[&str] = &[
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source",
    "track", "wbr",
];

/// Elements that another one of the same name closes.
const CLOSED_BY_NEXT: &[&str] = &["dd", "dt", "li", "option", "p", "td", "th", "tr"];

/// The handling of invalid text.
const KEPT: &str = "what follows is kept as it is";

/// A token with its range.
pub(super) struct Piece {
    pub(super) kind: Part,
    pub(super) range: Range<usize>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The start of an element, and whether the tag is self-closing.
    Start(String, bool),
    /// The end of an element.
    End(String),
    /// Text.
    Text,
    /// A comment.
    Comment,
    /// The document type.
    Doctype,
    /// A syntax error; with the construct that the end of the file interrupts.
    Flaw(Option<&'static str>),
}

/// Returns the tokens of `window` of `source`, in order.
pub(super) fn pieces(source: &str, window: Range<usize>) -> impl Iterator<Item = Piece> {
    let text = &source[window.clone()];
    let start = window.end - text.strip_prefix(BOM).unwrap_or(text).len();
    let emitter = DefaultEmitter::<usize>::new_with_span();
    let mut tokens = Tokenizer::new_with_emitter(&source[start..window.end], emitter);
    std::iter::from_fn(move || {
        let Ok(token) = tokens.next()?;
        let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let (kind, span) = match token {
            Token::StartTag(tag) => {
                let kind = Part::Start(name(&tag.name), tag.self_closing);
                if let Part::Start(name, false) = &kind
                    && let Some(state) = content(name)
                {
                    tokens.set_state(state);
                }
                (kind, tag.span)
            }
            Token::EndTag(tag) => (Part::End(name(&tag.name)), tag.span),
            Token::String(text) => (Part::Text, text.span),
            Token::Comment(text) => (Part::Comment, text.span),
            Token::Doctype(tag) => (Part::Doctype, tag.span),
            Token::Error(flaw) => (Part::Flaw(unfinished(flaw.value)), flaw.span),
        };
        Some(Piece { kind, range: start + span.start..start + span.end })
    })
}

/// Returns the tokenizer state for the content of an element without markup.
fn content(name: &str) -> Option<State> {
    match name {
        "textarea" | "title" => Some(State::RcData),
        "script" => Some(State::ScriptData),
        "style" | "iframe" | "xmp" | "noembed" | "noframes" => Some(State::RawText),
        "plaintext" => Some(State::PlainText),
        _ => None,
    }
}

fn unfinished(flaw: Flaw) -> Option<&'static str> {
    match flaw {
        Flaw::EofInTag | Flaw::EofBeforeTagName => Some("a tag"),
        Flaw::EofInComment => Some("a comment"),
        Flaw::EofInDoctype => Some("the document type"),
        _ => None,
    }
}

/// An opaque element.
struct Verbatim {
    name: String,
    start: usize,
    /// The number of open elements of the same name.
    depth: usize,
}

/// Adds the segments of `window` of `source`, and reports errors to `wrong`.
pub(super) fn read(
    source: &str,
    window: Range<usize>,
    table: &mut Table,
    mut wrong: impl FnMut(Mistake),
) {
    let mut run = Run::new(source, Page::Soup);
    let mut verbatim: Option<Verbatim> = None;
    let mut seen = window.start;
    for Piece { kind, range } in pieces(source, window) {
        match kind {
            Part::Flaw(what) => {
                if let Some(what) = what {
                    let problem = format!("the page ends inside {what}");
                    wrong(Mistake { offset: seen, problem, done: KEPT });
                }
                continue;
            }
            _ => seen = range.end,
        }
        if let Some(inside) = &mut verbatim {
            let by_next = CLOSED_BY_NEXT.contains(&inside.name.as_str());
            match &kind {
                Part::Start(name, false) if *name == inside.name && by_next => {
                    run.finish(inside.start, table);
                    verbatim = None;
                }
                Part::Start(name, false) if *name == inside.name => {
                    inside.depth += 1;
                    continue;
                }
                Part::End(name) if *name == inside.name => {
                    inside.depth -= 1;
                    if inside.depth == 0 {
                        run.verbatim(&inside.name, inside.start, range.end, table);
                        verbatim = None;
                    }
                    continue;
                }
                _ => continue,
            }
        }
        match kind {
            Part::Start(name, closed) => {
                let closed = closed || VOID.contains(&name.as_str());
                if is_verbatim(source, &name, range.clone()) {
                    match closed {
                        true => run.verbatim(&name, range.start, range.end, table),
                        false => verbatim = Some(Verbatim { name, start: range.start, depth: 1 }),
                    }
                    continue;
                }
                run.attributes(range.clone());
                match (closed, INLINE.contains(&name.as_str())) {
                    (true, true) => run.alone(range.start, range.end),
                    (true, false) => run.finish(range.start, table),
                    (false, true) => run.start(&name, range.start, range.end, table),
                    (false, false) => {
                        run.block.clear();
                        run.start(&name, range.start, range.end, table);
                    }
                }
            }
            Part::End(name) => run.end(&name, range.start, range.end, table),
            Part::Text => run.text(range.start),
            Part::Comment => run.alone(range.start, range.end),
            Part::Doctype => run.finish(range.start, table),
            Part::Flaw(_) => {}
        }
    }
    if let Some(Verbatim { name, start, .. }) = verbatim {
        let problem = format!("<{name}> is not closed");
        wrong(Mistake { offset: start, problem, done: KEPT });
        run.finish(start, table);
    } else {
        run.finish(seen, table);
    }
}

fn is_verbatim(source: &str, name: &str, tag: Range<usize>) -> bool {
    let is_opaque = |name| VERBATIM.contains(&name) || content(name).is_some() && name != "title";
    let refuses = |(name, value): (&str, Range<usize>)| {
        name.eq_ignore_ascii_case("translate") && source[value].eq_ignore_ascii_case("no")
    };
    is_opaque(name) || attributes::parse_tag(source, tag).any(refuses)
}
