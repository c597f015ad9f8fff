//! Single steps: dot product, softmax, gate, norm.

use page_by_page_kernels::{
    MatmulDtype, add_scaled, dot, peak_multiply_adds, rms_norm, silu_times, softmax, softmax_scaled,
};

use crate::definition::{self, bits, numbers};

const LENGTHS: [usize; 10] = [1, 2, 15, 16, 17, 33, 48, 99, 1000, 40_000];

/// Numbers from -250 to 250, and some at the edges of what can be computed.
fn wide(n: usize) -> Vec<f32> {
    let edges = [0.0, -0.0, f32::MIN_POSITIVE, 1e-40, -87.0, 88.0, -1e30];
    let mut numbers: Vec<f32> = numbers(n, 7).iter().map(|x| x * 500.0).collect();
    for (number, edge) in numbers.iter_mut().skip(3).step_by(5).zip(edges) {
        *number = edge;
    }
    numbers
}

fn lengths() -> impl Iterator<Item = usize> {
    LENGTHS.into_iter().filter(|n| !cfg!(miri) || *n < 100)
}

/// Numbers whose `a * b + c` is hard to round: near the middle of two results, cancelling, subnormal, overflowing.
fn hard_cases() -> Vec<[f32; 3]> {
    let ulp = f32::EPSILON;
    let near_one = [1.0, 1.0 + ulp, 1.0 + 2.0 * ulp, 1.0 - ulp / 2.0, 1.5, 2.0 - ulp];
    let scales =
        [1.0, ulp / 2.0, ulp / 4.0, ulp * ulp, 1e-20, f32::MIN_POSITIVE, 1e-44, 3e18, f32::MAX, f32::INFINITY, 0.0];
    let mut cases = Vec::new();
    for (a, b, c) in near_one.iter().flat_map(|a| near_one.iter().flat_map(move |b| near_one.map(|c| (*a, *b, c)))) {
        for (a_scale, c_scale) in scales.iter().flat_map(|a| scales.map(|c| (*a, c))) {
            cases.extend([1.0, -1.0].map(|sign| [a * a_scale, sign * b, c * c_scale]));
        }
    }
    // And whatever bits make.
    let some = numbers(9_000, 3).into_iter().map(|x| f32::from_bits(x.to_bits().wrapping_mul(2_654_435_761)));
    cases.extend(some.collect::<Vec<_>>().as_chunks().0);
    cases
}

#[test]
fn a_multiply_add_is_rounded_once() {
    let step = if cfg!(miri) { 97 } else { 1 };
    for [a, b, c] in hard_cases().into_iter().step_by(step) {
        // Numbers 0 and 16 meet in one lane: 1 * c + 0, then a * b + c.
        let (mut left, mut right) = ([0.0; 17], [0.0; 17]);
        (left[0], right[0], left[16], right[16]) = (c, 1.0, a, b);
        let (sum, expected) = (dot(&left, &right), definition::dot(&left, &right));
        assert!(
            sum.to_bits() == expected.to_bits() || (sum.is_nan() && expected.is_nan()),
            "{a:e} * {b:e} + {c:e}: {sum:e}, expected {expected:e}"
        );
    }
}

#[test]
fn steps_are_their_definitions() {
    for n in lengths() {
        let (a, b) = (numbers(n, 1), numbers(n, 2));
        assert_eq!(bits(&[dot(&a, &b)]), bits(&[definition::dot(&a, &b)]), "a dot product of {n} numbers");
        let mut sums = a.clone();
        add_scaled(&mut sums, 0.7, &b);
        let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| b.mul_add(0.7, *a)).collect();
        assert_eq!(bits(&sums), bits(&expected), "a sum of rows of {n} numbers");
    }
}

#[test]
fn a_softmax_is_its_definition() {
    for n in lengths() {
        for scores in [numbers(n, 3), wide(n)] {
            let (mut found, mut expected) = (scores.clone(), scores.clone());
            softmax(&mut found);
            definition::softmax(&mut expected, 1.0);
            assert_eq!(bits(&found), bits(&expected), "{n} scores");
            let (mut found, mut expected) = (scores.clone(), scores);
            softmax_scaled(&mut found, 0.3);
            definition::softmax(&mut expected, 0.3);
            assert_eq!(bits(&found), bits(&expected), "{n} scores, scaled");
        }
    }
}

#[test]
fn a_softmax_with_a_nan_is_all_nan() {
    for at in [0, 15, 16, 40] {
        let mut scores = numbers(41, 3);
        scores[at] = f32::NAN;
        softmax(&mut scores);
        assert!(scores.iter().all(|score| score.is_nan()), "NaN at {at}: {scores:?}");
    }
}

#[test]
fn gate_and_norm_are_their_definitions() {
    for n in lengths() {
        let (mut found, mut expected) = (wide(n), wide(n));
        silu_times(&mut found, &numbers(n, 2));
        definition::silu_times(&mut expected, &numbers(n, 2));
        assert_eq!(bits(&found), bits(&expected), "a gate of {n} numbers");
        let (mut found, mut expected) = (numbers(3 * n, 8), numbers(3 * n, 8));
        rms_norm(&mut found, &numbers(n, 9), 1e-6);
        definition::rms_norm(&mut expected, &numbers(n, 9), 1e-6);
        assert_eq!(bits(&found), bits(&expected), "3 rows of {n} numbers");
    }
}

#[test]
fn a_gate_and_a_norm_pass_infinity_and_nan() {
    let mut gate = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0];
    silu_times(&mut gate, &[1.0; 4]);
    assert_eq!(gate[0], f32::INFINITY);
    assert!(gate[1] == 0.0 || gate[1].is_nan() || gate[1] < 0.0, "{gate:?}");
    assert!(gate[2].is_nan() && gate[3].is_finite(), "{gate:?}");
    // And a norm does not hide that its sum has overflowed.
    let mut row = [3e38; 4];
    rms_norm(&mut row, &[1.0; 4], 1e-6);
    assert!(row.iter().all(|x| x.is_nan()), "{row:?}");
}

#[test]
fn every_round_of_multiply_adds_counts() {
    for dtype in MatmulDtype::ALL {
        assert_eq!(peak_multiply_adds(dtype, 0), 0);
        assert_eq!(peak_multiply_adds(dtype, 10), 10 * peak_multiply_adds(dtype, 1));
        assert!(peak_multiply_adds(dtype, 1).is_multiple_of(16) && peak_multiply_adds(dtype, 1) > 0);
    }
}
