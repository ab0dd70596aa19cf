//! Any text as `tollgate.toml`: it is taken, or refused with a message.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Some(blame) = tollgate_cli::check_text(text) {
        assert!(blame.starts_with("built-in sample:") && 20 < blame.len(), "{blame}");
    }
});
