//! Values that must not be printed: in the configuration, in an environment variable or in a file.

use std::fmt;
use std::path::PathBuf;

use tollgate::internal::edge::environment;
use tollgate::{Error, ErrorKind};

use crate::Document;

/// The location of a secret, which is read when it is needed and never printed.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The value itself, in the configuration.
    Inline(String),
    /// The name of an environment variable.
    Environment(String),
    /// A file, whose last line break is not part of the secret.
    File(PathBuf),
}

impl Secret {
    /// Resolves the secret `key` of `owner`, of which exactly one of `key`, `key_env` and `key_file` is set.
    pub fn resolve(
        document: &Document,
        owner: &str,
        key: &str,
        [value, variable, file]: [Option<&str>; 3],
    ) -> Result<Self, String> {
        match (value, variable, file) {
            (Some(value), None, None) => Ok(Self::Inline(value.to_owned())),
            (None, Some(name), None) => Ok(Self::Environment(name.to_owned())),
            (None, None, Some(path)) => Ok(Self::File(document.folder().join(path))),
            (None, None, None) => Err(format!(
                "{owner} needs a {key}; add {key}, {key}_env (a variable) or {key}_file (a file)"
            )),
            _ => Err(format!("{key}, {key}_env and {key}_file exclude each other; keep one")),
        }
    }

    /// Reads the secret.
    pub fn read(&self) -> Result<String, Error> {
        let invalid = |message: String| Error::new(ErrorKind::Invalid, message);
        match self {
            Self::Inline(value) => Ok(value.clone()),
            Self::Environment(name) => environment(name).ok_or_else(|| {
                invalid(format!("the variable {name} that the configuration names is not set"))
            }),
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(value) => Ok(value.trim_end_matches(['\n', '\r']).to_owned()),
                Err(error) => Err(invalid(format!(
                    "the file {} that the configuration names cannot be read: {error}",
                    path.display()
                ))),
            },
        }
    }
}

impl fmt::Debug for Secret {
    /// Prints the location, not the value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inline(_) => f.write_str("Inline(hidden)"),
            Self::Environment(name) => f.debug_tuple("Environment").field(name).finish(),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}
