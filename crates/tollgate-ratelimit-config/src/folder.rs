//! A folder of configuration files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::bounds::{FILE_BYTES_MAX, FILES_MAX, FOLDERS_DEEP_MAX};
use crate::{ConfigError, DomainFile, Options, RateLimitConfig};

impl RateLimitConfig {
    /// Reads the file `path`, or all files of the folder `path`; see [`files`].
    ///
    /// # Errors
    /// If a file cannot be read, or as [`DomainFile::parse`] and [`RateLimitConfig::new`].
    pub fn read(path: &Path, options: Options) -> Result<Self, ConfigError> {
        let read = |path: &PathBuf| {
            let name = path.display().to_string();
            let text = read(path).map_err(|error| ConfigError::whole(&name, error.to_string()))?;
            DomainFile::parse(&name, &text)
        };
        let files = files(path)?.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        Self::new(files, options)
    }
}

/// Returns the file `path`, or the files with the ending `.yaml` or `.yml` in the folder `path` and below, in the order of
/// their names. Names that begin with a dot are left out: a Kubernetes volume has each file twice, once in such a folder.
///
/// # Errors
/// If a folder cannot be read.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let mut found = Vec::new();
    if path.is_dir() {
        collect(path, 0, &mut found)?;
        found.sort();
    } else {
        found.push(path.to_owned());
    }
    Ok(found)
}

fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), ConfigError> {
    let error = |message: String| ConfigError::whole(&folder.display().to_string(), message);
    if FOLDERS_DEEP_MAX < depth {
        return Err(error(format!("folders are nested more than {FOLDERS_DEEP_MAX} deep")));
    }
    for entry in fs::read_dir(folder).map_err(|wrong| error(wrong.to_string()))? {
        let path = entry.map_err(|wrong| error(wrong.to_string()))?.path();
        let is_hidden =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if is_hidden {
            continue;
        }
        if path.is_dir() {
            collect(&path, depth + 1, found)?;
        } else if path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml") {
            if found.len() == FILES_MAX {
                return Err(error(format!("there are more than {FILES_MAX} files")));
            }
            found.push(path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> io::Result<String> {
    let bytes = fs::metadata(path)?.len();
    if FILE_BYTES_MAX < bytes {
        let message = format!("the file has {bytes} bytes, and at most {FILE_BYTES_MAX} are read");
        return Err(io::Error::other(message));
    }
    fs::read_to_string(path)
}
