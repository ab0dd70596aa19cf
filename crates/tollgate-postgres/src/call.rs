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
    pub(crate) spend_joint: Query,
    pub(crate) look_all: Query,
    pub(crate) hold: Query,
    pub(crate) remember: Query,
    pub(crate) remove: Query,
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
            spend_joint: call(13, "spend_joint", 16),
            look_all: Query {
                number: 14,
                sql: format!(
                    "SELECT l.* FROM unnest($1, $2, $3) WITH ORDINALITY k(policy, subject, id, place),
                     LATERAL {schema}.look(k.policy, k.subject, k.id, $4) l ORDER BY k.place"
                ),
            },
            hold: call(15, "hold", 3),
            remember: call(16, "remember", 9),
            remove: Query {
                number: 17,
                sql: format!("DELETE FROM {schema}.entries WHERE policy = $1 AND subject = $2"),
            },
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

/// The arguments of the function `spend_joint`.
#[derive(Debug)]
pub(crate) struct SpendJoint<'a> {
    /// The rows of all charges, each once, in the order of their keys.
    policies: Vec<&'a str>,
    subjects: Vec<&'a str>,
    shapes: Vec<&'a [u8]>,
    /// The number of charges of each ask.
    charges: Vec<i32>,
    /// Of each charge, the place of its row from 1; `None` if an earlier charge to the row has another shape.
    rows: Vec<Option<i32>>,
    /// Where the numbers and the amounts of each charge begin, from 1, and where the last ones end.
    numbers_at: Vec<i32>,
    amounts_at: Vec<i32>,
    of_charges: Columns<'a>,
    of_asks: Columns<'a>,
    lock_timeout: &'a Option<String>,
}

impl<'a> SpendJoint<'a> {
    /// `asks` are the charges of each ask; the first has its id.
    pub(crate) fn new(asks: &[&'a [Spend]], lock_timeout: &'a Option<String>) -> Self {
        let all: Vec<&Spend> = asks.iter().flat_map(|charges| charges.iter()).collect();
        let mut rows = all.clone();
        rows.sort_by_key(|one| one.row());
        rows.dedup_by_key(|one| one.row());
        let place = |one: &&Spend| {
            let place = rows.binary_search_by_key(&one.row(), |row| row.row()).ok()?;
            (rows[place].shape == one.shape).then(|| small(place + 1))
        };
        let firsts = asks.iter().filter_map(|charges| charges.first()).collect::<Vec<_>>();
        let of_charges = Columns::new(&all);
        Self {
            policies: rows.iter().map(|one| &*one.policy).collect(),
            subjects: rows.iter().map(|one| &*one.subject).collect(),
            shapes: rows.iter().map(|one| &*one.shape).collect(),
            charges: asks.iter().map(|charges| small(charges.len())).collect(),
            rows: all.iter().map(place).collect(),
            numbers_at: beginnings(&of_charges.numbers_each),
            amounts_at: beginnings(&of_charges.amounts_each),
            of_charges,
            of_asks: Columns::new(&firsts),
            lock_timeout,
        }
    }

    pub(crate) fn parameters(&self) -> [Parameter<'_>; 16] {
        let Self { of_charges, of_asks, .. } = self;
        [
            (&self.policies, Type::TEXT_ARRAY),
            (&self.subjects, Type::TEXT_ARRAY),
            (&self.shapes, Type::BYTEA_ARRAY),
            (&self.charges, Type::INT4_ARRAY),
            (&self.rows, Type::INT4_ARRAY),
            (&of_charges.numbers, Type::INT8_ARRAY),
            (&self.numbers_at, Type::INT4_ARRAY),
            (&of_charges.amounts, Type::INT8_ARRAY),
            (&self.amounts_at, Type::INT4_ARRAY),
            (&of_asks.refundable, Type::BOOL_ARRAY),
            (&of_asks.ids, Type::TEXT_ARRAY),
            (&of_asks.digests, Type::INT8_ARRAY),
            (&of_asks.id_ttls, Type::INT8_ARRAY),
            (&of_asks.nows, Type::INT8_ARRAY),
            (&of_asks.decide, Type::BOOL_ARRAY),
            (self.lock_timeout, Type::TEXT),
        ]
    }
}

/// The arguments of several calls of `spend`, by column.
#[derive(Debug)]
pub(crate) struct Columns<'a> {
    policies: Vec<&'a str>,
    subjects: Vec<&'a str>,
    shapes: Vec<&'a [u8]>,
    numbers: Vec<i64>,
    numbers_each: Vec<i32>,
    amounts: Vec<i64>,
    amounts_each: Vec<i32>,
    refundable: Vec<bool>,
    ids: Vec<Option<&'a str>>,
    digests: Vec<i64>,
    id_ttls: Vec<i64>,
    nows: Vec<Option<i64>>,
    decide: Vec<bool>,
}

impl<'a> Columns<'a> {
    pub(crate) fn new(all: &[&'a Spend]) -> Self {
        Self {
            policies: all.iter().map(|one| &*one.policy).collect(),
            subjects: all.iter().map(|one| &*one.subject).collect(),
            shapes: all.iter().map(|one| &*one.shape).collect(),
            numbers: all.iter().flat_map(|one| &one.numbers).copied().collect(),
            numbers_each: all.iter().map(|one| small(one.numbers.len())).collect(),
            amounts: all.iter().flat_map(|one| &one.amounts).copied().collect(),
            amounts_each: all.iter().map(|one| small(one.amounts.len())).collect(),
            refundable: all.iter().map(|one| one.refundable).collect(),
            ids: all.iter().map(|one| one.id.as_deref()).collect(),
            digests: all.iter().map(|one| one.digest).collect(),
            id_ttls: all.iter().map(|one| one.id_ttl).collect(),
            nows: all.iter().map(|one| one.now).collect(),
            decide: all.iter().map(|one| one.decide).collect(),
        }
    }

    /// The parameters of the function `spend_all`.
    pub(crate) fn parameters<'p>(&'p self, lock_timeout: &'p String) -> [Parameter<'p>; 14] {
        [
            (&self.policies, Type::TEXT_ARRAY),
            (&self.subjects, Type::TEXT_ARRAY),
            (&self.shapes, Type::BYTEA_ARRAY),
            (&self.numbers, Type::INT8_ARRAY),
            (&self.numbers_each, Type::INT4_ARRAY),
            (&self.amounts, Type::INT8_ARRAY),
            (&self.amounts_each, Type::INT4_ARRAY),
            (&self.refundable, Type::BOOL_ARRAY),
            (&self.ids, Type::TEXT_ARRAY),
            (&self.digests, Type::INT8_ARRAY),
            (&self.id_ttls, Type::INT8_ARRAY),
            (&self.nows, Type::INT8_ARRAY),
            (&self.decide, Type::BOOL_ARRAY),
            (lock_timeout, Type::TEXT),
        ]
    }
}

/// Returns where each part of a sequence begins, from 1, and where the last one ends, by the lengths of the parts.
fn beginnings(lengths: &[i32]) -> Vec<i32> {
    let ends = lengths.iter().scan(1, |end, length| {
        *end += length;
        Some(*end)
    });
    std::iter::once(1).chain(ends).collect()
}

fn small(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
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
