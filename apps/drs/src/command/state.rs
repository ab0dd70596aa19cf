//! The state file of a campaign, replaced atomically.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use crate::campaign::Campaign;
use serde::{Deserialize, Serialize};

use super::invalid;
use super::lock::beside;
use tollgate_terminal::Failure;

/// The contents of the file.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct State {
    pub(super) version: u32,
    pub(super) region: String,
    pub(super) account: String,
    pub(super) campaign: Campaign,
}

const VERSION: u32 = 1;

impl State {
    pub(super) fn new(region: &str, account: &str, campaign: Campaign) -> Self {
        Self { version: VERSION, region: region.to_owned(), account: account.to_owned(), campaign }
    }

    /// Reads `file`; `None` if it does not exist.
    pub(super) fn read(file: &Path) -> Result<Option<Self>, Failure> {
        let wrong = |what: String| invalid(format!("{}: {what}", file.display()));
        let text = match fs::read(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(format!("cannot be read: {error}"))),
        };
        let state: Self = serde_json::from_slice(&text)
            .map_err(|error| wrong(format!("is not the progress of a recovery: {error}")))?;
        if state.version != VERSION {
            let what = format!("is of version {}; this program knows {VERSION}", state.version);
            return Err(wrong(what));
        }
        Ok(Some(state))
    }

    /// Replaces `file`, durably.
    pub(super) fn write(&self, file: &Path) -> Result<(), String> {
        let text = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        let beside = beside(file, ".new");
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        let written = || -> std::io::Result<()> {
            let mut out = File::create(&beside)?;
            out.write_all(&text)?;
            out.sync_all()?;
            fs::rename(&beside, file)?;
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        written().map_err(|error| {
            format!(
                "{}: the progress cannot be written: {error}; name another file with --state",
                file.display()
            )
        })
    }
}
