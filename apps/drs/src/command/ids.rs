//! Parses ids of servers and instances, from arguments and from files.

use std::collections::BTreeSet;
use std::path::Path;

use super::invalid;
use tollgate_terminal::Failure;

/// Returns the ids in `typed` and in `file`, without duplicates. Each begins with `prefix`.
pub(super) fn read(
    typed: &[String],
    file: Option<&Path>,
    prefix: &str,
) -> Result<BTreeSet<String>, Failure> {
    let mut ids = BTreeSet::new();
    for id in typed {
        ids.insert(checked(id, prefix).map_err(invalid)?);
    }
    if let Some(file) = file {
        let text = std::fs::read_to_string(file).map_err(|error| {
            invalid(format!(
                "{} cannot be read: {error}; it has an id on each line",
                file.display()
            ))
        })?;
        for (number, line) in text.lines().enumerate() {
            let id = line.split('#').next().unwrap_or_default().trim();
            if !id.is_empty() {
                let wrong = |what| invalid(format!("{}:{}: {what}", file.display(), number + 1));
                ids.insert(checked(id, prefix).map_err(wrong)?);
            }
        }
    }
    if ids.is_empty() {
        return Err(invalid(format!(
            "no ids were given; name some, as in {prefix}0123456789abcdef0, or a file with --servers"
        )));
    }
    Ok(ids)
}

fn checked(id: &str, prefix: &str) -> Result<String, String> {
    let is_id = id.strip_prefix(prefix).is_some_and(|rest| {
        rest.len() == 17 && rest.bytes().all(|sign| matches!(sign, b'0'..=b'9' | b'a'..=b'f'))
    });
    if is_id {
        Ok(id.to_owned())
    } else {
        Err(format!(
            "{id:?} is not an id; an id is {prefix} and 17 hexadecimal digits, as in {prefix}0123456789abcdef0"
        ))
    }
}
