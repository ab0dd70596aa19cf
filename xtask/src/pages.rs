//! Pages that must stay true: what they name is looked up in the sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the workspace").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns every file below `folder` with `extension`, except build output and hidden folders.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir()
            && name != "target"
            && name != "node_modules"
            && !name.to_string_lossy().starts_with('.')
        {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}

fn code() -> String {
    let folders = ["crates", "apps", "examples"];
    let files = folders.iter().flat_map(|folder| files(&root().join(folder), "rs"));
    files.map(|path| read(&path)).collect::<Vec<_>>().join("\n")
}

/// The ids in `text`, written as in R000.1 or r000_1.
fn ids(text: &str) -> BTreeSet<String> {
    let upper = text.replace("r00", "R00").replace('_', ".");
    let mut all = BTreeSet::new();
    for (at, _) in upper.match_indices("R00") {
        let id: String = upper[at..]
            .chars()
            .take_while(|c| c.is_ascii_digit() || matches!(c, 'R' | '.'))
            .collect();
        let (Some((name, number)), true) = (id.split_once('.'), 5 < id.len()) else { continue };
        let number: String = number.chars().take_while(char::is_ascii_digit).collect();
        if name.len() == 4 && !number.is_empty() {
            all.insert(format!("{name}.{number}"));
        }
    }
    all
}

/// The page of the requirements names only tests that exist, every id that a test names, and what the tests ran on.
#[test]
fn every_test_that_the_requirements_name_exists() {
    let page = read(&root().join("docs/requirements.md"));
    let code = code();
    let mut named = 0;
    for row in page.lines().filter(|line| line.starts_with("| R00")) {
        for name in row.split('`').skip(1).step_by(2) {
            assert!(code.contains(&format!("fn {name}(")), "{name} is named in {row}");
            named += 1;
        }
        let shown = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        let is_said =
            ["real: ", "emulator: ", "fake: ", "pure"].iter().any(|on| shown.starts_with(on));
        assert!(is_said, "what the tests ran on is missing in {row}");
    }
    assert!(30 < named, "the page names {named} tests");
    let ranges = ["R000.9", "R000.10", "R000.11", "R000.13", "R000.14", "R000.15"];
    let listed = ids(&page);
    let missing: Vec<_> = ids(&code)
        .into_iter()
        .filter(|id| !listed.contains(id) && !ranges.contains(&id.as_str()))
        .collect();
    assert_eq!(missing, Vec::<String>::new(), "ids that the code names and the page does not");
}

/// The anchor of a heading.
fn anchor(line: &str) -> String {
    let words = line.trim_start_matches('#').trim().to_lowercase();
    words
        .chars()
        .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
        .collect::<String>()
        .replace(' ', "-")
}

/// Every link from a page to a file of the repository, or to a heading in one, has a target.
#[test]
fn links_between_pages_lead_somewhere() {
    let pages = files(&root(), "md");
    assert!(40 < pages.len(), "{} pages", pages.len());
    for path in pages {
        let (text, page) = (read(&path), path.display());
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                "" => path.clone(),
                file => path.parent().expect("a page is in a folder").join(file),
            };
            assert!(file.exists(), "{page} links to {target}");
            let has_heading = || read(&file).lines().any(|line| anchor(line) == heading);
            assert!(heading.is_empty() || has_heading(), "{page} links to {target}");
        }
    }
}

/// Every path that ARCHITECTURE.md names exists.
#[test]
fn the_paths_of_the_architecture_exist() {
    let page = read(&root().join("ARCHITECTURE.md"));
    let words = page.split(|c: char| c.is_whitespace() || "`(),;".contains(c));
    let paths: Vec<_> = words
        .filter(|word| ["crates/", "apps/"].iter().any(|folder| word.starts_with(folder)))
        .collect();
    assert!(30 < paths.len(), "the page names {} paths", paths.len());
    for path in paths {
        assert!(root().join(path).exists(), "ARCHITECTURE.md names {path}");
    }
}
