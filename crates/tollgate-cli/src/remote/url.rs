//! The address of a broker, as people write it behind `--server`.

use std::str::FromStr;

use tollgate::{Error, ErrorKind};

/// Where a broker listens: `http://` or `https://`, a host, perhaps a port and a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BrokerUrl(String);

impl FromStr for BrokerUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |what: &str| {
            Err(Error::new(
                ErrorKind::Invalid,
                format!("--server {text:?} {what}; write it as in http://127.0.0.1:8080"),
            ))
        };
        let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let Some(rest) = rest else {
            return wrong("starts with neither http:// nor https://");
        };
        if rest.is_empty() || rest.starts_with('/') {
            return wrong("names no host");
        }
        if rest.contains(['?', '#', ' ']) {
            return wrong("has more than a host, a port and a path");
        }
        Ok(Self(text.trim_end_matches('/').to_owned()))
    }
}

impl BrokerUrl {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_https(&self) -> bool {
        self.0.starts_with("https://")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_url_is_http_and_names_a_host() {
        let good: BrokerUrl = "http://127.0.0.1:8080/".parse().unwrap();
        assert_eq!(good, BrokerUrl("http://127.0.0.1:8080".to_owned()));
        let rows = [
            ("localhost:8080", "starts with neither http:// nor https://"),
            ("http://", "names no host"),
            ("http://broker/?policy=api", "has more than a host, a port and a path"),
        ];
        for (text, what) in rows {
            let error = text.parse::<BrokerUrl>().unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
