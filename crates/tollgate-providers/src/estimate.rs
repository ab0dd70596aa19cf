//! Token estimates without the provider's tokenizer.
//!
//! A rule by script gives a first estimate, in quarters of a token. Reports of the provider correct it: [`learn`] keeps a moving
//! average of reported / estimated, and [`corrected`] applies it.

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

/// One, as a correction.
pub const PER_MILLE: u64 = 1_000;

/// The weight of a new report in the average: one in so many.
const WEIGHT: u64 = 8;

/// The largest correction, in thousandths; a report beyond it is an error.
pub const CORRECTION_MAX: u64 = 8 * PER_MILLE;

/// Bytes that are summed at once, without a branch.
const BLOCK: usize = 32;

/// Estimates the tokens of `text` by its script.
///
/// ```
/// assert_eq!(tollgate_providers::estimate::tokens("four letters make one token"), 7);
/// ```
#[must_use]
pub fn tokens(text: &str) -> u64 {
    quarters(text).div_ceil(4)
}

/// Like [`tokens`], in quarters, so that sums are not rounded.
#[must_use]
pub fn quarters(text: &str) -> u64 {
    quarters_of_bytes(text.as_bytes())
}

/// Like [`quarters`], of UTF-8 that is not checked.
#[must_use]
pub fn quarters_of_bytes(bytes: &[u8]) -> u64 {
    let each = |bytes: &[u8]| -> u64 {
        bytes.iter().map(|byte| u64::from(QUARTERS[*byte as usize])).sum()
    };
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let mut sum = each(rest);
    for block in blocks {
        sum += if block.is_ascii() {
            // Four for a digit or a line end, one for anything else: compiles to vector instructions, unlike the table.
            let heavy: u8 =
                block.iter().map(|byte| u8::from(byte.is_ascii_digit() | (*byte == b'\n'))).sum();
            BLOCK as u64 + 3 * u64::from(heavy)
        } else {
            each(block)
        };
    }
    sum
}

/// Like [`quarters`], of a unit of UTF-16. Half of a rare character is half of its two tokens.
#[must_use]
pub fn quarters_of_unit(unit: u16) -> u64 {
    let first_byte = match unit {
        0x0000..0x0080 => unit,
        0x0080..0x0800 => 0xc0 | unit >> 6,
        0xd800..0xe000 => return 4,
        _ => 0xe0 | unit >> 12,
    };
    u64::from(QUARTERS[usize::from(first_byte)])
}

/// Subtracts the tokens of `text` from `quarters`.
///
/// # Errors
/// The position of the first byte that does not fit.
pub fn reach(text: &str, quarters: u64) -> Result<u64, usize> {
    let mut left = quarters;
    for (offset, byte) in text.bytes().enumerate() {
        left = left.checked_sub(u64::from(QUARTERS[byte as usize])).ok_or(offset)?;
    }
    Ok(left)
}

/// Returns the moving average of reported / estimated, in thousandths, after a call that was estimated at `estimated` tokens and
/// reported as `reported`; `None` if that says nothing.
#[must_use]
pub fn learn(average: Option<u64>, estimated: u64, reported: u64) -> Option<u64> {
    if estimated == 0 {
        return average;
    }
    let seen = reported.saturating_mul(PER_MILLE).div_ceil(estimated).min(CORRECTION_MAX);
    Some(match average {
        None => seen,
        Some(old) => old.saturating_mul(WEIGHT - 1).saturating_add(seen).div_ceil(WEIGHT),
    })
}

/// Returns `tokens` times `average`, in thousandths, rounded up.
#[must_use]
pub const fn corrected(tokens: u64, average: u64) -> u64 {
    tokens.saturating_mul(average).div_ceil(PER_MILLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_are_summed_as_single_bytes_are(text in "[a-z0-9\n é世🙂]{0,200}") {
            let each: u64 = text.bytes().map(|byte| u64::from(QUARTERS[byte as usize])).sum();
            prop_assert_eq!(quarters(&text), each);
        }
    }

    #[test]
    fn an_average_moves_by_an_eighth_and_ignores_empty_estimates() {
        assert_eq!(learn(None, 100, 150), Some(1_500));
        assert_eq!(learn(Some(1_000), 100, 180), Some(1_100));
        assert_eq!(learn(Some(1_000), 100, 20), Some(900));
        assert_eq!(learn(None, 0, 20), None);
        assert_eq!(learn(None, 1, 1_000), Some(CORRECTION_MAX));
        assert_eq!(corrected(10, 1_501), 16);
    }
}
