//! The key with which programs on one table seal permits.

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::{Error, ErrorKind};

use crate::client::Written;
use crate::expression::Expression;
use crate::item::Item;
use crate::store::DynamoDb;

/// The key of its item; no policy has an empty name, so no entry is here.
pub(crate) const SHARED: &str = "/";

const NAME: &str = "permit_key";

impl DynamoDb {
    /// Returns the key with which all programs on this table seal permits; stores `fresh` if there is none.
    ///
    /// # Errors
    /// As every request; [`Corrupt`](ErrorKind::Corrupt) for an invalid key.
    pub async fn permit_key(&self, fresh: [u8; 32]) -> Result<[u8; 32], Error> {
        if let Some(key) = self.hints.seen(SHARED).and_then(|item| stored_key(&item)) {
            return key;
        }
        let mut expression = Expression::default();
        expression.set(NAME, AttributeValue::B(Blob::new(fresh)));
        expression.only_if_missing(NAME);
        let mut attempts = self.table.requests.call(None);
        match self.table.update(&mut attempts, SHARED, &expression).await?.written {
            Written::Applied(Some(item)) | Written::Refused(Some(item)) => {
                stored_key(&item).unwrap_or_else(|| Err(unreadable()))
            }
            _ => Err(unreadable()),
        }
    }
}

/// Returns the key in the shared item.
pub(crate) fn stored_key(item: &Item) -> Option<Result<[u8; 32], Error>> {
    let key = item.attributes.get(NAME)?.as_b().ok();
    let key = key.and_then(|key| <[u8; 32]>::try_from(key.as_ref()).ok());
    Some(key.ok_or_else(unreadable))
}

fn unreadable() -> Error {
    Error::new(ErrorKind::Corrupt, "dynamodb: the key of permits is unreadable")
}
