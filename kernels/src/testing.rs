//! Numbers for tests.

use crate::Dtype;

pub(crate) fn numbers(n: usize, seed: u32) -> Vec<f32> {
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

pub(crate) fn bytes(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|v| match dtype {
            Dtype::F32 => v.to_le_bytes().to_vec(),
            Dtype::F16 => half::f16::from_f32(*v).to_le_bytes().to_vec(),
            Dtype::Bf16 => half::bf16::from_f32(*v).to_le_bytes().to_vec(),
        })
        .collect()
}
