//! The overrides on a server: what every keeper of them does, on connections of their own.

use std::sync::Arc;

use tollgate_conformance::overrides::check;
use tollgate_redis::Options;

use crate::{connect, server};

#[tokio::test(flavor = "multi_thread")]
async fn the_overrides_on_a_server_are_kept() {
    let server = server();
    let options = || Options::single(server.url());
    let (one, other) = (connect(options()).await, connect(options()).await);
    check(Arc::new(one), Arc::new(other)).await;
}
