//! The scripts, one per verb, put together from the files in `lua/`.

use std::fmt;
use std::sync::LazyLock;

/// A script and the name under which the server knows it.
pub(crate) struct Script {
    /// The verb, for messages.
    pub(crate) verb: &'static str,
    pub(crate) source: String,
    pub(crate) sha: String,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("verb", &self.verb).field("sha", &self.sha).finish()
    }
}

const HEAD: &str = include_str!("lua/head.lua");
const SHORTEN: &str = include_str!("lua/shorten.lua");
const LOAD: &str = include_str!("lua/load.lua");
const CHANGE: &str = include_str!("lua/change.lua");

fn script(verb: &'static str, parts: &[&str]) -> Script {
    let source = parts.concat();
    let sha = redis::Script::new(&source).get_hash().to_owned();
    Script { verb, source, sha }
}

pub(crate) static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| script("acquire", &[SHORTEN, include_str!("lua/acquire.lua")]));
pub(crate) static SETTLE: LazyLock<Script> =
    LazyLock::new(|| script("settle", &[HEAD, LOAD, CHANGE, include_str!("lua/settle.lua")]));
pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| script("renew", &[HEAD, LOAD, CHANGE, include_str!("lua/renew.lua")]));
pub(crate) static CLOSE: LazyLock<Script> =
    LazyLock::new(|| script("close", &[HEAD, LOAD, CHANGE, include_str!("lua/close.lua")]));
pub(crate) static RESET: LazyLock<Script> =
    LazyLock::new(|| script("reset", &[HEAD, LOAD, CHANGE, include_str!("lua/reset.lua")]));
pub(crate) static STANDING: LazyLock<Script> =
    LazyLock::new(|| script("standing", &[HEAD, SHORTEN, include_str!("lua/standing.lua")]));
pub(crate) static WHOLE: LazyLock<Script> =
    LazyLock::new(|| script("read", &[HEAD, include_str!("lua/whole.lua")]));
pub(crate) static REPLACE: LazyLock<Script> =
    LazyLock::new(|| script("replace", &[HEAD, include_str!("lua/replace.lua")]));
pub(crate) static PERMIT_KEY: LazyLock<Script> = LazyLock::new(|| {
    script("read the key of permits", &[HEAD, include_str!("lua/permit_key.lua")])
});
