//! Where a file that is written whole or not at all ends up.

use std::fs;
use std::path::{Path, PathBuf};

/// The file that another one may take the place of: the one that `path` names, or that its link leads to. A device or a pipe
/// is no such file: it is written to as it is.
pub(crate) fn replaceable(path: &Path) -> Option<PathBuf> {
    match fs::metadata(path) {
        Ok(there) if there.is_file() || there.is_dir() => {
            Some(fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()))
        }
        Ok(_) => None,
        Err(_) => Some(path.to_owned()),
    }
}
