//! Splitting of a streamed body into its JSON events, at any chunk boundaries.

use crate::bounds::EVENT_BYTES_MAX;
use crate::call::Framing;

/// Splits a body into events. An event above [`EVENT_BYTES_MAX`] is dropped.
#[derive(Clone, Debug)]
pub(crate) struct EventSplitter {
    framing: Framing,
    /// The beginning of a line that an earlier chunk had.
    line: Vec<u8>,
    /// Whether that beginning is too long and was dropped.
    is_line_overlong: bool,
    /// The data of an event.
    event: Vec<u8>,
    /// Whether the event is too long.
    is_overlong: bool,
    /// In a JSON array: the depth of brackets, and where in a string.
    depth: u64,
    string: InString,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InString {
    No,
    Yes,
    AfterBackslash,
}

impl EventSplitter {
    pub(crate) const fn new(framing: Framing) -> Self {
        Self {
            framing,
            line: Vec::new(),
            is_line_overlong: false,
            event: Vec::new(),
            is_overlong: false,
            depth: 0,
            string: InString::No,
        }
    }

    /// Takes the next bytes and calls `each` with every event that they complete.
    pub(crate) fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) {
        match self.framing {
            Framing::Events => self.feed_lines(bytes, &mut each),
            Framing::JsonArray => self.feed_array(bytes, &mut each),
        }
    }

    /// Calls `each` with an event that the end of the body completes.
    pub(crate) fn finish(&mut self, mut each: impl FnMut(&[u8])) {
        if self.framing == Framing::Events {
            self.end_line(b"", &mut each);
            self.take_line(b"", &mut each);
        }
    }

    fn feed_lines(&mut self, mut bytes: &[u8], each: &mut impl FnMut(&[u8])) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.end_line(&bytes[..end], each);
            bytes = &bytes[end + 1..];
        }
        self.hold(bytes);
    }

    fn hold(&mut self, bytes: &[u8]) {
        self.is_line_overlong |= EVENT_BYTES_MAX < self.line.len() + bytes.len();
        if self.is_line_overlong {
            self.line.clear();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    /// Takes the line that ends with `bytes`.
    fn end_line(&mut self, bytes: &[u8], each: &mut impl FnMut(&[u8])) {
        if self.line.is_empty() && !self.is_line_overlong && bytes.len() <= EVENT_BYTES_MAX {
            // The common case: the whole line is in this chunk, and is not copied.
            return self.take_line(bytes, each);
        }
        self.hold(bytes);
        if std::mem::take(&mut self.is_line_overlong) {
            self.is_overlong = true;
            return;
        }
        let mut line = std::mem::take(&mut self.line);
        self.take_line(&line, each);
        line.clear();
        self.line = line;
    }

    fn take_line(&mut self, line: &[u8], each: &mut impl FnMut(&[u8])) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            if !self.event.is_empty() && !self.is_overlong {
                each(&self.event);
            }
            self.event.clear();
            self.is_overlong = false;
        } else if let Some(data) = line.strip_prefix(b"data:") {
            let data = data.strip_prefix(b" ").unwrap_or(data);
            self.is_overlong |= EVENT_BYTES_MAX < self.event.len() + 1 + data.len();
            if self.is_overlong {
                self.event.clear();
                return;
            }
            if !self.event.is_empty() {
                self.event.push(b'\n');
            }
            self.event.extend_from_slice(data);
        }
    }

    /// Takes the elements of an array, which are objects, by counting brackets outside strings.
    fn feed_array(&mut self, bytes: &[u8], each: &mut impl FnMut(&[u8])) {
        for byte in bytes {
            let is_inside = 2 <= self.depth;
            match (self.string, byte) {
                (InString::AfterBackslash, _) => self.string = InString::Yes,
                (InString::Yes, b'\\') => self.string = InString::AfterBackslash,
                (InString::Yes, b'"') => self.string = InString::No,
                (InString::Yes, _) => {}
                (InString::No, b'"') => self.string = InString::Yes,
                (InString::No, b'[' | b'{') => self.depth += 1,
                (InString::No, b']' | b'}') => self.depth = self.depth.saturating_sub(1),
                (InString::No, _) => {}
            }
            if !is_inside && self.depth < 2 {
                continue;
            }
            if self.event.len() < EVENT_BYTES_MAX {
                self.event.push(*byte);
            } else {
                self.is_overlong = true;
            }
            if is_inside && self.depth == 1 {
                if !self.is_overlong {
                    each(&self.event);
                }
                self.event.clear();
                self.is_overlong = false;
            }
        }
    }
}
