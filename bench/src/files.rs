//! File descriptors for ten thousand connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit.
pub(crate) fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        println!("  could not raise the number of open files: {error}");
    }
}
