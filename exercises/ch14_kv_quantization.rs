//! Chapter 14: rows in 16 bits, or in 8.
//!
//! A cache moves rows and never computes with them. So the numbers of a head can be rounded and
//! packed into 32-bit words, and to the cache a head of 9 words is a head of 9 numbers. Not a
//! line of chapters 2 to 13 changes.
//!
//! ```text
//!   a head of 5 numbers as words, each shown from its lowest bits to its highest
//!
//!   F32          x0 | x1 | x2 | x3 | x4
//!   F16, Bf16    x0 x1 | x2 x3 | x4 0
//!   Int8         scale | x0 x1 x2 x3 | x4 0 0 0        a number is its byte times the scale
//! ```
//!
//! A row is rounded before it is written and never read earlier, so every reader gets the same
//! numbers, and all caches of one format agree bit for bit. Formats with fewer than 8 bits are
//! left out. So are scales shared by several rows, because a row would have to wait for the others.
//!
//! Check your work with `cargo test --features solution --test ch14_kv_quantization`.

use half::{bf16, f16};

use crate::cache::KvLayout;
use crate::cache::attention::HeadReader;
use crate::kernels::KvDtype;

/// Returns how many 32-bit words a head of `head_dim` numbers takes.
///
/// 5 numbers take 5 words in `F32`, 3 in `F16` and `Bf16`, and 3 in `Int8`, where one is the scale.
pub fn words_per_head(dtype: KvDtype, head_dim: usize) -> usize {
    todo!("ch14 task 1: how many words a head takes")
}

/// Returns the layout of such rows as a cache sees it, in which `head_dim` counts words.
///
/// 6 layers of 2 heads of 32 numbers in `Int8` → 6 layers of 2 heads of 9.
pub fn packed(dtype: KvDtype, layout: KvLayout) -> KvLayout {
    todo!("ch14 task 1: the layout that a cache is made with")
}

/// Returns how many bytes a token takes, with a row of keys and a row of values in each layer.
///
/// `layout` is that of the numbers. The storyteller's, 6 layers of 2 heads of 32, takes 3,072
/// bytes in `F32`, 1,536 in `F16` and `Bf16`, and 864 in `Int8`.
pub fn token_bytes(dtype: KvDtype, layout: KvLayout) -> usize {
    todo!("ch14 task 1: the bytes of a token, in all layers")
}

/// Rounds the numbers of a head and packs them into words. The rest of the last word is 0.
///
/// A number halfway between two others becomes the even one, whose last bit, or byte, is even.
/// NaN stays NaN. A number too large for its format becomes infinite, in `F16` from 65,520 on. In
/// `Int8`, numbers within a rounding error of `f32::MAX` can read back as infinite.
///
/// `head`: `[head_dim]`, `out`: `[words_per_head(dtype, head_dim)]`.
pub fn encode(dtype: KvDtype, head: &[f32], out: &mut [f32]) {
    match dtype {
        KvDtype::F32 => out.copy_from_slice(head),
        KvDtype::F16 => encode_halves(head, out, |x| f16::from_f32(x).to_bits()),
        KvDtype::Bf16 => encode_halves(head, out, |x| bf16::from_f32(x).to_bits()),
        KvDtype::Int8 => encode_bytes(head, out),
    }
}

/// Packs two numbers into each word, the first of them in its lower 16 bits. `half` rounds one.
///
/// With [`f16`], `[1.0, -2.0, 0.5]` → words with the bits `0xC000_3C00`, `0x0000_3800`.
fn encode_halves(head: &[f32], out: &mut [f32], half: impl Fn(f32) -> u16) {
    todo!("ch14 task 2: two numbers a word")
}

/// Packs a head as its scale, then four bytes in each word, the first of them the lowest.
///
/// The scale is the largest number, whatever its sign, divided by 127. The byte of `x` is
/// `x / scale`, divided anew for each number and rounded to a whole number from -127 to 127.
///
/// If all numbers are 0 or so tiny that the scale is 0, all bytes are 0, and nothing is divided.
/// A head with NaN or an infinity must read as NaN in every place, so that it cannot pass for
/// numbers. A byte can't be NaN, so the scale has to be.
///
/// `[0.5, -2.0, 1.0]` → the scale 2/127, then a word with the bits `0x0040_8120`, which are the
/// bytes 32, -127, 64 and 0, the lowest first.
fn encode_bytes(head: &[f32], out: &mut [f32]) {
    todo!("ch14 task 3: a scale, and four numbers a word")
}

/// Turns the words of a head back into its numbers, as they were rounded.
///
/// `words`: `[words_per_head(dtype, head_dim)]`, `head`: `[head_dim]`.
pub fn decode(dtype: KvDtype, words: &[f32], head: &mut [f32]) {
    match dtype {
        KvDtype::F32 => head.copy_from_slice(words),
        KvDtype::F16 => decode_halves(words, head, |bits| f16::from_bits(bits).to_f32()),
        KvDtype::Bf16 => decode_halves(words, head, |bits| bf16::from_bits(bits).to_f32()),
        KvDtype::Int8 => decode_bytes(words, head),
    }
}

/// The reverse of [`encode_halves`]. `number` turns the bits of a half into a number.
fn decode_halves(words: &[f32], head: &mut [f32], number: impl Fn(u16) -> f32) {
    todo!("ch14 task 2: the two numbers of a word")
}

/// The reverse of [`encode_bytes`]. A number is its byte, -127 to 127, times the scale.
fn decode_bytes(words: &[f32], head: &mut [f32]) {
    todo!("ch14 task 3: each byte times the scale")
}

/// Packs rows of keys, or of values, head by head.
///
/// `rows`: `[n, kv_width]` → `[n, n_kv_heads * words]`. `layout` is that of the numbers.
pub fn encode_rows(dtype: KvDtype, layout: KvLayout, rows: &[f32]) -> Vec<f32> {
    todo!("ch14 task 3: rows, head by head")
}

/// Reads heads of rows in this format, for chapter 13's attention.
pub struct PackedHeads {
    dtype: KvDtype,
    /// Room for the numbers of one head.
    numbers: Vec<f32>,
}

impl PackedHeads {
    /// `head_dim`: numbers in a head.
    pub fn new(dtype: KvDtype, head_dim: usize) -> Self {
        PackedHeads { dtype, numbers: vec![0.0; head_dim] }
    }
}

impl HeadReader for PackedHeads {
    fn words_per_head(&self) -> usize {
        todo!("ch14 task 4: how many words a head takes")
    }

    /// Decodes the head into the room for one, and takes no more memory than that.
    fn read<'a>(&'a mut self, words: &'a [f32]) -> &'a [f32] {
        todo!("ch14 task 4: the numbers of the head in these words")
    }
}
