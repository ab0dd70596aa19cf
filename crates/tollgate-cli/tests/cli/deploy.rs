//! The unit and the container file in `deploy/`: what they start is what this binary takes.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::folder::Folder;
use crate::keys::new_key;
use crate::running::Broker;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    let path = root().join("deploy").join(file);
    std::fs::read_to_string(&path).expect("it is in deploy/")
}

/// The values of `key` in the unit.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

/// The words after `instruction`, which is written as JSON.
fn words(file: &str, instruction: &str) -> Vec<String> {
    let line = file.lines().find_map(|line| line.split(&format!("{instruction} [")).nth(1));
    let line = line.expect(instruction);
    serde_json::from_str(&format!("[{line}")).expect("words as JSON")
}

/// Starts what `arguments` say, with the paths of a machine replaced by those of a folder, and without asking for a key.
fn starts(arguments: &[&str]) -> (Folder, Broker) {
    let folder = Folder::new();
    let data = folder.path().join("data").display().to_string();
    let config = read("tollgate.toml").replace("/var/lib/tollgate", &data);
    for key in ["path", "incident_file"] {
        let kept = config.lines().any(|line| line.starts_with(&format!("{key} = \"{data}")));
        assert!(kept, "{key} is where the unit and the image keep data");
    }
    folder.write("tollgate.toml", &config);
    assert_eq!(arguments[0], "serve");
    let place = arguments.iter().position(|word| *word == "--config").expect("it names its file");
    assert_eq!(arguments[place + 1], "/etc/tollgate/tollgate.toml");
    let rest: Vec<&str> = arguments[1..]
        .iter()
        .map(|word| match *word {
            "/etc/tollgate/tollgate.toml" => "tollgate.toml",
            word => word,
        })
        .collect();
    let broker = Broker::start(&folder, &format!("{} --grpc 127.0.0.1:0", rest.join(" ")));
    (folder, broker)
}

/// The configurations of the manifests are ones that this binary takes, with the variables that the manifests set.
#[test]
fn the_manifests_name_a_configuration_that_the_binary_takes() {
    let folder = Folder::new();
    folder.write("tollgate.toml", &read("kubernetes/broker/tollgate.toml"));
    let checked = folder.run("policies check tollgate.toml");
    assert_eq!(checked.code, 0, "{}", checked.err);
    let manifest = read("kubernetes/broker/deployment.yaml");
    for variable in ["TOLLGATE_REDIS_URL", "TOLLGATE_KEY_HASH"] {
        let config = read("kubernetes/broker/tollgate.toml");
        assert!(manifest.contains(variable) && config.contains(variable), "{variable}");
    }
    folder.write("config.yaml", &read("kubernetes/envoy-ratelimit/config.yaml"));
    let converted = folder.run("convert envoy-ratelimit config.yaml");
    assert_eq!((converted.code, &*converted.err), (0, ""));
    for name in ["broker", "envoy-ratelimit"] {
        let manifest = read(&format!("kubernetes/{name}/deployment.yaml"));
        for line in [
            "runAsNonRoot: true",
            "readOnlyRootFilesystem: true",
            "secretKeyRef:",
            "readinessProbe:",
        ] {
            assert!(manifest.contains(line), "{name}: {line}");
        }
    }
}

#[test]
fn the_unit_starts_what_the_binary_takes_and_reloads_it() {
    let unit = read("tollgate.service");
    let start = values(&unit, "ExecStart");
    let words: Vec<&str> = start[0].split(' ').collect();
    assert_eq!((start.len(), words[0]), (1, "/usr/local/bin/tollgate"));
    let (folder, mut broker) = starts(&words[1..]);
    assert_eq!(values(&unit, "ExecReload"), ["/bin/kill -HUP $MAINPID"]);
    broker.signal("-HUP");
    assert_eq!(broker.line(), "reloaded\n");
    assert_eq!(values(&unit, "Type"), ["notify"]);
    assert_eq!(values(&unit, "StateDirectory"), ["tollgate"]);
    assert_eq!(values(&unit, "DynamicUser"), ["yes"]);
    // A store that is away at boot does not end it for good.
    assert_eq!(values(&unit, "StartLimitIntervalSec"), ["0"]);
    assert_eq!(values(&unit, "Restart"), ["on-failure"]);
    // The broker asks for its drain_delay on top of this.
    assert_eq!(values(&unit, "TimeoutStopSec"), ["30s"]);
    drop(folder);
}

/// The unmodified unit does not start without keys.
#[test]
fn the_configuration_that_is_deployed_asks_for_a_key() {
    let folder = Folder::with(&read("tollgate.toml"));
    let check = folder.run("policies check tollgate.toml");
    assert_eq!(check.code, 0, "{}", check.err);
    let ran = folder.run("serve");
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("there is no [[key]]"), "{}", ran.err);
}

#[test]
fn systemd_accepts_the_unit() {
    let unit = read("tollgate.service");
    accepts(&unit);
    // The same with the credentials that it shows how to load.
    let with_credentials = unit.replace("#LoadCredential=", "LoadCredential=");
    assert_eq!(values(&with_credentials, "LoadCredential").len(), 2);
    accepts(&with_credentials);
}

/// A key whose hash is read where systemd puts the credential that the unit names.
#[test]
fn the_broker_reads_the_credentials_of_the_unit() {
    let unit = read("tollgate.service");
    let shown = unit.split("hash_file = \"").nth(1).and_then(|rest| rest.split('"').next());
    let path = Path::new(shown.expect("a path"));
    let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
    assert_eq!(path.parent(), Some(Path::new("/run/credentials/tollgate.service")));
    assert!(unit.contains(&format!("#LoadCredential={name}:")), "{name}");
    let (key, table) = new_key("workers", "--scope acquire");
    let (line, hash) = table
        .lines()
        .find_map(|line| line.strip_prefix("hash = ").map(|hash| (line, hash.trim_matches('"'))))
        .expect("a hash");
    // systemd makes the copy readable for the user of the service alone.
    let folder = Folder::new();
    folder.write(name, hash);
    let file = folder.path().join(name);
    std::fs::set_permissions(&file, Permissions::from_mode(0o400)).expect("its mode");
    let table = table.replace(line, &format!("hash_file = {:?}", file.display().to_string()));
    folder.write(
        "tollgate.toml",
        &format!(
            "[store]\nkind = \"memory\"\n{table}\n[[policy]]\nname = \"api\"\nlimits = [{{ name = \"burst\", \
             unit = \"requests\", rule = \"token-bucket\", capacity = 2, refill = \"1/h\" }}]\n"
        ),
    );
    let broker = Broker::start(&folder, "");
    let ask = format!("acquire api alice --server {}", broker.url);
    assert_eq!((folder.run_as(&key, &ask).code, folder.run(&ask).code), (0, 2));
}

fn accepts(unit: &str) {
    let folder = Folder::new();
    // It looks whether the programs are there.
    folder.write("tollgate.service", &unit.replace("/usr/local/bin/tollgate", "/bin/true"));
    let ran = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .arg(folder.path().join("tollgate.service"))
        .output()
        .expect("systemd-analyze runs; cargo xtask test installs it");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && !said.contains("tollgate.service"), "{said}");
}

/// `Type=notify`: systemd is notified when it is ready, by a path and by an abstract socket.
#[test]
fn systemd_is_notified_when_the_broker_is_ready() {
    let folder = Folder::new();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("it binds");
    let name = path.display().to_string();
    let broker = Broker::start_with(&folder, "", &[("NOTIFY_SOCKET", &name)]);
    let mut bytes = [0; 64];
    let mut next = || {
        let read = socket.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    };
    assert_eq!(next(), "READY=1");
    let (code, _, err) = broker.end("-TERM");
    assert_eq!((code, &*err), (Some(0), ""));
    assert_eq!(next(), "STOPPING=1");
}

#[test]
fn the_image_starts_what_the_binary_takes() {
    let file = read("Containerfile");
    assert_eq!(words(&file, "ENTRYPOINT"), ["tollgate"]);
    let command = words(&file.replace("HEALTHCHECK", "").replace("s CMD", "s"), "CMD");
    let (_folder, broker) = starts(&command.iter().map(String::as_str).collect::<Vec<_>>());
    // What it copies is what the build makes.
    assert!(file.contains("--package tollgate-cli --bin tollgate"));
    assert!(file.contains("/build/target/release/tollgate /usr/local/bin/tollgate"));
    assert!(root().join("deploy/tollgate.toml").is_file());
    assert!(file.contains("COPY deploy/tollgate.toml /etc/tollgate/tollgate.toml"));
    let toolchain =
        std::fs::read_to_string(root().join("rust-toolchain.toml")).expect("it is there");
    let version =
        file.split("FROM rust:").nth(1).and_then(|rest| rest.split('-').next()).expect("one");
    assert!(toolchain.contains(&format!("channel = \"{version}.")), "{version}");
    // An unprivileged user, and the ports of the configuration.
    let last = |name: &str| file.lines().filter_map(|line| line.strip_prefix(name)).next_back();
    assert_eq!(last("USER "), Some("10001:10001"));
    let config = read("tollgate.toml");
    for port in last("EXPOSE ").expect("ports").split(' ') {
        assert!(config.contains(&format!("0.0.0.0:{port}\"")), "{port}");
    }
    // The health check works on a broker that runs, and fails on one that does not.
    let check = words(&file, "CMD");
    assert_eq!(check[..2], ["bash", "-c"]);
    let healthy = |url: &str| {
        let port = url.rsplit(':').next().expect("a port");
        let script = check[2].replace("127.0.0.1/8080", &format!("127.0.0.1/{port}"));
        Command::new("bash").args(["-c", &script]).output().expect("bash runs").status.success()
    };
    let url = broker.url.clone();
    assert!(healthy(&url));
    assert_eq!(broker.end("-TERM").0, Some(0));
    assert!(!healthy(&url));
}
