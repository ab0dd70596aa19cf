//! Help, completions, and how the binary treats its output.

use std::process::Stdio;

use crate::folder::Folder;

const COMMANDS: [&str; 39] = [
    "acquire",
    "settle",
    "release",
    "renew",
    "standing",
    "reset",
    "repair",
    "export",
    "import",
    "convert envoy-ratelimit",
    "convert limitador",
    "envoy-ratelimit",
    "policies",
    "policies check",
    "serve",
    "lambda",
    "violation",
    "plan",
    "keys new",
    "top",
    "audit denials",
    "audit history",
    "audit incidents",
    "dynamodb create-table",
    "postgres install",
    "gateway check",
    "drs servers",
    "drs jobs",
    "drs capacity",
    "drs recover",
    "drs terminate",
    "translate",
    "translate jobs",
    "translate status",
    "translate resume",
    "translate cancel",
    "translate worker",
    "translate lambda",
    "completions",
];

#[test]
fn every_command_has_help_with_an_example() {
    let folder = Folder::new();
    let top = folder.run("--help");
    assert_eq!(top.code, 0);
    for command in COMMANDS {
        let ran = folder.run(&format!("{command} --help"));
        assert_eq!((ran.code, &*ran.err), (0, ""), "{command}");
        let (_, examples) = ran
            .out
            .split_once("\nExamples:\n")
            .unwrap_or_else(|| panic!("{command} has no example"));
        assert!(examples.contains(&format!("tollgate {command}")), "{command}: {examples}");
        let name = command.split(' ').next().unwrap();
        assert!(top.out.contains(&format!("\n  {name} ")), "{command} is not listed");
    }
    // The list above is whole: every command that the help lists is in it.
    let listed =
        top.out.split("\nCommands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
    for line in listed.lines() {
        let name = line.split_whitespace().next().unwrap();
        let is_tested = COMMANDS.iter().any(|known| known.split(' ').next() == Some(name));
        assert!(name == "help" || is_tested, "{name} is not tested");
    }
}

#[test]
fn mistyped_flags_and_no_command_are_errors_with_help() {
    let folder = Folder::new();
    for arguments in ["", "aquire api u1", "acquire", "acquire api u1 --csot requests=1"] {
        let ran = folder.run(arguments);
        assert_eq!((ran.code, &*ran.out), (2, ""), "{arguments}");
        assert!(ran.err.contains("Usage: tollgate"), "{arguments}: {}", ran.err);
    }
    assert!(folder.run("aquire api u1").err.contains("acquire"));
}

/// Programs that ask for JSON get the problem document, also about the flags themselves.
#[test]
fn mistyped_flags_with_json_are_a_problem_document() {
    let folder = Folder::new();
    let rows = [
        (
            "",
            "'tollgate' requires a subcommand but one was not provided [subcommands: acquire, settle, release, renew, \
             standing, reset, repair, export, import, convert, envoy-ratelimit, violation, policies, serve, lambda, plan, keys, top, dynamodb, postgres, audit, gateway, drs, translate, completions, help]",
        ),
        (
            "aquire api u1",
            "unrecognized subcommand 'aquire'; tip: some similar subcommands exist: 'audit', 'acquire'",
        ),
        (
            "acquire",
            "the following required arguments were not provided: <POLICY SUBJECT | POLICY:SUBJECT>...",
        ),
        (
            "acquire api",
            "\"api\" is not a policy with a subject; write api alice for one, and user:u1 team:t7 for several",
        ),
        (
            "acquire api u1 --csot requests=1",
            "unexpected argument '--csot' found; tip: a similar argument exists: '--cost'",
        ),
        (
            "acquire api u1 --cost",
            "a value is required for '--cost <UNIT=N>' but none was supplied",
        ),
    ];
    for (arguments, detail) in rows {
        let ran = folder.run(&format!("--json {arguments}"));
        assert_eq!((ran.code, &*ran.err), (2, ""), "{arguments}");
        let problem: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!((&problem["kind"], &problem["detail"]), (&"invalid".into(), &detail.into()));
    }
    for arguments in ["--help --json", "acquire --json --help", "--version --json"] {
        let ran = folder.run(arguments);
        assert_eq!((ran.code, &*ran.err), (0, ""), "{arguments}");
        assert!(ran.out.contains("tollgate"), "{arguments}: {}", ran.out);
    }
    // An argument after `--` is no flag.
    let ran = folder.run("acquire api u1 more -- --json");
    assert_eq!((ran.code, &*ran.out), (2, ""));
    assert!(ran.err.contains("is not a policy with a subject"), "{}", ran.err);
}

#[test]
fn completions_know_every_command() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish"] {
        let ran = folder.run(&format!("completions {shell}"));
        assert_eq!((ran.code, &*ran.err), (0, ""), "{shell}");
        for command in ["acquire", "standing", "serve", "--server"] {
            let flag = command.trim_start_matches("--");
            assert!(ran.out.contains(flag), "{shell} does not complete {command}");
        }
    }
}

/// A reader that went away is not an error: `tollgate completions zsh | head -1` ends well.
#[test]
fn a_broken_pipe_is_success() {
    let folder = Folder::new();
    let mut child = folder
        .command("completions zsh")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
