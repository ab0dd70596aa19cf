//! Embeddings as numbers and as base64, and compression.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Bytes;

use super::hash_of;
use super::script::Piece;

/// Returns the embedding of a text: the bytes of its hash as fractions.
pub(super) fn vector(text: &str) -> Vec<f32> {
    let bytes = hash_of(text.as_bytes()).to_le_bytes();
    bytes.into_iter().map(|byte| f32::from(byte) / 256.0).collect()
}

/// Returns the embedding as base64 of little-endian numbers.
pub(super) fn vector_base64(text: &str) -> String {
    let bytes: Vec<u8> = vector(text).into_iter().flat_map(f32::to_le_bytes).collect();
    STANDARD.encode(bytes)
}

/// Compresses what is sent; each chunk can be read when it arrives.
pub(super) fn gzip(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let mut compressed = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Send(bytes, output) => {
                // Writing to a vector cannot fail.
                drop(encoder.write_all(&bytes).and_then(|()| encoder.flush()));
                let bytes = std::mem::take(encoder.get_mut());
                compressed.push(Piece::Send(Bytes::from(bytes), output));
            }
            Piece::Complete => {
                drop(encoder.try_finish());
                let end = std::mem::take(encoder.get_mut());
                compressed.extend([Piece::Send(Bytes::from(end), 0), Piece::Complete]);
            }
            other => compressed.push(other),
        }
    }
    compressed
}
