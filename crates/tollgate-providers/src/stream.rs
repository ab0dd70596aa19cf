//! Reading of streamed answers beside the copy to the client.

use crate::call::Call;
use crate::provider_error::ProviderErrorKind;
use crate::usage::UsageFields;

/// Reads a streamed answer in pieces of any size: its usage, the size of its output, and how it ended.
#[derive(Clone, Debug)]
pub struct StreamReader {
    usage: UsageFields,
}

impl StreamReader {
    /// Returns a reader of the answer to `call`.
    #[must_use]
    pub fn new(call: &Call) -> Self {
        let _ = call;
        Self { usage: UsageFields::default() }
    }

    /// Reads the next bytes of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        let _ = bytes;
    }

    /// Reads what remains at the end of the body: an event without a line end.
    pub fn finish(&mut self) {}

    /// Returns the usage reported so far. Final if [`is_complete`](Self::is_complete).
    #[must_use]
    pub fn usage(&self) -> Option<UsageFields> {
        (!self.usage.is_empty()).then(|| self.usage.clone())
    }

    /// Returns the estimated tokens of the output that was streamed so far, before calibration.
    #[must_use]
    pub fn output_tokens(&self) -> u64 {
        0
    }

    /// Returns whether the provider ended the stream itself, rather than the connection breaking off.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        false
    }

    /// Returns the error that the provider reported in the stream.
    #[must_use]
    pub fn error(&self) -> Option<ProviderErrorKind> {
        None
    }
}
