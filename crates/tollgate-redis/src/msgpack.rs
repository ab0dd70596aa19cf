//! The little of msgpack that scripts answer and store: whole numbers, bytes, lists.
//!
//! Redis carries `cmsgpack` in every version, so one reply holds all fields of an entry. Version 3 of the layout has the
//! settled permits so, too.

/// A value that a script answered or stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A whole number.
    Number(u64),
    /// Bytes, which may be text.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<Value>),
}

impl Value {
    pub(crate) const fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> Option<&[Self]> {
        match self {
            Self::List(values) => Some(values),
            _ => None,
        }
    }

    /// The numbers of a list of numbers.
    pub(crate) fn numbers(&self) -> Option<Vec<u64>> {
        self.list()?.iter().map(Self::number).collect()
    }
}

/// A list of up to 65,535 numbers as `cmsgpack` packs it: each in as few bytes as it needs.
pub(crate) fn numbers(values: &[u64]) -> Vec<u8> {
    let mut bytes = match u16::try_from(values.len()).unwrap_or(u16::MAX) {
        length @ 0..=0x0f => vec![0x90 | length.to_be_bytes()[1]],
        length => [[0xdc].as_slice(), &length.to_be_bytes()].concat(),
    };
    for value in values {
        let all = value.to_be_bytes();
        let (head, width): (&[u8], _) = match value {
            0..=0x7f => (&[], 1),
            0x80..=0xff => (&[0xcc], 1),
            0x100..=0xffff => (&[0xcd], 2),
            0x1_0000..=0xffff_ffff => (&[0xce], 4),
            _ => (&[0xcf], 8),
        };
        bytes.extend(head);
        bytes.extend(&all[all.len() - width..]);
    }
    bytes
}

/// How deep lists may nest in what is read.
const DEPTH_MAX: usize = 8;

/// Reads one value that fills `bytes`, or nothing if they are something else.
pub(crate) fn read(bytes: &[u8]) -> Option<Value> {
    let mut rest = bytes;
    let value = value(&mut rest, DEPTH_MAX)?;
    rest.is_empty().then_some(value)
}

fn value(rest: &mut &[u8], depth: usize) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    let (head, after) = rest.split_first()?;
    *rest = after;
    match head {
        0x00..=0x7f => Some(Value::Number(u64::from(*head))),
        // An empty table is a list or a map; both are empty.
        0x80 | 0x90 => Some(Value::List(Vec::new())),
        0x91..=0x9f => values(rest, usize::from(head & 0x0f), depth),
        0xa0..=0xbf => taken(rest, usize::from(head & 0x1f)),
        0xcc..=0xcf => Some(Value::Number(big_endian(rest, 1 << (head - 0xcc))?)),
        // Numbers that are not negative may come as signed ones.
        0xd0..=0xd3 => {
            let width = 1 << (head - 0xd0);
            let number = big_endian(rest, width)?;
            (number >> (8 * width - 1) == 0).then_some(Value::Number(number))
        }
        0xc4..=0xc6 => {
            let length = big_endian(rest, 1 << (head - 0xc4))?;
            taken(rest, usize::try_from(length).ok()?)
        }
        0xd9..=0xdb => {
            let length = big_endian(rest, 1 << (head - 0xd9))?;
            taken(rest, usize::try_from(length).ok()?)
        }
        0xdc | 0xdd => {
            let length = big_endian(rest, if *head == 0xdc { 2 } else { 4 })?;
            values(rest, usize::try_from(length).ok()?, depth)
        }
        _ => None,
    }
}

fn values(rest: &mut &[u8], length: usize, depth: usize) -> Option<Value> {
    // Each value takes a byte at least, so a length that is too large cannot make us allocate.
    if rest.len() < length {
        return None;
    }
    let mut all = Vec::with_capacity(length);
    for _ in 0..length {
        all.push(value(rest, depth)?);
    }
    Some(Value::List(all))
}

fn taken(rest: &mut &[u8], length: usize) -> Option<Value> {
    let (bytes, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(Value::Bytes(bytes.to_vec()))
}

fn big_endian(rest: &mut &[u8], width: usize) -> Option<u64> {
    let (bytes, after) = rest.split_at_checked(width)?;
    *rest = after;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_width_are_read() {
        let head = [0x95, 0x00, 0x7f];
        let rest =
            [0xcc, 0xff, 0xcd, 0x01, 0x00, 0xd3, 0, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let bytes = [head.as_slice(), &rest].concat();
        let numbers = read(&bytes).unwrap().numbers().unwrap();
        assert_eq!(numbers, [0, 127, 255, 256, (1 << 53) - 1]);
        let many = [&[0xdc, 0x01, 0x00][..], &[7; 256]].concat();
        assert_eq!(read(&many).unwrap().numbers().unwrap(), [7; 256]);
    }

    #[test]
    fn what_is_written_is_read() {
        let all = [0, 127, 128, 255, 256, 65_535, 65_536, u64::from(u32::MAX), (1 << 53) - 1];
        assert_eq!(read(&numbers(&all)).unwrap().numbers().unwrap(), all);
        let many: Vec<u64> = (0..769).collect();
        assert_eq!(read(&numbers(&many)).unwrap().numbers().unwrap(), many);
    }

    #[test]
    fn anything_else_is_refused_and_never_a_panic() {
        for bytes in [&[][..], &[0xc0], &[0x91], &[0xdd, 0xff, 0xff, 0xff, 0xff], &[0x01, 0x02]] {
            assert_eq!(read(bytes), None, "{bytes:?}");
        }
        assert_eq!(read(&[0xd3, 0xff, 0, 0, 0, 0, 0, 0, 0]), None, "a negative number");
    }
}
