//! The overrides: one hash, read and replaced by one script.

use tollgate::Error;
use tollgate::gate::BoxFuture;
use tollgate::overrides::{Document, OverrideStore};

use crate::args;
use crate::entry::corrupt;
use crate::gate::Redis;
use crate::link::Repeat;
use crate::reply::{Reply, Status};
use crate::script;

impl Redis {
    /// Reads a version other than `known`, or replaces that one by `next`.
    async fn overrides(&self, known: u64, next: &str) -> Result<Reply, Error> {
        let key = format!("{}:{{overrides}}", self.options.prefix);
        let (args, known) = (args::bare(self.times(None), [0; 4]), known.to_string());
        let all: [&[u8]; 4] = [&args, b"", known.as_bytes(), next.as_bytes()];
        let reply = self.link.run(&script::OVERRIDES, &[&key], &all, Repeat::Safe).await?;
        let reply = Reply::read(reply)?;
        if !next.is_empty() && reply.status == Status::Done {
            self.link.replicated(&key).await?;
        }
        Ok(reply)
    }
}

impl OverrideStore for Redis {
    fn read(&self, known: u64) -> BoxFuture<'_, Result<Option<Document>, Error>> {
        Box::pin(async move {
            let reply = self.overrides(known, "").await?;
            if reply.status == Status::Same {
                return Ok(None);
            }
            let document = document(reply.extra());
            document.map(Some).ok_or_else(|| corrupt("the overrides are unreadable"))
        })
    }

    fn replace<'a>(&'a self, known: u64, next: &'a Document) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let next = format!("{}\n{}", next.version, next.text);
            Ok(self.overrides(known, &next).await?.status == Status::Done)
        })
    }
}

fn document(bytes: &[u8]) -> Option<Document> {
    let (version, text) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
    Some(Document { version: version.parse().ok()?, text: text.to_owned() })
}
