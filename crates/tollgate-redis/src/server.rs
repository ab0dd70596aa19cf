//! What a server's settings mean for limits, and whether it still has its data.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use tollgate::Error;
use tollgate::edge::random;

use crate::answer::{Answer, Status};
use crate::args;
use crate::entry::corrupt;
use crate::gate::Redis;
use crate::link::Repeat;
use crate::script;

/// The oldest version that is tested.
const VERSION_MIN: u32 = 7;

const KEY_BYTES: usize = 32;

/// What [`Redis::check_data`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The key of permits that the server has now.
    pub key: [u8; KEY_BYTES],
    /// Whether the data is not that of the last look: it was flushed, or lost at a restart.
    pub is_lost: bool,
}

impl Redis {
    /// Settings of the servers under which limits do not hold, each with what it means. What a server does not tell is
    /// left out.
    pub async fn check_server(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for node in self.link.slot_of_each_node().await.unwrap_or_default() {
            let info = self.link.at_slot::<String>(redis::cmd("INFO"), node, "read INFO").await;
            let Ok(info) = info else { continue };
            let mut save = redis::cmd("CONFIG");
            save.arg("GET").arg("save");
            let save =
                self.link.at_slot::<HashMap<String, String>>(save, node, "read CONFIG").await;
            let save = save.ok().and_then(|mut save| save.remove("save"));
            for warning in warnings_of(&info, save.as_deref()) {
                if !warnings.contains(&warning) {
                    warnings.push(warning);
                }
            }
        }
        warnings
    }

    /// Where the key of permits is kept.
    pub(crate) fn shared_key(&self) -> String {
        format!("{}:{{permit-key}}", self.options.prefix)
    }

    /// Thirty-two bytes that every program on these servers shares, to seal permits with: `fresh` if there are none
    /// yet. Whoever can read them can write quotas anyway.
    ///
    /// # Errors
    /// [`Unavailable`](tollgate::ErrorKind::Unavailable) if the server does not answer.
    pub async fn permit_key(&self, fresh: [u8; KEY_BYTES]) -> Result<[u8; KEY_BYTES], Error> {
        Ok(self.check_data(fresh).await?.key)
    }

    /// Looks whether the server has the data that it had at the last look, by a mark beside the key of permits. If the key is
    /// gone, `own` is written back, so that permits outlive the data; if another program was faster, its key is returned.
    ///
    /// # Errors
    /// [`Unavailable`](tollgate::ErrorKind::Unavailable) if the server does not answer.
    pub async fn check_data(&self, own: [u8; KEY_BYTES]) -> Result<Kept, Error> {
        let key = self.shared_key();
        let args = args::bare(self.times(None), [0; 4]);
        let mark = (u64::from(random()) << 32 | u64::from(random())).to_le_bytes();
        let all: [&[u8]; 4] = [&args, b"", &own, &mark];
        let answer = self.link.run(&script::PERMIT_KEY, &[&key], &all, Repeat::Safe).await?;
        let answer = Answer::read(answer)?;
        if answer.status == Status::Done {
            self.link.replicated(&key).await?;
        }
        let unreadable = || corrupt("the key of permits is unreadable");
        let (key, mark) = answer.extra().split_first_chunk().ok_or_else(unreadable)?;
        let mark = u64::from_le_bytes(mark.try_into().map_err(|_| unreadable())?);
        let seen = self.mark.swap(mark, Ordering::Relaxed);
        Ok(Kept { key: *key, is_lost: seen != 0 && seen != mark })
    }
}

/// What `info` and the setting `save` warn of.
fn warnings_of(info: &str, save: Option<&str>) -> Vec<String> {
    let field = |name: &str| {
        let mut lines = info.lines().filter_map(|line| line.trim_end().split_once(':'));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let mut warnings = Vec::new();
    if let Some(policy) = field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
        warnings.push(format!(
            "redis: maxmemory-policy is {policy}: when memory is full, Redis deletes what subjects have used, and limits \
             are exceeded without an error. Set maxmemory-policy noeviction, or give tollgate a server of its own"
        ));
    }
    if field("aof_enabled") == Some("0") && save == Some("") {
        warnings.push(
            "redis: nothing is kept on disk (no appendonly, no save): a restart forgets what every subject has used, and each \
             starts with its full limit. Set appendonly yes"
                .to_owned(),
        );
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
        assert!(warnings_of(GOOD, Some("3600 1")).is_empty());
        // A managed service does not tell what it saves.
        assert!(warnings_of(GOOD, None).is_empty());
        assert!(warnings_of("", Some("")).is_empty());
        for (info, save, word) in [
            (GOOD.replace("noeviction", "allkeys-lru"), "60 1", "allkeys-lru"),
            (GOOD.replace("noeviction", "volatile-ttl"), "60 1", "volatile-ttl"),
            (GOOD.to_owned(), "", "nothing is kept on disk"),
            (GOOD.replace("7.2.4", "6.2.14"), "60 1", "version 6.2.14"),
        ] {
            let warnings = warnings_of(&info, Some(save));
            assert!(warnings.len() == 1 && warnings[0].contains(word), "{warnings:?}");
        }
    }
}
