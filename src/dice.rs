//! Random numbers that a seed decides, the same on every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

pub(crate) struct Dice(ChaCha8Rng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number from `low` to `high`, both included, all as likely.
    pub(crate) fn roll(&mut self, low: usize, high: usize) -> usize {
        let span = (high - low + 1) as u128;
        low + ((u128::from(self.0.next_u64()) * span) >> 64) as usize
    }

    /// A number from 0 to 1, 1 excluded.
    pub(crate) fn uniform(&mut self) -> f64 {
        // 53 random bits.
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
