//! The network between an instance and the store, or a broker: as slow as people say it is, or as it was measured to be.

use tollgate::Span;
use tollgate_sim::Line;

/// How many of a thousand exchanges with the store are slow, and by how much at most.
const SLOW_PERMILLE: u32 = 10;
const SLOW_TIMES: u64 = 8;
/// A recorded round trip is slow if it is so many times the middle one.
const SLOW_FROM: u64 = 3;

/// How long a request to the store is waited for, in round trips and at least.
const TIMEOUT_TRIPS: u64 = 50;
const TIMEOUT_MIN: Span = Span::from_millis(250);

/// Half of the round trip each way, give or take a half of that; one in a hundred much slower.
pub(super) fn line_of(trip: Span) -> Line {
    let trip = trip.as_micros();
    Line {
        delay_min: trip / 4,
        delay_max: trip * 3 / 4,
        slow_permille: SLOW_PERMILLE,
        slow_max: trip * SLOW_TIMES,
        timeout: Span::from_micros(trip * TIMEOUT_TRIPS).max(TIMEOUT_MIN),
        ..Line::default()
    }
}

/// A network whose round trips are like `trips`: most of them around the middle one, and as many slow ones, as slow.
pub(super) fn line_like(trips: &[u64]) -> Line {
    let (low, middle) = (trips[trips.len() / 10], trips[trips.len() / 2]);
    let slow = &trips[trips.partition_point(|trip| *trip <= SLOW_FROM * middle)..];
    let mean = slow.iter().sum::<u64>() / (slow.len() as u64).max(1);
    // Either way may be the slow one, and lasts anything up to the longest.
    let permille = (1_000 * slow.len() as u64).div_ceil(2 * trips.len() as u64);
    Line {
        delay_min: low / 2,
        delay_max: middle - low / 2,
        slow_permille: u32::try_from(permille).unwrap_or(1_000),
        slow_max: 2 * mean,
        timeout: TIMEOUT_MIN.max(Span::from_micros(middle * TIMEOUT_TRIPS)),
        ..Line::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_as_slow_as_the_round_trips_it_is_made_of() {
        let mut trips = vec![300; 98];
        trips.extend([40_000, 60_000]);
        let line = line_like(&trips);
        assert_eq!((line.delay_min, line.delay_max), (150, 150));
        assert_eq!((line.slow_permille, line.slow_max), (10, 100_000));
    }
}
