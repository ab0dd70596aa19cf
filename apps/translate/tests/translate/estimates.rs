//! Token estimates by script, and their calibration by reports of the provider.

use proptest::prelude::{prop_assert, proptest};
use tollgate_translate::{Calibration, Chunk, Format, estimate};

use crate::{language, prose, read, task};

#[test]
fn tokens_are_estimated_by_script() {
    let rows = [
        ("", 0),
        ("four letters", 3),
        ("2026", 4),
        ("日本語", 3),
        ("Привет", 3),
        ("สวัสดี", 3),
        ("a\nb", 2),
        ("😀", 2),
    ];
    for (text, tokens) in rows {
        assert_eq!(estimate::tokens(text), tokens, "{text:?}");
    }
}

#[test]
fn an_estimate_covers_instruction_glossary_context_and_text() {
    let document = read(&prose(2_000), Format::Text);
    let chunk = Chunk::from_segments(&document, 10..15);
    let task = task("en", "fr");
    let prompt = task.prompt(&document, &chunk);
    let texts = estimate::tokens(&prompt.system) + estimate::tokens(&prompt.prompt);
    assert!(texts < prompt.tokens && prompt.tokens < texts + 50);
    assert!(chunk.tokens + 200 + 100 < prompt.tokens);
}

#[test]
fn reports_raise_an_estimate_and_never_lower_it_below_the_rule() {
    let (english, thai) = (language("en"), language("th"));
    let mut calibration = Calibration::default();
    assert_eq!(calibration.corrected("m", &english, 1_000), 1_000);
    calibration.learn("m", &english, 1_000, 1_200);
    assert_eq!(calibration.corrected("m", &english, 1_000), 1_200);
    assert_eq!(calibration.corrected("m", &thai, 1_000), 1_000);
    assert_eq!(calibration.corrected("other", &english, 1_000), 1_000);
    for _ in 0..100 {
        calibration.learn("m", &english, 1_000, 500);
    }
    assert_eq!(calibration.corrected("m", &english, 1_000), 1_000);
    let kept = serde_json::to_string(&calibration).unwrap();
    assert_eq!(serde_json::from_str::<Calibration>(&kept).unwrap(), calibration);
}

proptest! {
    /// A model that counts `factor` thousandths of the rule is met from above, to within a few thousandths.
    #[test]
    fn calibration_converges_on_what_is_reported(factor in 1_000_u64..3_000, first in 500_u64..6_000) {
        let mut calibration = Calibration::default();
        let english = language("en");
        calibration.learn("m", &english, 1_000, first);
        for tokens in 3_000..3_100 {
            calibration.learn("m", &english, tokens, tokens * factor / 1_000);
        }
        let corrected = calibration.corrected("m", &english, 100_000);
        prop_assert!(corrected.abs_diff(100 * factor) <= 100 * 10, "{corrected} for {factor}");
    }

    #[test]
    fn a_whole_has_at_most_a_token_less_than_its_parts_each(one in ".*", two in ".*") {
        let (parts, whole) = (estimate::tokens(&one) + estimate::tokens(&two), estimate::tokens(&format!("{one}{two}")));
        prop_assert!(whole <= parts && parts <= whole + 1);
    }
}
