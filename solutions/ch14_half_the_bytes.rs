//! Chapter 14: half the bytes. Rows in 16 bits, or in 8.
//!
//! A cache moves rows; it never computes with them. So a row may be stored in any format, as
//! long as whoever reads it knows which. The numbers of a head are packed into 32-bit words,
//! and to the cache a head of `n` words is a head of `n` numbers:
//!
//! ```text
//!   head of 5 numbers    words
//!   F32                  x0 | x1 | x2 | x3 | x4
//!   F16, Bf16            x0 x1 | x2 x3 | x4 0              the lower half of a word first
//!   Int8                 scale | x0 x1 x2 x3 | x4 0 0 0    the lowest byte first
//! ```
//!
//! A row is rounded when it is written, before anybody has read it: so all who read it read
//! the same, and all caches of one format agree bit for bit.

use half::{bf16, f16};

use crate::cache::KvLayout;
use crate::chapters::ch13_paged_attention::{check_batch, places};
use crate::in_place::{BatchError, TextRows};
use crate::kernels::{Heads, RowFormat, add_scaled, dot, softmax_scaled};

// ANCHOR: words
/// 32-bit words that a head takes.
///
/// 5 numbers: 5 words in `F32`, 3 in `F16` and `Bf16`, 3 in `Int8` (the scale is one).
pub fn words(format: RowFormat, head_dim: usize) -> usize {
    match format {
        RowFormat::F32 => head_dim,
        RowFormat::F16 | RowFormat::Bf16 => head_dim.div_ceil(2),
        RowFormat::Int8 => 1 + head_dim.div_ceil(4),
    }
}

/// The shape of rows in this format, as a cache sees them: heads of so many words.
pub fn packed(format: RowFormat, layout: KvLayout) -> KvLayout {
    KvLayout { head_dim: words(format, layout.head_dim), ..layout }
}
// ANCHOR_END: words

// ANCHOR: encode
/// Packs the numbers of a head into words. What is left of the last word is 0.
///
/// `head`: `[head_dim]`, `out`: `[words(format, head_dim)]`.
pub fn encode(format: RowFormat, head: &[f32], out: &mut [f32]) {
    match format {
        RowFormat::F32 => out.copy_from_slice(head),
        RowFormat::F16 => encode_halves(head, out, |x| f16::from_f32(x).to_bits()),
        RowFormat::Bf16 => encode_halves(head, out, |x| bf16::from_f32(x).to_bits()),
        RowFormat::Int8 => encode_bytes(head, out),
    }
}

fn encode_halves(head: &[f32], out: &mut [f32], half: impl Fn(f32) -> u16) {
    for (word, pair) in out.iter_mut().zip(head.chunks(2)) {
        let low = half(pair[0]);
        let high = pair.get(1).map_or(0, |x| half(*x));
        *word = f32::from_bits(u32::from(low) | u32::from(high) << 16);
    }
}
// ANCHOR_END: encode

// ANCHOR: encode_bytes
/// The scale is the largest number, whatever its sign, by 127; each number becomes the
/// nearest whole number of scales, from -127 to 127. A head of zeros has the scale 0.
///
/// `[0.5, -2.0, 1.0]` → scale 2/127, bytes 32, -127, 64.
fn encode_bytes(head: &[f32], out: &mut [f32]) {
    let largest = head.iter().fold(0.0, |largest, x| if x.abs() <= largest { largest } else { x.abs() });
    let scale = largest / 127.0;
    let byte = |x: &f32| if scale == 0.0 { 0 } else { (x / scale).round().clamp(-127.0, 127.0) as i8 };
    out[0] = scale;
    for (word, four) in out[1..].iter_mut().zip(head.chunks(4)) {
        let mut bytes = [0; 4];
        for (to, x) in bytes.iter_mut().zip(four) {
            *to = byte(x) as u8;
        }
        *word = f32::from_bits(u32::from_le_bytes(bytes));
    }
}
// ANCHOR_END: encode_bytes

// ANCHOR: decode
/// Turns the words of a head into its numbers again, as they were rounded.
///
/// `words`: `[words(format, head_dim)]`, `head`: `[head_dim]`.
pub fn decode(format: RowFormat, words: &[f32], head: &mut [f32]) {
    match format {
        RowFormat::F32 => head.copy_from_slice(words),
        RowFormat::F16 => decode_halves(words, head, |bits| f16::from_bits(bits).to_f32()),
        RowFormat::Bf16 => decode_halves(words, head, |bits| bf16::from_bits(bits).to_f32()),
        RowFormat::Int8 => {
            for (i, x) in head.iter_mut().enumerate() {
                let bytes = words[1 + i / 4].to_bits().to_le_bytes();
                *x = f32::from(bytes[i % 4] as i8) * words[0];
            }
        }
    }
}

fn decode_halves(words: &[f32], head: &mut [f32], number: impl Fn(u16) -> f32) {
    for (i, x) in head.iter_mut().enumerate() {
        let bits = words[i / 2].to_bits() >> (16 * (i % 2));
        *x = number(bits as u16);
    }
}
// ANCHOR_END: decode

// ANCHOR: encode_rows
/// Packs rows of keys, or of values, head by head.
///
/// `rows`: `[n, kv_width]` → `[n, n_kv_heads * words]`. `layout`: that of the numbers.
pub fn encode_rows(format: RowFormat, layout: KvLayout, rows: &[f32]) -> Vec<f32> {
    let n_words = words(format, layout.head_dim);
    let heads = rows.chunks_exact(layout.head_dim);
    let mut packed = vec![0.0; heads.len() * n_words];
    for (head, out) in heads.zip(packed.chunks_exact_mut(n_words)) {
        encode(format, head, out);
    }
    packed
}
// ANCHOR_END: encode_rows

// ANCHOR: attend_packed
/// Attention of one token as in chapter 13, over rows in this format: each key and each value
/// is decoded where it is read.
pub fn attend_packed_row(
    heads: Heads,
    format: RowFormat,
    text: &TextRows<'_>,
    seen: usize,
    q: &[f32],
    out: &mut [f32],
) {
    let Heads { n_heads, n_kv_heads, head_dim } = heads;
    let n_words = words(format, head_dim);
    let width = n_kv_heads * n_words;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let mut numbers = vec![0.0; head_dim];
    for head in 0..n_heads {
        let kv_head = head / (n_heads / n_kv_heads);
        let query = &q[head * head_dim..][..head_dim];
        let mut weights = Vec::with_capacity(seen);
        for place in places(text.runs, width).take(seen) {
            decode(format, &text.keys[place + kv_head * n_words..][..n_words], &mut numbers);
            weights.push(dot(query, &numbers));
        }
        softmax_scaled(&mut weights, scale);
        let out = &mut out[head * head_dim..][..head_dim];
        out.fill(0.0);
        for (place, weight) in places(text.runs, width).zip(&weights) {
            decode(format, &text.values[place + kv_head * n_words..][..n_words], &mut numbers);
            add_scaled(out, *weight, &numbers);
        }
    }
}
// ANCHOR_END: attend_packed

// ANCHOR: attend_packed_batch
/// Attention of some texts over rows in this format: chapter 13's `attend_batch`.
///
/// # Errors
/// [`BatchError`], and nothing is written.
pub fn attend_packed_batch(
    heads: Heads,
    format: RowFormat,
    texts: &[TextRows<'_>],
    q: &[f32],
    out: &mut [f32],
) -> Result<(), BatchError> {
    check_batch(heads, words(format, heads.head_dim), texts, q, out)?;
    let width = heads.n_heads * heads.head_dim;
    let mut rows = q.chunks_exact(width).zip(out.chunks_exact_mut(width));
    for text in texts {
        let before = text.len() - text.queries;
        for (i, (q, out)) in rows.by_ref().take(text.queries).enumerate() {
            attend_packed_row(heads, format, text, before + i + 1, q, out);
        }
    }
    Ok(())
}
// ANCHOR_END: attend_packed_batch
