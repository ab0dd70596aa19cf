//! Bytes of any length, in pieces that fit into items.
//!
//! A blob is written once under a name that nothing else has, and then referred to. The reference ends with the number of its
//! pieces, so that a blob that lacks one is noticed.

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use tollgate_translate::Error;

use crate::item::{Item, Key, unique};
use crate::table::{Table, unusable};

/// The most bytes of one piece. An item takes 400 KB with its key.
pub(crate) const PIECE_BYTES_MAX: usize = 350_000;

const BYTES: &str = "bytes";

impl Table {
    /// Writes `bytes` in the partition `pk`, and returns the reference to them.
    pub(crate) async fn put_blob(&self, pk: &str, bytes: &[u8]) -> Result<String, Error> {
        let pieces: Vec<&[u8]> = bytes.chunks(PIECE_BYTES_MAX).collect();
        let reference = format!("{}.{}", unique(), pieces.len());
        for (number, piece) in pieces.into_iter().enumerate() {
            let mut item = Key::new(pk, piece_of(&reference, number)).item();
            item.insert(BYTES.to_owned(), AttributeValue::B(Blob::new(piece)));
            self.put(item).await?;
        }
        Ok(reference)
    }

    /// Reads what `reference` stands for in the partition `pk`.
    pub(crate) async fn get_blob(&self, pk: &str, reference: &str) -> Result<Vec<u8>, Error> {
        let items = self.query(pk, &format!("{reference}#")).await?;
        join(&items, reference)
    }

    /// Removes what `reference` stands for.
    pub(crate) async fn remove_blob(&self, pk: &str, reference: &str) -> Result<(), Error> {
        for number in 0..pieces_of(reference) {
            self.delete(&Key::new(pk, piece_of(reference, number))).await?;
        }
        Ok(())
    }
}

fn piece_of(reference: &str, number: usize) -> String {
    format!("{reference}#{number:06}")
}

fn pieces_of(reference: &str) -> usize {
    let count = reference.rsplit_once('.').and_then(|(_, count)| count.parse().ok());
    count.unwrap_or(0)
}

/// The bytes of `reference` out of its pieces, which are in order.
pub(crate) fn join<'a>(
    pieces: impl IntoIterator<Item = &'a Item>,
    reference: &str,
) -> Result<Vec<u8>, Error> {
    let (mut bytes, mut found) = (Vec::new(), 0);
    for piece in pieces {
        let part = piece.get(BYTES).and_then(|value| value.as_b().ok());
        bytes.extend_from_slice(part.map(Blob::as_ref).unwrap_or_default());
        found += 1;
    }
    let wanted = pieces_of(reference);
    if found == wanted {
        return Ok(bytes);
    }
    Err(unusable(format!("{found} of {wanted} pieces of {reference} are there")))
}
