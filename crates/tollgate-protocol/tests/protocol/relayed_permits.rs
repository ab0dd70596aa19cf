//! Permits that a broker hands on for another one: both seals are checked, each by the broker that made it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};
use tollgate::core::Grant;
use tollgate::{Costs, Error, ErrorKind, Limit, Permit, Policy, Timestamp, TokenBucket};
use tollgate_protocol::permit_token::{RELAYS_MAX, TOKEN_CHARS_MAX, decode, encode, read};

const NEAR: [u8; 32] = [1; 32];
const FAR: [u8; 32] = [2; 32];

fn policy() -> Policy {
    Policy::new("api", [Limit::new("burst", "requests", TokenBucket::per_second(9))]).unwrap()
}

fn permit() -> Permit {
    let policy = policy();
    let amounts = policy.amounts(&Costs::new().with("requests", 3)).unwrap();
    let at = Timestamp::from_secs(7);
    let grant = Grant { at, stamp: 5, use_by: None, expires_at: None };
    Permit::new(&policy, "alice", amounts, grant)
}

fn open(text: &str, key: &[u8; 32]) -> Result<Permit, Error> {
    decode(text, &(*key).into(), |_| Ok(policy()))
}

/// What the far broker gave comes back to it as it was, and says the same on the way.
#[test]
fn a_permit_goes_through_many_brokers_and_back() {
    let given = encode(&permit(), &FAR.into());
    let mut text = given.clone();
    for _ in 0..RELAYS_MAX {
        let received = read(&text, [&policy()], |_, _| Ok(())).unwrap();
        assert_eq!(received.grant(), permit().grant());
        text = encode(&received, &NEAR.into());
        let back = open(&text, &NEAR).unwrap();
        assert_eq!((back.costs(), back.subject()), (permit().costs(), "alice"));
        assert_eq!(back.seal(), received.seal());
    }
    assert!(text.len() <= TOKEN_CHARS_MAX);
    for _ in 0..RELAYS_MAX {
        text = open(&text, &NEAR).unwrap().seal().unwrap().to_owned();
    }
    assert_eq!(text, given);
    assert_eq!(open(&text, &FAR).unwrap().seal(), None);
}

/// A permit of the far broker is none of the near one, and none of the near one is one of the far one.
#[test]
fn a_seal_is_good_for_the_broker_that_made_it() {
    let given = encode(&permit(), &FAR.into());
    let relayed = encode(&read(&given, [&policy()], |_, _| Ok(())).unwrap(), &NEAR.into());
    for (text, key) in [(&given, &NEAR), (&relayed, &FAR)] {
        assert_eq!(open(text, key).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

proptest! {
    /// Whoever holds a permit can change neither what the near broker nor what the far one sealed.
    #[test]
    fn any_flipped_bit_of_a_relayed_permit_is_refused(place in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let relayed = encode(&read(&encode(&permit(), &FAR.into()), [&policy()], |_, _| Ok(())).unwrap(), &NEAR.into());
        let mut bytes = BASE64URL.decode(&relayed).unwrap();
        let index = place.index(bytes.len());
        bytes[index] ^= 1 << bit;
        prop_assert_eq!(open(&BASE64URL.encode(bytes), &NEAR).unwrap_err().kind(), ErrorKind::Invalid);
    }

    /// Nor does text that pretends to have a permit in it get anywhere, whoever sealed it.
    #[test]
    fn what_has_no_permit_in_it_is_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let nothing = permit().with_seal(BASE64URL.encode([&[2, 2][..], &bytes].concat()));
        prop_assert!(open(&encode(&nothing, &NEAR.into()), &NEAR).is_err());
    }
}
