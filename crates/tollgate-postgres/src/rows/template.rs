//! Templates with `@name@`.

use tollgate::{Error, ErrorKind};

/// Replaces every `@name@` in `template`, but not in the values.
pub(crate) fn fill(template: &str, values: &[(&str, String)]) -> Result<String, Error> {
    let mut filled = String::with_capacity(template.len() * 2);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('@') {
        let (name, after) = after.split_once('@').ok_or_else(|| missing(after))?;
        let value = values.iter().find(|(known, _)| *known == name).ok_or_else(|| missing(name))?;
        filled.push_str(before);
        filled.push_str(&value.1);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

fn missing(name: &str) -> Error {
    let name: String = name.chars().take(20).collect();
    Error::new(ErrorKind::Corrupt, format!("a template names {name:?}, which has no value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_in_is_not_filled_again() {
        let values = [("a", "@b@".to_owned()), ("b", "x".to_owned())];
        assert_eq!(fill("1 @a@ 2 @b@", &values).unwrap(), "1 @b@ 2 x");
        assert!(fill("@c@", &values).is_err());
    }
}
