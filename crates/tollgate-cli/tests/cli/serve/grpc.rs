//! The broker over gRPC: where it listens, and whom it asks for a key.

use tollgate::policy::Period;
use tollgate::{Ask, CalendarWindow, GateExt as _, Limit, Policy};
use tollgate_client::{Client, ClientOptions};

use crate::folder::Folder;
use crate::running::Broker;

/// R002.4: an application reaches the broker by gRPC, and the command line sees what it used.
#[test]
fn r002_4_serve_answers_grpc_where_the_configuration_says() {
    let folder = Folder::with(
        "[server]\ngrpc = \"127.0.0.1:0\"\n[[policy]]\nname = \"api\"\n\
         limits = [{ name = \"day\", unit = \"requests\", rule = \"calendar-window\", limit = 5, period = \"day\", time_zone = \"UTC\" }]\n\
         [[envoy]]\ndomain = \"shop\"\ndescriptor = [{ key = \"client\" }]\npolicy = \"api\"\nsubject = \"{client}\"\n",
    );
    let broker = Broker::serve(&folder, "--http 127.0.0.1:0 --resp off", &[]);
    let mut lines = broker.printed.lines();
    let grpc = lines.find_map(|line| line.trim().strip_prefix("grpc  ")).expect("it says where");
    let client = Client::new(&ClientOptions::new().grpc(grpc.trim())).expect("an address");
    let day = CalendarWindow::new(5, Period::Day);
    let policy = Policy::new("api", [Limit::new("day", "requests", day)]).expect("a policy");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let ask = Ask::new(&policy, "alice").cost("requests", 2);
    let decision = runtime.block_on(client.acquire(&ask)).expect("the broker answers");
    assert!(decision.is_admitted());
    let ran = folder.run(&format!("standing api alice --server {}", broker.url));
    assert!(ran.out.contains("day: used 2 of 5, 3 left"), "{}", ran.out);
}

/// The flag goes before the file, and keys are asked for here as everywhere.
#[test]
fn serve_asks_for_keys_over_grpc() {
    let made = Folder::new().run("keys new workers --scope acquire --json").out;
    let made: serde_json::Value = serde_json::from_str(&made).expect("JSON");
    let text = |name: &str| made[name].as_str().expect("text").to_owned();
    let folder = Folder::with(&format!(
        "[server]\ngrpc = \"off\"\n[[key]]\nname = \"workers\"\nscopes = [\"acquire\"]\nhash = \"{}\"\n[[policy]]\nname = \"api\"\n\
         limits = [{{ name = \"day\", unit = \"requests\", rule = \"calendar-window\", limit = 5, period = \"day\", time_zone = \"UTC\" }}]\n",
        text("hash")
    ));
    let broker = Broker::start(&folder, "--grpc 127.0.0.1:0");
    let mut lines = broker.printed.lines();
    let grpc = lines.find_map(|line| line.trim().strip_prefix("grpc  ")).expect("it says where");
    let settings = ClientOptions::new().grpc(grpc.trim());
    let day = CalendarWindow::new(5, Period::Day);
    let policy = Policy::new("api", [Limit::new("day", "requests", day)]).expect("a policy");
    let ask = Ask::new(&policy, "alice");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let stranger = Client::new(&settings).expect("an address");
    let refused = runtime.block_on(stranger.acquire(&ask)).expect_err("it has no key");
    assert!(refused.to_string().contains("this needs a key"), "{refused}");
    let worker = Client::new(&settings.key(&text("key")).expect("a key")).expect("an address");
    assert!(runtime.block_on(worker.acquire(&ask)).expect("the broker answers").is_admitted());
    let refused = runtime.block_on(worker.reset(&policy, "alice")).expect_err("it may only ask");
    assert!(refused.to_string().contains("it needs the scope administer"), "{refused}");
}
