//! Telling systemd that the broker is ready, alive or about to end, where systemd asks for it (`Type=notify`, `WatchdogSec`).

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tollgate::edge::environment;
use tollgate::{Clock, Span};

/// Where systemd listens.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// How often systemd wants to hear that the broker is alive, in microseconds.
const WATCHDOG_VARIABLE: &str = "WATCHDOG_USEC";

/// The process that is meant by it.
const PROCESS_VARIABLE: &str = "WATCHDOG_PID";

/// Says `state`, as in `READY=1`. A broker that cannot say so runs all the same.
pub(crate) fn tell(state: &str) {
    let Some(name) = environment(SOCKET_VARIABLE) else { return };
    if let Err(error) = send(&name, state) {
        tracing::warn!(%error, "systemd could not be told {state}");
    }
}

/// Says that the broker is alive, twice as often as systemd wants to hear it. It runs beside the calls, so that a runtime
/// that is stuck stays silent and is restarted. It never ends.
pub(crate) async fn keep_watchdog(clock: &dyn Clock) {
    let process = environment(PROCESS_VARIABLE).and_then(|text| text.parse::<u32>().ok());
    let is_ours = process.is_none_or(|process| process == std::process::id());
    let every = environment(WATCHDOG_VARIABLE).and_then(|text| text.parse::<u64>().ok());
    let Some(micros) = every.filter(|micros| is_ours && 1 < *micros) else {
        return std::future::pending().await;
    };
    loop {
        tell("WATCHDOG=1");
        clock.sleep_until(clock.now() + Span::from_micros(micros / 2)).await;
    }
}

fn send(name: &str, state: &str) -> io::Result<()> {
    // A name that starts with @ is no file.
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A supervisor that does not read must not hold up the broker.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}
