//! The scripts, assembled from the files in `lua/`: one per operation, and one acquire script per sequence of rules.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use tollgate::Policy;
use tollgate::core::bounds::LOWS_MAX;

use crate::args::{self, LIMITS_AT};

/// A script and its SHA-1, by which the server caches it.
pub(crate) struct Script {
    /// The operation, for messages.
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
const FIELDS: &str = include_str!("lua/fields.lua");
const SHORTEN: &str = include_str!("lua/shorten.lua");
const LOAD: &str = include_str!("lua/load.lua");
const CHANGE: &str = include_str!("lua/change.lua");

// The scripts contain it, and numbers derived from it.
const _: () = assert!(LOWS_MAX == 64);

/// Merges lows, with an unrolled loop.
static MERGE_LOWS: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<String> = (1..=LOWS_MAX).map(|number| format!("_, u{number}")).collect();
    let step = |number: usize| {
        let difference = format!("u{number} - u{}", number - 1);
        format!("  if {difference} < least then least, merged = {difference}, {number} end\n")
    };
    include_str!("lua/merge_lows.lua")
        .replace("LOWS_NAMES", &names.join(", "))
        .replace("LOWS_STEPS\n", &(2..=LOWS_MAX).map(step).collect::<String>())
        .replace("LOWS_LAYOUT", &"I7I7".repeat(LOWS_MAX))
});

fn script(verb: &'static str, parts: &[&str]) -> Script {
    let source = parts.concat().replace("$fields", FIELDS).replace("MERGE_LOWS", &MERGE_LOWS);
    let sha = redis::Script::new(&source).get_hash().to_owned();
    Script { verb, source, sha }
}

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
pub(crate) static OVERRIDES: LazyLock<Script> = LazyLock::new(|| {
    script("read or change the overrides", &[HEAD, include_str!("lua/overrides.lua")])
});

/// The acquire scripts by sequence of rules.
static ACQUIRE: LazyLock<RwLock<HashMap<Vec<u8>, Arc<Script>>>> = LazyLock::new(Default::default);

/// Returns the acquire script of `policy`.
pub(crate) fn acquire(policy: &Policy) -> Arc<Script> {
    let kinds: Vec<u8> = policy.derived().map(|derived| args::kind(&derived)).collect();
    let known = ACQUIRE.read().unwrap_or_else(PoisonError::into_inner).get(&kinds).cloned();
    known.unwrap_or_else(|| {
        let made = Arc::new(script("acquire", &[&acquire_source(&kinds)]));
        let mut all = ACQUIRE.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(kinds).or_insert(made))
    })
}

/// The state of a limit in Lua: locals, initial values, layout, packed values.
type StateLayout = [&'static str; 4];

const CONTINUOUS: StateLayout =
    ["used$, closed$, lows$", "0, 0, 0", "I7I7I2", "used$, closed$, lows$"];
const INTERVAL: StateLayout = ["used$, closed$", "0, 0", "I7I7", "used$, closed$"];
const LOG: StateLayout =
    ["used$, closed$, log$", "0, 0, ''", "I7I7I4c0", "used$, closed$, #log$, log$"];
const WINDOW: StateLayout =
    ["used$, closed$, ends$, late$", "0, 0, 0, 0", "I7I7I7I7", "used$, closed$, ends$, late$"];

fn acquire_source(kinds: &[u8]) -> String {
    let mut parts: [Vec<String>; 4] = Default::default();
    let (mut limits, mut held, mut place) = (String::new(), String::new(), LIMITS_AT);
    let (mut declared, mut tails) = (String::new(), String::new());
    for (number, kind) in kinds.iter().enumerate() {
        let (rule, layout_of) = match kind {
            1 => (include_str!("lua/acquire/continuous.lua"), CONTINUOUS),
            2 => (include_str!("lua/acquire/interval.lua"), INTERVAL),
            3 => (include_str!("lua/acquire/window.lua"), LOG),
            4 => (include_str!("lua/acquire/calendar.lua"), WINDOW),
            5 => (include_str!("lua/acquire/slots.lua"), LOG),
            _ => (include_str!("lua/acquire/unknown.lua"), INTERVAL),
        };
        // Lua indexes from one, and the kind comes first.
        let numbers = (place + 2).to_string();
        let own =
            |text: &str| text.replace("$place", &numbers).replace('$', &(number + 1).to_string());
        parts.iter_mut().zip(layout_of).for_each(|(all, text)| all.push(own(text)));
        limits += &own(&include_str!("lua/acquire/limit.lua").replace("$rule", rule));
        if *kind == 1 {
            declared += &own("local kept$, middle$, rest$, low$ = '', '', '', ''\n");
            tails += &own(" .. kept$ .. middle$ .. rest$ .. low$");
        }
        if *kind == 5 {
            held += &own(include_str!("lua/acquire/held.lua"));
        }
        place += args::width(*kind);
    }
    let [names, zeros, layout, values] = parts;
    let all = [
        ("$names", names.join(", ")),
        ("$zeros", zeros.join(", ")),
        ("$layout", layout.concat()),
        ("$values", values.join(", ")),
        ("$limits", limits),
        ("$held", held),
        ("$declared", declared),
        ("$tails", tails),
        ("$shorten", SHORTEN.to_owned()),
    ];
    let begin = include_str!("lua/acquire/acquire.lua").to_owned();
    all.iter().fold(begin, |source, (name, text)| source.replace(name, text))
}
