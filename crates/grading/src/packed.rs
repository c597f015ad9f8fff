//! Packed rows, worked out number by number from what chapter 14 says of them.

use half::{bf16, f16};
use page_by_page::kernels::{Heads, KvDtype, Run, SequenceRows, attend};

use crate::oracle::TestRng;

pub const PACKED: [KvDtype; 3] = [KvDtype::F16, KvDtype::Bf16, KvDtype::Int8];

pub fn words_per_head(dtype: KvDtype, head_dim: usize) -> usize {
    let bits = match dtype {
        KvDtype::F32 => 32 * head_dim,
        KvDtype::F16 | KvDtype::Bf16 => 16 * head_dim,
        KvDtype::Int8 => 32 + 8 * head_dim,
    };
    bits.div_ceil(32)
}

pub fn half(dtype: KvDtype, x: f32) -> u16 {
    match dtype {
        KvDtype::F16 => f16::from_f32(x).to_bits(),
        KvDtype::Bf16 => bf16::from_f32(x).to_bits(),
        other => panic!("{other} has no halves"),
    }
}

pub fn of_half(dtype: KvDtype, bits: u16) -> f32 {
    match dtype {
        KvDtype::F16 => f16::from_bits(bits).to_f32(),
        KvDtype::Bf16 => bf16::from_bits(bits).to_f32(),
        other => panic!("{other} has no halves"),
    }
}

pub fn scale(head: &[f32]) -> f32 {
    head.iter().map(|x| x.abs()).fold(0.0, f32::max) / 127.0
}

/// A head of finite numbers as words.
pub fn encode(dtype: KvDtype, head: &[f32]) -> Vec<f32> {
    let mut bytes = Vec::new();
    match dtype {
        KvDtype::F32 => return head.into(),
        KvDtype::F16 | KvDtype::Bf16 => bytes.extend(head.iter().flat_map(|x| half(dtype, *x).to_le_bytes())),
        KvDtype::Int8 => {
            let scale = scale(head);
            bytes.extend(scale.to_bits().to_le_bytes());
            for x in head {
                let byte = if scale == 0.0 { 0.0 } else { (x / scale).round_ties_even().clamp(-127.0, 127.0) };
                bytes.push(byte as i8 as u8);
            }
        }
    }
    bytes.resize(4 * words_per_head(dtype, head.len()), 0);
    bytes.as_chunks().0.iter().map(|word| f32::from_bits(u32::from_le_bytes(*word))).collect()
}

pub fn decode(dtype: KvDtype, words: &[f32], head_dim: usize) -> Vec<f32> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_bits().to_le_bytes()).collect();
    let numbers: Vec<f32> = match dtype {
        KvDtype::F32 => return words.into(),
        KvDtype::F16 | KvDtype::Bf16 => {
            bytes.as_chunks().0.iter().map(|half| of_half(dtype, u16::from_le_bytes(*half))).collect()
        }
        KvDtype::Int8 => bytes[4..].iter().map(|byte| f32::from(*byte as i8) * words[0]).collect(),
    };
    numbers[..head_dim].into()
}

/// The numbers that the engine's kernel reads from the words of a head.
///
/// A sequence of one token, whose key is all zeros: its weight is 1, and the output is its value.
pub fn kernel_reads(dtype: KvDtype, words: &[f32], head_dim: usize) -> Vec<f32> {
    let heads = Heads { n_heads: 1, n_kv_heads: 1, head_dim };
    let (keys, q) = (vec![0.0; words.len()], vec![0.0; head_dim]);
    let sequence = SequenceRows { queries: 1, keys: &keys, values: words, runs: &[Run { start: 0, rows: 1 }] };
    let mut out = vec![0.0; head_dim];
    attend(heads, dtype, &[sequence], &q, &mut out);
    out
}

/// Numbers of many sizes and both signs.
pub fn numbers(n: usize, rng: &mut TestRng) -> Vec<f32> {
    let number = |rng: &mut TestRng| {
        let size = [0.003, 0.2, 1.0, 7.0][rng.roll(0, 3)];
        (rng.roll(0, 20_000) as f32 - 10_000.0) / 10_000.0 * size
    };
    (0..n).map(|_| number(rng)).collect()
}

/// Words as they are, the first of many: `0xC0003C00 0x00003800`.
pub fn hex(words: &[f32]) -> String {
    let shown: Vec<String> = words.iter().take(8).map(|word| format!("0x{:08X}", word.to_bits())).collect();
    shown.join(" ") + if words.len() > 8 { " …" } else { "" }
}
