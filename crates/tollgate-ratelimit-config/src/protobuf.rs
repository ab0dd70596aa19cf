//! The configuration as a management server sends it.

use prost::Message as _;
use tollgate_protocol::protobuf::Any;
use tollgate_protocol::protobuf::ratelimit::config::ratelimit::v3 as message;

use crate::ConfigError;
use crate::bounds::FILES_MAX;
use crate::file::{Descriptor, DomainFile, RateLimit, Unit};

/// The type of the resources of a management server.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

impl DomainFile {
    /// Decodes the resources of a discovery response.
    ///
    /// # Errors
    /// If there are more than [`FILES_MAX`], one is of another type, or as [`from_message`](Self::from_message).
    pub fn from_resources(resources: &[Any]) -> Result<Vec<Self>, ConfigError> {
        if FILES_MAX < resources.len() {
            let message = format!(
                "there are {} resources, and at most {FILES_MAX} are read",
                resources.len()
            );
            return Err(ConfigError::whole("resources", message));
        }
        let decode = |(index, resource): (usize, &Any)| {
            let wrong =
                |message: String| ConfigError::whole(&format!("resources[{index}]"), message);
            if resource.type_url != TYPE_URL {
                return Err(wrong(format!(
                    "the type is {:?}, not {TYPE_URL:?}",
                    resource.type_url
                )));
            }
            let config = message::RateLimitConfig::decode(&*resource.value)
                .map_err(|error| wrong(format!("is not a RateLimitConfig: {error}")))?;
            Self::from_message(config)
        };
        resources.iter().enumerate().map(decode).collect()
    }

    /// Converts a message. The fields that it does not have, `share_threshold`, `value_to_metric` and `metadata`, are not set.
    ///
    /// # Errors
    /// If a unit is missing or unknown, or set together with `unlimited`.
    pub fn from_message(config: message::RateLimitConfig) -> Result<Self, ConfigError> {
        let source = if config.name.is_empty() { config.domain.clone() } else { config.name };
        let descriptors = descriptors(&source, config.descriptors)?;
        Ok(Self { source, domain: config.domain, descriptors, warnings: Vec::new() })
    }
}

fn descriptors(
    source: &str,
    messages: Vec<message::RateLimitDescriptor>,
) -> Result<Vec<Descriptor>, ConfigError> {
    let convert = |message: message::RateLimitDescriptor| {
        let limit = message.rate_limit.map(|limit| rate_limit(source, &message.key, limit));
        Ok(Descriptor {
            rate_limit: limit.transpose()?,
            descriptors: descriptors(source, message.descriptors)?,
            key: message.key,
            value: message.value,
            shadow_mode: message.shadow_mode,
            quota_mode: message.quota_mode,
            detailed_metric: message.detailed_metric,
            ..Descriptor::default()
        })
    };
    messages.into_iter().map(convert).collect()
}

fn rate_limit(
    source: &str,
    key: &str,
    limit: message::RateLimitPolicy,
) -> Result<RateLimit, ConfigError> {
    use message::RateLimitUnit as Number;
    let unit = match limit.unit() {
        Number::Unknown => None,
        Number::Second => Some(Unit::Second),
        Number::Minute => Some(Unit::Minute),
        Number::Hour => Some(Unit::Hour),
        Number::Day => Some(Unit::Day),
        Number::Week => Some(Unit::Week),
        Number::Month => Some(Unit::Month),
        Number::Year => Some(Unit::Year),
    };
    if unit.is_some() == limit.unlimited {
        let message = format!("the limit of {key:?} needs either a unit or unlimited");
        return Err(ConfigError::whole(source, message));
    }
    Ok(RateLimit {
        unit,
        requests_per_unit: limit.requests_per_unit,
        unlimited: limit.unlimited,
        name: limit.name,
        replaces: limit.replaces.into_iter().map(|replaced| replaced.name).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, RateLimitConfig};

    #[test]
    fn a_message_means_what_a_file_means() {
        let text = "
domain: d
descriptors:
  - key: a
    value: b*
    quota_mode: true
    rate_limit: { unit: week, requests_per_unit: 5, name: n, replaces: [{ name: m }] }
    descriptors:
      - { key: c, shadow_mode: true, detailed_metric: true, rate_limit: { unlimited: true } }
";
        let replaces = vec![message::RateLimitReplace { name: "m".into() }];
        let nested = message::RateLimitDescriptor {
            key: "c".into(),
            shadow_mode: true,
            detailed_metric: true,
            rate_limit: Some(message::RateLimitPolicy { unlimited: true, ..Default::default() }),
            ..Default::default()
        };
        let mut sent = message::RateLimitConfig {
            name: "t.yaml".into(),
            domain: "d".into(),
            descriptors: vec![message::RateLimitDescriptor {
                key: "a".into(),
                value: "b*".into(),
                quota_mode: true,
                rate_limit: Some(message::RateLimitPolicy {
                    unit: message::RateLimitUnit::Week.into(),
                    requests_per_unit: 5,
                    name: "n".into(),
                    replaces,
                    ..Default::default()
                }),
                descriptors: vec![nested],
                ..Default::default()
            }],
        };
        let without_lines = |mut file: DomainFile| {
            file.descriptors[0].line = 0;
            file.descriptors[0].descriptors[0].line = 0;
            file
        };
        let read = without_lines(DomainFile::parse("t.yaml", text).unwrap());
        assert_eq!(DomainFile::from_message(sent.clone()).unwrap(), read);
        sent.descriptors[0].rate_limit.as_mut().unwrap().unit = 0;
        let error = DomainFile::from_message(sent.clone()).unwrap_err().to_string();
        assert_eq!(error, "t.yaml: the limit of \"a\" needs either a unit or unlimited");
        sent.descriptors[0].rate_limit = None;
        sent.descriptors[0].key.clear();
        let file = DomainFile::from_message(sent).unwrap();
        let error = RateLimitConfig::new(vec![file], Options::default()).unwrap_err().to_string();
        assert!(error.starts_with("t.yaml: a descriptor needs key"), "{error}");
    }

    #[test]
    fn resources_of_another_kind_are_errors() {
        let config = message::RateLimitConfig { domain: "d".into(), ..Default::default() };
        let right = Any { type_url: TYPE_URL.into(), value: config.encode_to_vec() };
        let read = DomainFile::from_resources(std::slice::from_ref(&right)).unwrap();
        assert_eq!((read.len(), &*read[0].domain), (1, "d"));
        let other = Any { type_url: TYPE_URL.replace("RateLimitConfig", "X"), ..right.clone() };
        let rubbish = Any { value: b"\x0a\xffrubbish".to_vec(), ..right.clone() };
        for (wrong, expected) in
            [(other, "resources[1]: the type is"), (rubbish, "resources[1]: is not")]
        {
            let error =
                DomainFile::from_resources(&[right.clone(), wrong]).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let many = vec![right; FILES_MAX + 1];
        assert!(DomainFile::from_resources(&many).is_err());
    }
}
