//! Values that must not be shown: in the file itself, in a variable of the environment, or in a file beside.

use std::fmt;
use std::path::{Path, PathBuf};

use tollgate::edge::environment;
use tollgate::{Error, ErrorKind};

/// Where a secret is. It is read when it is needed, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Secret {
    /// In the configuration.
    Here(String),
    /// In this variable of the environment.
    Environment(String),
    /// In this file, whose last line break does not count.
    File(PathBuf),
}

impl Secret {
    /// The secret `key` of `owner`: `key`, `key_env` or `key_file`, exactly one of them. Otherwise what to do.
    pub(super) fn resolve(
        owner: &str,
        key: &str,
        [here, variable, file]: [Option<&str>; 3],
        folder: &Path,
    ) -> Result<Self, String> {
        match (here, variable, file) {
            (Some(here), None, None) => Ok(Self::Here(here.to_owned())),
            (None, Some(name), None) => Ok(Self::Environment(name.to_owned())),
            (None, None, Some(path)) => Ok(Self::File(folder.join(path))),
            (None, None, None) => Err(format!(
                "{owner} needs a {key}; add {key}, {key}_env (a variable) or {key}_file (a file)"
            )),
            _ => Err(format!("{key}, {key}_env and {key}_file exclude each other; keep one")),
        }
    }

    /// Reads it.
    pub(crate) fn read(&self) -> Result<String, Error> {
        let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
        match self {
            Self::Here(text) => Ok(text.clone()),
            Self::Environment(name) => environment(name).ok_or_else(|| {
                invalid(format!("the variable {name} that the configuration names is not set"))
            }),
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => Ok(text.trim_end_matches(['\n', '\r']).to_owned()),
                Err(error) => Err(invalid(format!(
                    "the file {} that the configuration names cannot be read: {error}",
                    path.display()
                ))),
            },
        }
    }
}

impl fmt::Debug for Secret {
    /// Where it is, not what it says.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(_) => f.write_str("Here(hidden)"),
            Self::Environment(name) => f.debug_tuple("Environment").field(name).finish(),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}
