//! The limit of file descriptors, and how many of them may be connections.
//!
//! Without a reserve, idle connections could take the descriptors that the broker needs for its store.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The descriptors for the store, files, telemetry and listeners.
const RESERVE: u64 = 128;

/// Raises the soft limit to the hard limit, and returns the most connections; `None` without a limit.
pub(crate) fn connections_max() -> Option<usize> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let most = Rlimit { current: limit.maximum, ..limit };
        if let Err(error) = setrlimit(Resource::Nofile, most) {
            // systemd sets the limit itself and forbids the call.
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
