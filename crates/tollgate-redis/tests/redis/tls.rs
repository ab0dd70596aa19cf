//! TLS, with a private authority that only configured clients trust.

use tollgate::ErrorKind;
use tollgate_redis::{Options, Redis};
use tollgate_testkit::servers::{self, Authority};

use crate::{acquire, connect, daily, used};

#[tokio::test]
async fn a_server_with_a_certificate_of_our_own_authority_is_trusted() {
    let authority = Authority::new().unwrap();
    let redis = servers::Redis::start_tls(&authority).unwrap();
    let options = Options::single(redis.url()).authority(authority.pem());
    let (gate, policy) = (connect(options).await, daily(5));
    assert!(acquire(&gate, &policy, "p").await.unwrap());
    assert_eq!(used(&gate, &policy, "p").await, 1);
}

#[tokio::test]
async fn another_authority_is_refused_and_the_text_says_what_to_do() {
    let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    let redis = servers::Redis::start_tls(&authority).unwrap();
    for options in [
        Options::single(redis.url()),
        Options::single(redis.url()).authority(other.pem()),
        Options::cluster([redis.url()]).authority(other.pem()),
    ] {
        let error = Redis::open(options.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{options:?}: {error}");
        assert!(error.to_string().contains("authority_file"), "{options:?}: {error}");
    }
    let junk = Options::single(redis.url()).authority("not a certificate");
    let error = Redis::open(junk).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("PEM"), "{error}");
}
