//! Notifies systemd that the broker is ready, alive or stopping (`Type=notify`, `WatchdogSec`).

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tollgate::internal::edge::environment;
use tollgate::{Clock, Span};

/// The variable with the socket of systemd.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// The variable with the timeout of the watchdog, in microseconds.
const WATCHDOG_VARIABLE: &str = "WATCHDOG_USEC";

/// The variable with the process that the watchdog is for.
const PROCESS_VARIABLE: &str = "WATCHDOG_PID";

/// Sends `state`, as in `READY=1`. Best effort.
pub(crate) fn send_state(state: &str) {
    let Some(name) = environment(SOCKET_VARIABLE) else { return };
    if let Err(error) = send(&name, state) {
        tracing::warn!(%error, "could not notify systemd of {state}");
    }
}

/// Sends keep-alives at half the timeout of the watchdog. It runs on the same runtime as requests, so that systemd restarts a
/// runtime that is stuck. Never returns.
pub(crate) async fn keep_watchdog(clock: &dyn Clock) {
    let process = environment(PROCESS_VARIABLE).and_then(|text| text.parse::<u32>().ok());
    let is_ours = process.is_none_or(|process| process == std::process::id());
    let every = environment(WATCHDOG_VARIABLE).and_then(|text| text.parse::<u64>().ok());
    let Some(micros) = every.filter(|micros| is_ours && 1 < *micros) else {
        return std::future::pending().await;
    };
    loop {
        send_state("WATCHDOG=1");
        clock.sleep_until(clock.now() + Span::from_micros(micros / 2)).await;
    }
}

fn send(name: &str, state: &str) -> io::Result<()> {
    // A name that starts with @ is an abstract socket.
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A supervisor that does not read must not block the broker.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}
