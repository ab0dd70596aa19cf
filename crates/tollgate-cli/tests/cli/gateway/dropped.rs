//! A client that leaves in the middle of a stream has paid for what it got.

use std::io::Read as _;

use tollgate::Span;
use tollgate_testkit::fakes::llm::{Dialect, Fault, Settings, Trouble, When};
use tollgate_testkit::servers::eventually;

use super::Setup;
use super::raw::Raw;

#[test]
fn a_client_that_leaves_a_stream_is_charged_what_was_sent() {
    let troubles = vec![Trouble::new(Fault::SlowStream(Span::from_millis(40)), When::Every(1))];
    let assembled =
        Setup::default().start(Settings { troubles, length: 80, ..Settings::default() });
    let (gateway, fake) = (&assembled.gateway, &assembled.provider.fake);
    for (number, dialect) in Dialect::ALL.into_iter().enumerate() {
        let mut stream = Raw::say(dialect, "Tell me a long story.", true).open(
            &gateway.url,
            dialect,
            super::KEY,
        );
        let mut read = Vec::new();
        while String::from_utf8_lossy(&read).matches("data: {").count() < 8 {
            let mut bytes = [0; 512];
            let length = stream.read(&mut bytes).expect("the stream goes on");
            assert_ne!(length, 0, "it ended: {}", String::from_utf8_lossy(&read));
            read.extend_from_slice(&bytes[..length]);
        }
        drop(stream);
        let arrival = eventually(|| fake.arrivals().get(number).filter(|it| it.is_over).cloned());
        let arrival = arrival.expect("the gateway ends the call at the provider, too");
        assert!(!arrival.is_complete && 3 < arrival.output && arrival.output < 80, "{arrival:?}");
        gateway.settled();
        let charged = gateway.used("provider", dialect.name(), "output");
        // What was on its way when the client left may be more than what it read.
        assert!(3 < charged && charged <= 100, "{dialect}: {charged} of {arrival:?}");
        // Thinking of this Gemini model is charged and not streamed, so its estimate of 100 stays.
        assert_eq!(charged == 100, dialect == Dialect::Gemini, "{dialect}: {charged}");
        let said = String::from_utf8_lossy(&read).matches("data: {").count() as u64 - 4;
        assert!(said <= charged, "{dialect}: {charged} for at least {said} words");
        assert!(0 < gateway.used("provider", dialect.name(), "input"));
        assert_eq!(gateway.used("provider", dialect.name(), "rate"), 1);
    }
}
