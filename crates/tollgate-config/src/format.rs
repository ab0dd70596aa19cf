//! `[store] format`: the format of entries where brokers of two versions share a store.

use crate::{Diagnostic, Document};

/// Returns the formats that a store of `kind` writes, the newest last; none if brokers do not share such a store.
pub(crate) const fn known(kind: &str) -> &'static [u8] {
    match kind.as_bytes() {
        #[cfg(feature = "dynamodb")]
        b"dynamodb" => &tollgate_dynamodb::FORMATS,
        #[cfg(feature = "postgres")]
        b"postgres" => &tollgate_postgres::FORMATS,
        #[cfg(feature = "redis")]
        b"redis" => &tollgate_redis::FORMATS,
        _ => &[],
    }
}

/// Checks the format that is configured for a store of `kind`.
pub(crate) fn resolve(
    document: &Document,
    kind: &str,
    given: Option<u64>,
) -> Result<Option<u8>, Diagnostic> {
    let Some(given) = given else { return Ok(None) };
    let known = known(kind);
    let format = known.iter().copied().find(|format| u64::from(*format) == given);
    format.map(Some).ok_or_else(|| {
        let known: Vec<String> = known.iter().map(u8::to_string).collect();
        let message = format!(
            "format {given} is not one of {}; without it the newest is written",
            known.join(", ")
        );
        document.error(&["store", "format"], message)
    })
}
