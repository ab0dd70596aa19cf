//! Suggestions for misspelled names.

/// The longest name that gets a suggestion.
const NAME_BYTES_MAX: usize = 64;

/// Returns the name among `known` that `given` is most likely a misspelling of, if any is close.
#[must_use]
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if NAME_BYTES_MAX < given.len() {
        return None;
    }
    let given = given.to_ascii_lowercase().replace('-', "_");
    known
        .into_iter()
        .map(|name| (strsim::levenshtein(&given, &name.replace('-', "_")), name))
        .filter(|(edits, name)| *edits <= name.len().max(given.len()) / 3)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, name)| name)
}
