//! The arithmetic: dot products, matrix products, attention, softmax. The only place with SIMD.
//!
//! **One order for every sum.** Floating-point addition depends on its order, so every sum here is taken in one fixed
//! order, whatever the processor, the number of threads and the number of rows in the call. A dot product keeps
//! sixteen running sums, the *lanes*. Number `i` goes to lane `i % 16` by one fused multiply-add, and at the end the
//! lanes are added in halves, 16 → 8 → 4 → 2 → 1:
//!
//! ```text
//!   a · b    lane 0: a[0]·b[0] + a[16]·b[16] + a[32]·b[32] + …  ┐
//!            lane 1: a[1]·b[1] + a[17]·b[17] + …                │ 16 sums → 1
//!            …                                                  ┘
//! ```
//!
//! So a row's result has the same bits whether it is computed alone or with a thousand others, which lets the tests
//! ask for equality instead of a tolerance. Batch invariance is the name of the property; [He, "Defeating
//! Nondeterminism in LLM Inference", 2025](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/)
//! shows what engines do without it.
//!
//! **The modules.** Those that add numbers say in which order:
//!
//! - `vector`: sixteen numbers at a time; `registers`: in whatever registers the processor has;
//! - `matrix`: weights as they lie in a checkpoint; `matmul`: rows against them; `tiles`: several rows at a time;
//! - `rows`: keys and values as a cache keeps them; `stored`: reading them; `attention`: queries against them, wherever
//!   they lie;
//! - `ops`: dot product, softmax, norm, gate; `parallel`: work for several threads; `peak`: what none of them can
//!   surpass.
//!
//! **One loop for every processor.** The loops are written over vectors of sixteen numbers; `vector` defines what those
//! are on AVX-512, on AVX2, on Neon and elsewhere. `vectorized` picks at run time. On x86 processors without fused
//! multiply-add (before 2013) the results are the same and the speed is poor. `PAGE_BY_PAGE_REGISTERS=avx2`, or
//! `plain`, picks narrower registers than the processor has, to see that the output stays the same.

mod attention;
mod matmul;
mod matrix;
mod ops;
mod parallel;
mod peak;
mod registers;
mod rows;
mod stored;
mod tiles;
mod vector;

pub use attention::{Heads, attend};
pub use matmul::{matmul, matmuls};
pub use matrix::{Dtype, MatmulDtype, Matrix};
pub use ops::{add_scaled, dot, rms_norm, silu_times, softmax, softmax_scaled};
pub use peak::peak_multiply_adds;
pub use rows::{KvDtype, Run, SequenceRows};

/// Goes up with every change to the bits of a result: another order of a sum, another polynomial of an exponential. It
/// is part of a model's fingerprint, so no file of rows is taken for what a different arithmetic would have computed.
pub const ARITHMETIC_VERSION: u32 = 0;
