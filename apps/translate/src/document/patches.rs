//! Replacements inside text that is copied otherwise, such as an attribute in a tag.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// Replacements of ranges of the source, by start.
#[derive(Debug, Default)]
pub(super) struct Patches(BTreeMap<usize, (usize, String)>);

impl FromIterator<(Range<usize>, String)> for Patches {
    fn from_iter<I: IntoIterator<Item = (Range<usize>, String)>>(patches: I) -> Self {
        Self(patches.into_iter().map(|(range, text)| (range.start, (range.end, text))).collect())
    }
}

impl Patches {
    pub(super) fn put(&mut self, range: Range<usize>, text: String) {
        self.0.insert(range.start, (range.end, text));
    }

    /// Returns `range` of `source` with the replacements inside it.
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
