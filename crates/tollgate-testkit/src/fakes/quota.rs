//! The quota of one project and model, judged as a fixed window and as a rolling one at once.
//!
//! The provider does not document which kind it uses, so a client must respect both. A request that breaks either is
//! refused and counted by kind.

use std::collections::{BTreeMap, VecDeque};

use jiff::tz::TimeZone;
use tollgate::{Span, Timestamp};

const DAY: u64 = 86_400_000_000;
/// Where the day of the provider begins.
const ZONE: &str = "America/Los_Angeles";

/// What a project may send to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Requests per minute.
    pub rpm: u64,
    /// Input tokens per minute.
    pub tpm: u64,
    /// Output tokens per minute: the declared maximum until the answer is complete, then what it has.
    pub output_tpm: u64,
    /// Input and output tokens per minute.
    pub total_tpm: u64,
    /// Requests per day of the Pacific coast.
    pub rpd: u64,
    /// Requests in any 24 hours. Gemini counts by the day, others do not.
    pub rpd_rolling: u64,
    /// Concurrent requests.
    pub at_once: u64,
    /// How long the minute takes.
    pub minute: Span,
    /// The kind of window that refuses; `None` for both. The other one only counts.
    pub refuses: Option<Window>,
}

impl Quota {
    /// A quota that nothing reaches.
    pub const NONE: Self = Self {
        rpm: u64::MAX,
        tpm: u64::MAX,
        output_tpm: u64::MAX,
        total_tpm: u64::MAX,
        rpd: u64::MAX,
        rpd_rolling: u64::MAX,
        at_once: u64::MAX,
        minute: Span::from_mins(1),
        refuses: None,
    };

    /// The free tier: 5 requests and 250,000 tokens per minute, 25 requests per day.
    pub const FREE: Self = Self { rpm: 5, tpm: 250_000, rpd: 25, ..Self::NONE };

    const fn most(&self, limit: Limit, window: Window) -> u64 {
        match (limit, window) {
            (Limit::Requests, _) => self.rpm,
            (Limit::Tokens, _) => self.tpm,
            (Limit::Output, _) => self.output_tpm,
            (Limit::Total, _) => self.total_tpm,
            (Limit::AtOnce, _) => self.at_once,
            (Limit::Daily, Window::Fixed) => self.rpd,
            (Limit::Daily, Window::Rolling) => self.rpd_rolling,
        }
    }
}

/// Which limit was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// Requests per minute.
    Requests,
    /// Input tokens per minute.
    Tokens,
    /// Output tokens per minute.
    Output,
    /// Input and output tokens per minute.
    Total,
    /// Requests per day.
    Daily,
    /// Concurrent requests.
    AtOnce,
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

impl Refused {
    /// Returns the broken limits, each once.
    pub(super) fn limits(&self) -> Vec<Limit> {
        let mut limits: Vec<Limit> = self.broken.iter().map(|(limit, _)| *limit).collect();
        limits.dedup();
        limits
    }
}

/// The tokens of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) input: u64,
    /// The declared maximum.
    pub(super) output: u64,
}

/// What is left of a limit in the rolling window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    pub(super) limit: u64,
    pub(super) remaining: u64,
    /// Until nothing is used.
    pub(super) resets_in: Span,
}

#[derive(Debug)]
struct Taken {
    at: u64,
    id: u64,
    load: Load,
}

/// The requests admitted recently.
#[derive(Debug, Default)]
pub(super) struct Counts {
    minute: VecDeque<Taken>,
    day: BTreeMap<u64, u64>,
    /// When each request of the last 24 hours came.
    rolling_day: VecDeque<u64>,
    at_once: u64,
    last_id: u64,
    /// The most that any window held, by limit and kind.
    pub(super) peaks: BTreeMap<(Limit, Window), u64>,
}

impl Counts {
    /// Admits a request and returns its id, or returns the limits it breaks. A refused request is not counted.
    pub(super) fn take(
        &mut self,
        quota: Quota,
        now: Timestamp,
        load: Load,
    ) -> Result<u64, Refused> {
        let at = now.as_micros();
        let minute = quota.minute.as_micros().max(1);
        self.forget(at, minute);
        while self.rolling_day.front().is_some_and(|then| then + DAY <= at) {
            self.rolling_day.pop_front();
        }
        let today = midnight(now);
        self.day.retain(|midnight, _| *midnight == today);
        let begun = at / minute * minute;
        let mut held = BTreeMap::new();
        for (window, since) in [(Window::Fixed, begun), (Window::Rolling, 0)] {
            let taken = self.minute.iter().filter(|taken| since <= taken.at);
            let (requests, sum) = taken.fold((1, load), |(requests, sum), taken| {
                let output = sum.output.saturating_add(taken.load.output);
                (requests + 1, Load { input: sum.input + taken.load.input, output })
            });
            held.insert((Limit::Requests, window), requests);
            held.insert((Limit::Tokens, window), sum.input);
            held.insert((Limit::Output, window), sum.output);
            held.insert((Limit::Total, window), sum.input.saturating_add(sum.output));
        }
        held.insert((Limit::Daily, Window::Fixed), self.day.get(&today).copied().unwrap_or(0) + 1);
        held.insert((Limit::Daily, Window::Rolling), self.rolling_day.len() as u64 + 1);
        held.insert((Limit::AtOnce, Window::Rolling), self.at_once + 1);
        let broken: Vec<_> = held
            .iter()
            .filter(|((limit, window), sum)| quota.most(*limit, *window) < **sum)
            .map(|(key, _)| *key)
            .collect();
        let is_refused = |(limit, window): &(Limit, Window)| {
            *limit == Limit::AtOnce || quota.refuses.is_none_or(|refuses| refuses == *window)
        };
        if broken.iter().any(is_refused) {
            let oldest = self.minute.front().map_or(at, |taken| taken.at);
            let retry_after = Span::from_micros((oldest + minute).saturating_sub(at).max(1_000));
            return Err(Refused { broken, retry_after });
        }
        for (key, sum) in held {
            let peak = self.peaks.entry(key).or_default();
            *peak = sum.max(*peak);
        }
        self.last_id += 1;
        self.at_once += 1;
        self.minute.push_back(Taken { at, id: self.last_id, load });
        self.rolling_day.push_back(at);
        *self.day.entry(today).or_default() += 1;
        Ok(self.last_id)
    }

    /// Ends a request and corrects its output.
    pub(super) fn finish(&mut self, id: u64, output: u64) {
        self.at_once = self.at_once.saturating_sub(1);
        if let Some(taken) = self.minute.iter_mut().find(|taken| taken.id == id) {
            taken.load.output = output;
        }
    }

    /// Returns what is left of each limit per minute that `quota` has.
    pub(super) fn left(&mut self, quota: Quota, now: Timestamp) -> BTreeMap<Limit, Left> {
        let at = now.as_micros();
        let minute = quota.minute.as_micros().max(1);
        self.forget(at, minute);
        let newest = self.minute.back().map_or(at, |taken| taken.at + minute);
        let resets_in = Span::from_micros(newest.saturating_sub(at));
        let input: u64 = self.minute.iter().map(|taken| taken.load.input).sum();
        let output =
            self.minute.iter().fold(0, |sum: u64, taken| sum.saturating_add(taken.load.output));
        let used = [
            (Limit::Requests, self.minute.len() as u64),
            (Limit::Tokens, input),
            (Limit::Output, output),
            (Limit::Total, input.saturating_add(output)),
        ];
        let left = used.into_iter().map(|(name, used)| {
            let limit = quota.most(name, Window::Rolling);
            (name, Left { limit, remaining: limit.saturating_sub(used), resets_in })
        });
        left.filter(|(_, left)| left.limit != u64::MAX).collect()
    }

    fn forget(&mut self, at: u64, minute: u64) {
        while self.minute.front().is_some_and(|taken| taken.at + minute <= at) {
            self.minute.pop_front();
        }
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
    began().unwrap_or(now.as_micros() / DAY * DAY)
}
