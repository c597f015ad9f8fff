//! Chapter 13: paged attention. Read the rows where they lie.
//!
//! Attention asks three things of a text's rows: the score of each key, the softmax of the
//! scores, the sum of the values by these weights. None of them asks that the rows lie side
//! by side. So instead of copying the pages together in every layer of every step, attention
//! walks through them: once for the keys, once for the values.
//!
//! ```text
//!   page size 4, six tokens in pages 2 and 0, rows of 8 numbers, one layer
//!
//!   keys     page 0           page 1           page 2
//!   number   0                32               64
//!            t4 t5 .. ..      (another text)   t0 t1 t2 t3
//!
//!   runs     Run { start: 64, rows: 4 }, Run { start: 0, rows: 2 }
//! ```
//!
//! Check your work with `cargo test --features solution --test ch13_paged_attention`.

use crate::cache::in_place::{BatchError, InPlace, Rows, Run, SequenceRows};
use crate::chapters::ch06_paged::PagedCache;
use crate::chapters::ch10_fork::ForkCache;
use crate::kernels::{Heads, add_scaled, dot, softmax_scaled};

impl PagedCache {
    /// Where the rows of one layer lie in the slab's keys, and in its values: a run for each
    /// page, in table order, of the slots that are filled.
    ///
    /// With 2 layers, `page_size` 4 and `kv_width` 2, six tokens in pages 2 and 0, layer 1 →
    /// `Run { start: 40, rows: 4 }`, `Run { start: 8, rows: 2 }`. No token, no run.
    pub fn runs(&self, layer: usize) -> Vec<Run> {
        todo!("ch13 task 1: a run for each page, of the slots that are filled")
    }
}

impl InPlace for PagedCache {
    fn rows(&self, layer: usize) -> Rows<'_> {
        Rows::in_pages(self.slab.borrow(), self.runs(layer))
    }
}

impl InPlace for ForkCache {
    fn rows(&self, layer: usize) -> Rows<'_> {
        self.inner.rows(layer)
    }
}

/// Where each row of some runs starts, in order. `width`: numbers of a row.
///
/// Rows of 2 numbers, `Run { start: 40, rows: 2 }`, `Run { start: 8, rows: 1 }` → 40, 42, 8.
pub fn places(runs: &[Run], width: usize) -> Places<'_> {
    Places { runs, width, row: 0 }
}

/// A walk through runs, row by row: what [`places`] gives.
pub struct Places<'a> {
    /// Those that are not behind us; the first is the one that we walk through.
    runs: &'a [Run],
    /// Numbers of a row.
    width: usize,
    /// The next row of the first run.
    row: usize,
}

impl Iterator for Places<'_> {
    type Item = usize;

    /// Where the next row starts. `None` behind the last one, and again if asked again. A run
    /// without rows is passed over.
    fn next(&mut self) -> Option<usize> {
        todo!("ch13 task 1: the next row of the runs")
    }
}

/// Attention of one token, over the first `seen` positions of its text.
///
/// `q` and `out`: `[n_heads * head_dim]`. `seen`: 1 or more, and no more than the text has
/// rows; how many of its tokens have queries does not matter here. Each query head reads the
/// key/value head that it shares with its group: with 4 query heads and 2 key/value heads,
/// heads 0 and 1 read 0, heads 2 and 3 read 1.
///
/// A score is `dot(query, key)`, a weight is what `softmax_scaled` makes of all scores with
/// the scale `1 / sqrt(head_dim)`, and the output is the sum of the values by their weights,
/// added from the oldest position to the newest. What was in `out` before is forgotten.
pub fn attend_row(heads: Heads, text: &SequenceRows<'_>, seen: usize, q: &[f32], out: &mut [f32]) {
    todo!("ch13 task 2: scores, softmax, the sum of the values")
}

/// Attention of the newest tokens of a text, each over the positions up to its own.
///
/// `q` and `out`: `[text.queries, n_heads * head_dim]`, oldest token first. With 6 tokens of
/// which 2 have queries, the first sees 5 positions, the second 6.
pub fn attend_chunk(heads: Heads, text: &SequenceRows<'_>, q: &[f32], out: &mut [f32]) {
    todo!("ch13 task 3: each row sees the positions up to its own")
}

/// The checks of [`attend_batch`]. `words`: numbers that a head takes in the memory of keys
/// and in that of values, so a row takes `n_kv_heads * words`. `heads` and `words` are a
/// model's: none of their numbers is 0, and their products are small.
///
/// # Errors
/// [`BatchError`]; the first that is found, in this order:
/// - `NotRows` if `q` is not made of whole rows of `n_heads * head_dim` numbers,
/// - `WrongQueries` if it has more or fewer rows than the texts have queries together,
/// - `WrongOutput` if `out` is not as long as `q`; and then, text by text,
/// - `RunBeyondMemory` for the first run whose end does not lie in the text's keys and in its
///   values,
/// - `TooFewTokens` if the text has more queries than rows.
///
/// A run may say anything: a start or a number of rows so high that its end is beyond what
/// `usize` can count is beyond the memory too, and its `end` is `usize::MAX`. Queries that
/// are too many to be added up count as `usize::MAX` together.
pub fn check_batch(
    heads: Heads,
    words: usize,
    texts: &[SequenceRows<'_>],
    q: &[f32],
    out: &[f32],
) -> Result<(), BatchError> {
    todo!("ch13 task 4: what can be wrong with a batch?")
}

/// Attention of some texts, whatever each has read and reads now.
///
/// `q` and `out`: `[queries, n_heads * head_dim]`, the rows of the first text, then those of
/// the second, and so on. A text without queries has none.
///
/// # Errors
/// [`BatchError`], as [`check_batch`] finds it, with rows of 32-bit floats. Nothing is
/// written then.
pub fn attend_batch(heads: Heads, texts: &[SequenceRows<'_>], q: &[f32], out: &mut [f32]) -> Result<(), BatchError> {
    todo!("ch13 task 4: check, then text by text")
}
