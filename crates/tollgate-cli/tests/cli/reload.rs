//! A broker reads its files again when they change, however they change, and stays as it was if they are wrong.

use std::fs;
use std::os::unix::fs::symlink;

use crate::folder::Folder;
use crate::running::Broker;

fn config(limit: u64) -> String {
    format!(
        "[store]\nkind = \"memory\"\n[[policy]]\nname = \"api\"\n\
         limits = [{{ name = \"burst\", unit = \"requests\", rule = \"rolling-window\", limit = {limit}, window = \"1h\" }}]\n"
    )
}

fn limit(folder: &Folder, broker: &Broker) -> serde_json::Value {
    let (_, body) = folder.json(&format!("policies --server {}", broker.url));
    body["policies"][0]["limits"][0]["limit"].clone()
}

/// Written in place, and replaced by a rename as editors do.
#[test]
fn a_changed_file_is_read_again() {
    let folder = Folder::with(&config(1));
    let mut broker = Broker::start(&folder, "");
    folder.write("tollgate.toml", &config(2));
    assert_eq!(broker.line(), "reloaded\n");
    assert_eq!(limit(&folder, &broker), 2);
    folder.write("tollgate.toml~", &config(3));
    fs::rename(folder.path().join("tollgate.toml~"), folder.path().join("tollgate.toml")).unwrap();
    assert_eq!(broker.line(), "reloaded\n");
    assert_eq!(limit(&folder, &broker), 3);
}

/// As Kubernetes mounts a ConfigMap: the file is a link through a folder that is a link, and that one is swapped.
#[test]
fn a_link_that_points_elsewhere_is_a_change() {
    let folder = Folder::new();
    let at = |name: &str| folder.path().join(name);
    for (name, text) in [("one", config(1)), ("two", config(2))] {
        fs::create_dir(at(name)).unwrap();
        folder.write(&format!("{name}/tollgate.toml"), &text);
    }
    symlink("one", at("..data")).unwrap();
    symlink("..data/tollgate.toml", at("tollgate.toml")).unwrap();
    let mut broker = Broker::start(&folder, "");
    assert_eq!(limit(&folder, &broker), 1);
    symlink("two", at("..next")).unwrap();
    fs::rename(at("..next"), at("..data")).unwrap();
    assert_eq!(broker.line(), "reloaded\n");
    assert_eq!(limit(&folder, &broker), 2);
}

/// Each mistake is said once, and what is in force stays.
#[test]
fn a_wrong_file_is_refused_whole() {
    let folder = Folder::with(&config(1));
    let mut broker = Broker::start(&folder, "");
    let mut refused = |text: Option<String>, what: &str| {
        match text {
            Some(text) => folder.write("tollgate.toml", &text),
            None => fs::remove_file(folder.path().join("tollgate.toml")).unwrap(),
        }
        let line = broker.error_line();
        assert!(line.contains("not reloaded, everything stays as it was: "), "{line}");
        assert!(line.contains(what), "{line}");
        assert_eq!(limit(&folder, &broker), 1);
    };
    refused(Some(config(0)), "limit \"burst\"");
    refused(Some(format!("[server]\nhttp = \"127.0.0.1:1\"\n{}", config(2))), "[server] changed");
    refused(Some(format!("[audit]\nrecord = \"all\"\n{}", config(2))), "[telemetry] or [audit]");
    refused(Some(config(2).replace("memory", "embedded")), "[store] or [fallback] changed");
    refused(Some(format!("[translate]\n{}", config(2))), "[translate] changed");
    refused(None, "the configuration is gone");
    folder.write("tollgate.toml", &config(5));
    assert_eq!(broker.line(), "reloaded\n");
    assert_eq!(limit(&folder, &broker), 5);
    let line = broker.error_line();
    assert!(line.contains("reloaded: the files are right again"), "{line}");
    assert!(!line.contains('\x1b'), "no colours in a pipe: {line:?}");
    let (code, _, err) = broker.end("-TERM");
    assert_eq!((code, &*err), (Some(0), ""), "nothing was said twice");
}
