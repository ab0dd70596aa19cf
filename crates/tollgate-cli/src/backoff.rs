//! `--backoff` and `--jitter`: asking again after growing pauses instead of at the promised time.

use tollgate::retry::Backoff;
use tollgate::{Error, ErrorKind, Span};
use tollgate_config::{JITTER_MAX, PAUSE_RANGE, with_jitter};

/// The word that turns a configured back-off off.
const OFF: &str = "off";

/// What the flags say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BackoffFlags {
    /// Nothing: the configuration decides.
    #[default]
    Unset,
    /// No back-off, whatever the configuration says.
    Off,
    /// Back-off, with these pauses or the configured ones.
    On { pauses: Option<[Span; 2]>, jitter: Option<u64> },
}

impl BackoffFlags {
    /// Reads the value of `--backoff`, empty if it has none, and that of `--jitter`.
    pub(crate) fn parse(backoff: Option<&str>, jitter: Option<u64>) -> Result<Self, Error> {
        let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
        let pauses = match backoff {
            None => return Ok(Self::Unset),
            Some(OFF) if jitter.is_some() => {
                return Err(invalid("--jitter is for a back-off; leave --backoff=off out".into()));
            }
            Some(OFF) => return Ok(Self::Off),
            Some("") => None,
            Some(text) => {
                let wrong = || {
                    format!(
                        "--backoff={text} is neither a shortest and a longest pause, as in --backoff=2s..8s, nor off"
                    )
                };
                let pauses = text.split_once("..").and_then(|(base, max)| {
                    Some([base.parse::<Span>().ok()?, max.parse::<Span>().ok()?])
                });
                let [base, max] = pauses.ok_or_else(|| invalid(wrong()))?;
                let [least, most] = PAUSE_RANGE;
                if base < least || most < max || max < base {
                    let what = format!("pauses are {least} to {most}, the shorter one first");
                    return Err(invalid(format!("--backoff={text}: {what}")));
                }
                Some([base, max])
            }
        };
        if let Some(jitter) = jitter.filter(|jitter| JITTER_MAX < *jitter) {
            return Err(invalid(format!("--jitter {jitter} is a percentage, 0 to {JITTER_MAX}")));
        }
        Ok(Self::On { pauses, jitter })
    }

    /// The back-off to use where `configured` is in the configuration.
    pub(crate) fn over(self, configured: Option<Backoff>) -> Option<Backoff> {
        match self {
            Self::Unset => configured,
            Self::Off => None,
            Self::On { pauses, jitter } => {
                let mut backoff = configured.unwrap_or(Backoff::QUOTA);
                if let Some([base, max]) = pauses {
                    (backoff.base, backoff.max) = (base, max);
                }
                Some(jitter.map_or(backoff, |percent| with_jitter(backoff, percent)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r000_2_flags_go_before_the_configuration_and_what_they_leave_out_is_taken_from_it() {
        let configured = with_jitter(
            Backoff { base: Span::from_secs(1), max: Span::from_secs(60), ..Backoff::QUOTA },
            50,
        );
        let over = |backoff, jitter, configured| {
            BackoffFlags::parse(backoff, jitter).unwrap().over(configured)
        };
        assert_eq!(over(None, None, None), None);
        assert_eq!(over(None, None, Some(configured)), Some(configured));
        assert_eq!(over(Some("off"), None, Some(configured)), None);
        assert_eq!(over(Some(""), None, None), Some(Backoff::QUOTA));
        assert_eq!(over(Some(""), None, Some(configured)), Some(configured));
        let pauses = Backoff { base: Span::from_millis(5), max: Span::from_secs(3), ..configured };
        assert_eq!(over(Some("5ms..3s"), None, Some(configured)), Some(pauses));
        assert_eq!(over(Some(""), Some(0), None), Some(with_jitter(Backoff::QUOTA, 0)));
        assert_eq!(with_jitter(Backoff::QUOTA, 25), Backoff::QUOTA);
    }
}
