//! The commands on Redis: `[store] kind = "redis"`.

use tollgate_testkit::servers::{Append, Authority, Redis, RedisSentinel};

use crate::folder::Folder;
use crate::stores::on;

/// A folder whose `[store]` is Redis with the settings `store`, and whose policy `api` refuses while the store is away.
pub(crate) fn closed(store: &str) -> Folder {
    let limit = r#"{ name = "all", unit = "requests", rule = "token-bucket", capacity = 1000, refill = "1/d" }"#;
    Folder::with(&format!(
        "[store]\nkind = \"redis\"\n{store}\n\
         [[policy]]\nname = \"api\"\non_store_failure = \"closed\"\nlimits = [{limit}]\n"
    ))
}

/// A url of something else is refused without being asked, and without its password.
#[test]
fn a_url_that_is_not_of_redis_is_refused() {
    for (store, shown) in [
        ("url = \"http://:s3cret@x/\"", "http://x/"),
        ("url = \"x\"", "an unreadable url"),
        ("url = \"redis://:s3cret@x/first\"", "redis://x/first"),
        ("url = \"redis://a/, http://b/\"\ncluster = true", "http://b/"),
    ] {
        let ran = closed(store).run("policies check tollgate.toml");
        let says =
            format!("{shown} is not the url of a Redis server; use redis://[user:password@]host");
        assert!(ran.code == 2 && ran.err.contains(&says), "{store}: {}", ran.err);
        assert!(!ran.err.contains("s3cret"), "{}", ran.err);
    }
    for store in [
        "url = \"redis://:s3cret@x:6379/1\"",
        "url = \"rediss://x\"",
        "url = \"valkey://x/\"",
        "url = \"redis://a/, redis://b:7000\"\ncluster = true",
    ] {
        let ran = closed(store).run("policies check tollgate.toml");
        assert_eq!(ran.code, 0, "{store}: {}", ran.err);
    }
}

/// Mistakes about Sentinel are shown with what would be right.
#[test]
fn wrong_sentinel_settings_are_refused() {
    let sentinel = "sentinel = [\"127.0.0.1:26379\"]\n";
    for (store, says) in [
        (sentinel.to_owned(), "sentinel needs master"),
        ("master = \"m\"\n".to_owned(), "add sentinel"),
        ("url = \"redis://x/\"\npassword = \"p\"\n".to_owned(), "put it into the url"),
        (format!("{sentinel}master = \"m\"\nurl = \"redis://x/\"\n"), "exclude each other"),
        (format!("{sentinel}master = \"m\"\ncluster = true\n"), "a cluster has no sentinels"),
        ("sentinel = []\nmaster = \"m\"\n".to_owned(), "sentinel is empty"),
        ("sentinel = [\"redis://x\"]\nmaster = \"m\"\n".to_owned(), "is not host:port"),
    ] {
        let ran = closed(&store).run("policies check tollgate.toml");
        assert!(ran.code == 2 && ran.err.contains(says), "{store}: {}", ran.err);
    }
    let redis = Redis::start().expect("a server");
    let real = RedisSentinel::start(&redis, "").expect("a sentinel");
    let named = closed(&format!("sentinel = [\"{}\"]\nmaster = \"other\"\n", real.address()));
    let ran = named.run("acquire api p7");
    assert!(ran.code == 2 && ran.err.contains("knows no master \"other\""), "{}", ran.err);
    let absent = closed("sentinel = [\"127.0.0.1:1\"]\nmaster = \"m\"\n").run("acquire api p7");
    assert!(absent.code == 2 && absent.err.contains("no sentinel"), "{}", absent.err);
}

/// The password comes from the environment or a file, and no message shows it.
#[test]
fn a_secret_url_is_read_from_outside_and_never_shown() {
    let redis = Redis::start_with(Append::Never, "--requirepass s3cret").expect("a server");
    let place = redis.url().replace("redis://", "");
    let by_file = on("[store]\nkind = \"redis\"\nurl_file = \"redis-url\"\n");
    by_file.write("redis-url", &format!("redis://:s3cret@{place}\n"));
    assert_eq!(by_file.run("acquire llm p7").code, 0);
    by_file.write("redis-url", &format!("redis://:s3cret-too@{place}\n"));
    let ran = by_file.run("acquire llm p7");
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("password is wrong") && !ran.err.contains("s3cret"), "{}", ran.err);
    let by_variable = on("[store]\nkind = \"redis\"\nurl_env = \"TOLLGATE_TEST_REDIS\"\n");
    let mut command = by_variable.command("acquire llm p7");
    command.env("TOLLGATE_TEST_REDIS", format!("redis://:s3cret@{place}"));
    assert_eq!(command.output().expect("the binary runs").status.code(), Some(0));
    let ran = by_variable.run("acquire llm p7");
    assert!(ran.code == 2 && ran.err.contains("TOLLGATE_TEST_REDIS"), "{}", ran.err);
}

/// Over TLS, with an authority of one's own that the configuration names.
#[test]
fn a_server_with_tls_is_reached_with_its_authority_and_not_without() {
    let authority = Authority::new().expect("an authority");
    let redis = Redis::start_tls(&authority).expect("a server");
    let url = format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", redis.url());
    let named = on(&format!("{url}authority_file = \"authority.pem\"\n"));
    let missing = named.run("acquire llm p7");
    assert!(missing.code == 2 && missing.err.contains("authority.pem"), "{}", missing.err);
    std::fs::write(named.path().join("authority.pem"), authority.pem()).expect("a file");
    let trusted = named.run("acquire llm p7");
    assert_eq!(trusted.code, 0, "{}", trusted.err);
    let refused = on(&url).run("acquire llm p7");
    assert!(refused.code == 2 && refused.err.contains("authority_file"), "{}", refused.err);
}
