//! Random numbers that are the same in every run: SplitMix64 from a seed.
//!
//! The numbers and the order of requests must not depend on the version of a library. Otherwise a count that
//! was exact in one run would differ in the next.

/// A sequence of numbers. A clone continues on its own from the same position.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// An independent sequence for one part of a workload, such as thread 3 of client 1.
    pub fn part(seed: u64, part: &[u64]) -> Random {
        let mix = |so_far: u64, &word: &u64| Random(so_far ^ word.wrapping_mul(0xd6e8_feb8_6659_fd93)).word();
        Random(part.iter().fold(seed, mix))
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A uniformly distributed number from 0 to `bound` - 1; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// A uniformly distributed number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// A uniformly distributed number from 0 (included) to 1 (excluded).
    pub fn fraction(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A gamma-distributed number of shape 1 (filebench's default `gamma` of 1000): exponential with this
    /// mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.fraction()).ln()
    }

    /// Fills a buffer with incompressible bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            let word = self.word().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// Returns `count` incompressible bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.fill(&mut bytes);
        bytes
    }
}

/// Zipf's law over `count` things: the chance of the `k`th is proportional to 1/k (Breslau et al.; Nache uses
/// it for web servers).
#[derive(Clone, Debug)]
pub struct Zipf {
    cumulated: Vec<f64>,
}

impl Zipf {
    /// The law over the numbers from 0 to `count` - 1.
    pub fn new(count: usize) -> Zipf {
        let mut so_far = 0.0;
        let weights = (1..=count.max(1)).map(|rank| {
            so_far += 1.0 / rank as f64;
            so_far
        });
        Zipf { cumulated: weights.collect() }
    }

    /// The next choice.
    pub fn choose(&self, random: &mut Random) -> usize {
        let at = random.fraction() * self.cumulated.last().copied().unwrap_or(1.0);
        self.cumulated.partition_point(|&up_to| up_to <= at).min(self.cumulated.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_a_seed_never_changes() {
        let mut random = Random::new(1);
        assert_eq!([random.word(), random.word()], [0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67]);
        assert_ne!(Random::part(1, &[1, 2]).word(), Random::part(1, &[2, 1]).word());
    }

    #[test]
    fn bounds_are_kept() {
        let mut random = Random::new(7);
        assert!((0..1000).all(|_| random.below(3) < 3 && (5..=6).contains(&random.between(5, 6))));
        assert_eq!((random.below(0), random.between(4, 4)), (0, 4));
        let mean = (0..20_000).map(|_| random.exponential(16.0)).sum::<f64>() / 20_000.0;
        assert!((15.0..17.0).contains(&mean), "{mean}");
    }

    #[test]
    fn zipf_favours_the_first_as_its_law_says() {
        let (zipf, mut random) = (Zipf::new(500), Random::new(3));
        let mut counts = [0u32; 500];
        (0..100_000).for_each(|_| counts[zipf.choose(&mut random)] += 1);
        let expected = 100_000.0 / (1..=500).map(|rank| 1.0 / f64::from(rank)).sum::<f64>();
        assert!((f64::from(counts[0]) / expected - 1.0).abs() < 0.05, "{}", counts[0]);
        assert!(
            (f64::from(counts[0]) / f64::from(counts[9]) - 10.0).abs() < 1.5,
            "{} {}",
            counts[0],
            counts[9]
        );
    }
}
