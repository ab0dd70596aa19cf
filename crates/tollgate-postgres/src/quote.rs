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

/// A name that may stand in a schema, such as `"shop"."orders"`; the first dot divides.
pub(crate) fn path(path: &str) -> Result<String, Error> {
    match path.split_once('.') {
        Some((schema, table)) => Ok(format!("{}.{}", name(schema)?, name(table)?)),
        None => name(path),
    }
}

/// A text as SQL, such as `'it''s'`.
pub(crate) fn text(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('\'', "''").replace('$', "\\x24");
    format!("E'{text}'")
}

/// A subject or id as it is stored. PostgreSQL keeps no zero byte in a text, so it is written `\0`, and `\` doubled.
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
        assert_eq!(text("it's \\ $x$"), "E'it''s \\\\ \\x24x\\x24'");
        for bad in ["", "a\0b", "a$body$", &"x".repeat(64)] {
            assert!(name(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn every_text_comes_back() {
        for given in ["plain", "a\0b", "back\\slash", "\\0", "\\\\0\0", ""] {
            assert!(!store(given).contains('\0'));
            assert_eq!(restore(&store(given)), given);
        }
    }
}
