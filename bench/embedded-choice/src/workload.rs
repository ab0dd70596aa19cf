//! The entries every store is given.
//!
//! A value can be recomputed from its key and version, so a reader can tell a
//! right value from an old one and from a damaged one without keeping a copy.

/// Keys in the database before any measurement starts.
pub const KEYS: u64 = 100_000;

pub type Entry = (Vec<u8>, Vec<u8>);

/// What a read said about one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// A whole value, written as this version.
    Version(u64),
    /// Bytes that no version of this key ever had.
    Wrong,
}

/// xorshift64*: good enough to spread keys, and the same in every process.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn key_number(&mut self) -> u64 {
        self.next() % KEYS
    }
}

/// `policy\0subject`, 30 bytes. The subject is scrambled so that neighbouring
/// numbers are not neighbours in the tree.
pub fn key(number: u64) -> Vec<u8> {
    let scrambled = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 16;
    format!("api-burst-{:02}\0user-{scrambled:012x}", number % 16).into_bytes()
}

/// 60 to 200 bytes: the version, then bytes that only this key and version have.
pub fn value(number: u64, version: u64) -> Vec<u8> {
    let mut rng = Rng::new(number.wrapping_mul(1_000_003) ^ version.rotate_left(40) ^ 0xA5A5);
    let length = 60 + (rng.next() % 141) as usize;
    let mut bytes = version.to_le_bytes().to_vec();
    while bytes.len() < length {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub fn entry(number: u64, version: u64) -> Entry {
    (key(number), value(number, version))
}

pub fn judge(number: u64, bytes: &[u8]) -> Found {
    match bytes.first_chunk::<8>().map(|v| u64::from_le_bytes(*v)) {
        Some(version) if value(number, version) == bytes => Found::Version(version),
        _ => Found::Wrong,
    }
}

/// Batch `index` of the crash test: known to both the writer and its judge.
pub fn crash_batch(index: u64) -> Vec<(u64, u64)> {
    let mut rng = Rng::new(index + 1);
    let mut numbers: Vec<u64> = (0..8).map(|_| rng.key_number()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.into_iter().map(|n| (n, index + 1)).collect()
}
