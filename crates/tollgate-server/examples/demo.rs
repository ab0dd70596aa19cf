//! A server with three policies and some traffic, to look at the dashboard: `cargo run -p tollgate-server --example demo`,
//! then open the address that it prints.
#![expect(clippy::print_stdout, reason = "an example talks to the person who runs it")]

use std::error::Error;
use std::sync::Arc;

use tollgate::clock::SystemClock;
use tollgate::internal::edge;
use tollgate::policy::{Period, Policies};
use tollgate::{
    CalendarWindow, Clock, Concurrency, Limit, Memory, Policy, RollingWindow, Span, TokenBucket,
};
use tollgate_server::{App, run};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let minute = Span::from_mins(1);
    let day = CalendarWindow::new(5_000, Period::Day).in_zone("America/Los_Angeles");
    let llm = Policy::new(
        "llm",
        [
            Limit::new("rpm", "requests", RollingWindow::new(60, minute))
                .margin(Span::from_secs(2)),
            Limit::new("tpm", "tokens", RollingWindow::new(250_000, minute).resolution(60)),
            Limit::new("rpd", "requests", day),
        ],
    )?;
    let api = Policy::builder("api")
        .limit(Limit::new("burst", "requests", TokenBucket::per_second(10).burst(20)))
        .limit(Limit::new("jobs", "jobs", Concurrency::new(8, minute)))
        .build()?;
    let trial = Policy::builder("trial")
        .shadow(true)
        .limit(Limit::new("rps", "requests", TokenBucket::per_second(1).burst(1)))
        .build()?;
    let gate = Arc::new(Memory::new());
    // A server that others share a store with takes its permit key from a secret.
    let app = App::new(gate, Policies::new([llm, api, trial])?, [7; 32], Arc::new(SystemClock))?
        .history();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    println!("dashboard: http://{address}/#policy=llm&subject=project-7");
    tokio::spawn(traffic(address));
    run(listener, app, async {
        tokio::signal::ctrl_c().await.ok();
    })
    .await;
    Ok(())
}

/// Some asks each second of subjects of which a few ask more than the others, in waves, so that there is something to see.
async fn traffic(address: std::net::SocketAddr) {
    let clock = SystemClock;
    for turn in 0_u64.. {
        let wave = (turn / 40) % 4;
        let caller = edge::random() % (3 + 4 * u32::try_from(wave).unwrap_or(0));
        for body in [
            r#"{"policy": "llm", "subject": "project-7", "costs": {"tokens": 3750}}"#.to_owned(),
            format!(
                r#"{{"policy": "api", "subject": "customer-{caller}", "costs": {{"requests": 2}}}}"#
            ),
            format!(
                r#"{{"policy": "api", "subject": "crawler", "costs": {{"requests": {}}}}}"#,
                1 + wave
            ),
            r#"{"policy": "trial", "subject": "team-blue"}"#.to_owned(),
        ] {
            if let Err(error) = post(address, &body).await {
                println!("could not ask: {error}");
            }
        }
        clock.sleep_until(clock.now() + Span::from_millis(100)).await;
    }
}

async fn post(address: std::net::SocketAddr, body: &str) -> std::io::Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let head = "POST /v1/acquire HTTP/1.1\r\nhost: demo\r\nconnection: close\r\ncontent-type: application/json";
    let request = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await?;
    stream.read_to_end(&mut Vec::new()).await?;
    Ok(())
}
