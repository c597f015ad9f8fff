//! What a processor's arithmetic can do at most: a plain loop of multiply-adds that reads nothing and writes nothing.

use std::hint::black_box;

use crate::registers::{Kernel, vectorized};
use crate::vector::{LANES, Vector};

/// Multiplies and adds `rounds` times in all the registers that a tile has for its sums; returns how many multiply-adds
/// that was.
///
/// Products of matrices load numbers besides, and add up lanes: they cannot be faster than this.
pub fn multiply_adds(rounds: usize) -> usize {
    vectorized(Limit { rounds })
}

struct Limit {
    rounds: usize,
}

impl Kernel for Limit {
    type Output = usize;

    #[inline(always)]
    fn run<V: Vector>(self) -> usize {
        if V::ONE_BY_ONE {
            self.run_in::<V, 1>()
        } else if V::MANY_REGISTERS {
            self.run_in::<V, 24>()
        } else {
            self.run_in::<V, 6>()
        }
    }
}

impl Limit {
    /// `N` sums side by side: none waits for another.
    #[inline(always)]
    fn run_in<V: Vector, const N: usize>(self) -> usize {
        let mut sums = [V::splat(black_box(1.0)); N];
        let (a, b) = (V::splat(black_box(0.5)), V::splat(black_box(0.25)));
        for _ in 0..self.rounds {
            for sum in &mut sums {
                *sum = a.mul_add(b, *sum);
            }
        }
        for sum in sums {
            black_box(sum.lanes());
        }
        self.rounds * N * LANES
    }
}
