//! Random numbers, which are passed in so that tests can choose them and repeat a run.

use std::fmt;
use std::sync::Arc;

use tollgate_core::Span;

use crate::internal::edge;

/// A source of random numbers, uniform over all of `u32`. Clones share one source.
#[derive(Clone)]
pub struct RandomSource(Arc<dyn Fn() -> u32 + Send + Sync>);

impl RandomSource {
    /// Numbers from `source`.
    #[must_use]
    pub fn new(source: impl Fn() -> u32 + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// The next number.
    #[must_use]
    pub fn draw(&self) -> u32 {
        (self.0)()
    }

    /// A length of time from `least` to `greatest`.
    pub(crate) fn between(&self, least: Span, greatest: Span) -> Span {
        let width = u128::from(greatest.as_micros().saturating_sub(least.as_micros()));
        let more = (width * u128::from(self.draw())) >> 32;
        least.plus(Span::from_micros(u64::try_from(more).unwrap_or(0)))
    }

    /// Returns a unique text: 128 random bits.
    pub(crate) fn id(&self) -> String {
        let bits = || self.draw();
        format!("{:08x}{:08x}{:08x}{:08x}", bits(), bits(), bits(), bits())
    }
}

/// The machine's randomness.
impl Default for RandomSource {
    fn default() -> Self {
        Self::new(edge::random)
    }
}

impl fmt::Debug for RandomSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RandomSource")
    }
}
