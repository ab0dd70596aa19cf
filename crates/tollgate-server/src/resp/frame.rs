//! Requests of the Redis protocol, found in bytes as they arrive.
//!
//! A request is an array of bulk strings, as every client sends it, or one line of words, as a person types it. The parser
//! copies nothing: it says where the words are. Whatever announces more than the bounds allow is refused by its
//! announcement, before any of it is read, so a connection never holds more than [`FRAME_BYTES_MAX`].

use std::ops::Range;

use crate::bounds::{ARG_BYTES_MAX, ARGS_MAX, FRAME_BYTES_MAX};

/// Where the words of one request are in the bytes that were read.
pub(super) type Places = Vec<Range<usize>>;

/// Why the bytes are no request. The connection cannot go on, because nobody knows where the next one starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

/// Finds the first request in `input` and puts the places of its words into `places`. Answers how many bytes it took, or
/// nothing if it is not whole yet. An empty line has no words.
pub(super) fn find(input: &[u8], places: &mut Places) -> Result<Option<usize>, Malformed> {
    places.clear();
    let found = match input.first() {
        None => Ok(None),
        Some(b'*') => find_array(input, places),
        Some(_) => find_line(input, places),
    }?;
    if found.is_none() && FRAME_BYTES_MAX <= input.len() {
        return Err(Malformed(format!("a request has at most {FRAME_BYTES_MAX} bytes")));
    }
    Ok(found)
}

fn find_array(input: &[u8], places: &mut Places) -> Result<Option<usize>, Malformed> {
    let Some((count, mut at)) = number(input, 1)? else { return Ok(None) };
    // Clients may send an array of nothing; Redis skips it.
    let Ok(count) = usize::try_from(count) else { return Ok(Some(at)) };
    if ARGS_MAX < count {
        return Err(Malformed(format!("a request has at most {ARGS_MAX} words, not {count}")));
    }
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(other) => {
                let other = char::from(*other).escape_default();
                return Err(Malformed(format!("expected '$' before a word, found '{other}'")));
            }
        }
        let Some((length, start)) = number(input, at + 1)? else { return Ok(None) };
        let length = usize::try_from(length).ok().filter(|length| *length <= ARG_BYTES_MAX);
        let Some(length) = length else {
            return Err(Malformed(format!("a word has 0 to {ARG_BYTES_MAX} bytes")));
        };
        let end = start + length;
        match input.get(end..end + 2) {
            None => return Ok(None),
            Some(b"\r\n") => {}
            Some(_) => {
                return Err(Malformed(format!("a word of {length} bytes did not end there")));
            }
        }
        places.push(start..end);
        at = end + 2;
    }
    Ok(Some(at))
}

/// The whole number between `start` and the end of its line, and where the next line starts.
fn number(input: &[u8], start: usize) -> Result<Option<(i64, usize)>, Malformed> {
    let rest = input.get(start..).unwrap_or_default();
    if let Some((number, length)) = short_number(rest) {
        return Ok(Some((number, start + length)));
    }
    // Twenty digits and a sign are enough for any number; a longer line is none.
    let line = &rest[..rest.len().min(22)];
    let Some(length) = line.iter().position(|byte| *byte == b'\r') else {
        if line.len() == 22 {
            return Err(Malformed("a length has too many digits".to_owned()));
        }
        return Ok(None);
    };
    let Some(after) = rest.get(length + 1) else { return Ok(None) };
    let number = std::str::from_utf8(&rest[..length]).ok().and_then(|text| text.parse().ok());
    match number {
        Some(number) if *after == b'\n' => Ok(Some((number, start + length + 2))),
        _ => Err(Malformed("a length must be a whole number on a line of its own".to_owned())),
    }
}

/// A number of a few digits with its line break, as nearly all are, and how long that is.
fn short_number(line: &[u8]) -> Option<(i64, usize)> {
    let mut number = 0;
    for (place, byte) in line.iter().take(6).enumerate() {
        match byte {
            b'0'..=b'9' => number = number * 10 + i64::from(byte - b'0'),
            b'\r' if 0 < place && line.get(place + 1) == Some(&b'\n') => {
                return Some((number, place + 2));
            }
            _ => break,
        }
    }
    None
}

fn find_line(input: &[u8], places: &mut Places) -> Result<Option<usize>, Malformed> {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    let mut start = None;
    for (at, byte) in input[..=end].iter().enumerate() {
        match (byte.is_ascii_whitespace(), start) {
            (false, None) => start = Some(at),
            (true, Some(first)) => {
                places.push(first..at);
                start = None;
            }
            _ => {}
        }
    }
    if ARGS_MAX < places.len() {
        return Err(Malformed(format!(
            "a request has at most {ARGS_MAX} words, not {}",
            places.len()
        )));
    }
    Ok(Some(end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a request, and how many bytes it took.
    type Found<'a> = (Vec<&'a [u8]>, usize);

    fn words(input: &[u8]) -> Result<Option<Found<'_>>, Malformed> {
        let mut places = Places::new();
        let used = find(input, &mut places)?;
        let words = places.into_iter().map(|place| &input[place]).collect();
        Ok(used.map(|used| (words, used)))
    }

    #[test]
    fn an_array_is_found_and_what_follows_is_left() {
        let found = words(b"*2\r\n$4\r\nPING\r\n$0\r\n\r\n*1").unwrap().unwrap();
        assert_eq!(found, (vec![&b"PING"[..], b""], 20));
    }

    #[test]
    fn a_line_is_found() {
        assert_eq!(words(b" ping  now\r\nx").unwrap().unwrap(), (vec![&b"ping"[..], b"now"], 12));
        assert_eq!(words(b"\r\n").unwrap().unwrap(), (vec![], 2));
    }

    #[test]
    fn an_array_of_nothing_is_skipped() {
        assert_eq!(words(b"*0\r\n").unwrap().unwrap(), (vec![], 4));
        assert_eq!(words(b"*-1\r\n").unwrap().unwrap(), (vec![], 5));
    }

    /// A request that arrives byte by byte is not taken before its last byte.
    #[test]
    fn every_prefix_waits_for_more() {
        let whole = b"*3\r\n$9\r\nTG.RENEW\n\r\n$2\r\n\r\n\r\n$1\r\nx\r\n";
        for cut in 0..whole.len() {
            assert_eq!(words(&whole[..cut]).unwrap(), None, "{cut}");
        }
        assert_eq!(words(whole).unwrap().unwrap().1, whole.len());
    }

    /// What is too large is refused by its announcement alone.
    #[test]
    fn bounds_are_checked_before_reading() {
        for announced in ["*1000000\r\n", "*1\r\n$1000000000\r\n", "*1\r\n$-2\r\n"] {
            assert!(words(announced.as_bytes()).is_err(), "{announced:?}");
        }
        assert!(words(&vec![b'x'; FRAME_BYTES_MAX]).is_err());
        assert!(words("a ".repeat(ARGS_MAX + 1).as_bytes()).unwrap().is_none());
        assert!(words(("a ".repeat(ARGS_MAX + 1) + "\n").as_bytes()).is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        for input in
            ["*x\r\n", "*1\r\nx", "*1\r\n$3\r\nabcd\r\n", "*1\rx", "*11111111111111111111111"]
        {
            assert!(words(input.as_bytes()).is_err(), "{input:?}");
        }
    }
}
