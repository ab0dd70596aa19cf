//! Values with wildcards.

/// A text in which `*` stands for any number of characters, also none.
///
/// ```
/// use tollgate_ratelimit_config::Pattern;
///
/// let pattern = Pattern::new("/api/*/action");
/// assert!(pattern.matches("/api/7/action"));
/// assert!(!pattern.matches("/api/action"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The texts between the wildcards.
    parts: Vec<String>,
}

impl Pattern {
    /// Parses `text`.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { parts: text.split('*').map(str::to_owned).collect() }
    }

    /// Returns whether it has a wildcard.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        1 < self.parts.len()
    }

    /// Returns whether it matches the whole of `text`.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let [first, between @ .., last] = self.parts.as_slice() else {
            return self.parts.first().is_some_and(|part| part == text);
        };
        let Some(rest) = text.strip_prefix(first.as_str()) else { return false };
        let Some(mut rest) = rest.strip_suffix(last.as_str()) else { return false };
        for part in between {
            // The leftmost place leaves the most room for the others.
            let Some((_, after)) = rest.split_once(part.as_str()) else { return false };
            rest = after;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_stands_for_any_text() {
        for (pattern, text, expected) in [
            ("foo", "foo", true),
            ("foo", "foo1", false),
            ("foo*", "foo", true),
            ("foo*", "foo/bar", true),
            ("foo*", "fo", false),
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "example.com", false),
            ("bar*b", "barb", true),
            ("bar*b", "bar", false),
            ("aba*ba", "aba", false),
            ("a*b*c", "axbxc", true),
            ("a*b*c", "acb", false),
            ("a*b*c", "abc", true),
            ("a*bb*b", "abb", false),
            ("*", "", true),
            ("**", "x", true),
            ("", "", true),
            ("ü*", "über", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(text), expected, "{pattern} {text}");
        }
    }
}
