//! The quota of one project and model, judged as a fixed window and as a rolling one at once.
//!
//! The provider does not document which kind it uses, so a client must respect both. A request that breaks either is
//! refused and counted by kind.

use std::collections::{BTreeMap, VecDeque};

use jiff::tz::TimeZone;
use tollgate::{Span, Timestamp};

const MINUTE: u64 = 60_000_000;
const DAY: u64 = 1_440 * MINUTE;
/// Where the day of the provider begins.
const ZONE: &str = "America/Los_Angeles";

/// What a project may send to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Requests per minute.
    pub rpm: u64,
    /// Input tokens per minute.
    pub tpm: u64,
    /// Requests per day of the Pacific coast.
    pub rpd: u64,
    /// Requests in any 24 hours. Gemini counts by the day, others do not.
    pub rpd_rolling: u64,
}

impl Quota {
    /// A quota that nothing reaches.
    pub const NONE: Self =
        Self { rpm: u64::MAX, tpm: u64::MAX, rpd: u64::MAX, rpd_rolling: u64::MAX };

    /// The free tier: 5 requests and 250,000 tokens per minute, 25 requests per day.
    pub const FREE: Self = Self { rpm: 5, tpm: 250_000, rpd: 25, ..Self::NONE };
}

/// Which limit was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// Requests per minute.
    Requests,
    /// Input tokens per minute.
    Tokens,
    /// Requests per day.
    Daily,
}

/// The kind of window that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Window {
    /// From one full minute to the next, or from midnight to midnight.
    Fixed,
    /// Any sixty seconds, or any 24 hours.
    Rolling,
}

/// The limits that a request breaks, and when to retry.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) broken: Vec<(Limit, Window)>,
    pub(super) retry_after: Span,
}

/// The requests admitted recently.
#[derive(Debug, Default)]
pub(super) struct Counts {
    minute: VecDeque<(u64, u64)>,
    day: BTreeMap<u64, u64>,
    /// When each request of the last 24 hours came.
    rolling_day: VecDeque<u64>,
    /// The most that any window held, by limit and kind.
    pub(super) peaks: BTreeMap<(Limit, Window), u64>,
}

impl Counts {
    /// Admits a request of `tokens`, or returns the limits it breaks. A refused request is not counted.
    pub(super) fn take(
        &mut self,
        quota: Quota,
        now: Timestamp,
        tokens: u64,
    ) -> Result<(), Refused> {
        let at = now.as_micros();
        while self.minute.front().is_some_and(|(then, _)| then + MINUTE <= at) {
            self.minute.pop_front();
        }
        while self.rolling_day.front().is_some_and(|then| then + DAY <= at) {
            self.rolling_day.pop_front();
        }
        let today = midnight(now);
        self.day.retain(|midnight, _| *midnight == today);
        let begun = at / MINUTE * MINUTE;
        let sums = [(Window::Fixed, begun), (Window::Rolling, 0)].map(|(window, since)| {
            let held = self.minute.iter().filter(|(then, _)| since <= *then);
            let (requests, sum) =
                held.fold((1, tokens), |(n, sum), (_, tokens)| (n + 1, sum + tokens));
            (window, requests, sum)
        });
        let mut held = BTreeMap::new();
        for (window, requests, sum) in sums {
            held.insert((Limit::Requests, window), requests);
            held.insert((Limit::Tokens, window), sum);
        }
        held.insert((Limit::Daily, Window::Fixed), self.day.get(&today).copied().unwrap_or(0) + 1);
        held.insert((Limit::Daily, Window::Rolling), self.rolling_day.len() as u64 + 1);
        let most = |limit, window| match (limit, window) {
            (Limit::Requests, _) => quota.rpm,
            (Limit::Tokens, _) => quota.tpm,
            (Limit::Daily, Window::Fixed) => quota.rpd,
            (Limit::Daily, Window::Rolling) => quota.rpd_rolling,
        };
        let broken: Vec<_> = held
            .iter()
            .filter(|((limit, window), sum)| most(*limit, *window) < **sum)
            .map(|(key, _)| *key)
            .collect();
        if !broken.is_empty() {
            let oldest = self.minute.front().map_or(at, |(then, _)| *then);
            let retry_after = Span::from_micros((oldest + MINUTE).saturating_sub(at).max(1_000));
            return Err(Refused { broken, retry_after });
        }
        for (key, sum) in held {
            let peak = self.peaks.entry(key).or_default();
            *peak = sum.max(*peak);
        }
        self.minute.push_back((at, tokens));
        self.rolling_day.push_back(at);
        *self.day.entry(today).or_default() += 1;
        Ok(())
    }
}

/// When the day that `now` is in began on the Pacific coast.
fn midnight(now: Timestamp) -> u64 {
    let micros = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    let began = || {
        let zone = TimeZone::get(ZONE).ok()?;
        let zoned = jiff::Timestamp::from_microsecond(micros).ok()?.to_zoned(zone);
        let began = zoned.start_of_day().ok()?.timestamp().as_microsecond();
        u64::try_from(began).ok()
    };
    // The zone is compiled in; without it the day of UTC would be the nearest thing.
    began().unwrap_or(now.as_micros() / 86_400_000_000 * 86_400_000_000)
}
