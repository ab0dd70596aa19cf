//! Timestamps as messages, to the microsecond.

use prost_types::Timestamp as Time;
use tollgate::{Error, ErrorKind, Timestamp};

const MICROS_PER_SEC: u64 = 1_000_000;
const NANOS_PER_MICRO: u32 = 1_000;

/// Converts `at` to a message.
#[must_use]
pub fn time(at: Timestamp) -> Time {
    let (secs, micros) = (at.as_micros() / MICROS_PER_SEC, at.as_micros() % MICROS_PER_SEC);
    Time {
        seconds: i64::try_from(secs).unwrap_or(i64::MAX),
        nanos: i32::try_from(micros).unwrap_or(0) * 1_000,
    }
}

/// Converts `time`, rounded down to the microsecond.
///
/// # Errors
/// [`ErrorKind::Invalid`] if it is before 1970 or out of range.
pub fn instant(time: Time) -> Result<Timestamp, Error> {
    let invalid = || {
        Error::new(
            ErrorKind::Invalid,
            format!("{}.{:09} seconds is not a time after 1970", time.seconds, time.nanos),
        )
    };
    let secs = u64::try_from(time.seconds).map_err(|_| invalid())?;
    let nanos = u32::try_from(time.nanos).map_err(|_| invalid())?;
    let micros = secs
        .checked_mul(MICROS_PER_SEC)
        .and_then(|micros| micros.checked_add(u64::from(nanos / NANOS_PER_MICRO)));
    micros.map(Timestamp::from_micros).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_comes_back_to_the_microsecond() {
        for micros in [0, 1, 999_999, 1_000_000, 1_794_721_500_123_456] {
            let at = Timestamp::from_micros(micros);
            assert_eq!(instant(time(at)).unwrap(), at);
        }
        assert!(instant(Time { seconds: -1, nanos: 0 }).is_err());
        assert!(instant(Time { seconds: i64::MAX, nanos: 0 }).is_err());
        assert!(instant(Time { seconds: 1, nanos: -1 }).is_err());
    }
}
