//! How many files a broker may have open, and how many of them may be connections.
//!
//! A connection is an open file, and so are a store, a log and a connection to a server. Without a reserve, whoever opens
//! connections and says nothing would keep the broker from its own store.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a broker keeps for itself: its store, files, telemetry, listeners.
const RESERVE: u64 = 128;

/// Raises the limit as far as this user may, and says how many connections it leaves room for; nothing if it has no limit.
pub(crate) fn room_for_connections() -> Option<usize> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let most = Rlimit { current: limit.maximum, ..limit };
        if let Err(error) = setrlimit(Resource::Nofile, most) {
            // As under systemd, which sets the limit itself and forbids the call.
            tracing::debug!(%error, "the limit of open files stays as it is");
        }
    }
    getrlimit(Resource::Nofile).current.map(connections)
}

fn connections(files: u64) -> usize {
    usize::try_from(files - RESERVE.min(files / 2)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_a_reserve() {
        assert_eq!([64, 256, 1_024, 65_536].map(connections), [32, 128, 896, 65_408]);
    }
}
