//! Merging the segments of an answer into the drafts of a chunk.
//!
//! A good segment is settled at once. A doubtful one is requested once more; if it is doubtful again, or missing from the second
//! answer, it is settled with a warning.

use crate::job::{ChunkPart, Draft, Drafts, SegmentRange};
use crate::verify::{Checked, Fault, Finding};

/// A chunk after an answer.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) drafts: Drafts,
    /// How many segments the answer settled.
    pub(super) count: usize,
    /// The fault of the first open segment, or of the answer.
    pub(super) fault: Option<Fault>,
}

/// Merges `checked`, the answer for the indices `open`.
pub(super) fn settle(mut drafts: Drafts, open: &[u32], checked: Checked) -> Settled {
    if checked.fault.is_some() {
        return Settled { drafts, count: 0, fault: checked.fault };
    }
    let (mut count, mut bad, mut doubt) = (0, None, None);
    for (index, finding) in open.iter().zip(checked.findings) {
        let before = drafts.at(*index).cloned();
        let draft = match (finding, before) {
            (Finding::Good { text, warning }, _) => {
                Draft { text, warning: warning.map(|it| it.without_segment()), is_settled: true }
            }
            (Finding::Doubtful { text, fault }, before) => {
                let warning = Some(fault.without_segment());
                doubt = doubt.or_else(|| before.is_none().then_some(fault));
                Draft { text, warning, is_settled: before.is_some() }
            }
            (Finding::Bad(_), Some(before)) => Draft { is_settled: true, ..before },
            (Finding::Bad(fault), None) => {
                bad = bad.or(Some(fault));
                continue;
            }
        };
        count += usize::from(draft.is_settled);
        drafts.put(*index, draft);
    }
    Settled { drafts, count, fault: bad.or(doubt) }
}

/// Settles every text of `checked`, with a warning where it is doubtful; a segment without a text stays open.
pub(super) fn accept(mut drafts: Drafts, open: &[u32], checked: Checked) -> Drafts {
    for (index, finding) in open.iter().zip(checked.findings) {
        if let Some(draft) = settled(finding) {
            drafts.put(*index, draft);
        }
    }
    drafts
}

/// Returns the settled draft of a segment, with a warning where it is doubtful; `None` if it is bad.
pub(super) fn settled(finding: Finding) -> Option<Draft> {
    let (text, fault) = match finding {
        Finding::Good { text, warning } => (text, warning),
        Finding::Doubtful { text, fault } => (text, Some(fault)),
        Finding::Bad(_) => return None,
    };
    let warning = fault.map(|fault| fault.without_segment());
    Some(Draft { text, warning, is_settled: true })
}

/// Splits `run` into parts, so that only its open segments are given up.
pub(super) fn give_up(run: SegmentRange, drafts: &Drafts, reason: &str) -> Vec<ChunkPart> {
    let open = drafts.open();
    let is_open = |index: u32| open.binary_search(&index).is_ok();
    let mut parts: Vec<ChunkPart> = Vec::new();
    for index in 0..run.len() {
        let end = run.first + index + 1;
        let failed = is_open(index).then(|| reason.to_owned());
        match parts.last_mut() {
            Some(last) if last.failed == failed => last.run.end = end,
            _ => {
                let run = SegmentRange { first: run.first + index, end };
                parts.push(ChunkPart { run, drafts: Drafts::default(), failed });
            }
        }
    }
    for part in &mut parts {
        part.drafts = drafts.part(part.run.first - run.first..part.run.end - run.first);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Texts;

    fn good(text: &str) -> Finding {
        Finding::Good { text: text.to_owned(), warning: None }
    }

    fn doubtful(text: &str) -> Finding {
        Finding::Doubtful { text: text.to_owned(), fault: Fault::Untranslated { segment: 1 } }
    }

    fn bad() -> Finding {
        Finding::Bad(Fault::Empty { segment: 1 })
    }

    fn answer(findings: Vec<Finding>) -> Checked {
        Checked { findings, fault: None, translated: 0 }
    }

    #[test]
    fn good_segments_are_settled_and_only_the_others_stay_open() {
        let first = settle(
            Drafts::none(4),
            &[0, 1, 2, 3],
            answer(vec![good("a"), bad(), doubtful("c"), doubtful("d")]),
        );
        assert_eq!((first.count, first.drafts.open()), (1, vec![1, 2, 3]));
        assert_eq!(first.fault, Some(Fault::Empty { segment: 1 }));
        let second =
            settle(first.drafts, &[1, 2, 3], answer(vec![good("b"), doubtful("c2"), bad()]));
        assert_eq!((second.count, second.fault), (3, None));
        let Texts { texts, warnings } = second.drafts.whole().unwrap();
        assert_eq!(texts, ["a", "b", "c2", "d"], "what was doubtful twice, or once and then lost");
        let warning = "it was not translated".to_owned();
        assert_eq!(warnings, [(2, warning.clone()), (3, warning)]);
    }

    #[test]
    fn an_answer_that_is_wrong_as_a_whole_settles_nothing() {
        let checked =
            Checked { fault: Some(Fault::Echoed), ..answer(vec![good("$ ls"), doubtful("b")]) };
        let settled = settle(Drafts::none(2), &[0, 1], checked.clone());
        assert_eq!((settled.count, settled.drafts), (0, Drafts::none(2)));
        assert_eq!(accept(Drafts::none(2), &[0, 1], checked).whole().unwrap().texts, ["$ ls", "b"]);
    }

    #[test]
    fn only_what_is_open_is_given_up() {
        let drafts = settle(
            Drafts::none(4),
            &[0, 1, 2, 3],
            answer(vec![good("a"), good("b"), bad(), good("d")]),
        );
        let parts = give_up(SegmentRange { first: 10, end: 14 }, &drafts.drafts, "empty");
        let rows: Vec<_> =
            parts.iter().map(|part| (part.run.to_string(), part.failed.is_some())).collect();
        let rows: Vec<_> = rows.iter().map(|(run, failed)| (run.as_str(), *failed)).collect();
        assert_eq!(rows, [("10..12", false), ("12..13", true), ("13..14", false)]);
        assert_eq!(parts[0].drafts.clone().whole().unwrap().texts, ["a", "b"]);
    }
}
