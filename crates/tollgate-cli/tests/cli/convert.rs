//! `tollgate convert`: the limits of other programs as a configuration, compared with golden files.
//!
//! With the variable `TOLLGATE_BLESS` set, the golden files are written anew.

use std::path::{Path, PathBuf};

use tollgate::internal::edge::environment;

use crate::folder::Folder;

fn files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/converted")
}

/// Converts `source`, compares the outputs with the golden files, and checks the configuration.
fn converts(command: &str, source: &str) {
    let folder = Folder::new();
    let text = std::fs::read_to_string(files().join(source)).expect("a file of the test");
    folder.write(source, &text);
    let ran = folder.run(&format!("convert {command} {source}"));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let golden = |ending: &str, text: &str| {
        let file = files().join(source.replace(".yaml", ending));
        if environment("TOLLGATE_BLESS").is_some() {
            std::fs::write(&file, text).expect("a file of the test");
        }
        assert_eq!(
            text,
            std::fs::read_to_string(&file).expect("a file of the test"),
            "{}",
            file.display()
        );
    };
    golden(".toml", &ran.out);
    golden(".notes", &ran.err);
    folder.write("tollgate.toml", &ran.out);
    let checked = folder.run("policies check tollgate.toml");
    assert_eq!((checked.code, &*checked.err), (0, ""), "{}", ran.out);
}

#[test]
fn the_limits_of_envoyproxy_ratelimit_are_converted() {
    converts("envoy-ratelimit", "shop.yaml");
}

#[test]
fn the_limits_of_limitador_are_converted() {
    converts("limitador", "limits.yaml");
}

#[test]
fn windows_can_be_rolling_and_months_of_the_calendar() {
    let folder = Folder::new();
    folder.write("a.yaml", &std::fs::read_to_string(files().join("shop.yaml")).unwrap());
    let ran = folder.run("convert envoy-ratelimit --rolling --calendar-months a.yaml");
    assert!(ran.out.contains("limit = 1000, window = \"1h\""), "{}", ran.out);
    assert!(
        ran.out.contains("limit = 300, period = \"month\", time_zone = \"UTC\""),
        "{}",
        ran.out
    );
}

#[test]
fn a_wrong_file_is_an_error_with_its_line() {
    let folder = Folder::new();
    folder.write("a.yaml", "domain: d\ndescriptors:\n  - key: a\n    rate_limits: {}\n");
    let ran = folder.run("convert envoy-ratelimit a.yaml");
    assert_eq!((ran.code, &*ran.out), (2, ""));
    assert!(
        ran.err.starts_with(
            "tollgate: a.yaml:4: a descriptor has no key \"rate_limits\"; did you mean rate_limit?"
        ),
        "{}",
        ran.err
    );
    let ran = folder.run("convert limitador a.yaml");
    assert_eq!(
        (ran.code, ran.err.trim_end()),
        (2, "tollgate: a.yaml:1: the file must be a list of limits, not a map")
    );
    let ran = folder.run("convert limitador none.yaml");
    assert_eq!(ran.code, 2, "{}", ran.err);
}
