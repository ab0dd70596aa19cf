//! One `#[test]` per case and per golden vector, so that a failure names itself.

/// Declares the suite for each store that a function opens: a module with the name of the function, in which every case
/// and every golden vector is a test. Each test calls the function, so no state is shared.
///
/// ```
/// tollgate_conformance::suite! {
///     fn memory() -> Fixture {
///         let clock = ManualClock::new();
///         let gate = Memory::with(Arc::new(clock.clone()), 10_000);
///         Fixture::new(Arc::new(gate), clock)
///     }
/// }
/// # fn main() {}
/// # use std::sync::Arc; use tollgate::{Memory, clock::ManualClock}; use tollgate_conformance::Fixture;
/// ```
#[macro_export]
macro_rules! suite {
    ($($(#[$attribute:meta])* fn $open:ident() -> $fixture:ty $body:block)+) => { $(
        $(#[$attribute])*
        mod $open {
            use super::*;

            fn $open() -> $fixture $body

            $crate::__tests! { $open, $crate::run_case,
                admits_exactly_the_limit agrees_with_core agrees_with_the_joint_model
                bad_asks_change_nothing charges_a_shared_id_once charges_a_shared_joint_id_once
                charges_again_after_release charges_all_or_none_at_once charges_arrears
                gives_back_once is_all_or_nothing keeps_subjects_apart keeps_use_when_numbers_change
                loses_no_slot passes_joint_vectors recognises_repeats
                refused_asks_take_nothing_meanwhile refuses_what_never_fits refuses_without_charging
                waits_honestly
            }

            mod vectors {
                use super::*;

                $crate::__tests! { $open, $crate::run_vector,
                    ask_all_or_nothing ask_binding ask_clock_back ask_close ask_defaults
                    ask_id_horizon ask_ids ask_never ask_permit_expired ask_reset ask_shadow
                    bucket_acquire bucket_after_empty bucket_debt bucket_derived bucket_exact
                    bucket_interval_settle bucket_interval bucket_large_prime bucket_lows_lowered
                    bucket_many_lows bucket_no_room_twice bucket_partial_refill bucket_retry
                    bucket_settle bucket_sevenths bucket_slow_calls calendar_daily_headroom
                    calendar_daily calendar_half_hour calendar_long_day calendar_margin
                    calendar_month calendar_repeated_midnight calendar_settle calendar_short_day
                    calendar_skipped_day calendar_week change_bucket_capacity change_bucket_release
                    change_bucket change_calendar change_limits change_rule change_slots
                    change_window_grid change_window slots_hold slots_lost slots_mixed slots_renew
                    slots_several window_derived window_five_a_day window_grid_fast window_grid
                    window_no_room_twice window_nth_newest window_resolution window_rolls
                    window_settle
                }
            }
        }
    )+ };
}

/// Declares a test for each name, which passes the name and a new fixture to `$run`.
#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    ($open:ident, $run:path, $($name:ident)+) => { $(
        #[test]
        fn $name() {
            if let Err(why) = $run(stringify!($name), &$open()) {
                panic!("{why}");
            }
        }
    )+ };
}
