//! The key that programs on one table seal their permits with.

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::{Error, ErrorKind};

use crate::expression::Expression;
use crate::item::Item;
use crate::send::Written;
use crate::store::DynamoDb;

/// Where it is kept; no policy has an empty name, so no subject's item is here.
pub(crate) const SHARED: &str = "/";

const NAME: &str = "permit_key";

impl DynamoDb {
    /// The key that permits are sealed with by everybody on this table: the one that is kept there, else `fresh`,
    /// which is kept from then on.
    ///
    /// # Errors
    /// Whatever keeps the table from being read or written; [`Corrupt`](ErrorKind::Corrupt) if it is no key.
    pub async fn permit_key(&self, fresh: [u8; 32]) -> Result<[u8; 32], Error> {
        if let Some(item) = self.hints.seen(SHARED)
            && item.attributes.contains_key(NAME)
        {
            return key_of(&item);
        }
        let mut expression = Expression::default();
        expression.set(NAME, AttributeValue::B(Blob::new(fresh)));
        expression.only_if_missing(NAME);
        let mut tries = self.wire.watch.call(None);
        match self.wire.update(&mut tries, SHARED, &expression).await?.written {
            Written::Applied(Some(item)) | Written::Refused(Some(item)) => key_of(&item),
            _ => Err(unreadable()),
        }
    }
}

fn key_of(item: &Item) -> Result<[u8; 32], Error> {
    let key = item.attributes.get(NAME).and_then(|key| key.as_b().ok());
    key.and_then(|key| <[u8; 32]>::try_from(key.as_ref()).ok()).ok_or_else(unreadable)
}

fn unreadable() -> Error {
    Error::new(ErrorKind::Corrupt, "dynamodb: the key of permits is unreadable")
}
