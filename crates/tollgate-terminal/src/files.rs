//! Files that are replaced as a whole.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the file to replace by a rename: `path`, or the target of the link. `None` for a device or a pipe, which is
/// written to in place.
#[must_use]
pub fn rename_target(path: &Path) -> Option<PathBuf> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() || found.is_dir() => {
            Some(fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()))
        }
        Ok(_) => None,
        Err(_) => Some(path.to_owned()),
    }
}
