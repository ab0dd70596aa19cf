//! The gateway for LLM APIs beside a bare reverse proxy of hyper, LiteLLM and Portkey, in front of the same provider.
//!
//! The gateway is the binary `tollgate serve` on the memory store, with admission by three charges and settlement on. The
//! proxies share one processor, provider and clients the other. The provider answers at once.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;
use tollgate_testkit::servers::Port;

use crate::client::{self, Http, Pace, Talk};
use crate::files::raise_files;
use crate::measure::median;
use crate::peers::{Side, resident, run_on, ticks};

const ROUNDS: usize = 7;
const TURN: Duration = Duration::from_millis(1_000);
const CONNECTIONS: usize = 32;
const STREAMS: usize = 300;
const OPEN_STREAMS: usize = 1_000;
const CALLS_FOR_MEMORY: u64 = 100_000;

/// The limit of the model `limited` at every contender that has limits, in requests per minute.
const LIMIT: u64 = 100;

const LITELLM: &str = "target/servers/litellm";
const PORTKEY: &str = "target/servers/portkey";

/// A request is the text before its key, which makes it unique, and the text behind it.
const CHAT: [&str; 2] =
    [r#"{"model":"gpt-4o","max_tokens":20,"messages":[{"role":"user","content":""#, r#""}]}"#];
const LIMITED: [&str; 2] =
    [r#"{"model":"limited","max_tokens":20,"messages":[{"role":"user","content":""#, r#""}]}"#];
const STREAM: &str = r#"{"model":"gpt-4o","stream":true,"max_tokens":20,"messages":[{"role":"user","content":"hi"}]}"#;
const HELD: &str = r#"{"model":"gpt-4o","stream":true,"user":"hold","max_tokens":20,"messages":[{"role":"user","content":"hi"}]}"#;

/// What a contender is measured against.
struct Proxy {
    name: &'static str,
    child: Child,
    at: SocketAddr,
    path: &'static str,
    headers: &'static str,
    _folder: Option<TempDir>,
    _port: Option<Port>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn run() {
    println!(
        "\n# The gateway for LLM APIs, admission and settlement on, beside a bare reverse proxy and its peers"
    );
    raise_files();
    run_on(Side::Clients);
    let (mut provider, upstream) = start_llm(&["upstream"]);
    run_on(Side::Servers);
    let proxies: Vec<Proxy> =
        [bare(upstream), Some(tollgate(upstream)), litellm(upstream), portkey(upstream)]
            .into_iter()
            .flatten()
            .collect();
    run_on(Side::Clients);
    rates(&proxies);
    latencies(&proxies);
    first_tokens(&proxies);
    memory(&proxies);
    over_the_limit(&proxies, upstream);
    run_on(Side::Both);
    drop(proxies);
    let _ = provider.kill();
    let _ = provider.wait();
}

fn talk(proxy: &Proxy, body: [&'static str; 2]) -> impl Fn() -> Box<dyn Talk> {
    let (path, headers) = (proxy.path, proxy.headers);
    move || Box::new(Http::new(path, body, "\"usage\"").headers(headers))
}

fn verdict(held: bool) -> &'static str {
    if held { "ok" } else { "MISSED" }
}

/// Calls per second of the proxy's processor.
fn rates(proxies: &[Proxy]) {
    println!("\n{CONNECTIONS} connections, one call on each");
    let mut rates = vec![(Vec::new(), Vec::new()); proxies.len()];
    for round in 0..=ROUNDS {
        for (proxy, (wall, processor)) in proxies.iter().zip(&mut rates) {
            let before = ticks(&proxy.child);
            let figures =
                client::run(proxy.at, &talk(proxy, CHAT), CONNECTIONS, Pace::Closed(1), TURN);
            let seconds = (ticks(&proxy.child) - before).max(1) as f64 / 100.0;
            // The first round warms everything up.
            if 0 < round {
                wall.push(figures.rate);
                processor.push(figures.rate * TURN.as_secs_f64() / seconds);
            }
        }
    }
    let per_second: Vec<f64> =
        rates.iter().map(|(_, processor)| median(processor.clone())).collect();
    let ours = proxies.iter().position(|proxy| proxy.name == "tollgate").unwrap_or(0);
    for (place, proxy) in proxies.iter().enumerate() {
        print!(
            "  {:<20} {:>8.0} /s   {:>8.0} per second of processor",
            proxy.name,
            median(rates[place].0.clone()),
            per_second[place]
        );
        let ratio = per_second[ours] / per_second[place];
        let least = match proxy.name {
            "bare proxy" => 0.5,
            "LiteLLM" => 50.0,
            "Portkey" => 5.0,
            _ => 0.0,
        };
        if place != ours {
            print!("   tollgate {ratio:.2} of it >= {least}: {}", verdict(least <= ratio));
        }
        println!();
    }
}

/// What a call takes longer than through the bare proxy, with one connection.
fn latencies(proxies: &[Proxy]) {
    println!("\none connection, latency of a call");
    let mut samples = vec![(Vec::new(), Vec::new()); proxies.len()];
    for round in 0..=ROUNDS {
        for (proxy, (p50, p99)) in proxies.iter().zip(&mut samples) {
            let figures = client::run(proxy.at, &talk(proxy, CHAT), 1, Pace::Closed(1), TURN);
            if 0 < round {
                p50.push(figures.p50);
                p99.push(figures.p99);
            }
        }
    }
    let medians: Vec<(f64, f64)> =
        samples.into_iter().map(|(p50, p99)| (median(p50), median(p99))).collect();
    for (proxy, (p50, p99)) in proxies.iter().zip(&medians) {
        let (more, more_99) = (p50 - medians[0].0, p99 - medians[0].1);
        print!(
            "  {:<20} p50 {p50:>7.0} us, p99 {p99:>7.0} us   {more:>+7.0}, {more_99:>+7.0} us",
            proxy.name
        );
        if proxy.name == "tollgate" {
            print!("   <= 200, 500: {}", verdict(more <= 200.0 && more_99 <= 500.0));
        }
        println!();
    }
}

/// How much later the first chunk of a stream arrives than through the bare proxy.
fn first_tokens(proxies: &[Proxy]) {
    println!("\none connection, first chunk of a stream");
    let proxies: Vec<&Proxy> = proxies.iter().filter(|proxy| streams(proxy)).collect();
    let mut times = vec![Vec::new(); proxies.len()];
    let mut connections: Vec<TcpStream> = proxies.iter().map(|proxy| connect(proxy)).collect();
    for stream in 0..STREAMS + STREAMS / 10 {
        for ((proxy, connection), times) in proxies.iter().zip(&mut connections).zip(&mut times) {
            // The slow ones take fewer turns.
            let is_slow = matches!(proxy.name, "LiteLLM" | "Portkey");
            if is_slow && stream % 10 != 0 {
                continue;
            }
            let begun = Instant::now();
            post(connection, proxy, STREAM);
            let mut seen = read_until(connection, Vec::new(), b"data: ");
            if STREAMS / 10 <= stream {
                times.push(begun.elapsed().as_micros() as f64);
            }
            seen = read_until(connection, seen, b"[DONE]");
            read_until(connection, seen, b"0\r\n\r\n");
        }
    }
    let medians: Vec<f64> = times.into_iter().map(median).collect();
    for (proxy, micros) in proxies.iter().zip(&medians) {
        let more = micros - medians[0];
        print!("  {:<20} p50 {micros:>7.0} us   {more:>+7.0} us", proxy.name);
        if proxy.name == "tollgate" {
            print!("   <= 350: {}", verdict(more <= 350.0));
        }
        println!();
    }
}

/// Returns whether `proxy` forwards a stream, and says if it does not.
fn streams(proxy: &Proxy) -> bool {
    let mut connection = connect(proxy);
    post(&mut connection, proxy, STREAM);
    let mut room = [0; 12];
    let forwards = connection.read_exact(&mut room).is_ok() && room.ends_with(b"200");
    if !forwards {
        println!("  {:<20} answers {} to a stream", proxy.name, String::from_utf8_lossy(&room));
    }
    forwards
}

/// Resident memory after many calls, and of an open stream.
fn memory(proxies: &[Proxy]) {
    println!("\nresident memory");
    for proxy in proxies {
        let is_slow = matches!(proxy.name, "LiteLLM" | "Portkey");
        let calls = if is_slow { CALLS_FOR_MEMORY / 50 } else { CALLS_FOR_MEMORY };
        let mut made = 0;
        while made < calls {
            let figures =
                client::run(proxy.at, &talk(proxy, CHAT), CONNECTIONS, Pace::Closed(1), TURN);
            made += figures.rate as u64;
        }
        let after_calls = resident(&proxy.child);
        let count = match (is_slow, streams(proxy)) {
            (_, false) => 0,
            (true, _) => OPEN_STREAMS / 10,
            (false, _) => OPEN_STREAMS,
        };
        let open: Vec<TcpStream> = (0..count)
            .map(|_| {
                let mut connection = connect(proxy);
                post(&mut connection, proxy, HELD);
                read_until(&mut connection, Vec::new(), b"data: ");
                connection
            })
            .collect();
        let each =
            resident(&proxy.child).saturating_sub(after_calls) as f64 / open.len().max(1) as f64;
        print!(
            "  {:<20} {:>6.1} MiB after {made} calls, {each:>6.1} KiB for each of {} open streams",
            proxy.name,
            after_calls as f64 / 1_024.0,
            open.len()
        );
        if proxy.name == "tollgate" {
            print!("   <= 64, 40: {}", verdict(after_calls <= 64 << 10 && each <= 40.0));
        }
        println!();
    }
}

/// The calls that reach the provider in 15 seconds around a full minute, at a limit of [`LIMIT`] per minute.
fn over_the_limit(proxies: &[Proxy], upstream: SocketAddr) {
    println!(
        "\ncalls that reach the provider within 15 s around a full minute, at a limit of {LIMIT} per minute"
    );
    for proxy in proxies {
        if matches!(proxy.name, "bare proxy" | "Portkey") {
            println!("  {:<20} has no limits", proxy.name);
            continue;
        }
        let second =
            SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() % 60;
        std::thread::sleep(Duration::from_secs((55 + 60 - second) % 60));
        let (before, begun) = (arrived(upstream), Instant::now());
        while begun.elapsed() < Duration::from_secs(15) {
            let connections: Vec<TcpStream> = (0..CONNECTIONS)
                .map(|number| {
                    let mut connection = connect(proxy);
                    post(&mut connection, proxy, &LIMITED.join(&number.to_string()));
                    connection
                })
                .collect();
            for mut connection in connections {
                let timeout = Some(Duration::from_secs(5));
                connection.set_read_timeout(timeout).expect("a socket");
                let _ = connection.read(&mut [0; 4_096]);
            }
        }
        let reached = arrived(upstream) - before;
        let over = reached.saturating_sub(LIMIT);
        print!("  {:<20} {reached:>6}, {over} over the limit", proxy.name);
        println!(
            "{}",
            if proxy.name == "tollgate" {
                format!("   <= 0: {}", verdict(over == 0))
            } else {
                String::new()
            }
        );
    }
}

/// The calls that the provider has counted.
fn arrived(upstream: SocketAddr) -> u64 {
    let mut connection = TcpStream::connect(upstream).expect("the provider listens");
    connection
        .write_all(b"GET / HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")
        .expect("the provider reads");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("the provider answers");
    answer.rsplit("\r\n").next().and_then(|count| count.trim().parse().ok()).expect("a number")
}

fn connect(proxy: &Proxy) -> TcpStream {
    let connection = TcpStream::connect(proxy.at).expect("the proxy listens");
    connection.set_nodelay(true).expect("a socket");
    connection
}

fn post(connection: &mut TcpStream, proxy: &Proxy, body: &str) {
    let request = format!(
        "POST {} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{}\r\n{body}",
        proxy.path,
        body.len(),
        proxy.headers
    );
    connection.write_all(request.as_bytes()).expect("the proxy reads");
}

/// Reads until `end` has arrived. Returns what is behind it.
fn read_until(connection: &mut TcpStream, mut seen: Vec<u8>, end: &[u8]) -> Vec<u8> {
    let mut room = [0; 4_096];
    loop {
        if let Some(place) = seen.windows(end.len()).position(|window| window == end) {
            return seen.split_off(place + end.len());
        }
        let read = connection.read(&mut room).expect("the proxy answers");
        assert_ne!(read, 0, "the proxy closed a stream: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&room[..read]);
    }
}

/// Starts the provider or the bare proxy.
fn start_llm(words: &[&str]) -> (Child, SocketAddr) {
    let program =
        built("tollgate-bench-llm", &["-p", "tollgate-bench", "--bin", "tollgate-bench-llm"]);
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let out = child.stdout.take().expect("it is piped");
    BufReader::new(out).read_line(&mut line).expect("it says where it is");
    (child, line.trim().parse().expect("an address"))
}

/// Builds a release binary of this workspace. Returns its path.
fn built(name: &str, words: &[&str]) -> std::path::PathBuf {
    let built = Command::new("cargo").args(["build", "--quiet", "--release"]).args(words).status();
    assert!(built.is_ok_and(|status| status.success()), "{name} builds");
    std::env::current_exe().expect("this program has a path").with_file_name(name)
}

fn bare(upstream: SocketAddr) -> Option<Proxy> {
    let (child, at) = start_llm(&["proxy", &upstream.to_string()]);
    let (path, headers) = ("/v1/chat/completions", "");
    Some(Proxy { name: "bare proxy", child, at, path, headers, _folder: None, _port: None })
}

fn tollgate(upstream: SocketAddr) -> Proxy {
    let port = Port::free().expect("a port");
    let at = SocketAddr::from(([127, 0, 0, 1], port.number()));
    let wide = r#"{ name = "rpm", unit = "requests", rule = "rolling-window", limit = 1000000000, window = "1m" },
  { name = "tpm", unit = "tokens", rule = "rolling-window", limit = 1000000000000, window = "1m" }"#;
    let hash = tollgate_server::keys::KeyHash::from_key("bench");
    let config = format!(
        r#"[server]
http = "127.0.0.1:0"
[store]
kind = "memory"
[gateway]
listen = "{at}"
[[gateway.key]]
name = "bench"
team = "bench"
hash = "{hash}"
[[upstream]]
name = "main"
dialect = "openai"
url = "http://{upstream}"
key = "any"
[[route]]
models = ["gpt-4o"]
upstreams = ["main"]
charges = [{{ policy = "user", subject = "{{key.subject}}" }}, {{ policy = "team", subject = "{{key.team}}" }}, {{ policy = "provider", subject = "{{upstream}}" }}]
[[route]]
models = ["limited"]
upstreams = ["main"]
charges = [{{ policy = "limited", subject = "{{upstream}}" }}]
max_wait = "1s"
[[policy]]
name = "user"
limits = [{wide}]
[[policy]]
name = "team"
limits = [{wide}]
[[policy]]
name = "provider"
limits = [{wide}]
[[policy]]
name = "limited"
limits = [{{ name = "rpm", unit = "requests", rule = "rolling-window", limit = {LIMIT}, window = "1m" }}]
"#
    );
    let folder = folder_with("tollgate.toml", &config);
    let child = Command::new(built("tollgate", &["-p", "tollgate-cli"]))
        .args(["serve", "--grpc", "off", "--resp", "off"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let (path, headers) = ("/openai/v1/chat/completions", "authorization: Bearer bench\r\n");
    listening(Proxy {
        name: "tollgate",
        child,
        at,
        path,
        headers,
        _folder: Some(folder),
        _port: Some(port),
    })
    .expect("the gateway listens")
}

fn litellm(upstream: SocketAddr) -> Option<Proxy> {
    if !Path::new(LITELLM).join("bin/litellm").exists() {
        let installed = Command::new("python3")
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--target",
                LITELLM,
                "litellm[proxy]==1.106.0",
            ])
            .status();
        if !installed.is_ok_and(|status| status.success()) {
            println!("  LiteLLM could not be installed into {LITELLM}");
            return None;
        }
    }
    let port = Port::free().expect("a port");
    let at = SocketAddr::from(([127, 0, 0, 1], port.number()));
    let config = format!(
        "model_list:
- model_name: gpt-4o
  litellm_params: {{ model: openai/gpt-4o, api_base: 'http://{upstream}/v1', api_key: any }}
- model_name: limited
  litellm_params: {{ model: openai/limited, api_base: 'http://{upstream}/v1', api_key: any, rpm: {LIMIT} }}
router_settings: {{ optional_pre_call_checks: [enforce_model_rate_limits], num_retries: 0 }}
general_settings: {{ master_key: sk-bench }}
"
    );
    let folder = folder_with("config.yaml", &config);
    let packages = std::env::current_dir().expect("a folder").join(LITELLM);
    let child = Command::new("python3")
        .arg(packages.join("bin/litellm"))
        .args([
            "--config",
            "config.yaml",
            "--host",
            "127.0.0.1",
            "--port",
            &port.number().to_string(),
        ])
        .current_dir(folder.path())
        .env("PYTHONPATH", &packages)
        .env("LITELLM_MASTER_KEY", "sk-bench")
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let (path, headers) = ("/v1/chat/completions", "authorization: Bearer sk-bench\r\n");
    listening(Proxy {
        name: "LiteLLM",
        child,
        at,
        path,
        headers,
        _folder: Some(folder),
        _port: Some(port),
    })
}

fn portkey(upstream: SocketAddr) -> Option<Proxy> {
    let script = "node_modules/@portkey-ai/gateway/build/start-server.js";
    if !Path::new(PORTKEY).join(script).exists() {
        let installed = Command::new("npm")
            .args([
                "install",
                "--no-save",
                "--silent",
                "--prefix",
                PORTKEY,
                "@portkey-ai/gateway@1.15.2",
            ])
            .status();
        if !installed.is_ok_and(|status| status.success()) {
            println!("  Portkey could not be installed into {PORTKEY}");
            return None;
        }
    }
    let port = Port::free().expect("a port");
    let at = SocketAddr::from(([127, 0, 0, 1], port.number()));
    let child = Command::new("node")
        .args([script, &format!("--port={}", port.number()), "--headless"])
        .current_dir(PORTKEY)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    // The address of the provider is a header there, and lives as long as this program.
    let headers = format!(
        "authorization: Bearer any\r\nx-portkey-provider: openai\r\nx-portkey-custom-host: http://{upstream}/v1\r\n"
    );
    let headers: &'static str = headers.leak();
    let path = "/v1/chat/completions";
    listening(Proxy { name: "Portkey", child, at, path, headers, _folder: None, _port: Some(port) })
}

fn folder_with(file: &str, text: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join(file), text).expect("it is writable");
    folder
}

/// Waits until `proxy` answers a call, for at most a minute.
fn listening(proxy: Proxy) -> Option<Proxy> {
    for _ in 0..600 {
        if let Ok(mut connection) = TcpStream::connect(proxy.at) {
            post(&mut connection, &proxy, &CHAT.join("hello"));
            let timeout = Some(Duration::from_secs(20));
            connection.set_read_timeout(timeout).expect("a socket");
            let mut room = [0; 12];
            if connection.read_exact(&mut room).is_ok() && room.ends_with(b"200") {
                return Some(proxy);
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("  {} does not answer", proxy.name);
    None
}
