//! Checks of the server's settings and data.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use tollgate::Error;
use tollgate::internal::edge::random;

use crate::args;
use crate::entry::corrupt;
use crate::gate::Redis;
use crate::link::Repeat;
use crate::reply::{Reply, Status};
use crate::script;

/// The oldest tested version.
const VERSION_MIN: u32 = 7;

const KEY_BYTES: usize = 32;

/// The result of [`Redis::check_data`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataCheck {
    /// The key of permits on the server.
    pub key: [u8; KEY_BYTES],
    /// Whether the data was flushed or lost since the last check.
    pub is_lost: bool,
}

impl Redis {
    /// Returns warnings about settings under which limits do not hold, and about settings that the server does not reveal.
    pub async fn check_server(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for node in self.link.slot_of_each_node().await.unwrap_or_default() {
            let info = self.link.at_slot::<String>(redis::cmd("INFO"), node, "read INFO").await;
            let mut save = redis::cmd("CONFIG");
            save.arg("GET").arg("save");
            let save =
                self.link.at_slot::<HashMap<String, String>>(save, node, "read CONFIG").await;
            let save = save.ok().and_then(|mut save| save.remove("save"));
            for warning in warnings_of(info.ok().as_deref(), save.as_deref()) {
                if !warnings.contains(&warning) {
                    warnings.push(warning);
                }
            }
        }
        warnings
    }

    /// Returns the key under which the key of permits is stored.
    pub(crate) fn shared_key(&self) -> String {
        format!("{}:{{permit-key}}", self.options.prefix)
    }

    /// Returns the key with which all programs on these servers seal permits; stores `fresh` if there is none. A client that
    /// can read it can write quotas anyway.
    ///
    /// # Errors
    /// [`Unavailable`](tollgate::ErrorKind::Unavailable) if the server does not reply.
    pub async fn permit_key(&self, fresh: [u8; KEY_BYTES]) -> Result<[u8; KEY_BYTES], Error> {
        Ok(self.check_data(fresh).await?.key)
    }

    /// Checks by a mark beside the key of permits whether the server still has its data. If the key is gone, writes `own`
    /// back, so that permits outlive the data, or returns the key that another program wrote first.
    ///
    /// # Errors
    /// [`Unavailable`](tollgate::ErrorKind::Unavailable) if the server does not reply.
    pub async fn check_data(&self, own: [u8; KEY_BYTES]) -> Result<DataCheck, Error> {
        let key = self.shared_key();
        let args = args::bare(self.times(None), [0; 4]);
        let mark = (u64::from(random()) << 32 | u64::from(random())).to_le_bytes();
        let all: [&[u8]; 4] = [&args, b"", &own, &mark];
        let reply = self.link.run(&script::PERMIT_KEY, &[&key], &all, Repeat::Safe).await?;
        let reply = Reply::read(reply)?;
        if reply.status == Status::Done {
            self.link.replicated(&key).await?;
        }
        let unreadable = || corrupt("the key of permits is unreadable");
        let (key, mark) = reply.extra().split_first_chunk().ok_or_else(unreadable)?;
        let mark = u64::from_le_bytes(mark.try_into().map_err(|_| unreadable())?);
        let seen = self.mark.swap(mark, Ordering::Relaxed);
        Ok(DataCheck { key: *key, is_lost: seen != 0 && seen != mark })
    }
}

/// Returns the warnings for `info` and the setting `save`, each `None` if it cannot be read.
fn warnings_of(info: Option<&str>, save: Option<&str>) -> Vec<String> {
    let Some(info) = info else {
        return vec![
            "redis: version, eviction and persistence of the server were not checked, because INFO cannot be read. \
             Allow +info and +config|get, or check that maxmemory-policy is noeviction and appendonly is yes"
                .to_owned(),
        ];
    };
    let field = |name: &str| {
        let mut lines = info.lines().filter_map(|line| line.trim_end().split_once(':'));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let mut warnings = Vec::new();
    if let Some(policy) = field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
        warnings.push(format!(
            "redis: maxmemory-policy is {policy}: when memory is full, Redis evicts usage, and limits \
             are exceeded without an error. Set maxmemory-policy noeviction, or give tollgate a server of its own"
        ));
    }
    match save {
        _ if field("aof_enabled") != Some("0") => {}
        None => warnings.push(
            "redis: persistence of the server was not checked, because CONFIG GET save cannot be read. Allow \
             +config|get, or check that the server keeps its data on disk"
                .to_owned(),
        ),
        Some("") => warnings.push(
            "redis: nothing is kept on disk (no appendonly, no save): a restart loses all usage, and each \
             subject starts with its full limit. Set appendonly yes"
                .to_owned(),
        ),
        Some(_) => {}
    }
    let version = field("redis_version");
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    if let (Some(version), Some(major)) = (version, major)
        && major < VERSION_MIN
    {
        warnings.push(format!(
            "redis: the server has version {version}, and tollgate is tested with {VERSION_MIN} and later; upgrade it"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::warnings_of;

    const GOOD: &str =
        "# Server\r\nredis_version:7.2.4\r\naof_enabled:0\r\nmaxmemory_policy:noeviction\r\n";

    #[test]
    fn settings_under_which_limits_do_not_hold_are_named() {
        assert!(warnings_of(Some(GOOD), Some("3600 1")).is_empty());
        assert!(warnings_of(Some(&GOOD.replace("enabled:0", "enabled:1")), None).is_empty());
        assert!(warnings_of(Some(""), Some("")).is_empty());
        for (info, save, word) in [
            (Some(GOOD.replace("noeviction", "allkeys-lru")), Some("60 1"), "allkeys-lru"),
            (Some(GOOD.replace("noeviction", "volatile-ttl")), Some("60 1"), "volatile-ttl"),
            (Some(GOOD.to_owned()), Some(""), "nothing is kept on disk"),
            (Some(GOOD.replace("7.2.4", "6.2.14")), Some("60 1"), "version 6.2.14"),
            (Some(GOOD.to_owned()), None, "persistence of the server was not checked"),
            (None, Some(""), "eviction and persistence of the server were not checked"),
            (None, None, "eviction and persistence of the server were not checked"),
        ] {
            let warnings = warnings_of(info.as_deref(), save);
            assert!(warnings.len() == 1 && warnings[0].contains(word), "{warnings:?}");
        }
    }
}
