//! Written attributes: they lie inside what is copied otherwise, such as a tag or the target of a link.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// Texts in place of ranges of the source, by where those begin.
#[derive(Debug, Default)]
pub(super) struct Patches(BTreeMap<usize, (usize, String)>);

impl Patches {
    pub(super) fn put(&mut self, range: Range<usize>, text: String) {
        self.0.insert(range.start, (range.end, text));
    }

    /// The part of `source` in `range`, with the patches inside it.
    pub(super) fn applied<'s>(&self, source: &'s str, range: Range<usize>) -> Cow<'s, str> {
        let inside = self.0.range(range.clone()).filter(|(_, (end, _))| *end <= range.end);
        let mut written = String::new();
        let mut from = range.start;
        for (start, (end, text)) in inside {
            written.push_str(&source[from..*start]);
            written.push_str(text);
            from = *end;
        }
        if from == range.start {
            return Cow::Borrowed(&source[range]);
        }
        written.push_str(&source[from..range.end]);
        Cow::Owned(written)
    }
}
