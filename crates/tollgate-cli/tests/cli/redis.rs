//! The commands on Redis: `[store] kind = "redis"`.

use tollgate_testing::servers::{Append, Authority, Redis};

use crate::stores::on;

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
