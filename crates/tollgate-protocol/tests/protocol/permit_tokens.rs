//! Permits as text: what was given out comes back, and nothing else is taken.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use proptest::prelude::*;
use tollgate::core::Grant;
use tollgate::core::bounds::{
    CHARGES_MAX, ID_BYTES_MAX, NAME_BYTES_MAX, NUMBER_MAX, SUBJECT_BYTES_MAX, UNITS_MAX,
};
use tollgate::{
    Concurrency, Costs, Error, ErrorKind, Limit, Permit, Policy, RollingWindow, Span, Timestamp,
    TokenBucket,
};
use tollgate_protocol::permit_token::{Key, TOKEN_CHARS_MAX, decode, encode, part_index, read};

const KEY: [u8; 32] = [7; 32];
const RELAY_KEY: [u8; 32] = [8; 32];

fn policy(units: &[&str]) -> Policy {
    let limits = units.iter().map(|unit| Limit::new(*unit, *unit, TokenBucket::per_second(9)));
    Policy::new("llm", limits).unwrap()
}

fn open(text: &str, policy: &Policy) -> Result<Permit, Error> {
    decode(text, &KEY.into(), |name| {
        assert_eq!(name, policy.name());
        Ok(policy.clone())
    })
}

fn grant() -> Grant {
    let at = Timestamp::from_secs(1_700_000_000);
    Grant { at, stamp: 3, use_by: None, expires_at: None }
}

prop_compose! {
    fn permits()(
        subject in "\\PC{1,40}",
        amounts in (0..=NUMBER_MAX, 0..=NUMBER_MAX),
        times in (0..=NUMBER_MAX, prop::option::of(0..=NUMBER_MAX), prop::option::of(0..=NUMBER_MAX)),
        stamp in any::<u64>(),
        degraded in any::<bool>(),
    ) -> Permit {
        let policy = policy(&["requests", "tokens"]);
        let costs = Costs::new().with("requests", amounts.0).with("tokens", amounts.1);
        let grant = Grant {
            at: Timestamp::from_micros(times.0),
            stamp,
            use_by: times.1.map(Timestamp::from_micros),
            expires_at: times.2.map(Timestamp::from_micros),
        };
        let mut permit = Permit::new(&policy, &subject, policy.amounts(&costs).unwrap(), grant);
        permit.degraded = degraded;
        permit
    }
}

proptest! {
    #[test]
    fn what_was_given_out_comes_back(permit in permits()) {
        let back = open(&encode(&permit, &KEY.into()), permit.policy()).unwrap();
        prop_assert_eq!(back, permit);
    }

    /// Goal: nobody makes a permit from another. Method: flip each bit of the bytes and each bit of the text.
    #[test]
    fn any_flipped_bit_is_refused(permit in permits(), place in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let text = encode(&permit, &KEY.into());
        let mut bytes = BASE64URL.decode(&text).unwrap();
        let index = place.index(bytes.len());
        bytes[index] ^= 1 << bit;
        let error = open(&BASE64URL.encode(&bytes), permit.policy()).unwrap_err();
        prop_assert_eq!(error.kind(), ErrorKind::Invalid);

        let mut bytes = text.into_bytes();
        let index = place.index(bytes.len());
        bytes[index] ^= 1 << (bit % 7);
        let error = open(std::str::from_utf8(&bytes).unwrap(), permit.policy()).unwrap_err();
        prop_assert_eq!(error.kind(), ErrorKind::Invalid);
    }

    #[test]
    fn any_text_is_refused_without_a_panic(text in "\\PC{0,200}", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let policy = policy(&["requests"]);
        prop_assert_eq!(open(&text, &policy).unwrap_err().kind(), ErrorKind::Invalid);
        prop_assert_eq!(open(&BASE64URL.encode(bytes), &policy).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_permit_that_is_cut_short_is_refused(permit in permits(), place in any::<prop::sample::Index>()) {
        let text = encode(&permit, &KEY.into());
        let cut = &text[..place.index(text.len())];
        prop_assert_eq!(open(cut, permit.policy()).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

/// The permit of the shadow mode charged nothing, and says so after its journey.
#[test]
fn a_permit_that_charged_nothing_stays_so() {
    let policy = policy(&["requests"]);
    let amounts = policy.amounts(&Costs::new()).unwrap();
    let free = Permit::new(&policy, "p7", amounts, Grant { stamp: 0, ..grant() });
    assert!(!open(&encode(&free, &KEY.into()), &policy).unwrap().is_charged());
    let charged = Permit::new(&policy, "p7", amounts, grant());
    assert!(open(&encode(&charged, &KEY.into()), &policy).unwrap().is_charged());
}

/// A permit outlives a change of its policy: what the policy no longer counts is dropped, what it counts now was not
/// charged.
#[test]
fn a_permit_outlives_a_change_of_its_policy() {
    let old = policy(&["tokens", "jobs"]);
    let amounts = old.amounts(&Costs::new().with("tokens", 5).with("jobs", 1)).unwrap();
    let text = encode(&Permit::new(&old, "p7", amounts, grant()), &KEY.into());
    let costs = open(&text, &policy(&["requests", "tokens"])).unwrap().costs();
    assert_eq!(
        (costs.get("requests"), costs.get("tokens"), costs.get("jobs")),
        (Some(0), Some(5), None)
    );
}

#[test]
fn other_versions_are_refused_by_name() {
    let policy = policy(&["requests"]);
    let amounts = policy.amounts(&Costs::new()).unwrap();
    let mut bytes = BASE64URL
        .decode(encode(&Permit::new(&policy, "p7", amounts, grant()), &KEY.into()))
        .unwrap();
    bytes[0] = 0;
    let error = open(&BASE64URL.encode(bytes), &policy).unwrap_err();
    let text = "the permit is of version 0, and versions up to 5 are read here; acquire a new one";
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Invalid, text));
}

/// Tokens that earlier programs gave out. The first is of a program from before the grid, and gives back as it would have there.
#[test]
fn tokens_of_each_version_are_read() {
    let minute = Span::from_mins(1);
    let limits = [
        Limit::new("rpm", "requests", RollingWindow::new(20_000, minute)),
        Limit::new("tpm", "tokens", TokenBucket::per_minute(90_000)),
        Limit::new("jobs", "jobs", Concurrency::new(4, minute)),
    ];
    let policy = Policy::new("llm", limits).unwrap();
    let costs = Costs::new().with("requests", 1).with("tokens", 3_750).with("jobs", 1);
    let at = Timestamp::from_secs(1_700_000_000);
    let stamp = 1_700_000_000_000_017;
    let grant = Grant { at, stamp, use_by: None, expires_at: Some(at + minute) };
    let permit = Permit::new(&policy, "p7", policy.amounts(&costs).unwrap(), grant);
    let [first, second, third] = [
        include_str!("tokens/version-1.txt"),
        include_str!("tokens/version-2.txt"),
        include_str!("tokens/version-3.txt"),
    ]
    .map(str::trim);
    assert_eq!(open(first, &policy).unwrap(), permit);
    assert!(permit.charged().same_numbers);
    let with_id = permit.clone().with_id(Some("order-7"));
    assert_eq!(open(third, &policy).unwrap(), with_id);
    assert_eq!(encode(&with_id, &KEY.into()), third);
    // The second is the first, relayed by a broker with a key of its own.
    let relayed = decode(second, &RELAY_KEY.into(), |_| Ok(policy.clone())).unwrap();
    assert_eq!((&relayed, relayed.seal()), (&permit.clone().with_seal(first), Some(first)));
    let received = read(first, [&policy], |_, _| Ok(())).unwrap();
    assert_eq!(encode(&received, &RELAY_KEY.into()), second);
    assert_eq!(open(second, &policy).unwrap_err().kind(), ErrorKind::Invalid);
    // A broker of the first version reads this.
    let exact = Permit::new(policy.with_exact_logs(), "p7", *permit.charged().amounts, grant);
    let key = Key::from(KEY).without_ids();
    assert_eq!(encode(&exact.with_id(Some("order-7")), &key), first);
}

/// The permit of three charges. The second is of shadow mode and charged nothing, the third has costs of its own.
fn joint_permit() -> (Permit, [Policy; 3]) {
    let limit = |unit: &str| Limit::new(unit, unit, TokenBucket::per_minute(90_000));
    let policies = ["user", "team", "account"]
        .map(|name| Policy::new(name, [limit("requests"), limit("tokens")]).unwrap());
    let permits = policies.iter().zip([7, 0, 9]).map(|(policy, stamp)| {
        let costs = Costs::new().with("requests", 1).with("tokens", 40 * stamp);
        let subject = format!("{}-1", policy.name());
        let amounts = policy.amounts(&costs).unwrap();
        Permit::new(policy, &subject, amounts, Grant { stamp, ..grant() })
    });
    let mut permits: Vec<Permit> = permits.collect();
    let third = permits.pop().unwrap().with_own_costs();
    permits.push(third);
    (Permit::joined(permits).with_id(Some("order-7")), policies)
}

fn find(policies: &[Policy], name: &str) -> Result<Policy, Error> {
    let policy = policies.iter().find(|policy| policy.name() == name).cloned();
    policy.ok_or_else(|| Error::new(ErrorKind::UnknownPolicy, name))
}

/// A token of several charges returns every charge, and the bytes stay those of the first program that wrote them.
#[test]
fn a_permit_of_several_charges_comes_back() {
    let (permit, policies) = joint_permit();
    let text = encode(&permit, &KEY.into());
    let back = decode(&text, &KEY.into(), |name| find(&policies, name)).unwrap();
    assert_eq!(back, permit);
    let own: Vec<bool> = back.parts().map(|part| part.has_own_costs()).collect();
    let charged: Vec<bool> = back.parts().map(|part| part.is_charged()).collect();
    assert_eq!((own, charged), (vec![false, false, true], vec![true, false, true]));
    assert_eq!(text, include_str!("tokens/version-4.txt").trim());
    // An unknown policy of any charge is reported.
    let error = decode(&text, &KEY.into(), |name| find(&policies[..2], name)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownPolicy);
    for key in [RELAY_KEY, [9; 32]] {
        let error = decode(&text, &key.into(), |name| find(&policies, name)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    // A key for older brokers omits the id, as for one charge.
    let without = encode(&permit, &Key::from(KEY).without_ids());
    let back = decode(&without, &KEY.into(), |name| find(&policies, name)).unwrap();
    assert_eq!(back, permit.with_id(None::<&str>));
}

/// A client knows which charge of its token a part is, so that it can settle it by index.
#[test]
fn the_parts_of_a_received_permit_know_their_index() {
    let (permit, policies) = joint_permit();
    let text = encode(&permit, &KEY.into());
    let received = read(&text, &policies, |index, permit| {
        permit.degraded = index == 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(part_index(&received), None);
    let parts: Vec<Permit> = received.parts().map(std::borrow::Cow::into_owned).collect();
    assert_eq!(parts.iter().map(part_index).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    assert_eq!(parts.iter().map(|part| part.degraded).collect::<Vec<_>>(), [false, true, false]);
    // A relay wraps the token whole.
    let relayed = encode(&received, &RELAY_KEY.into());
    let back = decode(&relayed, &RELAY_KEY.into(), |name| find(&policies, name)).unwrap();
    assert_eq!(back.seal(), Some(&*text));
    assert_eq!(part_index(&back.parts().nth(2).unwrap()), Some(2));
    // A token of another number of charges is not the answer to the ask.
    for count in [1, 2] {
        let error = read(&text, &policies[..count], |_, _| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}

/// The bound on the length of a token lets the longest one pass.
#[test]
fn the_longest_permit_fits_its_bound() {
    let units: Vec<String> =
        (0..UNITS_MAX).map(|unit| format!("{unit:0>NAME_BYTES_MAX$}")).collect();
    let limits = || units.iter().map(|unit| Limit::new(unit, unit, TokenBucket::per_second(9)));
    let policies: Vec<Policy> = (0..CHARGES_MAX)
        .map(|index| Policy::new(format!("{index:0>NAME_BYTES_MAX$}"), limits()).unwrap())
        .collect();
    let costs: Costs = units.iter().map(|unit| (unit.as_str(), NUMBER_MAX)).collect();
    let (at, late) = (Timestamp::MAX, Some(Timestamp::MAX));
    let grant = Grant { at, stamp: u64::MAX, use_by: late, expires_at: late };
    let subject = "s".repeat(SUBJECT_BYTES_MAX);
    let permits = policies.iter().map(|policy| {
        Permit::new(policy, &subject, policy.amounts(&costs).unwrap(), grant).with_own_costs()
    });
    let permit = Permit::joined(permits.collect()).with_id(Some("i".repeat(ID_BYTES_MAX)));
    let text = encode(&permit, &KEY.into());
    assert!(text.len() <= TOKEN_CHARS_MAX, "{} characters", text.len());
    assert_eq!(decode(&text, &KEY.into(), |name| find(&policies, name)).unwrap(), permit);
    let error = open(&"A".repeat(TOKEN_CHARS_MAX + 1), &policies[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// A token outlives a change of its policy's numbers, and then knows that they were others.
#[test]
fn a_permit_from_other_numbers_knows_it() {
    let given = policy(&["requests"]);
    let permit = Permit::new(&given, "alice", given.amounts(&Costs::new()).unwrap(), grant());
    let text = encode(&permit, &KEY.into());
    assert_eq!(open(&text, &given).unwrap(), permit);
    let slower = TokenBucket::per_minute(9);
    let now = Policy::new("llm", [Limit::new("requests", "requests", slower)]).unwrap();
    let changed = open(&text, &now).unwrap();
    assert!(permit.charged().same_numbers && !changed.charged().same_numbers);
    // Renewing writes it again, and it must not come to give back by that.
    assert!(!open(&encode(&changed, &KEY.into()), &now).unwrap().charged().same_numbers);
}

/// The tenant that an ask named comes back with its weight, which is that of its override, with one charge and with several; older
/// brokers get tokens without it.
#[test]
fn a_named_tenant_comes_back() {
    let base = policy(&["requests"]);
    let own = tollgate::policy::Override {
        limits: base.limits().cloned().collect(),
        weight: Some(4),
        unlimited: false,
    };
    let base = base.with_overrides([("gold", Some(own))]).unwrap();
    let charge = |subject| Permit::new(&base, subject, Default::default(), grant());
    let longest = "t".repeat(SUBJECT_BYTES_MAX);
    for permit in
        [charge("u1"), Permit::joined(vec![charge("u1"), charge("u2")]).with_id(Some("i"))]
    {
        for (tenant, weight) in [("gold", 4), (&*longest, 1)] {
            let named = permit.clone().with_tenant(tenant, weight);
            let text = encode(&named, &KEY.into());
            let back = open(&text, &base).unwrap();
            assert_eq!((back.tenant(), &back), ((tenant, weight), &named));
            assert_eq!(part_index(&back.clone().with_seal(text)), None);
            let older = encode(&named, &Key::from(KEY).without_ids());
            assert_eq!(open(&older, &base).unwrap().named_tenant(), None);
        }
        assert_eq!(permit.tenant(), ("u1", 1));
    }
}
