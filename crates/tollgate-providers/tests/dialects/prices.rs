//! Prices and their overrides.

use tollgate_providers::{Micros, PaidTokens, Price, Prices};

#[test]
fn the_built_in_table_is_complete_and_dated() {
    let prices = Prices::built_in();
    assert_eq!(prices.as_of, "2026-11");
    for model in
        ["gpt-4o", "gpt-5-mini", "claude-sonnet-5", "gemini-2.5-flash", "text-embedding-3-small"]
    {
        assert!(prices.models.contains_key(model), "{model}");
    }
    for (model, price) in &prices.models {
        let cached = price.cached_input.unwrap_or(0);
        assert!(cached < price.input && 0 < price.input, "{model}");
        assert!(price.cache_write.is_none_or(|write| price.input <= write), "{model}");
        assert!(price.output == 0 || price.input <= price.output, "{model}");
    }
}

#[test]
fn a_version_has_the_price_of_its_model_and_another_model_has_none() {
    let prices = Prices::built_in();
    let same = |one: &str, other: &str| {
        assert!(prices.price_for(one).is_some(), "{one}");
        assert_eq!(prices.price_for(one), prices.price_for(other), "{one}");
    };
    same("gpt-4o-2024-08-06", "gpt-4o");
    same("claude-sonnet-4-5-20250929", "claude-sonnet-4-5");
    same("claude-sonnet-5-latest", "claude-sonnet-5");
    same("gemini-3-flash-preview", "gemini-3-flash");
    same("gemini-2.5-flash-preview-09-2025", "gemini-2.5-flash");
    assert_ne!(prices.price_for("gpt-4o-mini"), prices.price_for("gpt-4o"));
    assert_ne!(prices.price_for("claude-opus-5-5"), prices.price_for("claude-opus-5"));
    for unknown in ["gpt-4o-audio-preview", "claude-opus-5-9", "gpt-4ox", "llama-3"] {
        assert_eq!(prices.price_for(unknown), None, "{unknown}");
    }
}

#[test]
fn tokens_are_priced_by_kind_and_a_missing_price_is_that_of_input() {
    let tokens =
        PaidTokens { input: 1_000, cached_input: 1_000, cache_write: 1_000, output: 1_000 };
    assert_eq!(Price::new(2_000_000, 8_000_000).cost(tokens), Micros(14_000));
    let price = Price {
        cached_input: Some(200_000),
        cache_write: Some(2_500_000),
        ..Price::new(2_000_000, 8_000_000)
    };
    assert_eq!(price.cost(tokens), Micros(12_700));
    assert_eq!(price.cost(PaidTokens { input: 1, ..PaidTokens::default() }), Micros(2));
    assert_eq!(
        Price::new(1, 0).cost(PaidTokens { input: 1, ..PaidTokens::default() }),
        Micros(1),
        "rounded up"
    );
    let most = PaidTokens { input: u64::MAX, output: u64::MAX, ..PaidTokens::default() };
    assert_eq!(Price::new(u64::MAX, u64::MAX).cost(most), Micros(u64::MAX));
}

#[test]
fn overrides_add_and_replace() {
    let prices = Prices::built_in()
        .with_overrides([("my-model", Price::new(1, 2)), ("gpt-4o", Price::new(3, 4))]);
    assert_eq!(prices.price_for("my-model-001"), Some(Price::new(1, 2)));
    assert_eq!(prices.price_for("gpt-4o"), Some(Price::new(3, 4)));
    assert_eq!(prices.price_for("gpt-4o-mini"), Prices::built_in().price_for("gpt-4o-mini"));
    let json = r#"{"as_of":"2026-12","models":{"m":{"input":5,"output":6,"cached_input":1}}}"#;
    assert_eq!(Prices::from_json(json).unwrap().price_for("m").unwrap().cached_input, Some(1));
    let error = Prices::from_json(r#"{"models":{"m":{"in":5}}}"#).unwrap_err().to_string();
    assert!(
        error.contains("unknown field `in`") && error.contains("in millionths of a dollar"),
        "{error}"
    );
}
