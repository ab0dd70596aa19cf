//! This test binary as another process: it asks a given number of times and prints how often it was admitted.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tollgate::internal::edge::environment;
use tollgate_postgres::{Options, Postgres};

use super::{acquire, hourly};

/// Where the child finds the url, and that it is one.
const URL: &str = "TOLLGATE_POSTGRES_CHILD";
const TASKS: usize = 8;
const ASKS: usize = 5;
pub(crate) const LIMIT: u64 = 100;

/// A process of eight tasks that ask five times each on the database at `url`.
pub(crate) fn spawn(url: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child::asks_when_it_is_a_child", "--nocapture"])
        .env(URL, url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// How many of its asks a child was admitted.
pub(crate) fn admitted(child: Child) -> u64 {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.split_once("admitted=")).map(|(_, rest)| rest);
    line.unwrap_or_else(|| panic!("a child said {text:?}")).trim().parse().unwrap()
}

/// Does nothing in the process of the tests; in a child it asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asks_when_it_is_a_child() {
    let Some(url) = environment(URL) else { return };
    // Fewer connections than tasks, so that asks of one process share statements too.
    let options = Options::new(&url).unwrap().connections_max(TASKS / 2);
    let gate = Arc::new(Postgres::open(options).await.unwrap());
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move {
                let policy = hourly(LIMIT);
                let mut admitted = 0_u64;
                for _ in 0..ASKS {
                    admitted += u64::from(acquire(&*gate, &policy, "shared").await.is_admitted());
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    println!("admitted={admitted}");
}
