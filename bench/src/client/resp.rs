//! The Redis protocol: an array of words out, an array of five numbers back.

use super::Talk;

/// One connection; `command` goes before the key and `rest` after it.
pub(crate) struct Resp {
    head: Vec<u8>,
    rest: Vec<u8>,
}

impl Resp {
    pub(crate) fn new(command: &str) -> Self {
        let words = ["1000000", "1000000", "1"];
        let head = format!("*{}\r\n${}\r\n{command}\r\n", words.len() + 2, command.len());
        let rest = words.map(|word| format!("${}\r\n{word}\r\n", word.len())).concat();
        Self { head: head.into_bytes(), rest: rest.into_bytes() }
    }
}

impl Talk for Resp {
    fn ask(&mut self, key: u64, out: &mut Vec<u8>) {
        let key = format!("key:{key:012}");
        out.extend_from_slice(&self.head);
        out.extend_from_slice(format!("${}\r\n{key}\r\n", key.len()).as_bytes());
        out.extend_from_slice(&self.rest);
    }

    fn take(&mut self, input: &mut Vec<u8>, _: &mut Vec<u8>) -> Result<usize, String> {
        if input.starts_with(b"-") {
            return Err(String::from_utf8_lossy(input).into_owned());
        }
        // An array of five numbers is six lines.
        let ends: Vec<usize> = input
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n')
            .map(|(at, _)| at)
            .collect();
        let answers = ends.len() / 6;
        if 0 < answers {
            input.drain(..=ends[answers * 6 - 1]);
        }
        Ok(answers)
    }
}
