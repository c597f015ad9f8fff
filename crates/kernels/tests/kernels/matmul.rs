//! Matrix products: every output is one dot product, whatever comes along with it.

use page_by_page_kernels::{Dtype, MatmulDtype, Matrix, matmul, matmuls};

use crate::definition::{bits, dot, dot_of_pairs, numbers, rounded, stored};
use crate::on_three_threads;

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// `n` rows against `[rows, cols]` weights, and what comes out by definition.
fn check(dtype: Dtype, n: usize, rows: usize, cols: usize) {
    let (x, values) = (numbers(n * cols, 2), numbers(rows * cols, 1));
    check_numbers(dtype, (&x, n), (&values, rows), cols);
}

fn check_numbers(dtype: Dtype, (x, n): (&[f32], usize), (values, rows): (&[f32], usize), cols: usize) {
    let w = stored(dtype, values);
    let values: Vec<f32> = values.iter().map(|value| rounded(dtype, *value)).collect();
    for matmul_dtype in [MatmulDtype::F32, MatmulDtype::Bf16] {
        let mut out = vec![f32::NAN; n * rows];
        matmul(matmul_dtype, x, &Matrix::new(&w, dtype, rows, cols), &mut out);
        let dot = if matmul_dtype == MatmulDtype::Bf16 && dtype == Dtype::Bf16 { dot_of_pairs } else { dot };
        let columns = || values.chunks_exact(cols);
        let expected: Vec<f32> = x.chunks_exact(cols).flat_map(|x| columns().map(|w| dot(x, w))).collect();
        let what = format!("{n} rows against {dtype:?} [{rows}, {cols}], products in {matmul_dtype:?}");
        // Which NaN it is depends on the processor.
        let is_other = |(x, by_definition): (&f32, &f32)| {
            x.to_bits() != by_definition.to_bits() && !(x.is_nan() && by_definition.is_nan())
        };
        let first = out.iter().zip(&expected).position(is_other);
        assert!(
            first.is_none(),
            "{what}: number {first:?} is {:e}, not {:e}",
            out[first.unwrap()],
            expected[first.unwrap()]
        );
    }
}

/// Numbers of all sizes. With `is_finite` none is so large that it hides the others in a sum. Most are so small that their
/// products, or sums of these, come near the smallest normal number.
fn hard_numbers(n: usize, seed: u32, is_finite: bool) -> Vec<f32> {
    let number = |(i, number): (usize, f32)| match number.to_bits().wrapping_mul(2_654_435_761) {
        bits if i % 8 == 0 && is_finite => f32::from_bits(bits & 0xBFFF_FFFF),
        bits if i % 8 == 0 => f32::from_bits(bits),
        bits if i % 31 == 1 && !is_finite => [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX][bits as usize % 4],
        bits => f32::from_bits((bits & 0x807F_FFFF) | ((127 - 72 + bits / 7 % 20) << 23)),
    };
    numbers(n, seed).into_iter().enumerate().map(number).collect()
}

#[test]
fn hard_numbers_are_multiplied_as_defined() {
    let (rows, cols) = if cfg!(miri) { (3, 33) } else { (40, 70) };
    for seed in 0..if cfg!(miri) { 3 } else { 90 } {
        let n = [1, 4, 33][seed as usize % 3];
        let of = |rows, seed| hard_numbers(rows * cols, seed, seed % 4 < 2);
        check_numbers(Dtype::Bf16, (&of(n, 2 * seed + 1), n), (&of(rows, 2 * seed), rows), cols);
    }
}

#[test]
fn products_are_dot_products() {
    for dtype in DTYPES {
        if cfg!(miri) {
            [1, 3, 17].into_iter().for_each(|n| check(dtype, n, 3, 17));
            continue;
        }
        for (rows, cols) in [(1, 1), (3, 7), (6, 40), (4, 16), (5, 33), (37, 75), (9, 64)] {
            for n in 1..=32 {
                check(dtype, n, rows, cols);
            }
        }
    }
}

#[test]
fn large_products_are_dot_products() {
    if cfg!(miri) {
        return;
    }
    for dtype in DTYPES {
        for (n, rows, cols) in
            [(1, 130, 1040), (1, 5, 2048), (2, 300, 250), (8, 70, 530), (100, 130, 64), (13, 1100, 200)]
        {
            check(dtype, n, rows, cols);
        }
    }
}

#[test]
#[cfg_attr(target_family = "wasm", ignore = "there is one thread")]
fn several_threads_fill_one_output() {
    // Enough work to be shared; with one row, with a few, and with many.
    for (n, rows, cols) in [(1, 70, 500), (4, 100, 90), (40, 30, 30)] {
        on_three_threads(|| check(Dtype::Bf16, n, rows, cols));
    }
}

#[test]
fn products_of_one_input_are_the_same_together() {
    let (n, cols) = (3, 50);
    let x = numbers(n * cols, 1);
    let (a, b) = (stored(Dtype::Bf16, &numbers(30 * cols, 2)), stored(Dtype::F32, &numbers(7 * cols, 3)));
    let (a, b) = (Matrix::new(&a, Dtype::Bf16, 30, cols), Matrix::new(&b, Dtype::F32, 7, cols));
    let (mut one, mut other) = (vec![0.0; n * 30], vec![0.0; n * 7]);
    for matmul_dtype in [MatmulDtype::F32, MatmulDtype::Bf16] {
        matmul(matmul_dtype, &x, &a, &mut one);
        matmul(matmul_dtype, &x, &b, &mut other);
        let (mut together, mut with) = (vec![0.0; n * 30], vec![0.0; n * 7]);
        matmuls(matmul_dtype, &x, &mut [(a, &mut together), (b, &mut with)]);
        assert_eq!((&one, &other), (&together, &with));
    }
}

#[test]
fn a_row_is_read_as_stored() {
    for dtype in DTYPES {
        let values = numbers(3 * 37, 5);
        let bytes = stored(dtype, &values);
        let mut row = vec![0.0; 37];
        Matrix::new(&bytes, dtype, 3, 37).read_row(2, &mut row);
        let expected: Vec<f32> = values[74..].iter().map(|value| rounded(dtype, *value)).collect();
        assert_eq!(bits(&row), bits(&expected), "{dtype:?}");
    }
}

#[test]
fn the_first_number_that_is_not_finite_is_found() {
    if cfg!(miri) {
        return;
    }
    let (rows, cols) = (300, 1999);
    for dtype in DTYPES {
        let mut values = numbers(rows * cols, 1);
        values[..2].copy_from_slice(&[f32::MIN_POSITIVE, -0.0]);
        let found = |values: &[f32]| Matrix::new(&stored(dtype, values), dtype, rows, cols).first_not_finite();
        assert_eq!(found(&values), None, "{dtype:?}");
        for (row, col) in [(299, 1998), (263, 7), (262, 570), (0, 1), (0, 0)] {
            for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                values[row * cols + col] = number;
                assert_eq!(found(&values), Some((row, col)), "{dtype:?} {number}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "bytes of a [9223372036854775809, 2] F32 matrix")]
fn a_matrix_whose_size_wraps_is_refused() {
    // 2 * (2^63 + 1) numbers wrap to 2, of 4 bytes each.
    Matrix::new(&[0; 8], Dtype::F32, (1 << (usize::BITS - 1)) + 1, 2);
}
