//! What the command line needs to work on a server: the `[store]` table of its configuration.

use super::{DynamoDb, Postgres, Redis, RedisCluster};

impl Redis {
    /// Returns the `[store]` table for this server.
    pub fn snippet(&self) -> String {
        format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n", self.url())
    }
}

impl RedisCluster {
    /// Returns the `[store]` table for this cluster.
    pub fn snippet(&self) -> String {
        let urls = self.urls().join(",");
        format!("[store]\nkind = \"redis\"\ncluster = true\nurl = \"{urls}\"\n")
    }
}

impl Postgres {
    /// Returns the `[store]` table for the database `postgres`.
    pub fn snippet(&self) -> String {
        format!("[store]\nkind = \"postgres\"\nurl = \"{}\"\n", self.url("postgres"))
    }
}

impl DynamoDb {
    /// The `[store]` table for this server. It accepts any credentials, but there must be some; and the table must be
    /// made first (`tollgate dynamodb create-table`).
    pub fn snippet(&self) -> String {
        let endpoint = self.endpoint();
        format!(
            "[store]\nkind = \"dynamodb\"\nregion = \"eu-central-1\"\nendpoint = \"{endpoint}\"\n"
        )
    }
}
