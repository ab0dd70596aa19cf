//! The parser of requests.
//!
//! A request is an array of bulk strings, as clients send it, or one line, as a person types it. The parser copies
//! nothing: it returns the ranges of the arguments. A length beyond the bounds is refused before its content is read, so
//! a connection never buffers more than [`FRAME_BYTES_MAX`]. Written by hand, because parsing is a measurable part of
//! answering a request (`bench resp`).

use std::ops::Range;

use crate::bounds::{ARG_BYTES_MAX, ARGS_MAX, FRAME_BYTES_MAX};

/// A malformed request. The connection must be closed: the start of the next request is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

/// Finds the first request in `input` and stores where its arguments are in `ranges`. Returns the length of the request,
/// or `None` if it is incomplete. An empty line has no arguments.
pub(super) fn find(
    input: &[u8],
    ranges: &mut Vec<Range<usize>>,
) -> Result<Option<usize>, Malformed> {
    ranges.clear();
    let found = match input.first() {
        None => Ok(None),
        Some(b'*') => find_array(input, ranges),
        Some(_) => find_line(input, ranges),
    }?;
    if found.is_none() && FRAME_BYTES_MAX <= input.len() {
        return Err(Malformed(format!("a request has at most {FRAME_BYTES_MAX} bytes")));
    }
    Ok(found)
}

fn find_array(input: &[u8], ranges: &mut Vec<Range<usize>>) -> Result<Option<usize>, Malformed> {
    let Some((count, mut at)) = number(input, 1)? else { return Ok(None) };
    // Clients may send an array of nothing; Redis skips it.
    let Ok(count) = usize::try_from(count) else { return Ok(Some(at)) };
    if ARGS_MAX < count {
        return Err(Malformed(format!("a request has at most {ARGS_MAX} arguments, not {count}")));
    }
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(other) => {
                let other = char::from(*other).escape_default();
                return Err(Malformed(format!("expected '$' before an argument, found '{other}'")));
            }
        }
        let Some((length, start)) = number(input, at + 1)? else { return Ok(None) };
        let length = usize::try_from(length).ok().filter(|length| *length <= ARG_BYTES_MAX);
        let Some(length) = length else {
            return Err(Malformed(format!("an argument has 0 to {ARG_BYTES_MAX} bytes")));
        };
        let end = start + length;
        match input.get(end..end + 2) {
            None => return Ok(None),
            Some(b"\r\n") => {}
            Some(_) => {
                return Err(Malformed(format!("an argument of {length} bytes did not end there")));
            }
        }
        ranges.push(start..end);
        at = end + 2;
    }
    Ok(Some(at))
}

/// Returns the integer between `start` and the end of its line, and the start of the next line.
fn number(input: &[u8], start: usize) -> Result<Option<(i64, usize)>, Malformed> {
    let rest = input.get(start..).unwrap_or_default();
    if let Some((number, length)) = short_number(rest) {
        return Ok(Some((number, start + length)));
    }
    // Twenty digits and a sign are enough for any integer.
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

/// Fast path: returns an integer of a few digits and its length, line break included.
fn short_number(line: &[u8]) -> Option<(i64, usize)> {
    let mut number = 0;
    for (index, byte) in line.iter().take(6).enumerate() {
        match byte {
            b'0'..=b'9' => number = number * 10 + i64::from(byte - b'0'),
            b'\r' if 0 < index && line.get(index + 1) == Some(&b'\n') => {
                return Some((number, index + 2));
            }
            _ => break,
        }
    }
    None
}

fn find_line(input: &[u8], ranges: &mut Vec<Range<usize>>) -> Result<Option<usize>, Malformed> {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    let mut start = None;
    for (at, byte) in input[..=end].iter().enumerate() {
        match (byte.is_ascii_whitespace(), start) {
            (false, None) => start = Some(at),
            (true, Some(first)) => {
                ranges.push(first..at);
                start = None;
            }
            _ => {}
        }
    }
    if ARGS_MAX < ranges.len() {
        return Err(Malformed(format!(
            "a request has at most {ARGS_MAX} arguments, not {}",
            ranges.len()
        )));
    }
    Ok(Some(end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arguments of a request, and its length.
    type Found<'a> = (Vec<&'a [u8]>, usize);

    fn args(input: &[u8]) -> Result<Option<Found<'_>>, Malformed> {
        let mut ranges = Vec::new();
        let used = find(input, &mut ranges)?;
        let args = ranges.into_iter().map(|range| &input[range]).collect();
        Ok(used.map(|used| (args, used)))
    }

    #[test]
    fn an_array_is_found_and_the_rest_is_left() {
        let found = args(b"*2\r\n$4\r\nPING\r\n$0\r\n\r\n*1").unwrap().unwrap();
        assert_eq!(found, (vec![&b"PING"[..], b""], 20));
    }

    #[test]
    fn a_line_is_found() {
        assert_eq!(args(b" ping  now\r\nx").unwrap().unwrap(), (vec![&b"ping"[..], b"now"], 12));
        assert_eq!(args(b"\r\n").unwrap().unwrap(), (vec![], 2));
    }

    #[test]
    fn an_array_of_nothing_is_skipped() {
        assert_eq!(args(b"*0\r\n").unwrap().unwrap(), (vec![], 4));
        assert_eq!(args(b"*-1\r\n").unwrap().unwrap(), (vec![], 5));
    }

    /// A request that arrives byte by byte is incomplete until its last byte.
    #[test]
    fn every_prefix_is_incomplete() {
        let whole = b"*3\r\n$9\r\nTG.RENEW\n\r\n$2\r\n\r\n\r\n$1\r\nx\r\n";
        for cut in 0..whole.len() {
            assert_eq!(args(&whole[..cut]).unwrap(), None, "{cut}");
        }
        assert_eq!(args(whole).unwrap().unwrap().1, whole.len());
    }

    /// A length beyond the bounds is refused before its content arrives.
    #[test]
    fn bounds_are_checked_before_reading() {
        for announced in ["*1000000\r\n", "*1\r\n$1000000000\r\n", "*1\r\n$-2\r\n"] {
            assert!(args(announced.as_bytes()).is_err(), "{announced:?}");
        }
        assert!(args(&vec![b'x'; FRAME_BYTES_MAX]).is_err());
        assert!(args("a ".repeat(ARGS_MAX + 1).as_bytes()).unwrap().is_none());
        assert!(args(("a ".repeat(ARGS_MAX + 1) + "\n").as_bytes()).is_err());
    }

    #[test]
    fn malformed_input_is_refused() {
        for input in
            ["*x\r\n", "*1\r\nx", "*1\r\n$3\r\nabcd\r\n", "*1\rx", "*11111111111111111111111"]
        {
            assert!(args(input.as_bytes()).is_err(), "{input:?}");
        }
    }
}
