//! How many tokens a text has, without the provider's tokenizer.
//!
//! A rule by script, in whole quarters of a token, gives a first figure. What the provider reports afterwards corrects it:
//! per model and language a moving average of reported / estimated, never below 1, so that an estimate may become larger
//! than the rule says and never smaller.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::language::Language;

/// Quarters of a token by the first byte of a character. Latin letters come four to a token, digits one by one, letters of
/// other alphabets two to a token, Chinese, Japanese and Korean one by one, and what is rare takes two.
const QUARTERS: [u8; 256] = {
    let mut quarters = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        quarters[byte] = match byte {
            0x0a => 4,
            0x30..=0x39 => 4,
            0x00..=0x7f => 1,
            // The rest of a character.
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

/// How much of each new report goes into the average: one in so many.
const WEIGHT: u64 = 8;

/// The largest correction; a report beyond it is a mistake, not a tokenizer.
const CORRECTION_MAX: u64 = 8 * PER_MILLE;

/// An estimate of the tokens of `text` by its script alone.
#[must_use]
pub fn tokens(text: &str) -> u64 {
    quarters(text).div_ceil(4)
}

/// The same in quarters, so that sums over pieces are not rounded.
pub(crate) fn quarters(text: &str) -> u64 {
    text.bytes().map(|byte| u64::from(QUARTERS[byte as usize])).sum()
}

/// How far into `text` so many quarters reach: what is left of them if all of it fits, or else the first byte that does not.
pub(crate) fn reach(text: &str, quarters: u64) -> Result<u64, usize> {
    let mut left = quarters;
    for (place, byte) in text.bytes().enumerate() {
        left = left.checked_sub(u64::from(QUARTERS[byte as usize])).ok_or(place)?;
    }
    Ok(left)
}

/// What providers reported, per model and language of the source. It is small, and can be kept between jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Calibration(BTreeMap<String, u64>);

impl Calibration {
    /// `tokens` of the rule, corrected by what was reported for this model and language; rounded up.
    #[must_use]
    pub fn corrected(&self, model: &str, language: &Language, tokens: u64) -> u64 {
        tokens.saturating_mul(self.factor(model, language)).div_ceil(PER_MILLE)
    }

    /// Takes in that a request estimated at `tokens` by the rule, before correction, was counted as `reported`.
    pub fn learn(&mut self, model: &str, language: &Language, tokens: u64, reported: u64) {
        if tokens == 0 {
            return;
        }
        let seen = reported.saturating_mul(PER_MILLE).div_ceil(tokens).min(CORRECTION_MAX);
        let key = key(model, language);
        let average = match self.0.get(&key) {
            // The first report is all there is to know.
            None => seen,
            Some(old) => (old * (WEIGHT - 1) + seen).div_ceil(WEIGHT),
        };
        self.0.insert(key, average);
    }

    /// What was learnt about this model and language, in thousandths, for whoever keeps it.
    #[must_use]
    pub fn learnt(&self, model: &str, language: &Language) -> Option<u64> {
        self.0.get(&key(model, language)).copied()
    }

    /// Takes up what was kept, unless something was learnt since.
    pub fn take_up(&mut self, model: &str, language: &Language, kept: u64) {
        self.0.entry(key(model, language)).or_insert(kept);
    }

    /// The correction in thousandths: at least 1,000.
    #[must_use]
    pub fn factor(&self, model: &str, language: &Language) -> u64 {
        let average = self.0.get(&key(model, language)).copied().unwrap_or(PER_MILLE);
        average.clamp(PER_MILLE, CORRECTION_MAX)
    }
}

fn key(model: &str, language: &Language) -> String {
    format!("{model} {language}")
}
