//! The kernels against their definitions, bit for bit: plain loops, one number at a time, with the sums in the order
//! that the crate promises. Since every processor must give these bits, the tests run once for each kind of registers
//! that this one has.

mod attention;
mod definition;
mod matmul;
mod steps;

use std::process::{Command, Output};

use definition::{bits, numbers, stored};
use page_by_page_kernels::{
    ARITHMETIC_VERSION, Dtype, Heads, KvDtype, MatmulDtype, Matrix, Run, SequenceRows, attend, matmul, rms_norm,
    silu_times, softmax,
};

const REGISTERS: &str = "PAGE_BY_PAGE_REGISTERS";

fn on_three_threads(work: impl FnOnce() + Send) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3);
    pool.build_scoped(|thread| thread.run(), |pool| pool.install(work)).expect("three threads");
}

/// All other tests of this binary, with these registers.
fn tests_with(registers: &str) -> Output {
    let tests = std::env::current_exe().expect("the path of this binary");
    Command::new(tests).env(REGISTERS, registers).output().expect("the tests start")
}

#[test]
fn all_registers_give_these_bits() {
    if cfg!(miri) || cfg!(target_family = "wasm") || std::env::var_os(REGISTERS).is_some() {
        return;
    }
    let refused = tests_with("abacus");
    let refused = String::from_utf8_lossy(&refused.stdout);
    let refusal = "PAGE_BY_PAGE_REGISTERS=abacus: this processor has no such registers, but ";
    let (_, names) = refused.split_once(refusal).expect("a refusal that names the registers");
    let names: Vec<&str> = names.lines().next().expect("names").split(", ").collect();
    assert!(names.contains(&"plain"), "{names:?}");
    for name in names {
        let run = tests_with(name);
        assert!(run.status.success(), "with {name} registers:\n{}", String::from_utf8_lossy(&run.stdout));
    }
}

/// The arithmetic's number, and what its bits add up to.
const CHECKSUM: (u32, u32) = (0, 2_534_218_923);

/// Files of rows are told apart by the number of the arithmetic. If this fails, give [`ARITHMETIC_VERSION`] the next number.
#[test]
fn a_change_of_any_bit_has_a_number() {
    let heads = Heads { n_heads: 2, n_kv_heads: 1, head_dim: 45 };
    let q = numbers(6 * 90, 2);
    let runs = [Run { start: 0, rows: 70 }];
    // A head of 45 numbers takes 23 words of two, or 13 with a scale and four each.
    let halves = |bits: fn(f32) -> u16| -> Vec<f32> {
        let pairs = numbers(70 * 46, 1);
        let words = pairs.chunks(2).map(|two| u32::from(bits(two[0])) | u32::from(bits(two[1])) << 16);
        words.map(f32::from_bits).collect()
    };
    let rows = |dtype| match dtype {
        KvDtype::F32 => numbers(70 * 45, 1),
        KvDtype::F16 => halves(|x| half::f16::from_f32(x).to_bits()),
        KvDtype::Bf16 => halves(|x| half::bf16::from_f32(x).to_bits()),
        KvDtype::Int8 => numbers(70 * 13, 6),
    };
    let weights = stored(Dtype::Bf16, &numbers(7 * 90, 7));
    let mut results = vec![numbers(100, 3), numbers(100, 4), numbers(90, 5)];
    softmax(&mut results[0]);
    silu_times(&mut results[1], &q[..100]);
    rms_norm(&mut results[2], &q[..45], 1e-6);
    for dtype in KvDtype::ALL {
        let (rows, mut out) = (rows(dtype), vec![0.0; q.len()]);
        attend(heads, dtype, &[SequenceRows { queries: 6, keys: &rows, values: &rows, runs: &runs }], &q, &mut out);
        results.push(out);
    }
    for dtype in MatmulDtype::ALL {
        let mut out = vec![0.0; 6 * 7];
        matmul(dtype, &q, &Matrix::new(&weights, Dtype::Bf16, 7, 90), &mut out);
        results.push(out);
    }
    let sum = results.iter().flat_map(|result| bits(result)).fold(0, |sum: u32, bits| sum.wrapping_mul(31) ^ bits);
    assert_eq!((ARITHMETIC_VERSION, sum), CHECKSUM);
}
