//! Random numbers determined by a seed (`SplitMix64`, Steele et al. 2014): the same seed gives the same test.

use crate::log::say;

/// A seeded generator.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Starts at `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Starts at the seed in the environment variable `LAB_SEED`, or at one from the clock. Prints the seed,
    /// so that a failure can be reproduced.
    pub fn from_environment() -> Rng {
        let clock = || {
            let since =
                std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            since.as_nanos() as u64
        };
        let seed = std::env::var("LAB_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(clock);
        say(&format!("LAB_SEED={seed}"));
        Rng(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % (bound.max(1) as u64)) as usize
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// Puts `things` in random order.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            things.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn a_seed_decides_everything() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            let mut order: Vec<usize> = (0..20).collect();
            rng.shuffle(&mut order);
            (rng.next_u64(), order)
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
