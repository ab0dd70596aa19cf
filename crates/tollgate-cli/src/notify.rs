//! Telling systemd that the broker is ready, or that it ends, where systemd asks for it (`Type=notify`).

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tollgate::edge::environment;

/// Where systemd listens.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// Says `state`, as in `READY=1`. A broker that cannot say so runs all the same.
pub(crate) fn tell(state: &str) {
    let Some(name) = environment(SOCKET_VARIABLE) else { return };
    if let Err(error) = send(&name, state) {
        tracing::warn!(%error, "systemd could not be told {state}");
    }
}

fn send(name: &str, state: &str) -> io::Result<()> {
    // A name that starts with @ is no file.
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}
