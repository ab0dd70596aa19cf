//! Core types as JSON: times as RFC 3339, costs as an object.

/// `Option<Timestamp>` as a string or null.
pub(super) mod time {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use tollgate::Timestamp;

    pub(crate) fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.collect_str(time),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
    }
}

/// `Timestamp` as a string.
pub(super) mod instant {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use tollgate::Timestamp;

    pub(crate) fn serialize<S: Serializer>(
        time: &Timestamp,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(time)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Timestamp, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// `Costs` as an object of unit names and whole numbers.
pub(super) mod costs {
    use std::fmt;

    use serde::de::{self, MapAccess, Visitor};
    use serde::{Deserializer, Serializer};
    use tollgate::Costs;
    use tollgate::core::bounds::UNITS_MAX;

    pub(crate) fn serialize<S: Serializer>(
        costs: &Costs,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(costs.iter())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Costs, D::Error> {
        deserializer.deserialize_map(Units)
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
            while let Some((unit, amount)) = map.next_entry::<String, u64>()? {
                // Whether the first or the last counts is not for a parser to choose.
                if costs.get(&unit).is_some() {
                    return Err(de::Error::custom(format!("unit {unit:?} is named twice")));
                }
                units += 1;
                if UNITS_MAX < units {
                    return Err(de::Error::custom(format!("names more than {UNITS_MAX} units")));
                }
                costs.set(unit, amount);
            }
            Ok(costs)
        }
    }
}
