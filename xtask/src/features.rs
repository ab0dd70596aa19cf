//! Compiles each crate without its default features, and with each of its features alone.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use crate::run::finish;
use crate::step::command;

/// The folders of workspace members with features of their own.
const FOLDERS: [&str; 2] = ["apps", "crates"];

/// Checks every feature of every crate, and prints the combinations that do not compile.
pub(crate) fn run() -> ExitCode {
    let mut failures = Vec::new();
    for (package, features) in packages() {
        for feature in std::iter::once(None).chain(features.iter().map(Some)) {
            let feature = feature.map(|name| format!(" --features {name}")).unwrap_or_default();
            let check = format!("cargo check --quiet -p {package} --no-default-features{feature}");
            eprintln!("==> {check}");
            if let Err(problem) = finish(command(&check)) {
                failures.push(format!("{problem}: {check}"));
            }
        }
    }
    if failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("{}", failures.join("\n"));
    ExitCode::FAILURE
}

/// Returns the crates that have features, with their names.
fn packages() -> Vec<(String, Vec<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut packages = Vec::new();
    for folder in FOLDERS {
        for member in fs::read_dir(root.join(folder)).into_iter().flatten().flatten() {
            let manifest = fs::read_to_string(member.path().join("Cargo.toml")).unwrap_or_default();
            let features = features(&manifest);
            if let (Some(name), false) = (package_name(&manifest), features.is_empty()) {
                packages.push((name.to_owned(), features));
            }
        }
    }
    packages.sort();
    packages
}

fn package_name(manifest: &str) -> Option<&str> {
    manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
}

/// Returns the names in the section `[features]`, without `default`.
fn features(manifest: &str) -> Vec<String> {
    let section = manifest.lines().skip_while(|line| *line != "[features]").skip(1);
    section
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(" = ").map(|(name, _)| name.to_owned()))
        .filter(|name| name != "default")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_of_a_manifest_are_listed_without_the_default() {
        let manifest = "[package]\nname = \"a\"\n\n[features]\ndefault = [\"b\"]\n# Why.\nb = []\nc = [\"dep:x\"]\n\n[lints]\nd = 1\n";
        assert_eq!(features(manifest), ["b", "c"]);
        assert_eq!(package_name(manifest), Some("a"));
    }

    #[test]
    fn the_binary_has_features_for_its_applications() {
        let packages = packages();
        let binary =
            packages.iter().find(|(name, _)| name == "tollgate-cli").expect("it has features");
        assert!(binary.1.contains(&"drs".to_owned()), "{binary:?}");
    }
}
