//! Chapter 14: half the bytes. Rows in 16 bits, or in 8.
//!
//! A cache moves rows; it never computes with them. So the numbers of a head can be rounded
//! and packed into 32-bit words, and to the cache a head of 9 words is a head of 9 numbers.
//! Not a line of chapters 2 to 12 changes:
//!
//! ```text
//!   a head of 5 numbers as words, each written from its lowest bits to its highest
//!
//!   F32          x0 | x1 | x2 | x3 | x4
//!   F16, Bf16    x0 x1 | x2 x3 | x4 0
//!   Int8         scale | x0 x1 x2 x3 | x4 0 0 0        a number is its byte times the scale
//! ```
//!
//! A row is rounded before it is written, and nobody reads it earlier. So all who read it
//! read the same, and all caches of one format agree bit for bit. Left out are formats of
//! fewer than 8 bits, and scales for several rows, which would have to wait for rows to come.

use half::{bf16, f16};

use crate::cache::KvLayout;
use crate::cache::in_place::{BatchError, SequenceRows};
use crate::chapters::ch13_paged_attention::{check_batch, places};
use crate::kernels::{Heads, RowFormat, add_scaled, dot, softmax_scaled};

// ANCHOR: words
/// 32-bit words that a head takes. `head_dim`: its numbers.
///
/// 5 numbers: 5 words in `F32`, 3 in `F16` and `Bf16`, 3 in `Int8` (the scale is one).
pub fn words(format: RowFormat, head_dim: usize) -> usize {
    match format {
        RowFormat::F32 => head_dim,
        RowFormat::F16 | RowFormat::Bf16 => head_dim.div_ceil(2),
        RowFormat::Int8 => 1 + head_dim.div_ceil(4),
    }
}

/// The layout of such rows as a cache sees it: `head_dim` counts words.
///
/// 6 layers of 2 heads of 32 numbers in `Int8` → 6 layers of 2 heads of 9.
pub fn packed(format: RowFormat, layout: KvLayout) -> KvLayout {
    KvLayout { head_dim: words(format, layout.head_dim), ..layout }
}

/// Bytes that a token takes: a row of keys and a row of values in each layer.
///
/// `layout`: that of the numbers. The story teller's, 6 layers of 2 heads of 32 → 3,072 in
/// `F32`, 1,536 in `F16` and `Bf16`, 864 in `Int8`.
pub fn token_bytes(format: RowFormat, layout: KvLayout) -> usize {
    2 * layout.n_layers * packed(format, layout).kv_width() * size_of::<f32>()
}
// ANCHOR_END: words

// ANCHOR: encode
/// Rounds the numbers of a head and packs them into words. The rest of the last word is 0.
///
/// A number exactly between two others becomes the even one: that whose last bit, or byte, is
/// even. NaN stays NaN. What is too large becomes infinite: 65,520 and more in `F16`.
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

/// Two numbers a word, the first of them in its lower 16 bits. `half` rounds one.
///
/// With [`f16`], `[1.0, -2.0, 0.5]` → words with the bits `0xC000_3C00`, `0x0000_3800`.
fn encode_halves(head: &[f32], out: &mut [f32], half: impl Fn(f32) -> u16) {
    for (word, pair) in out.iter_mut().zip(head.chunks(2)) {
        let low = half(pair[0]);
        let high = pair.get(1).map_or(0, |x| half(*x));
        *word = f32::from_bits(u32::from(high) << 16 | u32::from(low));
    }
}
// ANCHOR_END: encode

// ANCHOR: encode_bytes
/// The scale, then four bytes a word, the first of them the lowest.
///
/// The scale is the largest number, whatever its sign, divided by 127. The byte of `x` is
/// `x / scale`, rounded to a whole number from -127 to 127. Where the scale comes out as 0,
/// for a head of zeros or of numbers too small to be divided, all bytes are 0. A head with NaN
/// or an infinity must read as NaN, all of it: nothing may hide that its numbers are worth
/// nothing.
///
/// `[0.5, -2.0, 1.0]` → the scale 2/127, then a word with the bits `0x0040_8120`: from its
/// lowest byte 32, -127, 64 and nothing.
fn encode_bytes(head: &[f32], out: &mut [f32]) {
    let scale = scale(head);
    out[0] = scale;
    for (word, four) in out[1..].iter_mut().zip(head.chunks(4)) {
        let mut bytes = [0; 4];
        for (byte, x) in bytes.iter_mut().zip(four) {
            *byte = nearest(*x, scale).cast_unsigned();
        }
        *word = f32::from_bits(u32::from_le_bytes(bytes));
    }
}

/// The number that a byte counts; NaN if one of the numbers is.
fn scale(head: &[f32]) -> f32 {
    if head.iter().any(|x| x.is_nan()) {
        return f32::NAN;
    }
    let largest = head.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    largest / 127.0
}

/// How many scales come closest to a number.
fn nearest(x: f32, scale: f32) -> i8 {
    if scale == 0.0 {
        return 0;
    }
    (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8
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
        RowFormat::Int8 => decode_bytes(words, head),
    }
}

/// The way back from [`encode_halves`]. `number` turns the bits of a half into a number.
fn decode_halves(words: &[f32], head: &mut [f32], number: impl Fn(u16) -> f32) {
    for (pair, word) in head.chunks_mut(2).zip(words) {
        let bits = word.to_bits();
        pair[0] = number(bits as u16);
        if let Some(second) = pair.get_mut(1) {
            *second = number((bits >> 16) as u16);
        }
    }
}
// ANCHOR_END: decode

// ANCHOR: decode_bytes
/// The way back from [`encode_bytes`]: a number is its byte, -127 to 127, times the scale.
fn decode_bytes(words: &[f32], head: &mut [f32]) {
    let scale = words[0];
    for (four, word) in head.chunks_mut(4).zip(&words[1..]) {
        for (x, byte) in four.iter_mut().zip(word.to_bits().to_le_bytes()) {
            *x = f32::from(byte.cast_signed()) * scale;
        }
    }
}
// ANCHOR_END: decode_bytes

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

// ANCHOR: attend_packed_row
/// Attention of one token as in chapter 13's `attend_row`, over rows in this format.
///
/// Each key and each value is decoded where it is read. Beside the weights it takes memory
/// for the numbers of one head, no more. The rest is as there, the order of sums included.
///
/// `text`: its runs count words, as the cache does. `q` and `out`: `[n_heads * head_dim]`
/// numbers.
pub fn attend_packed_row(
    heads: Heads,
    format: RowFormat,
    text: &SequenceRows<'_>,
    seen: usize,
    q: &[f32],
    out: &mut [f32],
) {
    let Heads { n_heads, n_kv_heads, head_dim } = heads;
    let n_words = words(format, head_dim);
    let width = n_kv_heads * n_words;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let mut numbers = vec![0.0; head_dim];
    let mut weights = Vec::with_capacity(seen);
    for head in 0..n_heads {
        let at = head / (n_heads / n_kv_heads) * n_words;
        let query = &q[head * head_dim..][..head_dim];
        weights.clear();
        for place in places(text.runs, width).take(seen) {
            let key = &text.keys[place + at..][..n_words];
            decode(format, key, &mut numbers);
            weights.push(dot(query, &numbers));
        }
        softmax_scaled(&mut weights, scale);
        let out = &mut out[head * head_dim..][..head_dim];
        out.fill(0.0);
        for (place, weight) in places(text.runs, width).zip(&weights) {
            let value = &text.values[place + at..][..n_words];
            decode(format, value, &mut numbers);
            add_scaled(out, *weight, &numbers);
        }
    }
}
// ANCHOR_END: attend_packed_row

// ANCHOR: attend_packed_batch
/// Attention of some texts over rows in this format: chapter 13's `attend_batch`.
///
/// `q` and `out`: `[rows, n_heads * head_dim]`, the queries of the first text, then those of
/// the second, and so on.
///
/// # Errors
/// [`BatchError`] as there, and nothing is written.
pub fn attend_packed_batch(
    heads: Heads,
    format: RowFormat,
    texts: &[SequenceRows<'_>],
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
