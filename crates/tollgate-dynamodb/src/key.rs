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
        if let Some(key) = self.hints.seen(SHARED).and_then(|item| stored_key(&item)) {
            return key;
        }
        let mut expression = Expression::default();
        expression.set(NAME, AttributeValue::B(Blob::new(fresh)));
        expression.only_if_missing(NAME);
        let mut tries = self.wire.watch.call(None);
        match self.wire.update(&mut tries, SHARED, &expression).await?.written {
            Written::Applied(Some(item)) | Written::Refused(Some(item)) => {
                stored_key(&item).unwrap_or_else(|| Err(unreadable()))
            }
            _ => Err(unreadable()),
        }
    }
}

/// The key in the shared item; `None` if there is none yet.
pub(crate) fn stored_key(item: &Item) -> Option<Result<[u8; 32], Error>> {
    let key = item.attributes.get(NAME)?.as_b().ok();
    let key = key.and_then(|key| <[u8; 32]>::try_from(key.as_ref()).ok());
    Some(key.ok_or_else(unreadable))
}

fn unreadable() -> Error {
    Error::new(ErrorKind::Corrupt, "dynamodb: the key of permits is unreadable")
}
