//! The scripts, assembled from the files in `lua/`: one per operation, one acquire script per sequence of rules, and one per set
//! of such sequences for asks with several charges.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;
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
const VALID: &str = include_str!("lua/acquire/valid.lua");
const REMEMBER: &str = include_str!("lua/acquire/remember.lua");

/// Returns the whole entry and what is known of the id, for a decision that the core makes.
const WHOLE_ENTRY: &str = "$fields
      local all = whole(ID and call('GET', ID) or known)
      return pack('<BI7I4', 103, clock, #all) .. all";

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
static ACQUIRE: LazyLock<RwLock<HashMap<Kinds, Arc<Script>>>> = LazyLock::new(Default::default);

/// The scripts of asks with several charges by the sequences of rules of their policies.
static JOINT: LazyLock<RwLock<HashMap<BTreeSet<Kinds>, Arc<Script>>>> =
    LazyLock::new(Default::default);

/// The sequence of the rules of a policy.
type Kinds = Vec<u8>;

fn kinds(policy: &Policy) -> Kinds {
    policy.derived().map(|derived| args::kind(&derived)).collect()
}

/// Returns the acquire script of `policy`.
pub(crate) fn acquire(policy: &Policy) -> Arc<Script> {
    cached(&ACQUIRE, kinds(policy), |kinds| {
        let begin = include_str!("lua/acquire/acquire.lua").replace("$shorten", SHORTEN);
        script("acquire", &[&charge_source(kinds, &begin, WHOLE_ENTRY)])
    })
}

/// Returns the acquire script of an ask over `policies`, and the function in it that judges each of them. The order of the
/// charges and their number do not matter to the script, so that a server has few of them.
pub(crate) fn joint<'a>(policies: impl Iterator<Item = &'a Policy>) -> (Arc<Script>, Vec<u8>) {
    let all: Vec<Kinds> = policies.map(kinds).collect();
    let distinct: BTreeSet<Kinds> = all.iter().cloned().collect();
    let function = |kinds| distinct.iter().position(|other| other == kinds).unwrap_or(0) + 1;
    let functions = all.iter().map(|kinds| u8::try_from(function(kinds)).unwrap_or(0)).collect();
    let script = cached(&JOINT, distinct, |distinct| {
        let source = |(kinds, number): (&Kinds, usize)| {
            let begin = include_str!("lua/acquire/charge.lua");
            let begin = begin.replace("$function", &number.to_string());
            charge_source(kinds, &begin, "      return pack('<BI7I4', 103, clock, 0)")
        };
        let functions: String = distinct.iter().zip(1..).map(source).collect();
        let source = include_str!("lua/joint.lua")
            .replace("$functions", &functions)
            .replace("$shorten", SHORTEN)
            .replace("$valid", VALID)
            .replace("$remember", REMEMBER);
        script("acquire", &[&source])
    });
    (script, functions)
}

/// Returns the script of `key`; `make` makes it once.
fn cached<K: Eq + Hash>(
    scripts: &RwLock<HashMap<K, Arc<Script>>>,
    key: K,
    make: impl FnOnce(&K) -> Script,
) -> Arc<Script> {
    let known = scripts.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    known.unwrap_or_else(|| {
        let made = Arc::new(make(&key));
        let mut all = scripts.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(key).or_insert(made))
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

/// Fills in what depends on the limits of a policy. `other_shape` ends the script if the entry has other numbers.
fn charge_source(kinds: &[u8], begin: &str, other_shape: &str) -> String {
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
    // A log has its length in front.
    let empty = zeros.join(", ").replace("''", "0, ''");
    let all = [
        ("$judge", include_str!("lua/acquire/judge.lua").to_owned()),
        ("$valid", VALID.to_owned()),
        ("$remember", REMEMBER.to_owned()),
        ("$other_shape", other_shape.to_owned()),
        ("$empty", empty),
        ("$names", names.join(", ")),
        ("$zeros", zeros.join(", ")),
        ("$layout", layout.concat()),
        ("$values", values.join(", ")),
        ("$limits", limits),
        ("$held", held),
        ("$declared", declared),
        ("$tails", tails),
    ];
    all.iter().fold(begin.to_owned(), |source, (name, text)| source.replace(name, text))
}
