//! Goal: R001.2, delay = min(base · 2^attempt, max) · jitter, and the presets of R000.2.
//! Method: the least, the greatest and the middle random number, and all between.

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
use tollgate_core::{Backoff, Span};

#[test]
fn r000_2_waiting_for_a_quota_takes_2_4_and_8_seconds_and_a_quarter_at_most_on_top() {
    for (attempt, seconds) in [(0, 2), (1, 4), (2, 8), (3, 8), (1_000, 8)] {
        assert_eq!(Backoff::QUOTA.delay(attempt, 0), Span::from_secs(seconds));
        let most = Backoff::QUOTA.delay(attempt, u32::MAX);
        assert!(most < Span::from_millis(1_250 * seconds));
        assert!(Span::from_millis(1_249 * seconds) < most);
    }
}

#[test]
fn r001_2_a_call_waits_from_half_to_one_and_a_half_of_the_capped_delay() {
    for (attempt, seconds) in [(0, 1), (1, 2), (5, 32), (6, 60), (7, 60), (u32::MAX, 60)] {
        let delay = |random| Backoff::CALL.delay(attempt, random);
        assert_eq!(delay(0), Span::from_millis(500 * seconds));
        assert_eq!(delay(1 << 31), Span::from_secs(seconds));
        assert!(delay(u32::MAX) < Span::from_millis(1_500 * seconds));
        assert!(Span::from_millis(1_499 * seconds) < delay(u32::MAX));
    }
}

/// Conflict 23: jitter comes after the cap, so the bound is max times the upper factor; clamping makes it max.
#[test]
fn r001_2_only_a_clamped_backoff_stays_within_its_maximum() {
    assert_eq!(Backoff::CALL.delay(20, u32::MAX).as_secs_ceil(), 90);
    assert_eq!(Backoff::CALL.clamped().delay(20, u32::MAX), Span::from_secs(60));
    assert_eq!(Backoff::CALL.clamped().delay(20, 0), Span::from_secs(30));
}

proptest! {
    #[test]
    fn r001_2_every_delay_is_the_capped_power_of_two_times_a_jitter_in_range(
        base in 1_u64..10_000_000_000,
        max in 1_u64..10_000_000_000,
        low in 0_u64..2_000,
        width in 0_u64..2_000,
        attempt in any::<u32>(),
        random in any::<u32>(),
        clamp in any::<bool>(),
    ) {
        let backoff = Backoff {
            base: Span::from_micros(base),
            max: Span::from_micros(max),
            jitter_low: low,
            jitter_high: low + width,
            clamp,
        };
        let capped = u128::from(base)
            .saturating_mul(1_u128.checked_shl(attempt.min(90)).unwrap_or(u128::MAX))
            .min(u128::from(max));
        let delay = u128::from(backoff.delay(attempt, random).as_micros());
        let (least, most) = (capped * u128::from(low) / 1_000, capped * u128::from(low + width) / 1_000);
        if clamp {
            prop_assert!(delay <= u128::from(max));
            prop_assert!(least.min(u128::from(max)) <= delay && delay <= most);
        } else {
            prop_assert!(least <= delay && delay <= most);
        }
        // More chance never means less delay, and the same chance means the same delay.
        prop_assert!(backoff.delay(attempt, random) <= backoff.delay(attempt, u32::MAX));
        prop_assert_eq!(backoff.delay(attempt, random), backoff.delay(attempt, random));
    }
}
