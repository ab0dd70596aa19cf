//! Ports that no concurrent test uses.
//!
//! They lie below the ephemeral range, so that a server can return to its port after a crash. A locked file per port keeps
//! concurrent test processes apart.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process;

use super::Fault;

/// The first port; with [`CLUSTER_BUS`] added, the last one stays below 32,768.
const FIRST: u16 = 10_100;
/// How many ports there are to try.
const COUNT: u16 = 12_000;
/// Offset of the cluster bus of a Redis node.
const CLUSTER_BUS: u16 = 10_000;

/// A port of loopback, reserved until it is dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// A free port.
    pub fn free() -> Result<Self, Fault> {
        // Processes begin at different places, so that they seldom meet.
        let begin = process::id().wrapping_mul(7_919);
        for step in 0..COUNT {
            let place = begin.wrapping_add(u32::from(step)) % u32::from(COUNT);
            let number = FIRST + u16::try_from(place).unwrap_or(0);
            if let Some(port) = Self::claim(number) {
                return Ok(port);
            }
        }
        Err(Fault::new(format!("no port from {FIRST} to {} is free", FIRST + COUNT - 1)))
    }

    pub const fn number(&self) -> u16 {
        self.number
    }

    fn claim(number: u16) -> Option<Self> {
        let folder = folder();
        std::fs::create_dir_all(&folder).ok()?;
        let lock = File::options().create(true).append(true).open(folder.join(number.to_string()));
        let lock = lock.ok()?;
        lock.try_lock().ok()?;
        let open = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        (open(number) && open(number + CLUSTER_BUS)).then_some(Self { number, _lock: lock })
    }
}

/// `count` different free ports.
pub fn free_ports(count: usize) -> Result<Vec<Port>, Fault> {
    (0..count).map(|_| Port::free()).collect()
}

fn folder() -> PathBuf {
    std::env::temp_dir().join("tollgate-test-ports")
}
