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

use crate::cache::in_place::{BatchError, InPlace, Rows, Run, SequenceRows};
use crate::chapters::ch06_paged::PagedCache;
use crate::chapters::ch10_fork::ForkCache;
use crate::kernels::{Heads, add_scaled, dot, softmax_scaled};

impl PagedCache {
    // ANCHOR: runs
    /// Where the rows of one layer lie in the slab's keys, and in its values: a run for each
    /// page, in table order, of the slots that are filled.
    ///
    /// With 2 layers, `page_size` 4 and `kv_width` 2, six tokens in pages 2 and 0, layer 1 →
    /// `Run { start: 40, rows: 4 }`, `Run { start: 8, rows: 2 }`. No token, no run.
    pub fn runs(&self, layer: usize) -> Vec<Run> {
        let slab = self.slab.borrow();
        let mut left = self.table.len();
        let mut runs = Vec::with_capacity(self.table.pages().len());
        for page in self.table.pages() {
            let rows = left.min(slab.page_size);
            runs.push(Run { start: slab.range(*page, layer, 0..rows).start, rows });
            left -= rows;
        }
        runs
    }
    // ANCHOR_END: runs
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

    // ANCHOR: next
    /// Where the next row starts. `None` behind the last one, and again if asked again. A run
    /// without rows is passed over.
    fn next(&mut self) -> Option<usize> {
        while let Some(run) = self.runs.first() {
            if self.row < run.rows {
                let place = run.start + self.row * self.width;
                self.row += 1;
                return Some(place);
            }
            self.runs = &self.runs[1..];
            self.row = 0;
        }
        None
    }
    // ANCHOR_END: next
}

// ANCHOR: attend_row
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
    let Heads { n_heads, n_kv_heads, head_dim } = heads;
    let width = n_kv_heads * head_dim;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let mut weights = Vec::with_capacity(seen);
    for head in 0..n_heads {
        let at = head / (n_heads / n_kv_heads) * head_dim;
        let query = &q[head * head_dim..][..head_dim];
        weights.clear();
        for place in places(text.runs, width).take(seen) {
            let key = &text.keys[place + at..][..head_dim];
            weights.push(dot(query, key));
        }
        softmax_scaled(&mut weights, scale);
        let out = &mut out[head * head_dim..][..head_dim];
        out.fill(0.0);
        for (place, weight) in places(text.runs, width).zip(&weights) {
            let value = &text.values[place + at..][..head_dim];
            add_scaled(out, *weight, value);
        }
    }
}
// ANCHOR_END: attend_row

// ANCHOR: attend_chunk
/// Attention of the newest tokens of a text, each over the positions up to its own.
///
/// `q` and `out`: `[text.queries, n_heads * head_dim]`, oldest token first. With 6 tokens of
/// which 2 have queries, the first sees 5 positions, the second 6.
pub fn attend_chunk(heads: Heads, text: &SequenceRows<'_>, q: &[f32], out: &mut [f32]) {
    let width = heads.n_heads * heads.head_dim;
    let before = text.len() - text.queries;
    let rows = q.chunks_exact(width).zip(out.chunks_exact_mut(width));
    for (i, (q, out)) in rows.enumerate() {
        attend_row(heads, text, before + i + 1, q, out);
    }
}
// ANCHOR_END: attend_chunk

// ANCHOR: check_batch
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
    let width = heads.n_heads * heads.head_dim;
    if !q.len().is_multiple_of(width) {
        return Err(BatchError::NotRows { numbers: q.len(), width });
    }
    let given = q.len() / width;
    let queries = texts.iter().fold(0, |sum: usize, text| sum.saturating_add(text.queries));
    if queries != given {
        return Err(BatchError::WrongQueries { texts: queries, given, width });
    }
    if out.len() != q.len() {
        return Err(BatchError::WrongOutput { found: out.len(), expected: q.len() });
    }
    for (text, rows) in texts.iter().enumerate() {
        let numbers = rows.keys.len().min(rows.values.len());
        for run in rows.runs {
            let taken = run.rows.saturating_mul(heads.n_kv_heads * words);
            let end = run.start.saturating_add(taken);
            if end > numbers {
                return Err(BatchError::RunBeyondMemory { text, end, numbers });
            }
        }
        let (queries, tokens) = (rows.queries, rows.len());
        if queries > tokens {
            return Err(BatchError::TooFewTokens { text, queries, tokens });
        }
    }
    Ok(())
}
// ANCHOR_END: check_batch

// ANCHOR: attend_batch
/// Attention of some texts, whatever each has read and reads now.
///
/// `q` and `out`: `[queries, n_heads * head_dim]`, the rows of the first text, then those of
/// the second, and so on. A text without queries has none.
///
/// # Errors
/// [`BatchError`], as [`check_batch`] finds it, with rows of 32-bit floats. Nothing is
/// written then.
pub fn attend_batch(heads: Heads, texts: &[SequenceRows<'_>], q: &[f32], out: &mut [f32]) -> Result<(), BatchError> {
    check_batch(heads, heads.head_dim, texts, q, out)?;
    let width = heads.n_heads * heads.head_dim;
    let mut first = 0;
    for text in texts {
        let numbers = first * width..(first + text.queries) * width;
        attend_chunk(heads, text, &q[numbers.clone()], &mut out[numbers]);
        first += text.queries;
    }
    Ok(())
}
// ANCHOR_END: attend_batch
