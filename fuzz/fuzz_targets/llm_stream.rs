//! Any bytes as a stream of any LLM dialect, cut anywhere: readers and the stripper agree however it is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_fuzz::llm::CALLS;
use tollgate_providers::{StreamReader, UsageStripper};

fuzz_target!(|input: &[u8]| {
    let [which, size, stream @ ..] = input else { return };
    let call = CALLS[usize::from(*which) % CALLS.len()].call();
    let size = usize::from(*size).max(1);
    let read = |size: usize| {
        let mut reader = StreamReader::new(&call);
        stream.chunks(size).for_each(|chunk| reader.feed(chunk));
        reader.finish();
        (reader.usage(), reader.output_tokens(), reader.is_complete(), reader.error())
    };
    let strip = |size: usize| {
        let (mut stripper, mut output) = (UsageStripper::new(), Vec::new());
        stream.chunks(size).for_each(|chunk| stripper.feed(chunk, &mut output));
        stripper.finish(&mut output);
        output
    };
    let whole = stream.len().max(1);
    assert_eq!(read(size), read(whole));
    let stripped = strip(whole);
    assert_eq!(strip(size), stripped);
    assert!(stripped.len() <= stream.len(), "nothing is added");
    if let Some(usage) = read(whole).0 {
        let _ = call.dialect().usage_map().costs(&usage);
    }
});
