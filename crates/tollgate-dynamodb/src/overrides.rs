//! The overrides: one item, under a key that no subject has.

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::gate::BoxFuture;
use tollgate::overrides::{Document, OverrideStore};
use tollgate::{Error, ErrorKind};

use crate::client::Written;
use crate::expression::{Expression, to_number};
use crate::item::Item;
use crate::store::DynamoDb;

/// The key of their item; no policy has an empty name, so no entry is here.
const OVERRIDES: &str = "/overrides";

const VERSION: &str = "version";
const TEXT: &str = "document";

impl OverrideStore for DynamoDb {
    fn read(&self, known: u64) -> BoxFuture<'_, Result<Option<Document>, Error>> {
        Box::pin(async move {
            let mut attempts = self.table.requests.call(None);
            let document = match self.table.read(&mut attempts, OVERRIDES).await? {
                Some(item) => document(&item)?,
                None => Document::default(),
            };
            Ok(Some(document).filter(|document| document.version != known))
        })
    }

    fn replace<'a>(&'a self, known: u64, next: &'a Document) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let mut expression = Expression::default();
            expression.set(VERSION, to_number(next.version.into()));
            expression.set(TEXT, AttributeValue::S(next.text.clone()));
            if known == 0 {
                expression.only_if_missing(VERSION);
            } else {
                let (name, known) = (expression.name(VERSION), expression.number(known.into()));
                expression.only_if(format!("{name}={known}"));
            }
            let mut attempts = self.table.requests.call(None);
            match self.table.update(&mut attempts, OVERRIDES, &expression).await?.written {
                Written::Applied(_) => Ok(true),
                // A retry of an applied write finds its own document.
                Written::Refused(Some(item)) => Ok(document(&item)? == *next),
                _ => Ok(false),
            }
        })
    }
}

fn document(item: &Item) -> Result<Document, Error> {
    let version = item.attributes.get(VERSION).and_then(|version| version.as_n().ok());
    let text = item.attributes.get(TEXT).and_then(|text| text.as_s().ok());
    version
        .and_then(|version| version.parse().ok())
        .zip(text)
        .map(|(version, text)| Document { version, text: text.clone() })
        .ok_or_else(|| Error::new(ErrorKind::Corrupt, "dynamodb: the overrides are unreadable"))
}
