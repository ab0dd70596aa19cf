//! The two small notations of a limit: a rate such as `10/s`, and a headroom such as `20%`.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};
use tollgate_core::{Headroom, Span};

use super::fault::Fault;

/// A headroom as written: a whole number of units, or a percentage in quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadroomSpec {
    /// `headroom = 1`
    Units(u64),
    /// `headroom = "20%"`
    Text(String),
}

impl HeadroomSpec {
    pub(crate) fn from_headroom(headroom: Headroom) -> Self {
        match headroom {
            Headroom::Units(units) => Self::Units(units),
            Headroom::Percent(percent) => Self::Text(format!("{percent}%")),
        }
    }

    pub(crate) fn resolve(&self) -> Result<Headroom, Fault> {
        match self {
            Self::Units(units) => Ok(Headroom::Units(*units)),
            Self::Text(text) => text
                .strip_suffix('%')
                .and_then(|percent| percent.trim().parse().ok())
                .map(Headroom::Percent)
                .ok_or_else(|| {
                    Fault::at(
                        "headroom",
                        format!("headroom {text:?} is neither a whole number of units, as in 1, nor a percentage, as in \"20%\""),
                    )
                }),
        }
    }
}

impl Serialize for HeadroomSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Units(units) => serializer.serialize_u64(*units),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for HeadroomSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = HeadroomSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of units, as in 1, or a percentage, as in \"20%\"")
            }

            fn visit_u64<E: de::Error>(self, units: u64) -> Result<HeadroomSpec, E> {
                Ok(HeadroomSpec::Units(units))
            }

            fn visit_i64<E: de::Error>(self, units: i64) -> Result<HeadroomSpec, E> {
                let negative = || E::invalid_value(de::Unexpected::Signed(units), &self);
                u64::try_from(units).map(HeadroomSpec::Units).map_err(|_| negative())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<HeadroomSpec, E> {
                Ok(HeadroomSpec::Text(text.to_owned()))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// Reads `10/s`, `300/1m` or `250_000/h`: how many, and in which time.
pub(crate) fn parse_rate(text: &str) -> Result<(u64, Span), Fault> {
    let wrong = || {
        Fault::at(
            "refill",
            format!(
                "refill {text:?} is not a rate; write how many in which time, as in \"10/s\", \"5/1m\" or \"1000/d\""
            ),
        )
    };
    let (amount, period) = text.split_once('/').ok_or_else(wrong)?;
    let amount = amount.trim().replace('_', "").parse().map_err(|_| wrong())?;
    let period = period.trim();
    // A unit alone means one of it.
    let one = if period.starts_with(|c: char| c.is_ascii_digit()) { "" } else { "1" };
    let period = format!("{one}{period}").parse().map_err(|_| wrong())?;
    Ok((amount, period))
}

/// Writes a rate as [`parse_rate`] reads it.
pub(crate) fn print_rate(amount: u64, period: Span) -> String {
    let period = period.to_string();
    let unit =
        period.strip_prefix('1').filter(|unit| !unit.starts_with(|c: char| c.is_ascii_digit()));
    format!("{amount}/{}", unit.unwrap_or(&period))
}
