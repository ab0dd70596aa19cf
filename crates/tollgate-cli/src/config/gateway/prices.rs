//! `[prices]`: prices of models beside the built-in ones, or instead of them.

use std::collections::BTreeMap;

use tollgate_config::{Diagnostic, Document};
use tollgate_providers::{Price, Prices};

/// Reads the prices. A model that is named replaces the built-in price.
pub(super) fn resolve(document: &Document) -> Result<Prices, Diagnostic> {
    let given: Option<BTreeMap<String, Price>> = document.section("prices")?;
    let mut prices = Prices::built_in();
    prices.models.extend(given.unwrap_or_default());
    Ok(prices)
}
