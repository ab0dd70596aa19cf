//! Scripts by Unicode block: the script of a letter, and the scripts of a language.

use crate::language::Language;

/// A script that a language of [`Language`] is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Script {
    Arabic,
    Armenian,
    Bengali,
    Cyrillic,
    Devanagari,
    Ethiopic,
    Georgian,
    Greek,
    Gujarati,
    Gurmukhi,
    Han,
    Hangul,
    Hebrew,
    Kana,
    Kannada,
    Khmer,
    Lao,
    Latin,
    Malayalam,
    Myanmar,
    Odia,
    Sinhala,
    Tamil,
    Telugu,
    Thai,
}

/// Ranges of code points in ascending order. Signs of a block count as letters, so that vowel signs do not end a word.
const RANGES: &[(u32, u32, Script)] = &[
    (0x0041, 0x005a, Script::Latin),
    (0x0061, 0x007a, Script::Latin),
    (0x00c0, 0x00d6, Script::Latin),
    (0x00d8, 0x00f6, Script::Latin),
    (0x00f8, 0x02af, Script::Latin),
    (0x0370, 0x03ff, Script::Greek),
    (0x0400, 0x052f, Script::Cyrillic),
    (0x0531, 0x0587, Script::Armenian),
    (0x0591, 0x05f2, Script::Hebrew),
    (0x0610, 0x061a, Script::Arabic),
    (0x0620, 0x065f, Script::Arabic),
    (0x066e, 0x06d3, Script::Arabic),
    (0x06d5, 0x06ef, Script::Arabic),
    (0x06fa, 0x06ff, Script::Arabic),
    (0x0750, 0x077f, Script::Arabic),
    (0x08a0, 0x08ff, Script::Arabic),
    (0x0900, 0x0963, Script::Devanagari),
    (0x0971, 0x097f, Script::Devanagari),
    (0x0980, 0x09e3, Script::Bengali),
    (0x0a01, 0x0a5e, Script::Gurmukhi),
    (0x0a70, 0x0a75, Script::Gurmukhi),
    (0x0a81, 0x0ae3, Script::Gujarati),
    (0x0b01, 0x0b63, Script::Odia),
    (0x0b82, 0x0bd7, Script::Tamil),
    (0x0c00, 0x0c63, Script::Telugu),
    (0x0c80, 0x0ce3, Script::Kannada),
    (0x0d00, 0x0d63, Script::Malayalam),
    (0x0d81, 0x0ddf, Script::Sinhala),
    (0x0e01, 0x0e4e, Script::Thai),
    (0x0e81, 0x0ecd, Script::Lao),
    (0x1000, 0x103f, Script::Myanmar),
    (0x1050, 0x109d, Script::Myanmar),
    (0x10a0, 0x10ff, Script::Georgian),
    (0x1100, 0x11ff, Script::Hangul),
    (0x1200, 0x135f, Script::Ethiopic),
    (0x1780, 0x17d3, Script::Khmer),
    (0x1c90, 0x1cbf, Script::Georgian),
    (0x1e00, 0x1eff, Script::Latin),
    (0x1f00, 0x1fff, Script::Greek),
    (0x3005, 0x3007, Script::Han),
    (0x3041, 0x309f, Script::Kana),
    (0x30a1, 0x30fa, Script::Kana),
    (0x30fc, 0x30ff, Script::Kana),
    (0x3131, 0x318e, Script::Hangul),
    (0x31f0, 0x31ff, Script::Kana),
    (0x3400, 0x4dbf, Script::Han),
    (0x4e00, 0x9fff, Script::Han),
    (0xac00, 0xd7a3, Script::Hangul),
    (0xf900, 0xfaff, Script::Han),
    (0xfb1d, 0xfb4f, Script::Hebrew),
    (0xfb50, 0xfdff, Script::Arabic),
    (0xfe70, 0xfefc, Script::Arabic),
    (0xff21, 0xff3a, Script::Latin),
    (0xff41, 0xff5a, Script::Latin),
    (0xff66, 0xff9f, Script::Kana),
    (0x20000, 0x3ffff, Script::Han),
];

impl Script {
    /// Returns the script of a letter; `None` for digits, punctuation and other scripts.
    pub(crate) fn from_char(letter: char) -> Option<Self> {
        let code = u32::from(letter);
        let place = RANGES.partition_point(|(_, last, _)| *last < code);
        RANGES.get(place).filter(|(first, ..)| *first <= code).map(|(.., script)| *script)
    }

    /// Returns roughly how many Latin letters a letter of this script corresponds to.
    pub(crate) const fn weight(self) -> u64 {
        match self {
            Self::Han => 3,
            Self::Kana | Self::Hangul => 2,
            _ => 1,
        }
    }
}

/// A maximal sequence of letters and digits in one script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word<'a> {
    pub(crate) text: &'a str,
    /// `None` for a number.
    pub(crate) script: Option<Script>,
}

impl Word<'_> {
    /// Returns whether it begins with a small letter and has at least two, unlike names and numbers.
    pub(crate) fn is_plain(&self) -> bool {
        self.text.starts_with(char::is_lowercase) && 1 < self.text.chars().count()
    }
}

/// Splits `text` into words. A change of script ends a word, so that `apt-getで` has the words `apt`, `get` and `で`.
pub(crate) fn words(text: &str) -> impl Iterator<Item = Word<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let begins = |letter: char| Script::from_char(letter).is_some() || letter.is_alphanumeric();
        rest = &rest[rest.find(begins)?..];
        let mut script = None;
        let end = rest.char_indices().find(|(_, letter)| {
            let next = Script::from_char(*letter);
            let goes_on = match (script, next) {
                (Some(script), Some(next)) => script == next,
                (_, Some(_)) => true,
                (_, None) => letter.is_alphanumeric(),
            };
            script = script.or(next);
            !goes_on
        });
        let (text, after) = rest.split_at(end.map_or(rest.len(), |(place, _)| place));
        rest = after;
        Some(Word { text, script })
    })
}

/// Returns the scripts of `language`, the main one first.
pub(crate) fn scripts_of(language: &Language) -> &'static [Script] {
    let mut parts = language.tag().split('-');
    let code = parts.next().unwrap_or_default();
    for part in parts {
        match part.to_ascii_lowercase().as_str() {
            "latn" => return &[Script::Latin],
            "cyrl" => return &[Script::Cyrillic],
            "arab" => return &[Script::Arabic],
            "deva" => return &[Script::Devanagari],
            _ => {}
        }
    }
    match code {
        "be" | "bg" | "mk" | "mn" | "ru" | "uk" => &[Script::Cyrillic],
        "kk" | "sr" => &[Script::Cyrillic, Script::Latin],
        "ar" | "fa" | "ur" => &[Script::Arabic],
        "he" | "yi" => &[Script::Hebrew],
        "hi" | "mr" | "ne" => &[Script::Devanagari],
        "ja" => &[Script::Kana, Script::Han],
        "zh" => &[Script::Han],
        "ko" => &[Script::Hangul, Script::Han],
        "am" => &[Script::Ethiopic],
        "bn" => &[Script::Bengali],
        "el" => &[Script::Greek],
        "gu" => &[Script::Gujarati],
        "hy" => &[Script::Armenian],
        "ka" => &[Script::Georgian],
        "km" => &[Script::Khmer],
        "kn" => &[Script::Kannada],
        "lo" => &[Script::Lao],
        "ml" => &[Script::Malayalam],
        "my" => &[Script::Myanmar],
        "or" => &[Script::Odia],
        "pa" => &[Script::Gurmukhi],
        "si" => &[Script::Sinhala],
        "ta" => &[Script::Tamil],
        "te" => &[Script::Telugu],
        "th" => &[Script::Thai],
        _ => &[Script::Latin],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_ascend_so_that_they_can_be_searched() {
        assert!(RANGES.iter().all(|(first, last, _)| first <= last));
        assert!(RANGES.windows(2).all(|pair| pair[0].1 < pair[1].0));
    }

    #[test]
    fn a_letter_has_its_script_and_a_sign_has_none() {
        let rows = [
            ('a', Some(Script::Latin)),
            ('ß', Some(Script::Latin)),
            ('ж', Some(Script::Cyrillic)),
            ('ع', Some(Script::Arabic)),
            ('ש', Some(Script::Hebrew)),
            ('ि', Some(Script::Devanagari)),
            ('ก', Some(Script::Thai)),
            ('漢', Some(Script::Han)),
            ('ー', Some(Script::Kana)),
            ('한', Some(Script::Hangul)),
            ('7', None),
            ('。', None),
            ('،', None),
            ('×', None),
        ];
        for (letter, script) in rows {
            assert_eq!(Script::from_char(letter), script, "{letter}");
        }
    }

    #[test]
    fn words_end_where_the_script_changes() {
        let found = |text| words(text).map(|word| word.text).collect::<Vec<_>>();
        assert_eq!(found("apt-getコマンドをext4で"), ["apt", "get", "コマンドを", "ext4", "で"]);
        assert_eq!(found("обзор dpkg(1), 2024"), ["обзор", "dpkg", "1", "2024"]);
        assert_eq!(found("हिन्दी में"), ["हिन्दी", "में"]);
        assert_eq!(found("漢字 … 3"), ["漢字", "3"]);
        assert_eq!(found("?!"), [""; 0]);
    }

    #[test]
    fn a_subtag_names_another_script() {
        let scripts = |tag: &str| scripts_of(&tag.parse().unwrap());
        assert_eq!(scripts("sr-Latn"), [Script::Latin]);
        assert_eq!(scripts("zh-Hant"), [Script::Han]);
        assert_eq!(scripts("pt-BR"), [Script::Latin]);
        assert_eq!(scripts("ja"), [Script::Kana, Script::Han]);
    }
}
