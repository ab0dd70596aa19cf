//! A selection of chapters, as in `3-5` or `1,4-`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// A selection of chapters of a book: its pages in reading order, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Chapters(Vec<(usize, usize)>);

impl Chapters {
    pub(super) fn contains(&self, number: usize) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&number))
    }

    /// Returns the first selected number above `most`.
    pub(super) fn beyond(&self, most: usize) -> Option<usize> {
        let named = |(first, last): &(usize, usize)| match *last {
            usize::MAX => *first,
            last => last,
        };
        self.0.iter().map(named).find(|number| most < *number)
    }
}

impl FromStr for Chapters {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::invalid(format!(
                "{text:?} is not a selection of chapters; write it as in 3-5, 7 or 1,4-"
            ))
        };
        let number = |text: &str| match text.trim().parse() {
            Ok(number @ 1..) => Ok(number),
            _ => Err(wrong()),
        };
        let range = |part: &str| match part.split_once('-') {
            None => number(part).map(|only| (only, only)),
            Some((first, "")) => Ok((number(first)?, usize::MAX)),
            Some((first, last)) => Ok((number(first)?, number(last)?)),
        };
        let ranges = text.split(',').map(range).collect::<Result<Vec<_>, Error>>()?;
        match ranges.iter().all(|(first, last)| first <= last) {
            true => Ok(Self(ranges)),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for Chapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.0.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            match *last {
                usize::MAX => write!(f, "{first}-")?,
                last if last == *first => write!(f, "{first}")?,
                last => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

crate::error::stored_as_text!(Chapters);
