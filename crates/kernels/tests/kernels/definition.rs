//! What the kernels compute, one number at a time; and numbers to compute with.

use page_by_page_kernels::Dtype;

/// Numbers from -0.5 to 0.5.
pub fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(2654435761).max(1);
    (0..n)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x as f32 / u32::MAX as f32 - 0.5
        })
        .collect()
}

pub fn stored(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|v| match dtype {
            Dtype::F32 => v.to_le_bytes().to_vec(),
            Dtype::F16 => half::f16::from_f32(*v).to_le_bytes().to_vec(),
            Dtype::Bf16 => half::bf16::from_f32(*v).to_le_bytes().to_vec(),
        })
        .collect()
}

pub fn rounded(dtype: Dtype, value: f32) -> f32 {
    match dtype {
        Dtype::F32 => value,
        Dtype::F16 => half::f16::from_f32(value).to_f32(),
        Dtype::Bf16 => half::bf16::from_f32(value).to_f32(),
    }
}

/// The bits of numbers, so that -0 is not 0, and NaN is NaN.
pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Sixteen lanes, added in halves.
fn halves(mut lanes: [f32; 16]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        lanes[i % 16] = a.mul_add(*b, lanes[i % 16]);
    }
    halves(lanes)
}

/// The number as a product in bf16 takes it: rounded, and a zero of its sign if it is below 2^-56.
pub fn factor(value: f32) -> f32 {
    let rounded = half::bf16::from_f32(value).to_f32();
    if rounded.abs() < 2.0_f32.powi(-56) { 0.0_f32.copysign(rounded) } else { rounded }
}

/// Two numbers in each of sixteen lanes, the second added first.
pub fn dot_of_pairs(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for (a, b) in a.chunks(32).zip(b.chunks(32)) {
        let at = |numbers: &[f32], i: usize| factor(numbers.get(i).copied().unwrap_or(0.0));
        for (lane, sum) in lanes.iter_mut().enumerate() {
            for i in [2 * lane + 1, 2 * lane] {
                *sum = at(a, i).mul_add(at(b, i), *sum);
            }
        }
    }
    halves(lanes)
}

/// `e^x`: `x = n ln 2 + r`, a polynomial of `r`, `2^n` by its exponent.
pub fn exp(x: f32) -> f32 {
    if x.is_nan() || x < -87.0 {
        return if x.is_nan() { x } else { 0.0 };
    }
    let x = x.min(88.0);
    // Adding this number rounds, subtracting it again leaves a whole number.
    let n = (x * std::f32::consts::LOG2_E + 12_582_912.0) - 12_582_912.0;
    let r = n.mul_add(2.121_944_4e-4, n.mul_add(-0.693_359_4, x));
    let terms = [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5, 1.0, 1.0];
    let power = terms.iter().fold(1.987_569_1e-4_f32, |power, term| r.mul_add(power, *term));
    power * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

pub fn softmax(scores: &mut [f32], scale: f32) {
    let max = scores.iter().fold(f32::NEG_INFINITY, |max, score| max.max(score * scale));
    let mut lanes = [0.0; 16];
    for (i, score) in scores.iter_mut().enumerate() {
        *score = exp(*score * scale - max);
        lanes[i % 16] += *score;
    }
    let total = halves(lanes);
    scores.iter_mut().for_each(|score| *score /= total);
}

pub fn silu_times(gate: &mut [f32], up: &[f32]) {
    for (x, up) in gate.iter_mut().zip(up) {
        *x = *x / (exp(-*x) + 1.0) * up;
    }
}

pub fn rms_norm(rows: &mut [f32], weight: &[f32], eps: f32) {
    for row in rows.chunks_mut(weight.len()) {
        let scale = 1.0 / (dot(row, row) / row.len() as f32 + eps).sqrt();
        for (x, weight) in row.iter_mut().zip(weight) {
            *x = *x * scale * weight;
        }
    }
}

#[test]
fn a_dot_product_is_the_sum_of_products() {
    for n in [1, 16, 45, 500] {
        let (a, b) = (numbers(n, 1), numbers(n, 2));
        let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        assert!((f64::from(dot(&a, &b)) - exact).abs() < 1e-5, "{n} numbers");
    }
}

#[test]
fn exp_is_close_and_never_negative() {
    for i in -9000..880 {
        let x = i as f32 / 10.0;
        let (ours, exact) = (f64::from(exp(x)), f64::from(x).exp());
        assert!(ours >= 0.0 && (ours - exact).abs() <= 2e-7 * exact + 1e-37, "exp({x}) = {ours}, not {exact}");
    }
}
