//! Subjects derived from what a proxy forwards from its clients.
//!
//! Any input must yield some subject: an error would let a client evade its limit, or take the proxy down.

use std::fmt::{Display, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha2::{Digest, Sha256};
use tollgate::core::bounds::SUBJECT_BYTES_MAX;

use crate::app::ServerOptions;

/// Returns `text`, or its digest if it is empty or too long for a subject.
pub(crate) fn bounded(text: String) -> String {
    if (1..=SUBJECT_BYTES_MAX).contains(&text.len()) { text } else { digest(text.as_bytes()) }
}

/// Returns the network of an IP address, as in `2001:db8::/64`; other text is returned unchanged.
///
/// A client with one IPv6 address has 2^64 of them, and would otherwise be as many subjects.
pub(crate) fn network(text: &str, options: &ServerOptions) -> String {
    let Ok(address) = text.parse::<IpAddr>() else { return text.to_owned() };
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let bits = masked(u128::from(address.to_bits()), 32, options.ipv4_prefix);
            let address = Ipv4Addr::from_bits(u32::try_from(bits).unwrap_or(u32::MAX));
            with_prefix(&address, 32, options.ipv4_prefix)
        }
        IpAddr::V6(address) => {
            let bits = masked(address.to_bits(), 128, options.ipv6_prefix);
            with_prefix(&Ipv6Addr::from_bits(bits), 128, options.ipv6_prefix)
        }
    }
}

/// Returns `bits` with only the highest `prefix` of its `width` bits.
fn masked(bits: u128, width: u8, prefix: u8) -> u128 {
    let low = u32::from(width.saturating_sub(prefix));
    bits.checked_shr(low).and_then(|high| high.checked_shl(low)).unwrap_or(0)
}

fn with_prefix(address: &dyn Display, width: u8, prefix: u8) -> String {
    if prefix < width { format!("{address}/{prefix}") } else { address.to_string() }
}

/// Returns `sha256:` and the hexadecimal digest of `bytes`.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let mut digest = "sha256:".to_owned();
    for byte in Sha256::digest(bytes) {
        let _infallible = write!(digest, "{byte:02x}");
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_subject() {
        let whole = ServerOptions::default();
        let short = ServerOptions { ipv4_prefix: 24, ipv6_prefix: 128, ..ServerOptions::default() };
        let none = ServerOptions { ipv4_prefix: 0, ipv6_prefix: 0, ..ServerOptions::default() };
        for (settings, text, expected) in [
            (&whole, "2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
            (&whole, "::ffff:192.0.2.7", "192.0.2.7"),
            (&whole, "192.0.2.7", "192.0.2.7"),
            (&whole, "alice", "alice"),
            (&short, "192.0.2.7", "192.0.2.0/24"),
            (&short, "2001:DB8::1", "2001:db8::1"),
            (&none, "192.0.2.7", "0.0.0.0/0"),
            (&none, "2001:db8::1", "::/0"),
        ] {
            assert_eq!(network(text, settings), expected);
        }
    }
}
