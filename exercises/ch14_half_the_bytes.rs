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

/// 32-bit words that a head takes.
///
/// 5 numbers: 5 words in `F32`, 3 in `F16` and `Bf16`, 3 in `Int8` (the scale is one).
pub fn words(format: RowFormat, head_dim: usize) -> usize {
    todo!("ch14 task 1: how many words a head takes")
}

/// The shape of rows in this format, as a cache sees them: heads of so many words.
pub fn packed(format: RowFormat, layout: KvLayout) -> KvLayout {
    KvLayout { head_dim: words(format, layout.head_dim), ..layout }
}

/// Packs the numbers of a head into words. What is left of the last word is 0.
///
/// `head`: `[head_dim]`, `out`: `[words(format, head_dim)]`.
pub fn encode(format: RowFormat, head: &[f32], out: &mut [f32]) {
    todo!("ch14 task 2: round and pack the numbers of a head")
}

/// Turns the words of a head into its numbers again, as they were rounded.
///
/// `words`: `[words(format, head_dim)]`, `head`: `[head_dim]`.
pub fn decode(format: RowFormat, words: &[f32], head: &mut [f32]) {
    todo!("ch14 task 2: the numbers as they were rounded")
}

/// Packs rows of keys, or of values, head by head.
///
/// `rows`: `[n, kv_width]` → `[n, n_kv_heads * words]`. `layout`: that of the numbers.
pub fn encode_rows(format: RowFormat, layout: KvLayout, rows: &[f32]) -> Vec<f32> {
    todo!("ch14 task 3: rows of heads")
}

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
    todo!("ch14 task 4: decode where it is read")
}

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
