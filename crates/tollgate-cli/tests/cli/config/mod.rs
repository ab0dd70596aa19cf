//! Which file is read, and what is a good one; beside it what is said about a broken one.

mod broken;
mod together;

use crate::folder::Folder;

const RPM: &str =
    r#"{ name = "rpm", unit = "requests", rule = "rolling-window", limit = 5, window = "1m" }"#;

/// A file with one policy, whose limit is on line 4.
fn with_limit(limit: &str) -> String {
    format!("[[policy]]\nname = \"api\"\nlimits = [\n  {limit},\n]\n")
}

#[test]
fn a_file_without_policies_or_no_file_at_all_is_refused() {
    let folder = Folder::with("[server]\nhttp = \"127.0.0.1:8080\"\n");
    let ran = folder.run("policies");
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.starts_with("tollgate.toml: has no policy; add one, as in [[policy]] with "),
        "{}",
        ran.err
    );
    for arguments in ["policies --config other.toml", "policies check other.toml"] {
        let ran = folder.run(arguments);
        assert_eq!(ran.err, "other.toml: there is no such file; check the path\n", "{arguments}");
    }
    let (code, problem) = folder.json("policies --config other.toml");
    assert_eq!((code, &problem["kind"]), (2, &"invalid".into()));
}

/// A device or a pipe may never end, so only a regular file is read, and no more of it than is allowed.
#[test]
fn what_is_not_a_regular_file_is_refused_at_once() {
    let folder = Folder::with(&with_limit(RPM));
    let made = std::process::Command::new("mkfifo").arg(folder.path().join("pipe")).status();
    assert!(made.unwrap().success());
    for file in ["/dev/zero", "/dev/full", "pipe", "."] {
        for arguments in [format!("policies --config {file}"), format!("policies check {file}")] {
            let ran = folder.run(&arguments);
            let text = "is not a regular file; name the file itself";
            assert_eq!((ran.code, ran.err), (2, format!("{file}: {text}\n")), "{arguments}");
        }
    }
    let large = std::fs::File::create(folder.path().join("large.toml")).unwrap();
    large.set_len((16 << 20) + 1).unwrap();
    let ran = folder.run("policies check large.toml");
    assert_eq!((ran.code, &*ran.err), (2, "large.toml: has more than 16777216 bytes\n"));
}

/// A good file is accepted; the one named is read, else the one here; and its data lie beside it.
#[test]
fn the_file_named_is_read_and_its_data_lie_beside_it() {
    let folder = Folder::with(&with_limit(RPM));
    assert_eq!(
        folder.run("policies check tollgate.toml").out,
        "tollgate.toml: ok, policies: api\n  api\n    rpm: requests, 5 in any 1m; issues at most 5\n"
    );
    assert_eq!(folder.run("policies").out, "api\n  rpm: requests, 5 in any 1m; issues at most 5\n");

    std::fs::create_dir(folder.path().join("etc")).unwrap();
    let other =
        "[store]\npath = \"state\"\n".to_owned() + &with_limit(RPM).replace("\"api\"", "\"other\"");
    folder.write("etc/other.toml", &other);
    let ran = folder.run("acquire other u1 --config etc/other.toml");
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(folder.path().join("etc/state").exists());
}

/// Per-subject overrides change the numbers of one subject and nothing else.
#[test]
fn an_override_in_the_file_applies_to_its_subject() {
    let folder = Folder::with(&format!(
        "{}\n[[policy.overrides]]\nsubject = \"alice\"\nlimits = [{{ name = \"rpm\", limit = 1 }}]\n",
        with_limit(RPM)
    ));
    assert_eq!(folder.run("acquire api alice").code, 0);
    assert_eq!(folder.run("acquire api alice").code, 1);
    for _ in 0..5 {
        assert_eq!(folder.run("acquire api bob").code, 0);
    }
    assert_eq!(folder.run("acquire api bob").code, 1);
    assert!(folder.run("policies").out.ends_with("\n  other numbers for 1 subject\n"));
}

/// The file that runs when there is none is also what the documentation shows, so it must stay valid.
#[test]
fn the_sample_is_a_valid_file() {
    let folder = Folder::with(include_str!("../../../../tollgate-config/src/sample.toml"));
    let ran = folder.run("policies check tollgate.toml");
    let first = "tollgate.toml: ok, policies: gemini-free, api, video-requests\n";
    assert!(ran.out.starts_with(first), "{}", ran.out);
    // A large window has a grid, which a person sees before it decides anything.
    assert!(ran.out.contains("250000 in any 1m, on a grid of 64 slots"), "{}", ran.out);
}

/// Every example of the documentation is a valid file, or a limit that makes one.
#[test]
fn the_examples_of_the_documentation_are_valid() {
    let text = include_str!("../../../../../docs/configuration.md");
    let blocks: Vec<&str> =
        text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 13);
    for block in blocks {
        let file = if block.starts_with('{') { with_limit(block.trim()) } else { block.to_owned() };
        let ran = Folder::with(&file).run("policies check tollgate.toml");
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
}
