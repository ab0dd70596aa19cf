//! `[store] format`: how entries are written where brokers of two versions share a store.

use super::blame::Blame;
use super::place::Text;

/// The formats that a store of `kind` writes, the newest last; none if no broker of another version shares it.
pub(super) fn known(kind: &str) -> &'static [u8] {
    match kind {
        "dynamodb" => &tollgate_dynamodb::FORMATS,
        "postgres" => &tollgate_postgres::FORMATS,
        "redis" => &tollgate_redis::FORMATS,
        _ => &[],
    }
}

/// The format that is configured for a store of `kind`.
pub(super) fn resolve(
    text: &Text<'_>,
    kind: &str,
    given: Option<u64>,
) -> Result<Option<u8>, Blame> {
    let Some(given) = given else { return Ok(None) };
    let known = known(kind);
    let format = known.iter().copied().find(|format| u64::from(*format) == given);
    format.map(Some).ok_or_else(|| {
        let known: Vec<String> = known.iter().map(u8::to_string).collect();
        let what = format!(
            "format {given} is not one of {}; without it the newest is written",
            known.join(", ")
        );
        text.blame(&["store", "format"], what)
    })
}
