//! Placeholders in subjects.

/// The names of placeholders, apart from headers.
const KNOWN: [&str; 5] = ["key.subject", "key.team", "key.name", "upstream", "model"];

/// A placeholder, as far as it depends on the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Placeholder {
    /// `{header.NAME}`.
    Header(String),
    /// `{key.team}`.
    Team,
    /// Every call has it.
    Other,
}

/// Returns the placeholders of `text`.
pub(super) fn parse(text: &str) -> Result<Vec<Placeholder>, String> {
    if text.is_empty() {
        return Err("subject is empty; write one, as in \"{key.subject}\"".to_owned());
    }
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(['{', '}']) {
        let inside = rest[start..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let Some((name, behind)) = inside else {
            return Err(format!(
                "subject {text:?} has a brace without its pair; a placeholder is written as in \"{{key.subject}}\""
            ));
        };
        found.push(placeholder(text, name)?);
        rest = behind;
    }
    Ok(found)
}

fn placeholder(text: &str, name: &str) -> Result<Placeholder, String> {
    if let Some(header) = name.strip_prefix("header.") {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if header.is_empty() || !header.bytes().all(is_allowed) {
            return Err(format!(
                "subject {text:?} names the header {header:?}, which cannot be one; write it as in \"{{header.x-user}}\""
            ));
        }
        return Ok(Placeholder::Header(header.to_owned()));
    }
    match name {
        "key.team" => Ok(Placeholder::Team),
        name if KNOWN.contains(&name) => Ok(Placeholder::Other),
        name => {
            let hint = tollgate::internal::nearest(name, KNOWN);
            let hint = hint.map(|name| format!(" did you mean {{{name}}}?")).unwrap_or_default();
            Err(format!(
                "subject {text:?} names {{{name}}}, which is not known;{hint} known: {}, header.NAME",
                KNOWN.join(", ")
            ))
        }
    }
}
