//! Names and texts inside SQL that is written once, when something is installed.
//!
//! What a caller says later always travels as a parameter; only names of tables, columns and schemas become text here.

use tollgate::{Error, ErrorKind};

/// The longest name that PostgreSQL keeps whole, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 63;

/// A name as SQL, such as `"user_id"`.
pub(crate) fn name(name: &str) -> Result<String, Error> {
    // A dollar could end the quotes around the body of a function.
    if name.is_empty() || NAME_BYTES_MAX < name.len() || name.contains(['\0', '$']) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "{name:?} cannot be used as a name; it must be 1 to {NAME_BYTES_MAX} bytes long and have no $"
            ),
        ));
    }
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

/// A name that may have a schema, such as `"shop"."orders"`.
pub(crate) fn path(text: &str) -> Result<String, Error> {
    let (schema, table) = split(text);
    match schema {
        Some(schema) => Ok(format!("{}.{}", name(&schema)?, name(&table)?)),
        None => name(&table),
    }
}

/// Splits a name at its schema, and removes the quotes of SQL: `app."Orders"` is `Orders` in `app`.
///
/// A part without quotes is taken literally, as `Orders` is here: case is not folded, and later dots belong to the table.
pub(crate) fn split(path: &str) -> (Option<String>, String) {
    let (schema, table) = match quoted(path) {
        Some((schema, rest)) if rest.starts_with('.') => (schema, &rest[1..]),
        Some((table, "")) => return (None, table),
        _ => match path.split_once('.') {
            Some((schema, table)) => (schema.to_owned(), table),
            None => return (None, path.to_owned()),
        },
    };
    (Some(schema), plain(table))
}

/// A name without the quotes of SQL. A text that is not a quoted name as a whole is the name itself.
pub(crate) fn plain(name: &str) -> String {
    match quoted(name) {
        Some((name, "")) => name,
        _ => name.to_owned(),
    }
}

/// The quoted name that `text` starts with, and the rest behind its closing quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut rest = text.strip_prefix('"')?;
    let mut name = String::new();
    loop {
        let (before, after) = rest.split_once('"')?;
        name.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                name.push('"');
                rest = after;
            }
            None => return Some((name, after)),
        }
    }
}

/// A text as SQL, such as `'it''s'`.
pub(crate) fn text(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('\'', "''").replace('$', "\\x24");
    format!("E'{text}'")
}

/// Encodes a subject or an id for storage. PostgreSQL keeps no zero byte in a text, so it is written `\0`, and `\` doubled.
pub(crate) fn store(text: &str) -> String {
    if text.contains(['\\', '\0']) {
        text.replace('\\', "\\\\").replace('\0', "\\0")
    } else {
        text.to_owned()
    }
}

/// What [`store`] was given.
pub(crate) fn restore(stored: &str) -> String {
    if !stored.contains('\\') {
        return stored.to_owned();
    }
    let mut text = String::with_capacity(stored.len());
    let mut letters = stored.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => text.push(if letters.next() == Some('0') { '\0' } else { '\\' }),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out() {
        assert_eq!(name("user_id").unwrap(), "\"user_id\"");
        assert_eq!(name("a\"; DROP TABLE x; --").unwrap(), "\"a\"\"; DROP TABLE x; --\"");
        assert_eq!(path("shop.orders").unwrap(), "\"shop\".\"orders\"");
        assert_eq!(path("app.\"Orders\"").unwrap(), "\"app\".\"Orders\"");
        assert_eq!(text("it's \\ $x$"), "E'it''s \\\\ \\x24x\\x24'");
        for bad in ["", "a\0b", "a$body$", &"x".repeat(64)] {
            assert!(name(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn quoted_names_are_read_as_sql_reads_them() {
        let split = |path: &str| {
            let (schema, table) = split(path);
            format!("{} | {table}", schema.unwrap_or_default())
        };
        for (path, parts) in [
            ("orders", " | orders"),
            ("Orders", " | Orders"),
            ("app.Orders", "app | Orders"),
            (r#"app."Orders""#, "app | Orders"),
            (r#""App"."Orders""#, "App | Orders"),
            (r#""Orders""#, " | Orders"),
            (r#""a.b"."c.d""#, "a.b | c.d"),
            (r#""a.b".c"#, "a.b | c"),
            (r#""say ""hi""".x"#, "say \"hi\" | x"),
            // Not quoted as a whole, so literal.
            (r#"my shop.Order " x"#, "my shop | Order \" x"),
            (r#"a."b"#, "a | \"b"),
            (r#""a"b.c"#, "\"a\"b | c"),
        ] {
            assert_eq!(split(path), parts, "{path}");
        }
        assert_eq!(plain(r#""User Id""#), "User Id");
        assert_eq!(plain("User Id"), "User Id");
    }

    #[test]
    fn every_text_comes_back() {
        for given in ["plain", "a\0b", "back\\slash", "\\0", "\\\\0\0", ""] {
            assert!(!store(given).contains('\0'));
            assert_eq!(restore(&store(given)), given);
        }
    }
}
