//! What a processor's arithmetic can do at most: a plain loop of multiply-adds that reads nothing and writes nothing.

use std::hint::black_box;

use crate::registers::{Kernel, vectorized};
use crate::vector::{LANES, Vector};

/// Multiplies and adds `rounds` times in all the registers that a tile has for its sums; returns how many multiply-adds
/// that was.
///
/// Products of matrices load numbers besides, and add up lanes: they cannot be faster than this.
pub fn multiply_adds(rounds: usize) -> usize {
    let mut done = 0;
    vectorized(Peak { rounds, done: &mut done });
    done
}

struct Peak<'a> {
    rounds: usize,
    done: &'a mut usize,
}

impl Kernel for Peak<'_> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        *self.done = if V::ONE_BY_ONE {
            run_in::<V, 1>(self.rounds)
        } else if V::MANY_REGISTERS {
            run_in::<V, 24>(self.rounds)
        } else {
            run_in::<V, 6>(self.rounds)
        }
    }
}

/// `N` sums side by side: none waits for another.
#[inline(always)]
fn run_in<V: Vector, const N: usize>(rounds: usize) -> usize {
    let mut sums = [V::splat(black_box(1.0)); N];
    let (a, b) = (V::splat(black_box(0.5)), V::splat(black_box(0.25)));
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = a.mul_add(b, *sum);
        }
    }
    for sum in sums {
        black_box(sum.lanes());
    }
    rounds * N * LANES
}
