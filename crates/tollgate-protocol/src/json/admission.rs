//! A writer of the JSON of [`Admitted`](super::Admitted), straight from a permit.
//!
//! Written by hand, because it is the most frequent response, and building and serializing the structure takes longer than
//! deciding (`bench serve`). A test compares both.

use serde::Serialize;
use tollgate::core::TimeText;
use tollgate::{Permit, Span, Standing, Timestamp};

use super::response::is_degraded;
use super::{ChargeStanding, Denied};
use crate::permit_token;

/// The usual length of an admission: its token, and each limit.
const HEAD_BYTES: usize = 320;
const LIMIT_BYTES: usize = 320;

/// Returns the JSON of `permit`, sealed with `key`, as of `now`.
pub fn admission(permit: &Permit, key: &permit_token::Key, now: Timestamp) -> Vec<u8> {
    let mut json = Json(Vec::with_capacity(HEAD_BYTES + permit.limits.len() * LIMIT_BYTES));
    json.raw("{\"admitted\":true,\"permit\":\"");
    permit_token::append(permit, key, &mut json.0);
    json.raw("\",\"limits\":[");
    for (index, standing) in permit.limits.iter().enumerate() {
        json.raw(if index == 0 { "{\"name\":" } else { ",{\"name\":" });
        json.standing(standing, now);
    }
    json.raw(if is_degraded(permit) { "],\"degraded\":true" } else { "],\"degraded\":false" });
    for (member, time) in
        [(",\"use_by\":", permit.use_by()), (",\"expires_at\":", permit.expires_at())]
    {
        if time.is_some() {
            json.time(member, time);
        }
    }
    if let Some(denial) = permit.shadow_denied.as_deref() {
        json.raw(",\"shadow_denied\":");
        json.serialized(&Denied::from(denial));
    }
    if permit.has_several_charges() {
        json.raw(",\"charges\":");
        json.serialized(&ChargeStanding::of_permit(permit, now));
    }
    json.raw("}");
    json.0
}

struct Json(Vec<u8>);

impl Json {
    fn raw(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    fn serialized(&mut self, value: &impl Serialize) {
        serde_json::to_writer(&mut self.0, value).expect("writing to a vector cannot fail");
    }

    fn name(&mut self, name: &str) {
        if name.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
            return self.serialized(&name);
        }
        self.raw("\"");
        self.raw(name);
        self.raw("\"");
    }

    fn number(&mut self, member: &str, number: u64) {
        self.raw(member);
        self.raw(itoa::Buffer::new().format(number));
    }

    fn time(&mut self, member: &str, time: Option<Timestamp>) {
        self.raw(member);
        match time {
            Some(time) => {
                self.raw("\"");
                self.0.extend_from_slice(TimeText::new(time).as_bytes());
                self.raw("\"");
            }
            None => self.raw("null"),
        }
    }

    fn span(&mut self, member: &str, span: Option<Span>) {
        self.raw(member);
        let Some(span) = span else { return self.raw("null") };
        let [first, second] = span.parts();
        for (before, part) in [("\"", first), (" ", second)] {
            if let Some((count, mark)) = part {
                self.number(before, count);
                self.raw(mark);
            }
        }
        self.raw("\"");
    }

    /// Writes a standing, starting with the value of its name.
    fn standing(&mut self, standing: &Standing, now: Timestamp) {
        self.name(&standing.name);
        self.raw(",\"unit\":");
        self.name(&standing.unit);
        self.number(",\"limit\":", standing.limit);
        self.number(",\"used\":", standing.used);
        self.number(",\"remaining\":", standing.remaining);
        self.time(",\"reset_at\":", standing.reset_at);
        self.span(",\"reset_in\":", standing.reset_at.map(|at| at.since(now)));
        self.time(",\"full_at\":", standing.full_at);
        self.time(",\"refilled_at\":", standing.refilled_at);
        self.raw("}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::option;
    use proptest::prelude::*;
    use tollgate::core::{Amounts, Denial, Grant, Wait};
    use tollgate::{Limit, Policy, TokenBucket};

    use super::*;
    use crate::json::Admitted;

    fn time() -> impl Strategy<Value = Timestamp> {
        prop_oneof![0..3_000_000_u64, 0..=Timestamp::MAX.as_micros()]
            .prop_map(Timestamp::from_micros)
    }

    prop_compose! {
        fn standing()(
            name in "[a-z_.-]{1,12}|\\PC{1,8}|[\"\\\\\t\u{1}]{1,4}",
            unit in "[a-z_.-]{1,12}",
            (limit, used, remaining) in any::<(u64, u64, u64)>(),
            (reset_at, full_at, refilled_at) in
                (option::of(time()), option::of(time()), option::of(time())),
        ) -> Standing {
            let (name, unit) = (name.into(), unit.into());
            Standing { name, unit, limit, used, remaining, reset_at, full_at, refilled_at }
        }
    }

    fn denial(now: Timestamp) -> Denial {
        Denial {
            policy: "api".into(),
            limit: "burst".into(),
            unit: "requests".into(),
            asked: 2,
            most: 10,
            wait: Wait::Never,
            limits: Vec::new(),
            expires_at: None,
            slots: None,
            waiting_ahead: 0,
            decided_at: now,
            degraded: false,
            joint: None,
        }
    }

    proptest! {
        #[test]
        fn it_equals_the_serialized_structure(
            limits in prop::collection::vec(standing(), 0..4),
            (now, use_by, expires_at) in (time(), option::of(time()), option::of(time())),
            (degraded, in_shadow) in any::<(bool, bool)>(),
            (more, are_more_in_shadow) in (0..3_usize, any::<bool>()),
            subject in ".{1,40}",
        ) {
            let burst = Limit::new("burst", "requests", TokenBucket::per_second(10));
            let policy = Policy::new("api", [burst]).unwrap();
            let grant = Grant { at: now, stamp: 1, use_by, expires_at };
            let mut permit = Permit::new(&policy, &subject, Amounts::default(), grant);
            permit.limits = limits;
            permit.degraded = degraded;
            permit.shadow_denied = in_shadow.then(|| Box::new(denial(now)));
            if 0 < more {
                let mut other = permit.clone();
                other.shadow_denied = are_more_in_shadow.then(|| Box::new(denial(now)));
                permit = Permit::joined([vec![permit], vec![other; more]].concat());
            }
            let key = [7; 32].into();
            let expected = serde_json::to_string(&Admitted::new(&permit, &key, now)).unwrap();
            prop_assert_eq!(String::from_utf8(admission(&permit, &key, now)).unwrap(), expected);
        }
    }
}
