//! A broker with TLS, asked by the command line and by redis-cli, and reloaded.

use std::process::Command;

use tollgate_testkit::servers::{Authority, Program, run};

use crate::folder::Folder;
use crate::running::Broker;

const CONFIG: &str = r#"
[server]
watch = false

[server.tls]
certificate = "server.crt"
key = "server.key"

[store]
kind = "memory"
"#;

fn policy(capacity: u64) -> String {
    format!(
        "[[policy]]\nname = \"api\"\nlimits = [{{ name = \"burst\", unit = \"requests\", rule = \"token-bucket\", \
         capacity = {capacity}, refill = \"1/h\" }}]\n"
    )
}

fn folder() -> Folder {
    let folder = Folder::with(&format!("{CONFIG}{}", policy(5)));
    let authority = Authority::new().expect("an authority can be made");
    authority.issue(folder.path()).expect("a certificate can be made");
    folder.write("ca.crt", authority.pem());
    folder
}

#[test]
fn a_broker_with_tls_is_asked_by_the_command_line_and_by_redis_cli() {
    let folder = folder();
    let broker = Broker::start(&folder, "");
    assert!(broker.url.starts_with("https://127.0.0.1:"), "{}", broker.url);
    let ask = format!("acquire api u1 --server {}", broker.url);
    assert_eq!(folder.run(&format!("{ask} --authority ca.crt")).code, 0);
    // The machine does not know the authority.
    let ran = folder.run(&ask);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("no answer from https://127.0.0.1:"), "{}", ran.err);
    assert!(ran.err.contains("name the right one with --authority"), "{}", ran.err);
    let ran = folder.run(&ask.replace("https:", "http:"));
    assert!(ran.err.contains("begins with https:// if it has TLS"), "{}", ran.err);

    let address = broker.resp.clone().expect("it is on");
    let program = Program::new("redis-cli").args("--tls --cacert");
    let program = program.arg(folder.path().join("ca.crt").display().to_string());
    let port = address.rsplit(':').next().expect("a port");
    let program = program.arg("-p").arg(port).args("CL.THROTTLE k 15 30 60");
    assert_eq!(run(&program).expect("redis-cli runs"), "0\n16\n15\n-1\n2\n");
    assert_eq!(broker.end("-TERM").0, Some(0));
}

/// A broker that asks for a certificate answers the command line that shows one of the right authority.
#[test]
fn the_command_line_shows_a_certificate_of_its_own() {
    let folder = folder();
    let [clients, others] = ["clients", "others"].map(|name| {
        let (authority, path) = (Authority::new().unwrap(), folder.path().join(name));
        std::fs::create_dir(&path).unwrap();
        authority.issue(&path).unwrap();
        authority
    });
    folder.write("clients.crt", clients.pem());
    folder.write("others.crt", others.pem());
    let asks = "key = \"server.key\"\nclient_authority = \"clients.crt\"";
    let config = CONFIG.replace("key = \"server.key\"", asks);
    folder.write("tollgate.toml", &format!("{config}{}", policy(5)));
    let broker = Broker::start(&folder, "");
    let ask = format!("acquire api u1 --server {} --authority ca.crt", broker.url);
    let shows =
        |name: &str| format!("--client-cert {name}/server.crt --client-key {name}/server.key");
    let ran = folder.run(&format!("{ask} {}", shows("clients")));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let top = format!("top --once --server {} --authority ca.crt {}", broker.url, shows("clients"));
    assert_eq!(folder.run(&top).code, 0);
    let rows = [
        (String::new(), "show one with --client-cert and --client-key\n"),
        (
            shows("others"),
            "is the certificate of --client-cert valid, and by its client_authority?\n",
        ),
    ];
    for (wrong, what) in rows {
        let ran = folder.run(&format!("{ask} {wrong}"));
        assert_eq!(ran.code, 2, "{wrong}");
        assert!(ran.err.ends_with(what), "{wrong}: {}", ran.err);
    }
    let rows = [
        ("--client-cert ca.crt", "--client-key"),
        ("--client-cert none.crt --client-key server.key", "--client-cert none.crt cannot be read"),
        (
            "--client-cert server.key --client-key server.key",
            "has no certificate in PEM form in it",
        ),
        ("--client-cert server.crt --client-key ca.crt", "has no private key in PEM form in it"),
        (
            "--client-cert clients/server.crt --client-key others/server.key",
            "--client-key others/server.key is not the key of --client-cert clients/server.crt; name the two",
        ),
    ];
    for (flags, what) in rows {
        let ran = folder.run(&format!("{ask} {flags}"));
        assert_eq!(ran.code, 2, "{flags}");
        assert!(ran.err.contains(what), "{flags}: {}", ran.err);
    }
    let ran = folder.run("policies --client-cert server.crt --client-key server.key");
    let what = "--client-cert is for a broker with TLS; add --server https://…";
    assert!(ran.err.contains(what), "{}", ran.err);
}

/// A command that asks the broker of the configuration takes the flags for TLS without its address.
#[test]
fn the_broker_of_the_configuration_is_trusted_by_its_authority() {
    let folder = folder();
    let broker = Broker::start(&folder, "");
    let address = broker.url.strip_prefix("https://").expect("it has TLS");
    let config = CONFIG.replace("watch = false", &format!("watch = false\nhttp = \"{address}\""));
    folder.write("other.toml", &format!("{config}{}", policy(5)));
    for words in ["top --once", "audit denials"] {
        let ran = folder.run(&format!("{words} --config other.toml --authority ca.crt"));
        assert_eq!(ran.code, 0, "{words}: {}", ran.err);
    }
    folder.write("plain.toml", &policy(5));
    let ran = folder.run("top --once --config plain.toml --authority ca.crt");
    let what = "--authority is for a broker with TLS, and the configuration has no [server.tls]";
    assert!(ran.err.contains(what), "{}", ran.err);
}

/// Each wrong address has an error of its own.
#[test]
fn an_address_of_another_protocol_is_named_as_such() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{}", policy(5)));
    let broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
    let resp = format!("http://{}", broker.resp.as_deref().expect("it is on"));
    for url in [broker.grpc.as_deref().expect("it is on"), &resp] {
        let ran = folder.run(&format!("policies --server {url}"));
        assert_eq!(ran.code, 2);
        assert!(ran.err.contains("this is not a port for HTTP"), "{url}: {}", ran.err);
    }
    let ran = folder.run(&format!("policies --server {}", broker.url.replace("http:", "https:")));
    assert!(ran.err.contains("it speaks no TLS; write http:// in --server"), "{}", ran.err);
}

/// The printed commands work unchanged, given the files that they name.
#[test]
fn the_lines_to_try_have_what_tls_needs() {
    let folder = folder();
    let clients = Authority::new().unwrap();
    let client = folder.path().join("client");
    std::fs::create_dir(&client).unwrap();
    clients.issue(&client).unwrap();
    for (from, to) in [("server.crt", "client.crt"), ("server.key", "client.key")] {
        std::fs::rename(client.join(from), folder.path().join(to)).unwrap();
    }
    folder.write("clients.crt", clients.pem());
    let asks = "key = \"server.key\"\nclient_authority = \"clients.crt\"";
    let with_clients = CONFIG.replace("key = \"server.key\"", asks);
    for (config, shows) in [(CONFIG, false), (&with_clients, true)] {
        folder.write("tollgate.toml", &format!("{config}{}", policy(5)));
        let broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
        let line = |program: &str| {
            let mut lines = broker.printed().lines().map(str::trim);
            lines.find_map(|line| line.strip_prefix(program)).expect(program).to_owned()
        };
        let ran = folder.run(&format!("acquire{}", line("tollgate acquire")));
        assert_eq!(ran.code, 0, "{}", ran.err);
        let redis_cli = Command::new("redis-cli")
            .args(line("redis-cli").split_whitespace())
            .current_dir(folder.path())
            .output()
            .expect("redis-cli runs");
        assert_eq!(String::from_utf8_lossy(&redis_cli.stdout), "0\n16\n15\n-1\n2\n");
        let own = if shows { " --cert client.crt --key client.key" } else { "" };
        assert!(line("curl").contains(&format!("/v1/acquire --cacert ca.crt{own} -H")));
        let own = own.replace("--", "-");
        assert!(line("grpcurl").starts_with(&format!(" -cacert ca.crt{own} -d ")));
    }
}

/// SIGHUP reads policies, keys and certificates again; a file with a mistake in any of them changes none.
#[test]
fn a_signal_reloads_everything_or_nothing() {
    let folder = folder();
    let mut broker = Broker::start(&folder, "");
    let url = broker.url.clone();
    let capacity = |authority: &str| {
        let ran = folder.run(&format!("policies --json --server {url} --authority {authority}"));
        assert_eq!(ran.code, 0, "{}", ran.out);
        let body: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
        body["policies"][0]["limits"][0]["limit"].clone()
    };
    assert_eq!(capacity("ca.crt"), 5);
    // Each of these is wrong in another way.
    let rows = [
        (format!("{CONFIG}{}", policy(0)), "tollgate.toml:"),
        (
            format!("{}{}", CONFIG.replace("false", "false\nhttp = \"127.0.0.1:9\""), policy(7)),
            "[server] changed, which takes a restart",
        ),
        (
            format!("{}{}", CONFIG.replace("memory", "embedded"), policy(7)),
            "[store] or [fallback] changed",
        ),
        (
            format!(
                "{CONFIG}[[key]]\nname = \"a\"\nscopes = [\"acquire\"]\nhash_file = \"none\"\n{}",
                policy(7)
            ),
            "that the configuration names cannot be read",
        ),
    ];
    for (text, why) in rows {
        folder.write("tollgate.toml", &text);
        broker.signal("-HUP");
        let line = broker.error_line();
        assert!(line.contains("not reloaded, everything stays as it was: "), "{line}");
        assert!(line.contains(why), "{line}");
        assert_eq!(capacity("ca.crt"), 5);
    }
    folder.write("tollgate.toml", &format!("{CONFIG}{}", policy(7)));
    folder.write("server.crt", "half a certificate");
    broker.signal("-HUP");
    let line = broker.error_line();
    assert!(line.contains("server.crt has no certificate in PEM form in it"), "{line}");
    assert_eq!(capacity("ca.crt"), 5);

    let renewed = Authority::new().unwrap();
    renewed.issue(folder.path()).unwrap();
    folder.write("renewed.crt", renewed.pem());
    broker.signal("-HUP");
    assert_eq!(broker.line(), "reloaded\n");
    assert_eq!(capacity("renewed.crt"), 7);
    assert_eq!(broker.end("-TERM").0, Some(0));
}

/// A certificate with the name of a key has its scopes, on every protocol.
#[test]
fn a_certificate_names_its_key() {
    let folder = folder();
    let clients = Authority::new().unwrap();
    folder.write("clients.crt", clients.pem());
    for (name, place) in [("workers", "named"), ("others", "unnamed")] {
        let path = folder.path().join(place);
        std::fs::create_dir(&path).unwrap();
        clients.issue_for(name, &path).unwrap();
    }
    let asks = "key = \"server.key\"\nclient_authority = \"clients.crt\"";
    let config = CONFIG.replace("key = \"server.key\"", asks);
    let (_, table) = crate::keys::new_key("workers", "--scope acquire");
    folder.write("tollgate.toml", &format!("{config}{}{table}", policy(5)));
    let broker = Broker::start(&folder, "");
    let shows = |place: &str| {
        format!(
            "--authority ca.crt --client-cert {place}/server.crt --client-key {place}/server.key"
        )
    };
    let run = |command: &str, place: &str| {
        folder.run(&format!("{command} --server {} {}", broker.url, shows(place)))
    };
    let ran = run("acquire api u1", "named");
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = run("standing api u1", "named");
    assert!(ran.code == 2 && ran.err.contains("it needs the scope inspect"), "{}", ran.err);
    let ran = run("acquire api u1", "unnamed");
    assert!(ran.code == 2 && ran.err.contains("this needs a key"), "{}", ran.err);
    let port = broker.resp.as_deref().and_then(|at| at.rsplit(':').next()).expect("a port");
    let ping = |place: &str| {
        let cli = Command::new("redis-cli")
            .args(["--tls", "--cacert", "ca.crt", "-h", "127.0.0.1", "-p", port])
            .args([
                "--cert",
                &format!("{place}/server.crt"),
                "--key",
                &format!("{place}/server.key"),
            ])
            .args(["TG.ACQUIRE", "api", "u1"])
            .current_dir(folder.path())
            .output()
            .expect("redis-cli runs");
        String::from_utf8_lossy(&cli.stdout).into_owned()
    };
    assert!(ping("named").starts_with("admitted"), "{}", ping("named"));
    assert!(ping("unnamed").starts_with("NOAUTH"), "{}", ping("unnamed"));
}
