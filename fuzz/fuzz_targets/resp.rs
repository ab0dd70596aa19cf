//! Any bytes on a connection of the Redis protocol: answers are whole, and the same wherever the packets are cut.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::Broker;
use tollgate_fuzz::resp::{Client, count};

fuzz_target!(|input: &[u8]| {
    let Some((piece, input)) = input.split_first() else { return };
    let whole = answers(input, usize::MAX);
    assert!(count(&whole).is_some(), "{:?}", String::from_utf8_lossy(&whole));
    assert_eq!(whole, answers(input, usize::from(*piece).max(1)), "in pieces of {piece}");
});

fn answers(input: &[u8], piece: usize) -> Vec<u8> {
    let broker = Broker::default();
    let (client, answers) = Client::new(input.to_owned(), piece);
    broker.run(tollgate_server::fuzz::resp(client, Arc::clone(&broker.app)));
    std::mem::take(&mut answers.lock().expect("nobody panicked"))
}
