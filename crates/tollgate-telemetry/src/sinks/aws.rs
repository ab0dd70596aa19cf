//! Configuration of AWS clients.

use std::fmt;

use aws_config::{BehaviorVersion, Region, SdkConfig};
#[cfg(feature = "cloudwatch")]
use aws_sdk_cloudwatch::config::{Credentials, SharedHttpClient};
#[cfg(not(feature = "cloudwatch"))]
use aws_sdk_sns::config::{Credentials, SharedHttpClient};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use tollgate::{Error, ErrorKind};

/// Region, endpoint and credentials; the defaults are those of AWS tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AwsOptions {
    /// The region, as in `eu-central-1`.
    pub region: Option<String>,
    /// An endpoint other than the region's, as in `http://127.0.0.1:4566`.
    pub endpoint: Option<String>,
    /// Static credentials, for local servers.
    pub keys: Option<Keys>,
}

/// An access key. Its `Debug` output is redacted.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// Its id.
    pub id: String,
    /// Its secret.
    pub secret: String,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(hidden)")
    }
}

impl AwsOptions {
    /// Loads the configuration of a client; errors name the service `what`.
    ///
    /// # Errors
    /// If no region is set anywhere.
    pub async fn config(&self, what: &str) -> Result<SdkConfig, Error> {
        let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(https());
        if let Some(region) = &self.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(endpoint) = &self.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        if let Some(Keys { id, secret }) = &self.keys {
            let keys = Credentials::new(id, secret, None, None, "tollgate options");
            loader = loader.credentials_provider(keys);
        }
        let config = loader.load().await;
        if config.region().is_none() {
            let text =
                format!("{what}: no region is set; set region in the configuration, or AWS_REGION");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        Ok(config)
    }
}

/// Returns the HTTP client of AWS SDKs, with rustls and ring.
#[must_use]
pub fn https() -> SharedHttpClient {
    Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https()
}
