//! What a processor's arithmetic can do at most: a plain loop of multiply-adds that reads nothing and writes nothing.

use std::hint::black_box;

use crate::matrix::{Dtype, Factors, MatmulDtype};
use crate::registers::{Kernel, vectorized, vectorized_pairs};
use crate::vector::Vector;

/// Multiplies and adds `rounds` times in all registers that a tile has for its sums. Returns how many multiply-adds.
///
/// Products of matrices load numbers besides, and add up lanes: they cannot be faster than this.
pub fn peak_multiply_adds(matmul_dtype: MatmulDtype, rounds: usize) -> usize {
    let mut done = 0;
    match matmul_dtype {
        MatmulDtype::F32 => vectorized(Peak::<false> { rounds, done: &mut done }),
        MatmulDtype::Bf16 => vectorized_pairs(Peak::<true> { rounds, done: &mut done }),
    }
    done
}

struct Peak<'a, const PAIRS: bool> {
    rounds: usize,
    done: &'a mut usize,
}

impl<const PAIRS: bool> Kernel for Peak<'_, PAIRS> {
    #[inline(always)]
    fn run<V: Vector>(self) {
        let factors = if PAIRS { Factors::Pairs } else { Factors::Numbers(Dtype::F32) };
        *self.done = if V::ONE_BY_ONE {
            run_in::<V, 1>(factors, self.rounds)
        } else if V::MANY_REGISTERS {
            run_in::<V, 24>(factors, self.rounds)
        } else {
            run_in::<V, 6>(factors, self.rounds)
        }
    }
}

/// `N` sums side by side: none waits for another.
#[inline(always)]
fn run_in<V: Vector, const N: usize>(factors: Factors, rounds: usize) -> usize {
    let mut sums = [V::splat(black_box(1.0)); N];
    let (a, b) = (V::splat(black_box(0.5)), V::splat(black_box(0.25)));
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = factors.mul_add(a, b, *sum);
        }
    }
    for sum in sums {
        black_box(sum.lanes());
    }
    rounds * N * factors.n_numbers()
}
