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

use crate::chapters::ch06_paged::PagedCache;
use crate::chapters::ch10_fork::ForkCache;
use crate::in_place::{BatchError, InPlace, Rows, Run, TextRows};
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

// ANCHOR: places
/// Where each row of some runs starts, in order. `width`: numbers of a row.
///
/// Rows of 2 numbers, `Run { start: 40, rows: 2 }`, `Run { start: 8, rows: 1 }` → 40, 42, 8.
pub fn places(runs: &[Run], width: usize) -> impl Iterator<Item = usize> {
    runs.iter().flat_map(move |run| (0..run.rows).map(move |row| run.start + row * width))
}
// ANCHOR_END: places

// ANCHOR: attend_row
/// Attention of one token, over the first `seen` positions of its text.
///
/// `q` and `out`: `[n_heads * head_dim]`. Each query head reads the key/value head that it
/// shares with its group: with 4 query heads and 2 key/value heads, heads 0 and 1 read 0,
/// heads 2 and 3 read 1. A score is `dot(query, key)`, scaled by `1 / sqrt(head_dim)`; the
/// output is the sum of the values by the weights, oldest position first.
pub fn attend_row(heads: Heads, text: &TextRows<'_>, seen: usize, q: &[f32], out: &mut [f32]) {
    let Heads { n_heads, n_kv_heads, head_dim } = heads;
    let width = n_kv_heads * head_dim;
    let scale = 1.0 / (head_dim as f32).sqrt();
    for head in 0..n_heads {
        let kv_head = head / (n_heads / n_kv_heads);
        let query = &q[head * head_dim..][..head_dim];
        let mut weights = Vec::with_capacity(seen);
        for place in places(text.runs, width).take(seen) {
            let key = &text.keys[place + kv_head * head_dim..][..head_dim];
            weights.push(dot(query, key));
        }
        softmax_scaled(&mut weights, scale);
        let out = &mut out[head * head_dim..][..head_dim];
        out.fill(0.0);
        for (place, weight) in places(text.runs, width).zip(&weights) {
            let value = &text.values[place + kv_head * head_dim..][..head_dim];
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
pub fn attend_chunk(heads: Heads, text: &TextRows<'_>, q: &[f32], out: &mut [f32]) {
    let width = heads.n_heads * heads.head_dim;
    let before = text.len() - text.queries;
    let rows = q.chunks_exact(width).zip(out.chunks_exact_mut(width));
    for (i, (q, out)) in rows.enumerate() {
        attend_row(heads, text, before + i + 1, q, out);
    }
}
// ANCHOR_END: attend_chunk

// ANCHOR: attend_batch
/// Attention of some texts, whatever each has read and reads now.
///
/// `q` and `out`: `[rows, n_heads * head_dim]`, the queries of the first text, then those of
/// the second, and so on.
///
/// # Errors
/// [`BatchError`], and nothing is written: `WrongQueries` if the texts have more or fewer
/// queries than `q` has rows, `WrongOutput` if `out` is not as long as `q`, `TooFewTokens` if
/// a text has more queries than rows, `RunBeyondMemory` if a run does not lie in the text's
/// keys and values; asked in this order, text by text.
pub fn attend_batch(heads: Heads, texts: &[TextRows<'_>], q: &[f32], out: &mut [f32]) -> Result<(), BatchError> {
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

/// The checks of [`attend_batch`]. `words`: numbers that a head takes in memory.
///
/// # Errors
/// [`BatchError`], as there.
pub fn check_batch(
    heads: Heads,
    words: usize,
    texts: &[TextRows<'_>],
    q: &[f32],
    out: &[f32],
) -> Result<(), BatchError> {
    let width = heads.n_heads * heads.head_dim;
    let queries: usize = texts.iter().map(|text| text.queries).sum();
    if q.len() != queries * width {
        return Err(BatchError::WrongQueries { texts: queries, given: q.len() / width, width });
    }
    if out.len() != q.len() {
        return Err(BatchError::WrongOutput { found: out.len(), expected: q.len() });
    }
    for (text, rows) in texts.iter().enumerate() {
        let (queries, tokens) = (rows.queries, rows.len());
        if queries > tokens {
            return Err(BatchError::TooFewTokens { text, queries, tokens });
        }
        let numbers = rows.keys.len().min(rows.values.len());
        for run in rows.runs {
            let end = run.start + run.rows * heads.n_kv_heads * words;
            if end > numbers {
                return Err(BatchError::RunBeyondMemory { text, end, numbers });
            }
        }
    }
    Ok(())
}
// ANCHOR_END: attend_batch
