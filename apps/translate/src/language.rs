//! Languages: their names for prompts, and the relative length of their texts.
//!
//! The lengths are rough values for prose. They serve to detect a paragraph that lost half of its text and to size an answer, never
//! to judge a translation.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use whatlang::Lang;

use crate::error::Error;

/// A language that documents are translated from or into, as in `fr`, `pt-BR` or `zh-Hant`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Language {
    tag: String,
    row: usize,
}

struct Row {
    code: &'static str,
    name: &'static str,
    /// The code of the language detector (ISO 639-3); empty if it has none.
    detected: &'static str,
    /// Characters that 100 characters of English become.
    characters: u64,
    /// Tokens that 100 tokens of English become, on the high side.
    tokens: u64,
}

macro_rules! rows {
    ($($code:literal $name:literal $detected:literal $characters:literal $tokens:literal;)*) => {
        &[$(Row { code: $code, name: $name, detected: $detected, characters: $characters, tokens: $tokens }),*]
    };
}

const ROWS: &[Row] = rows! {
    "af" "Afrikaans" "afr" 105 130;
    "ak" "Akan" "aka" 110 170;
    "am" "Amharic" "amh" 70 220;
    "ar" "Arabic" "ara" 88 130;
    "az" "Azerbaijani" "aze" 108 160;
    "be" "Belarusian" "bel" 108 170;
    "bg" "Bulgarian" "bul" 107 150;
    "bn" "Bengali" "ben" 98 170;
    "bs" "Bosnian" "" 102 140;
    "ca" "Catalan" "cat" 112 135;
    "cs" "Czech" "ces" 100 145;
    "cy" "Welsh" "cym" 108 150;
    "da" "Danish" "dan" 102 130;
    "de" "German" "deu" 115 135;
    "el" "Greek" "ell" 112 170;
    "en" "English" "eng" 100 100;
    "eo" "Esperanto" "epo" 103 140;
    "es" "Spanish" "spa" 114 130;
    "et" "Estonian" "est" 100 150;
    "eu" "Basque" "" 105 150;
    "fa" "Persian" "pes" 92 130;
    "fi" "Finnish" "fin" 105 150;
    "fr" "French" "fra" 117 135;
    "ga" "Irish" "" 112 155;
    "gl" "Galician" "" 112 135;
    "gu" "Gujarati" "guj" 98 180;
    "he" "Hebrew" "heb" 80 130;
    "hi" "Hindi" "hin" 100 160;
    "hr" "Croatian" "hrv" 102 140;
    "hu" "Hungarian" "hun" 108 150;
    "hy" "Armenian" "hye" 106 200;
    "id" "Indonesian" "ind" 110 125;
    "is" "Icelandic" "" 103 150;
    "it" "Italian" "ita" 112 130;
    "ja" "Japanese" "jpn" 48 110;
    "jv" "Javanese" "jav" 110 140;
    "ka" "Georgian" "kat" 108 220;
    "kk" "Kazakh" "" 105 170;
    "km" "Khmer" "khm" 105 240;
    "kn" "Kannada" "kan" 105 190;
    "ko" "Korean" "kor" 52 110;
    "la" "Latin" "lat" 100 145;
    "lo" "Lao" "" 100 220;
    "lt" "Lithuanian" "lit" 102 155;
    "lv" "Latvian" "lav" 104 155;
    "mk" "Macedonian" "mkd" 107 155;
    "ml" "Malayalam" "mal" 115 200;
    "mn" "Mongolian" "" 105 180;
    "mr" "Marathi" "mar" 98 170;
    "ms" "Malay" "" 110 125;
    "mt" "Maltese" "" 108 155;
    "my" "Burmese" "mya" 115 260;
    "nb" "Norwegian Bokmål" "nob" 100 130;
    "ne" "Nepali" "nep" 100 170;
    "nl" "Dutch" "nld" 110 130;
    "or" "Odia" "ori" 100 230;
    "pa" "Punjabi" "pan" 100 190;
    "pl" "Polish" "pol" 108 145;
    "pt" "Portuguese" "por" 112 130;
    "ro" "Romanian" "ron" 113 140;
    "ru" "Russian" "rus" 108 140;
    "si" "Sinhala" "sin" 100 220;
    "sk" "Slovak" "slk" 102 145;
    "sl" "Slovenian" "slv" 102 140;
    "sn" "Shona" "sna" 110 160;
    "sq" "Albanian" "" 112 150;
    "sr" "Serbian" "srp" 103 150;
    "sv" "Swedish" "swe" 100 130;
    "sw" "Swahili" "" 105 140;
    "ta" "Tamil" "tam" 118 180;
    "te" "Telugu" "tel" 105 180;
    "th" "Thai" "tha" 95 150;
    "tk" "Turkmen" "tuk" 106 170;
    "tl" "Tagalog" "tgl" 118 145;
    "tr" "Turkish" "tur" 103 140;
    "uk" "Ukrainian" "ukr" 105 150;
    "ur" "Urdu" "urd" 100 150;
    "uz" "Uzbek" "uzb" 110 165;
    "vi" "Vietnamese" "vie" 108 140;
    "yi" "Yiddish" "yid" 105 200;
    "zh" "Chinese" "cmn" 32 90;
    "zu" "Zulu" "zul" 110 165;
};

impl Language {
    /// Returns English.
    #[must_use]
    pub fn english() -> Self {
        let row = ROWS.iter().position(|row| row.code == "en").unwrap_or(0);
        Self { tag: "en".to_owned(), row }
    }

    /// Returns the tag, as in `pt-BR`.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// Returns the English name with the subtags, as in `Portuguese (BR)`.
    #[must_use]
    pub fn name(&self) -> String {
        let row = self.row();
        match self.tag.split_once('-') {
            None => row.name.to_owned(),
            Some((_, more)) => format!("{} ({more})", row.name),
        }
    }

    /// Estimates the length in `target` of a text of `characters` characters.
    pub(crate) fn characters_in(&self, target: &Self, characters: u64) -> u64 {
        characters.saturating_mul(target.row().characters).div_ceil(self.row().characters)
    }

    /// Estimates the tokens in `target` of a text of `tokens` tokens, an upper estimate.
    #[must_use]
    pub fn tokens_in(&self, target: &Self, tokens: u64) -> u64 {
        tokens.saturating_mul(target.row().tokens).div_ceil(self.row().tokens)
    }

    /// Returns whether it is written from right to left.
    #[must_use]
    pub fn is_right_to_left(&self) -> bool {
        let script = self.tag.split('-').skip(1).find(|part| part.len() == 4);
        match script {
            Some(script) => ["Arab", "Hebr", "Thaa", "Syrc", "Nkoo", "Adlm"]
                .iter()
                .any(|other| other.eq_ignore_ascii_case(script)),
            None => matches!(self.row().code, "ar" | "fa" | "he" | "ur" | "yi"),
        }
    }

    /// Returns whether both are variants of one language.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.row == other.row
    }

    pub(crate) fn detected(&self) -> Option<Lang> {
        Lang::from_code(self.row().detected)
    }

    pub(crate) fn from_detected(lang: Lang) -> Option<Self> {
        let row = ROWS.iter().position(|row| row.detected == lang.code())?;
        Some(Self { tag: ROWS[row].code.to_owned(), row })
    }

    fn row(&self) -> &'static Row {
        &ROWS[self.row]
    }
}

impl FromStr for Language {
    type Err = Error;

    /// Parses a tag such as `fr` or `pt-BR`, or an English name such as `French`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (code, more) =
            text.split_once('-').map_or((text, None), |(code, more)| (code, Some(more)));
        let is_subtag = |part: &str| {
            (2..=8).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let known = |row: &Row| {
            row.code.eq_ignore_ascii_case(code)
                || (more.is_none() && row.name.eq_ignore_ascii_case(text))
        };
        let row = ROWS.iter().position(known);
        match (row, more) {
            (Some(row), None) => Ok(Self { tag: ROWS[row].code.to_owned(), row }),
            (Some(row), Some(more)) if more.split('-').all(is_subtag) => {
                Ok(Self { tag: format!("{}-{more}", ROWS[row].code), row })
            }
            _ => Err(Error::invalid(format!(
                "{text:?} is not a known language; write a tag such as fr, pt-BR or zh-Hant, one of: {}",
                ROWS.iter().map(|row| row.code).collect::<Vec<_>>().join(" ")
            ))),
        }
    }
}

crate::error::stored_as_text!(Language);

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tag)
    }
}
