//! What settled calls teach about the next estimate: how many tokens a text really has, how long outputs are, and how long calls
//! take.

use tollgate::Span;

use crate::bounds::OUTPUT_DEFAULT;

/// One, in the unit of factors.
const UNIT: u64 = 1_000;

/// Factors stay within a quarter and four times the estimate: a provider that reports nonsense must not disable limits.
const FACTOR_MIN: u64 = UNIT / 4;
const FACTOR_MAX: u64 = UNIT * 4;

/// The weight of one sample is the reciprocal of this.
const SAMPLES: u64 = 16;

/// The least number of outputs before their percentile is used.
const OUTPUTS_MIN: u32 = 20;

/// The number of outputs after which older ones count half.
const OUTPUTS_MAX: u32 = 1_024;

/// Buckets of outputs: four for each power of two, up to 2^32 tokens.
const BUCKETS: usize = 32 * 4;

/// The smallest text whose tokens are compared with the estimate.
const TEXT_MIN: u64 = 32;

/// The knowledge about one model at one upstream.
#[derive(Clone, Debug)]
pub(crate) struct Calibration {
    input: u64,
    output: u64,
    outputs: Box<[u16; BUCKETS]>,
    count: u32,
    /// The usual time of a whole response, and to the head of a stream, in microseconds.
    took: [u64; 2],
}

impl Default for Calibration {
    fn default() -> Self {
        Self { input: UNIT, output: UNIT, outputs: Box::new([0; BUCKETS]), count: 0, took: [0; 2] }
    }
}

impl Calibration {
    /// Returns the tokens of a text that is estimated at `tokens`, rounded up.
    pub(crate) const fn input(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.input).div_ceil(UNIT)
    }

    /// Returns the tokens of a streamed output that is estimated at `tokens`, rounded up.
    pub(crate) const fn output(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.output).div_ceil(UNIT)
    }

    /// Learns that a text estimated at `estimate` had `actual` tokens.
    pub(crate) fn saw_input(&mut self, estimate: u64, actual: u64) {
        learn_factor(&mut self.input, estimate, actual);
    }

    /// Learns that a streamed output estimated at `estimate` had `actual` tokens.
    pub(crate) fn saw_streamed(&mut self, estimate: u64, actual: u64) {
        learn_factor(&mut self.output, estimate, actual);
    }

    /// Learns the size of an output.
    pub(crate) fn saw_output(&mut self, tokens: u64) {
        if OUTPUTS_MAX <= self.count {
            self.outputs.iter_mut().for_each(|count| *count /= 2);
            self.count = self.outputs.iter().map(|count| u32::from(*count)).sum();
        }
        let bucket = &mut self.outputs[bucket(tokens)];
        *bucket = bucket.saturating_add(1);
        self.count += 1;
    }

    /// Returns the output that 99 of 100 calls do not exceed.
    pub(crate) fn usual_output(&self) -> u64 {
        if self.count < OUTPUTS_MIN {
            return OUTPUT_DEFAULT;
        }
        let wanted = (self.count * 99).div_ceil(100);
        let mut seen = 0;
        for (index, count) in self.outputs.iter().enumerate() {
            seen += u32::from(*count);
            if wanted <= seen {
                return upper(index);
            }
        }
        upper(BUCKETS - 1)
    }

    /// Learns how long a whole response, or the head of a stream, took.
    pub(crate) fn saw_duration(&mut self, is_stream: bool, took: Span) {
        let usual = &mut self.took[usize::from(is_stream)];
        let sample = took.as_micros();
        *usual = if *usual == 0 { sample } else { average(*usual, sample) };
    }

    /// Returns how long a whole response, or the head of a stream, usually takes.
    pub(crate) const fn usual_duration(&self, is_stream: bool) -> Span {
        Span::from_micros(self.took[is_stream as usize])
    }
}

const fn average(old: u64, sample: u64) -> u64 {
    (old.saturating_mul(SAMPLES - 1).saturating_add(sample)) / SAMPLES
}

fn learn_factor(factor: &mut u64, estimate: u64, actual: u64) {
    if TEXT_MIN <= estimate {
        let sample = actual.saturating_mul(UNIT) / estimate;
        *factor = average(*factor, sample.clamp(FACTOR_MIN, FACTOR_MAX)).max(FACTOR_MIN);
    }
}

/// Returns the bucket of `tokens`.
fn bucket(tokens: u64) -> usize {
    if tokens < 4 {
        return usize::try_from(tokens).unwrap_or(0);
    }
    let power = tokens.ilog2();
    let quarter = tokens >> (power - 2) & 3;
    let index = (power - 1) * 4 + u32::try_from(quarter).unwrap_or(3);
    usize::try_from(index).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// Returns the largest number in the bucket at `index`.
fn upper(index: usize) -> u64 {
    let index = u64::try_from(index).unwrap_or(0);
    if index < 4 {
        return index;
    }
    let (power, quarter) = (index / 4 + 1, index % 4);
    ((4 + quarter + 1) << (power - 2)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_within_its_bucket() {
        for tokens in (0..5_000).chain([1 << 20, (1 << 20) + 1, (1 << 31) - 1]) {
            let index = bucket(tokens);
            assert!(tokens <= upper(index), "{tokens}");
            assert!(index == 0 || upper(index - 1) < tokens, "{tokens}");
        }
    }

    #[test]
    fn the_usual_output_is_learned_after_some_calls() {
        let mut known = Calibration::default();
        (0..19).for_each(|_| known.saw_output(100));
        assert_eq!(known.usual_output(), OUTPUT_DEFAULT);
        (0..500).for_each(|_| known.saw_output(100));
        assert_eq!(known.usual_output(), 111);
        (0..20).for_each(|_| known.saw_output(1_000));
        assert!((1_000..1_100).contains(&known.usual_output()), "{}", known.usual_output());
    }

    #[test]
    fn the_factor_goes_both_ways_within_bounds() {
        let mut known = Calibration::default();
        (0..200).for_each(|_| known.saw_input(100, 150));
        assert!((145..=151).contains(&known.input(100)), "{}", known.input(100));
        (0..200).for_each(|_| known.saw_input(100, 50));
        assert!((50..=60).contains(&known.input(100)), "{}", known.input(100));
        (0..2_000).for_each(|_| known.saw_input(100, 0));
        assert_eq!(known.input(100), 25);
        let before = known.input(100);
        known.saw_input(TEXT_MIN - 1, 1_000);
        assert_eq!(known.input(100), before, "too small to learn from");
    }
}
