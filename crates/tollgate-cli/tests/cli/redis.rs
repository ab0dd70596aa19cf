//! The commands on Redis: `[store] kind = "redis"`.

use tollgate_testing::servers::{Append, Redis};

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
