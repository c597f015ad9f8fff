//! Chapter 13: paged attention. Read the rows where they lie.
//!
//! Attention needs three things from a sequence's rows. They are the score of each key, the
//! softmax of the scores, and the sum of the values by these weights. None of them needs the rows side by
//! side. So instead of copying the pages together in every layer of every step, attention
//! walks through them: once for the keys, once for the values.
//!
//! ```text
//!   page size 4, six tokens in pages 2 and 0, rows of 8 numbers, one layer
//!
//!   keys     page 0           page 1           page 2
//!   index    0                32               64
//!            t4 t5 .. ..      (another's)      t0 t1 t2 t3
//!
//!   runs     Run { start: 64, rows: 4 }, Run { start: 0, rows: 2 }
//! ```
//!
//! Check your work with `cargo test --features solution --test ch13_paged_attention`.

use crate::cache::attention::{AttentionCache, AttentionError, HeadReader, Rows, Run, SequenceRows, check_attention};
use crate::chapters::ch06_paged::PagedCache;
use crate::chapters::ch10_fork::ForkCache;
use crate::kernels::{Heads, add_scaled, dot, softmax_scaled};

impl PagedCache {
    /// Where the rows of one layer lie in the slab's keys, and in its values: for each page, in
    /// table order, a run of the slots that are filled.
    ///
    /// With 2 layers, `page_size` 4 and `kv_width` 2, six tokens in pages 2 and 0, layer 1 →
    /// `Run { start: 40, rows: 4 }`, `Run { start: 8, rows: 2 }`. Without tokens there is no run.
    pub fn runs(&self, layer: usize) -> Vec<Run> {
        todo!("ch13 task 1: a run for each page, of the slots that are filled")
    }
}

impl AttentionCache for PagedCache {
    fn rows(&self, layer: usize) -> Rows<'_> {
        Rows::in_pages(self.slab.borrow(), self.runs(layer))
    }
}

impl AttentionCache for ForkCache {
    fn rows(&self, layer: usize) -> Rows<'_> {
        self.inner.rows(layer)
    }
}

/// Where each row of some runs starts, in order. `width`: 32-bit words of a row.
///
/// Rows of 2 numbers, `Run { start: 40, rows: 2 }`, `Run { start: 8, rows: 1 }` → 40, 42, 8.
pub fn row_starts(runs: &[Run], width: usize) -> impl Iterator<Item = usize> {
    runs.iter().flat_map(move |run| (0..run.rows).map(move |row| run.start + row * width))
}

/// Attention of one token over the first `seen` positions of its sequence.
///
/// `q` and `out`: `[n_heads * head_dim]`. `seen`: at least 1, at most the rows of the
/// sequence; how many of its tokens have queries does not matter here. A query head reads the
/// key/value head that it shares with its group. With 4 query heads and 2 key/value heads,
/// heads 0 and 1 read 0, and heads 2 and 3 read 1.
///
/// `reader` turns a head's words, `reader.words_per_head()` of them, into its `head_dim` numbers. Here
/// the words are the numbers; in chapter 14 they are packed.
///
/// A score is `dot(query, key)`, the weights are what one `softmax_scaled` makes of all scores
/// with the scale `1 / sqrt(head_dim)`, and the output is the sum of the values by their
/// weights, added with `add_scaled` from the oldest position to the newest. What was in `out`
/// before is overwritten.
pub fn attend_row(
    heads: Heads,
    reader: &mut impl HeadReader,
    sequence: &SequenceRows<'_>,
    seen: usize,
    q: &[f32],
    out: &mut [f32],
) {
    let Heads { n_heads, n_kv_heads, head_dim } = heads;
    let words = reader.words_per_head();
    todo!("ch13 task 2: scores, softmax, the sum of the values")
}

/// Attention of the newest tokens of a sequence, each over the positions up to its own.
///
/// `q` and `out`: `[sequence.queries, n_heads * head_dim]`, oldest token first. With 6 tokens
/// of which 2 have queries, the first sees 5 positions, the second 6.
pub fn attend_chunk(
    heads: Heads,
    reader: &mut impl HeadReader,
    sequence: &SequenceRows<'_>,
    q: &[f32],
    out: &mut [f32],
) {
    todo!("ch13 task 3: each row sees the positions up to its own")
}

/// Attention of several sequences, however many tokens each has and computes now.
///
/// `q` and `out`: `[queries, n_heads * head_dim]`, the rows of the first sequence, then those
/// of the second, and so on. A sequence without queries has none.
///
/// # Errors
/// [`AttentionError`], as the engine's [`check_attention`] finds it. Nothing is written then.
pub fn attend_batch(
    heads: Heads,
    reader: &mut impl HeadReader,
    sequences: &[SequenceRows<'_>],
    q: &[f32],
    out: &mut [f32],
) -> Result<(), AttentionError> {
    check_attention(heads, reader.words_per_head(), sequences, q, out)?;
    todo!("ch13 task 3: each sequence's rows of the queries and of the output")
}
