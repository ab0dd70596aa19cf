//! A scanner over JSON text.
//!
//! It differs from a deserializer in three ways that the readers here need: values have positions, so that a few bytes can be changed
//! and the rest copied; values that are not needed are skipped without allocating; and a member that occurs twice is an error, since
//! the server behind might read the other one.

use std::borrow::Cow;
use std::ops::Range;

use crate::bounds::NESTING_MAX;
use crate::error::Error;
use crate::estimate::{quarters, quarters_of_bytes, quarters_of_unit};

/// Returns whether `body` is one JSON value and nothing else.
pub(crate) fn is_whole(body: &[u8]) -> bool {
    let read = Scanner::of_body(body, Names::Exact).and_then(|mut scanner| {
        scanner.skip()?;
        scanner.end()
    });
    read.is_ok()
}

/// Where and why JSON could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JsonError {
    at: usize,
    what: Cow<'static, str>,
}

impl From<JsonError> for Error {
    fn from(error: JsonError) -> Self {
        Self::request(format!("the body is invalid at byte {}: {}", error.at, error.what))
    }
}

pub(crate) type Result<T, E = JsonError> = std::result::Result<T, E>;

/// The kind of the next value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    Number,
    Bool,
    Null,
}

/// Which spellings of a member's name are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    Exact,
    /// `maxOutputTokens` is also `max_output_tokens`, as in JSON of protocol buffers.
    Protobuf,
}

/// A string, without its quotes and with its escapes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    raw: &'a str,
    /// The position of the first byte after the quote.
    at: usize,
    has_escapes: bool,
}

/// A position in JSON text.
#[derive(Clone, Debug)]
pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
    names: Names,
}

impl<'a> Scanner<'a> {
    pub(crate) const fn new(text: &'a str, names: Names) -> Self {
        Self { text, at: 0, depth: 0, names }
    }

    /// Returns a scanner of a whole body.
    pub(crate) fn of_body(body: &'a [u8], names: Names) -> Result<Self> {
        match std::str::from_utf8(body) {
            Ok(text) => Ok(Self::new(text, names)),
            Err(error) => Err(JsonError { at: error.valid_up_to(), what: "not UTF-8".into() }),
        }
    }

    pub(crate) const fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn error(&self, what: impl Into<Cow<'static, str>>) -> JsonError {
        JsonError { at: self.at, what: what.into() }
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.byte() {
            self.at += 1;
        }
    }

    fn expect(&mut self, wanted: u8, what: &'static str) -> Result<()> {
        if self.byte() != Some(wanted) {
            return Err(self.error(what));
        }
        self.at += 1;
        Ok(())
    }

    /// Returns the kind of the next value and moves to its first byte.
    pub(crate) fn kind(&mut self) -> Result<Kind> {
        self.skip_space();
        match self.byte() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b't' | b'f') => Ok(Kind::Bool),
            Some(b'n') => Ok(Kind::Null),
            _ => Err(self.error("expected a JSON value")),
        }
    }

    /// Checks that the next value is an object and moves to its first byte.
    pub(crate) fn expect_object(&mut self) -> Result<()> {
        match self.kind()? {
            Kind::Object => Ok(()),
            _ => Err(self.error("expected an object")),
        }
    }

    /// Checks that only whitespace follows.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.skip_space();
        if self.at < self.text.len() {
            return Err(self.error("expected the end of the body"));
        }
        Ok(())
    }

    fn string(&mut self) -> Result<Text<'a>> {
        self.expect(b'"', "expected a string")?;
        let start = self.at;
        let bytes = self.text.as_bytes();
        let mut has_escapes = false;
        loop {
            let rest = &bytes[self.at..];
            let Some(found) = find(rest, b'"', b'\\') else {
                return Err(self.error("the string has no end"));
            };
            self.at += found;
            if rest[found] == b'"' {
                let text = Text { raw: &self.text[start..self.at], at: start, has_escapes };
                self.at += 1;
                return Ok(text);
            }
            has_escapes = true;
            let escape = &rest[found + 1..];
            self.at += match escape.first() {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
                Some(b'u')
                    if escape.len() > 4 && escape[1..5].iter().all(u8::is_ascii_hexdigit) =>
                {
                    6
                }
                _ => return Err(self.error("invalid escape in a string")),
            };
        }
    }

    /// Returns the next value if it is a string, and skips it otherwise.
    pub(crate) fn text(&mut self) -> Result<Option<Text<'a>>> {
        match self.kind()? {
            Kind::String => self.string().map(Some),
            _ => self.skip().map(|()| None),
        }
    }

    /// Returns the next value if it is a boolean, and skips it otherwise.
    pub(crate) fn boolean(&mut self) -> Result<Option<bool>> {
        let is_bool = self.kind()? == Kind::Bool;
        let value = self.byte() == Some(b't');
        self.skip()?;
        Ok(is_bool.then_some(value))
    }

    /// Returns the next value if it is a non-negative number, rounded up, or such a number as a string; skips it otherwise.
    pub(crate) fn number(&mut self) -> Result<Option<u64>> {
        let digits = match self.kind()? {
            Kind::Number => {
                let start = self.at;
                self.skip_number()?;
                &self.text[start..self.at]
            }
            Kind::String => self.string()?.raw,
            _ => return self.skip().map(|()| None),
        };
        if let Ok(number) = digits.parse() {
            return Ok(Some(number));
        }
        let number = digits.parse::<f64>().ok().filter(|number| 0.0 <= *number);
        // The cast saturates.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        Ok(number.map(|number| number.ceil() as u64))
    }

    fn skip_number(&mut self) -> Result<()> {
        let digits = |scanner: &mut Self| {
            let start = scanner.at;
            while scanner.byte().is_some_and(|byte| byte.is_ascii_digit()) {
                scanner.at += 1;
            }
            if start == scanner.at { Err(scanner.error("invalid number")) } else { Ok(()) }
        };
        self.at += usize::from(self.byte() == Some(b'-'));
        let is_zero = self.byte() == Some(b'0');
        let start = self.at;
        digits(self)?;
        if is_zero && start + 1 < self.at {
            return Err(self.error("a number with a leading zero"));
        }
        if self.byte() == Some(b'.') {
            self.at += 1;
            digits(self)?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.at += 1;
            self.at += usize::from(matches!(self.byte(), Some(b'+' | b'-')));
            digits(self)?;
        }
        Ok(())
    }

    /// Skips the next value and returns where it is.
    pub(crate) fn range(&mut self) -> Result<Range<usize>> {
        self.kind()?;
        let start = self.at;
        self.skip()?;
        Ok(start..self.at)
    }

    /// Skips the next value.
    pub(crate) fn skip(&mut self) -> Result<()> {
        match self.kind()? {
            Kind::Object => self.object(|scanner, _| scanner.skip()),
            Kind::Array => self.array(Self::skip),
            Kind::String => self.string().map(|_| ()),
            Kind::Number => self.skip_number(),
            Kind::Bool | Kind::Null => {
                let rest = &self.text.as_bytes()[self.at..];
                let word =
                    [&b"true"[..], b"false", b"null"].into_iter().find(|w| rest.starts_with(w));
                self.at += word.ok_or_else(|| self.error("expected a JSON value"))?.len();
                Ok(())
            }
        }
    }

    fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        if NESTING_MAX < self.depth {
            let what = format!("nested more than {NESTING_MAX} deep; send a flatter body");
            return Err(self.error(what));
        }
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    /// Reads the next value, an object: calls `member` at each value, which it must read or skip.
    pub(crate) fn object<E: From<JsonError>>(
        &mut self,
        mut member: impl FnMut(&mut Self, Text<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.expect_object()?;
        self.enter()?;
        if self.byte() != Some(b'}') {
            loop {
                let key = self.string()?;
                self.skip_space();
                self.expect(b':', "expected a colon")?;
                member(self, key)?;
                self.skip_space();
                if self.byte() != Some(b',') {
                    break;
                }
                self.at += 1;
                self.skip_space();
            }
        }
        self.depth -= 1;
        Ok(self.expect(b'}', "expected a comma or the end of the object")?)
    }

    /// Reads the next value, an array: calls `element` at each value, which it must read or skip.
    pub(crate) fn array<E: From<JsonError>>(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.kind()? != Kind::Array {
            return Err(self.error("expected an array").into());
        }
        self.enter()?;
        if self.byte() != Some(b']') {
            loop {
                element(self)?;
                self.skip_space();
                if self.byte() != Some(b',') {
                    break;
                }
                self.at += 1;
            }
        }
        self.depth -= 1;
        Ok(self.expect(b']', "expected a comma or the end of the array")?)
    }

    /// Reads the next value: calls `member` with the name at each member of an object that is one of `names`, which are at most 32.
    /// Other members, and a value that is no object, are skipped.
    pub(crate) fn members<E: From<JsonError>>(
        &mut self,
        names: &[&'static str],
        mut member: impl FnMut(&mut Self, &'static str) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.kind()? != Kind::Object {
            return Ok(self.skip()?);
        }
        let mut seen = 0_u32;
        let rule = self.names;
        self.object(|scanner, key| {
            let Some(index) = names.iter().position(|name| key.is_name(name, rule)) else {
                return Ok(scanner.skip()?);
            };
            if seen & (1 << index) != 0 {
                return Err(scanner.error(format!("\"{}\" occurs twice", names[index])).into());
            }
            seen |= 1 << index;
            member(scanner, names[index])
        })
    }

    /// Reads the next value: calls `element` at each element of an array. A value that is no array is skipped.
    pub(crate) fn elements<E: From<JsonError>>(
        &mut self,
        element: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.kind()? {
            Kind::Array => self.array(element),
            _ => Ok(self.skip()?),
        }
    }

    /// Reads the next value and returns the quarters of a token of everything in it: names, strings, numbers.
    pub(crate) fn all_quarters(&mut self) -> Result<u64> {
        let mut sum = 0;
        match self.kind()? {
            Kind::String => sum = self.string()?.quarters(),
            Kind::Object => self.object(|scanner, key| {
                // The colon and a quote are about a token.
                sum += key.quarters() + 4 + scanner.all_quarters()?;
                Ok::<_, JsonError>(())
            })?,
            Kind::Array => self.array(|scanner| {
                sum += scanner.all_quarters()?;
                Ok::<_, JsonError>(())
            })?,
            Kind::Number | Kind::Bool | Kind::Null => {
                let range = self.range()?;
                sum = quarters(&self.text[range]);
            }
        }
        Ok(sum)
    }

    pub(crate) fn slice(&self, range: Range<usize>) -> &'a str {
        &self.text[range]
    }
}

impl<'a> Text<'a> {
    /// Returns where it is, without its quotes.
    pub(crate) const fn range(&self) -> Range<usize> {
        self.at..self.at + self.raw.len()
    }

    fn is_name(&self, name: &str, rule: Names) -> bool {
        if rule == Names::Exact && !self.has_escapes {
            return self.raw == name;
        }
        let text = self.unescaped();
        *text == *name || (rule == Names::Protobuf && is_snake_case_of(&text, name))
    }

    pub(crate) fn is(&self, text: &str) -> bool {
        self.is_name(text, Names::Exact)
    }

    /// Returns the text with its escapes replaced. An unpaired surrogate becomes U+FFFD.
    pub(crate) fn unescaped(&self) -> Cow<'a, str> {
        if !self.has_escapes {
            return Cow::Borrowed(self.raw);
        }
        let mut units: Vec<u16> = Vec::new();
        let mut text = String::with_capacity(self.raw.len());
        self.pieces(|piece| {
            if let Piece::Unit(unit) = piece {
                return units.push(unit);
            }
            flush(&mut units, &mut text);
            match piece {
                Piece::Plain(plain) => text.push_str(plain),
                Piece::Char(one) => text.push(one),
                Piece::Unit(_) => {}
            }
        });
        flush(&mut units, &mut text);
        Cow::Owned(text)
    }

    /// Estimates the text, in quarters of a token, without unescaping it into memory.
    pub(crate) fn quarters(&self) -> u64 {
        let bytes = self.raw.as_bytes();
        // Summed in one go, escapes as they are written; then each of them is corrected.
        let mut sum = quarters_of_bytes(bytes);
        if !self.has_escapes {
            return sum;
        }
        let mut at = 0;
        while let Some(found) = find(&bytes[at..], b'\\', b'\\') {
            let escape = at + found;
            let (length, meant, written) = match bytes.get(escape + 1) {
                Some(b'u') => {
                    let digits = bytes.get(escape + 2..escape + 6).unwrap_or_default();
                    (6, quarters_of_unit(hex(digits)), 2 + quarters_of_bytes(digits))
                }
                Some(b'n') => (2, 4, 2),
                _ => (2, 1, 2),
            };
            at = (escape + length).min(bytes.len());
            sum = sum + meant - written;
        }
        sum
    }

    fn pieces(&self, mut each: impl FnMut(Piece<'a>)) {
        let mut rest = self.raw;
        while let Some(found) = memchr::memchr(b'\\', rest.as_bytes()) {
            if 0 < found {
                each(Piece::Plain(&rest[..found]));
            }
            let escape = &rest[found + 1..];
            let one = match escape.as_bytes().first() {
                Some(b'u') => {
                    each(Piece::Unit(hex(escape.as_bytes().get(1..5).unwrap_or_default())));
                    rest = escape.get(5..).unwrap_or("");
                    continue;
                }
                Some(b'n') => '\n',
                Some(b't') => '\t',
                Some(b'r') => '\r',
                Some(b'b') => '\u{8}',
                Some(b'f') => '\u{c}',
                Some(other) => char::from(*other),
                None => return,
            };
            each(Piece::Char(one));
            rest = &escape[1..];
        }
        if !rest.is_empty() {
            each(Piece::Plain(rest));
        }
    }
}

/// A part of a string with escapes.
enum Piece<'a> {
    Plain(&'a str),
    Char(char),
    /// `\u` and four digits: a unit of UTF-16.
    Unit(u16),
}

/// Bytes that are compared one by one before a search by vectors pays off: text with one escape has more of them.
const NEAR: usize = 16;

/// Returns where the first of two bytes is.
fn find(bytes: &[u8], one: u8, other: u8) -> Option<usize> {
    let (near, far) = bytes.split_at(bytes.len().min(NEAR));
    let found = near.iter().position(|byte| *byte == one || *byte == other);
    found.or_else(|| memchr::memchr2(one, other, far).map(|found| near.len() + found))
}

/// Returns the number that checked hexadecimal digits are.
fn hex(digits: &[u8]) -> u16 {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => byte - b'0',
        _ => (byte | 0x20).wrapping_sub(b'a').wrapping_add(10) & 0xf,
    };
    digits.iter().fold(0, |number, byte| number << 4 | u16::from(digit(*byte)))
}

fn flush(units: &mut Vec<u16>, text: &mut String) {
    text.extend(char::decode_utf16(units.drain(..)).map(|one| one.unwrap_or('\u{fffd}')));
}

/// Returns whether `text` is `name`, which is in camel case, in snake case.
fn is_snake_case_of(text: &str, name: &str) -> bool {
    let mut bytes = text.bytes();
    let camel = std::iter::from_fn(|| match bytes.next()? {
        b'_' => bytes.next().map(|byte| byte.to_ascii_uppercase()),
        byte => Some(byte),
    });
    text.contains('_') && camel.eq(name.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn skip(text: &str) -> Result<()> {
        let mut scanner = Scanner::new(text, Names::Exact);
        scanner.skip()?;
        scanner.end()
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn all_json_is_skipped_whole_and_a_prefix_never(value in any_json(), pretty: bool) {
            let text = if pretty { format!("{value:#}") } else { value.to_string() };
            prop_assert_eq!(skip(&text), Ok(()));
            if value.is_object() || value.is_array() || value.is_string() {
                for (end, _) in text.char_indices() {
                    prop_assert!(skip(&text[..end]).is_err());
                }
            }
        }

        #[test]
        fn what_serde_json_rejects_is_rejected(text in r#"[\[\]{}",:\\a0-9.eE+u ntrue-]{0,24}"#) {
            // A scanner that accepts more would have an opinion where the provider has none.
            if serde_json::from_str::<Value>(&text).is_err() && skip(&text).is_ok() {
                // Half a surrogate pair, and a number beyond f64, are read here.
                prop_assert!(text.contains("\\u") || text.contains(['e', 'E']), "{}", text);
            }
        }

        #[test]
        fn strings_are_unescaped_and_estimated_as_serde_json_does(value: String, ascii: bool) {
            let mut text = Value::from(value.clone()).to_string();
            if ascii {
                let escaped: String = value.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
                text = format!("\"{escaped}\"");
            }
            let string = Scanner::new(&text, Names::Exact).string().unwrap();
            prop_assert_eq!(&*string.unescaped(), &*value);
            prop_assert_eq!(string.quarters(), quarters(&value));
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let depth = NESTING_MAX as usize;
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(skip(&nested(depth)), Ok(()));
        let error = Error::from(skip(&nested(depth + 1)).unwrap_err()).to_string();
        assert!(error.contains("nested more than 128 deep"), "{error}");
        assert!(skip(&"[".repeat(1_000_000)).is_err());
        assert!(skip(&"{\"a\":".repeat(1_000_000)).is_err());
    }

    #[test]
    fn a_member_that_occurs_twice_is_an_error_however_it_is_spelled() {
        let read = |text, names| {
            Scanner::new(text, names).members(&["maxTokens"], |scanner, _| scanner.skip())
        };
        assert!(read(r#"{"maxTokens":1,"other":1,"other":2}"#, Names::Exact).is_ok());
        let error = read(r#"{"maxTokens":1,"maxTok\u0065ns":2}"#, Names::Exact).unwrap_err();
        assert_eq!(
            Error::from(error).to_string(),
            r#"the body is invalid at byte 32: "maxTokens" occurs twice"#
        );
        assert!(read(r#"{"maxTokens":1,"max_tokens":2}"#, Names::Exact).is_ok());
        assert!(read(r#"{"maxTokens":1,"max_tokens":2}"#, Names::Protobuf).is_err());
    }

    #[test]
    fn numbers_are_read_as_servers_read_them() {
        let number = |text| Scanner::new(text, Names::Exact).number().unwrap();
        assert_eq!(number("4096"), Some(4_096));
        assert_eq!(number("4e3"), Some(4_000));
        assert_eq!(number("1.5"), Some(2));
        assert_eq!(number("\"64\""), Some(64));
        assert_eq!(number("1e99"), Some(u64::MAX));
        assert_eq!(number("-1"), None);
        assert_eq!(number("null"), None);
    }
}
