//! The statements of a gate, and their parameters.

use std::borrow::Cow;

use tokio_postgres::types::Type;
use tollgate::core::{Amounts, Derived};
use tollgate::{Ask, Policy, Timestamp};

use crate::pool::{Parameter, Query};
use crate::row::integer;

/// Every statement, for one schema.
#[derive(Debug)]
pub(crate) struct Statements {
    pub(crate) look: Query,
    pub(crate) spend: Query,
    pub(crate) spend_all: Query,
    pub(crate) settle: Query,
    pub(crate) renew: Query,
    pub(crate) close: Query,
    pub(crate) reset: Query,
    pub(crate) swap: Query,
    pub(crate) clean_up: Query,
    pub(crate) clean_up_ids: Query,
    pub(crate) look_3: Query,
    pub(crate) look_locked_3: Query,
    pub(crate) swap_3: Query,
}

impl Statements {
    pub(crate) fn new(schema: &str) -> Self {
        let call = |number: usize, name: &str, parameters: usize| {
            let places: Vec<String> = (1..=parameters).map(|place| format!("${place}")).collect();
            let sql = format!("SELECT * FROM {schema}.{name}({})", places.join(", "));
            Query { number, sql }
        };
        Self {
            look: call(0, "look", 4),
            spend: Query {
                number: 1,
                sql: format!(
                    "SELECT {schema}.spend($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
                ),
            },
            spend_all: call(6, "spend_all", 14),
            settle: call(2, "settle", 13),
            renew: call(5, "renew_slots", 8),
            close: call(7, "close_limit", 9),
            reset: call(8, "forget", 7),
            swap: call(3, "swap", 16),
            clean_up: call(4, "clean_up", 4),
            clean_up_ids: call(9, "clean_up_ids", 5),
            look_3: call(10, "look", 3),
            // The function depends on the subquery, so it runs after the row is locked.
            look_locked_3: Query {
                number: 11,
                sql: format!(
                    "SELECT l.* FROM (SELECT count(*) AS rows FROM (
                         SELECT FROM {schema}.entries e WHERE e.policy = $1 AND e.subject = $2 FOR UPDATE) r) c,
                     {schema}.look($1, $2, CASE WHEN c.rows >= 0 THEN $3 END) l"
                ),
            },
            swap_3: call(12, "swap", 15),
        }
    }
}

/// The arguments of the function `spend`.
#[derive(Debug)]
pub(crate) struct Spend {
    pub(crate) policy: String,
    pub(crate) subject: String,
    pub(crate) shape: Vec<u8>,
    pub(crate) numbers: Vec<i64>,
    pub(crate) amounts: Vec<i64>,
    pub(crate) refundable: bool,
    pub(crate) id: Option<String>,
    /// Zero without an id.
    pub(crate) digest: i64,
    pub(crate) id_ttl: i64,
    pub(crate) now: Option<i64>,
    pub(crate) decide: bool,
}

impl Spend {
    /// `at` is the estimated time of the server; `now` overrides the deciding time.
    pub(crate) fn new(ask: &Ask<'_>, decide: bool, at: Timestamp, now: Option<i64>) -> Self {
        let policy = ask.policy();
        Self {
            policy: policy.name().to_owned(),
            subject: stored(ask.subject()).into_owned(),
            shape: policy.shape_bytes().to_vec(),
            numbers: numbers(policy, at),
            amounts: amounts(policy, ask.amounts()),
            refundable: ask.is_refundable(),
            id: ask.id_text().map(|id| stored(id).into_owned()),
            digest: ask.id_text().map_or(0, |_| integer(ask.digest())),
            id_ttl: integer(ask.id_ttl().as_micros()),
            now,
            decide,
        }
    }

    /// Returns the key of the row.
    pub(crate) fn row(&self) -> (&str, &str) {
        (&self.policy, &self.subject)
    }

    pub(crate) fn parameters<'a>(
        &'a self,
        lock_timeout: &'a Option<String>,
    ) -> [Parameter<'a>; 12] {
        [
            (&self.policy, Type::TEXT),
            (&self.subject, Type::TEXT),
            (&self.shape, Type::BYTEA),
            (&self.numbers, Type::INT8_ARRAY),
            (&self.amounts, Type::INT8_ARRAY),
            (&self.refundable, Type::BOOL),
            (&self.id, Type::TEXT),
            (&self.digest, Type::INT8),
            (&self.id_ttl, Type::INT8),
            (&self.now, Type::INT8),
            (lock_timeout, Type::TEXT),
            (&self.decide, Type::BOOL),
        ]
    }
}

/// Returns eight numbers per limit of `policy`, for the function `take`; `at` is the estimated time of the server.
pub(crate) fn numbers(policy: &Policy, at: Timestamp) -> Vec<i64> {
    let limits = policy.derived().zip(policy.unit_indexes()).zip(policy.windows_at(at));
    let mut all = Vec::with_capacity(8 * policy.limits().len());
    for ((derived, place), borders) in limits {
        let (kind, rule) = match derived {
            Derived::Continuous { capacity, token, rate } => (1, [capacity, token, rate]),
            Derived::Interval { capacity, refill, period } => {
                (2, [capacity, refill, period.as_micros()])
            }
            Derived::Window { limit, window, slot } => {
                (3, [limit, window.as_micros(), slot.as_micros()])
            }
            Derived::Calendar { limit, margin } => (4, [limit, margin.as_micros(), 0]),
            Derived::Slots { limit, ttl } => (5, [limit, ttl.as_micros(), 0]),
            // The functions refuse an unknown rule.
            _ => (0, [0; 3]),
        };
        let place = i64::try_from(place + 1).unwrap_or(i64::MAX);
        let borders = borders.map_or([0; 3], |[open, next]| {
            [open.start, open.end, next.end].map(Timestamp::as_micros)
        });
        all.extend([kind, place]);
        all.extend(rule.into_iter().chain(borders).map(integer));
    }
    all
}

/// Returns the end of the calendar window of `at` per limit; zero for other rules.
pub(crate) fn window_ends(policy: &Policy, at: Timestamp) -> Vec<i64> {
    let ends = policy.windows_at(at);
    ends.map(|borders| borders.map_or(0, |[open, _]| integer(open.end.as_micros()))).collect()
}

/// Returns the amount per unit of `policy`.
pub(crate) fn amounts(policy: &Policy, amounts: &Amounts) -> Vec<i64> {
    (0..policy.units().len()).map(|place| integer(amounts.at(place))).collect()
}

/// Returns zero per unit of `policy`.
pub(crate) fn no_amounts(policy: &Policy) -> Vec<i64> {
    vec![0; policy.units().len()]
}

/// Encodes a subject or an id for storage.
pub(crate) fn stored(text: &str) -> Cow<'_, str> {
    if text.contains(['\\', '\0']) {
        Cow::Owned(crate::quote::store(text))
    } else {
        Cow::Borrowed(text)
    }
}
