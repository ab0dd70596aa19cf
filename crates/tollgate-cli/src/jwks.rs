//! The key set of `[jwt]`: read at the start, and when it may have changed.

use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Bytes;
use tollgate::internal::{LogLimit, timeout};
use tollgate::{Clock, Error, ErrorKind, Span};
use tollgate_server::jwt::{JwtVerifier, KEY_SET_BYTES_MAX, KeySet};
use tollgate_transport::http::HttpClient;
use tollgate_transport::tls::ClientTls;

use crate::config::{JwtConfig, KeySetSource};

/// How long a read of the key set may take.
const READ_MAX: Span = Span::from_secs(4);

/// How long a connection for it may take.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// The interval between reads, so that a new key is known before a token has it, and a withdrawn one is forgotten.
const READ_EVERY: Span = Span::from_mins(10);

/// Returns the verifier of `config`. That of a URL reads it again in the background. A URL that cannot be read now is a
/// warning: the broker serves callers with keys, and reads it for the first token.
pub(crate) async fn open(
    config: &JwtConfig,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<JwtVerifier>, Error> {
    let url = match &config.source {
        KeySetSource::File(_) => {
            let keys = config.read()?.unwrap_or_default();
            return Ok(Arc::new(JwtVerifier::new(config.options.clone(), keys)));
        }
        KeySetSource::Url(url) => url.clone(),
    };
    let tls = url.starts_with("https://").then(ClientTls::native);
    let client = HttpClient::with_environment_proxy(
        &url,
        tls.as_ref(),
        Some(CONNECT_MAX),
        KEY_SET_BYTES_MAX,
    );
    let client = client.map_err(|proxy| {
        let text = format!(
            "HTTPS_PROXY names {proxy}, and only proxies that begin with http:// can be used"
        );
        Error::new(ErrorKind::Invalid, text)
    })?;
    let verifier = Arc::new(JwtVerifier::new(config.options.clone(), KeySet::default()));
    read(&client, &url, &verifier, &**clock).await;
    let (followed, clock) = (Arc::clone(&verifier), Arc::clone(clock));
    tokio::spawn(async move {
        loop {
            timeout(&*clock, READ_EVERY, followed.refetch_wanted()).await;
            read(&client, &url, &followed, &*clock).await;
            followed.refetched();
        }
    });
    Ok(verifier)
}

/// Reads the key set at `url`. Without a valid one, the keys that are known stay.
async fn read(client: &HttpClient, url: &str, verifier: &JwtVerifier, clock: &dyn Clock) {
    static LIMIT: LogLimit = LogLimit::new();
    let fetched = timeout(clock, READ_MAX, fetch(client, url)).await;
    match fetched.unwrap_or_else(|| Err("no answer in time".to_owned())) {
        Ok(keys) => verifier.replace_keys(keys),
        Err(error) => {
            if let Some(suppressed) = LIMIT.pass(clock.now()) {
                tracing::warn!(
                    url,
                    error,
                    suppressed,
                    "the key set of [jwt] cannot be read; known keys stay"
                );
            }
        }
    }
}

async fn fetch(client: &HttpClient, url: &str) -> Result<KeySet, String> {
    let request = Request::get(url).header("accept", "application/json").body(Bytes::new());
    let request = request.map_err(|error| error.to_string())?;
    let response = client.send(request).await.map_err(|error| error.to_string())?;
    if response.status() != 200 {
        return Err(format!("the answer has the status {}", response.status()));
    }
    let text = std::str::from_utf8(response.body()).map_err(|_| "it is not UTF-8".to_owned())?;
    KeySet::parse(text).map_err(|error| error.to_string())
}
