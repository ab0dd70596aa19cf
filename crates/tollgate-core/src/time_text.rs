//! An instant as RFC 3339, in a few bytes on the stack: every answer carries several of them.

use jiff::tz::Offset;

use crate::time::Timestamp;

/// The longest text: `2026-11-15T08:30:00.123456Z`.
const LENGTH_MAX: usize = 27;

/// An instant as text, in UTC, with as many digits of its second as it takes.
///
/// ```
/// use tollgate_core::{TimeText, Timestamp};
///
/// assert_eq!(TimeText::new(Timestamp::from_micros(1_500_000)).as_str(), "1970-01-01T00:00:01.5Z");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TimeText {
    bytes: [u8; LENGTH_MAX],
    length: usize,
}

impl TimeText {
    /// Formats `instant`.
    #[must_use]
    pub fn new(instant: Timestamp) -> Self {
        let mut text = Self { bytes: *b"0000-00-00T00:00:00.000000Z", length: 19 };
        let micros = i64::try_from(instant.as_micros()).unwrap_or(i64::MAX);
        let instant = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
        let civil = Offset::UTC.to_datetime(instant);
        let year = civil.year().unsigned_abs();
        text.write(0, year / 100);
        text.write(2, year % 100);
        text.write(5, civil.month().unsigned_abs().into());
        text.write(8, civil.day().unsigned_abs().into());
        text.write(11, civil.hour().unsigned_abs().into());
        text.write(14, civil.minute().unsigned_abs().into());
        text.write(17, civil.second().unsigned_abs().into());
        if !micros.unsigned_abs().is_multiple_of(1_000_000) {
            let millis = civil.millisecond().unsigned_abs();
            let micros = civil.microsecond().unsigned_abs();
            text.write(20, millis / 10);
            text.write(22, millis % 10 * 10 + micros / 100);
            text.write(24, micros % 100);
            text.length = 26;
            while text.bytes[text.length - 1] == b'0' {
                text.length -= 1;
            }
        }
        text.bytes[text.length] = b'Z';
        text.length += 1;
        text
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// The same as bytes, all of them ASCII.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Writes a number below 100 at `offset`.
    #[inline]
    fn write(&mut self, offset: usize, number: u16) {
        let [tens, ones] = [number / 10, number % 10].map(|digit| b'0' | digit.to_le_bytes()[0]);
        self.bytes[offset] = tens;
        self.bytes[offset + 1] = ones;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// It reads as the calendar library writes it.
        #[test]
        fn it_is_what_jiff_writes(micros in 0..=Timestamp::MAX.as_micros(), zeros in 0..7_u32) {
            let micros = micros / 10_u64.pow(zeros) * 10_u64.pow(zeros);
            let expected = jiff::Timestamp::from_microsecond(micros.cast_signed()).unwrap();
            let text = TimeText::new(Timestamp::from_micros(micros));
            prop_assert_eq!(text.as_str(), expected.to_string());
        }
    }

    #[test]
    fn the_ends_of_time_have_a_text() {
        assert_eq!(TimeText::new(Timestamp::EPOCH).as_str(), "1970-01-01T00:00:00Z");
        assert_eq!(TimeText::new(Timestamp::MAX).as_str(), "2255-06-05T23:47:34.740991Z");
    }
}
