//! Serialization of core types: times as RFC 3339, costs as an object. They are types, so that each has a schema.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serializer};
use tollgate::core::bounds::{NUMBER_MAX, UNITS_MAX};
use tollgate::{Costs, Timestamp};

/// `Option<Timestamp>` as a string or null.
pub(super) struct MaybeTime;

impl MaybeTime {
    pub(super) fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.collect_str(time),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
    }
}

/// `Timestamp` as a string.
pub(super) struct Time;

impl Time {
    pub(super) fn serialize<S: Serializer>(
        time: &Timestamp,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(time)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Timestamp, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// `Costs` as an object of unit names and whole numbers.
pub(super) struct UnitCosts;

impl UnitCosts {
    pub(super) fn serialize<S: Serializer>(
        costs: &Costs,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(costs.iter())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Costs, D::Error> {
        deserializer.deserialize_map(Units)
    }
}

/// `Option<Costs>` as an object; null is not one.
pub(super) struct MaybeUnitCosts;

impl MaybeUnitCosts {
    pub(super) fn serialize<S: Serializer>(
        costs: &Option<Costs>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match costs {
            Some(costs) => UnitCosts::serialize(costs, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Costs>, D::Error> {
        UnitCosts::deserialize(deserializer).map(Some)
    }
}

struct Units;

impl<'de> Visitor<'de> for Units {
    type Value = Costs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of units and whole numbers, as in {\"tokens\": 3750}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Costs, A::Error> {
        let mut costs = Costs::new();
        let mut units: usize = 0;
        while let Some((unit, amount)) = map.next_entry::<String, Whole>()? {
            if costs.get(&unit).is_some() {
                return Err(de::Error::custom(format!("unit {unit:?} is named twice")));
            }
            units += 1;
            if UNITS_MAX < units {
                return Err(de::Error::custom(format!("names more than {UNITS_MAX} units")));
            }
            costs.set(unit, amount.0);
        }
        Ok(costs)
    }
}

/// A non-negative integer in any notation of JSON: 3750, 3750.0 and 3.75e3 are equal.
struct Whole(u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_u64(WholeNumber).map(Self)
    }
}

struct WholeNumber;

impl Visitor<'_> for WholeNumber {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an unsigned whole number")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<u64, E> {
        Ok(number)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<u64, E> {
        let wrong = |_| E::invalid_value(de::Unexpected::Signed(number), &self);
        u64::try_from(number).map_err(wrong)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<u64, E> {
        // Every integer up to here is exact as a float.
        #[allow(clippy::cast_precision_loss, reason = "2^53 is exact")]
        let exact_max = NUMBER_MAX as f64;
        if number.fract() != 0.0 || !(0.0..=exact_max).contains(&number) {
            return Err(E::invalid_value(de::Unexpected::Float(number), &self));
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is whole and in bounds"
        )]
        Ok(number as u64)
    }
}

/// Deserializes a [`Whole`] number.
pub(super) fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Whole::deserialize(deserializer).map(|number| number.0)
}

/// Deserializes an optional [`Whole`] number.
pub(super) fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<Whole>::deserialize(deserializer)?.map(|number| number.0))
}

/// Deserializes a list of amounts, each a [`Whole`] number.
pub(super) fn whole_amounts<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<BTreeMap<String, u64>>, D::Error> {
    let list = Vec::<BTreeMap<String, Whole>>::deserialize(deserializer)?;
    let plain = |amounts: BTreeMap<String, Whole>| {
        amounts.into_iter().map(|(unit, amount)| (unit, amount.0)).collect()
    };
    Ok(list.into_iter().map(plain).collect())
}

/// Deserializes a list of objects; serde alone would also accept an array as an object.
pub(super) fn objects<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let objects = Vec::<Object<T>>::deserialize(deserializer)?;
    Ok(objects.into_iter().map(|Object(value)| value).collect())
}

struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members(PhantomData)).map(Self)
    }
}

struct Members<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}
mod schema {
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{MaybeTime, MaybeUnitCosts, Time, UnitCosts};

    macro_rules! inline_schema {
        ($type:ident, $generator:ident => $schema:expr) => {
            impl JsonSchema for $type {
                fn inline_schema() -> bool {
                    true
                }

                fn schema_name() -> Cow<'static, str> {
                    stringify!($type).into()
                }

                fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                    $schema
                }
            }
        };
    }

    inline_schema!(Time, _generator => json_schema!({ "type": "string", "format": "date-time" }));
    inline_schema!(MaybeTime, _generator => json_schema!({ "type": ["string", "null"], "format": "date-time" }));
    inline_schema!(UnitCosts, generator => BTreeMap::<String, u64>::json_schema(generator));
    inline_schema!(MaybeUnitCosts, generator => BTreeMap::<String, u64>::json_schema(generator));
}
