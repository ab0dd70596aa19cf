//! Token estimates without the provider's tokenizer.
//!
//! A rule by script gives a first estimate, in quarters of a token. Reports of the provider correct it: a moving average of
//! reported / estimated per model and language, at least 1, so that a correction never lowers an estimate.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::language::Language;

/// Quarters of a token by the first byte of a character: four Latin letters make a token, a digit is one, two letters of other
/// alphabets make one, a Chinese, Japanese or Korean character is one, and a rare character is two.
const QUARTERS: [u8; 256] = {
    let mut quarters = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        quarters[byte] = match byte {
            0x0a => 4,
            0x30..=0x39 => 4,
            0x00..=0x7f => 1,
            // Continuation bytes.
            0x80..=0xbf => 0,
            0xc0..=0xcb => 1,
            0xcc..=0xdf => 2,
            0xe0..=0xe1 => 2,
            0xe2..=0xef => 4,
            _ => 8,
        };
        byte += 1;
    }
    quarters
};

/// One in a [`Calibration`].
const PER_MILLE: u64 = 1_000;

/// The weight of a new report in the average: one in so many.
const WEIGHT: u64 = 8;

/// The largest correction; a report beyond it is an error.
const CORRECTION_MAX: u64 = 8 * PER_MILLE;

/// Estimates the tokens of `text` by its script.
#[must_use]
pub fn tokens(text: &str) -> u64 {
    quarters(text).div_ceil(4)
}

/// Like [`tokens`], in quarters, so that sums are not rounded.
pub(crate) fn quarters(text: &str) -> u64 {
    text.bytes().map(|byte| u64::from(QUARTERS[byte as usize])).sum()
}

/// Subtracts the tokens of `text` from `quarters`. Returns the rest, or the position of the first byte that does not fit.
pub(crate) fn reach(text: &str, quarters: u64) -> Result<u64, usize> {
    let mut left = quarters;
    for (offset, byte) in text.bytes().enumerate() {
        left = left.checked_sub(u64::from(QUARTERS[byte as usize])).ok_or(offset)?;
    }
    Ok(left)
}

/// The corrections per model and language of the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Calibration(BTreeMap<String, u64>);

impl Calibration {
    /// Returns the estimate `tokens`, corrected for this model and language, rounded up.
    #[must_use]
    pub fn corrected(&self, model: &str, language: &Language, tokens: u64) -> u64 {
        tokens.saturating_mul(self.factor(model, language)).div_ceil(PER_MILLE)
    }

    /// Learns that a request of `tokens` estimated tokens, before correction, was counted as `reported`.
    pub fn learn(&mut self, model: &str, language: &Language, tokens: u64, reported: u64) {
        if tokens == 0 {
            return;
        }
        let seen = reported.saturating_mul(PER_MILLE).div_ceil(tokens).min(CORRECTION_MAX);
        let key = key(model, language);
        let average = match self.0.get(&key) {
            None => seen,
            Some(old) => (old * (WEIGHT - 1) + seen).div_ceil(WEIGHT),
        };
        self.0.insert(key, average);
    }

    /// Returns the average for this model and language, in thousandths.
    #[must_use]
    pub fn average(&self, model: &str, language: &Language) -> Option<u64> {
        self.0.get(&key(model, language)).copied()
    }

    /// Restores a stored average, unless there is a newer one.
    pub fn restore(&mut self, model: &str, language: &Language, average: u64) {
        self.0.entry(key(model, language)).or_insert(average);
    }

    /// Returns the correction in thousandths: at least 1,000.
    #[must_use]
    pub fn factor(&self, model: &str, language: &Language) -> u64 {
        self.average(model, language).unwrap_or(PER_MILLE).clamp(PER_MILLE, CORRECTION_MAX)
    }
}

fn key(model: &str, language: &Language) -> String {
    format!("{model} {language}")
}
