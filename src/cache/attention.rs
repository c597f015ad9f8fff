//! Rows where they lie: what attention needs to read a cache without copying it.
//!
//! The rows of a sequence lie in its cache's memory in *runs* of rows side by side. A contiguous cache has one run, and
//! a paged cache has one for each page. Two pages of 4 slots, six tokens, one layer of rows of 8 numbers:
//!
//! ```text
//!   memory    page 0 (not its own)      page 1               page 2             …
//!   number    0                         32                   64
//!                                       t0 t1 t2 t3          t4 t5 .. ..
//!
//!   runs      Run { start: 32, rows: 4 }, Run { start: 64, rows: 2 }
//! ```
//!
//! [`gather`](crate::cache::KvCache::gather) copies the runs together; [`AttentionCache::rows`] returns where they are.

use std::borrow::Cow;
use std::cell::Ref;

use crate::cache::{KvLayout, Rewind};
use crate::chapters::ch06_paged::PageSlab;
use crate::kernels::Heads;

pub use crate::kernels::{Run, SequenceRows};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionBackend {
    /// From the dense rows that [`gather`](crate::cache::KvCache::gather) gives.
    #[default]
    Gather,
    /// From the rows where they lie, with the engine's kernels.
    Paged,
    /// From the rows where they lie, with the loops of chapter 13.
    Loops,
}

/// Why attention of a batch was refused, by [`check_attention`]. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttentionError {
    #[error("the queries are {numbers} numbers, which are no whole rows of {width}; give a row for each query")]
    NotRows { numbers: usize, width: usize },
    #[error(
        "the sequences have {queries} queries, but {given} rows of {width} numbers are given; give one row for each \
         query"
    )]
    WrongQueries { queries: usize, given: usize, width: usize },
    #[error("the output has {found} numbers, the queries {expected}; give as many")]
    WrongOutput { found: usize, expected: usize },
    #[error(
        "sequence {sequence} has {queries} queries and {tokens} tokens: make room for the new tokens and write them \
         first"
    )]
    TooFewTokens { sequence: usize, queries: usize, tokens: usize },
    /// A run ends beyond the memory that it should lie in; a run of no rows ends where it starts.
    #[error(
        "a run of sequence {sequence} ends at number {end}, but the memory has {numbers}; the runs are those of a \
         different slab"
    )]
    RunBeyondMemory { sequence: usize, end: usize, numbers: usize },
}

/// Checks the page metadata of a batch before attention computes anything: that the queries are whole rows, as many as
/// the sequences have, that every run lies in its memory, and that no sequence has more queries than rows.
///
/// `words_per_head`: 32-bit words that a head takes in memory; a row takes `n_kv_heads` times as many. Both are a model's:
/// none of their numbers is 0, and their products are small. `q` and `out`: `[queries, n_heads * head_dim]`.
///
/// Sums and ends that are more than `usize` counts are `usize::MAX`.
///
/// # Errors
/// The first [`AttentionError`] in this order: `NotRows`, `WrongQueries`, `WrongOutput`; then, sequence by sequence and
/// whether or not it has queries, `RunBeyondMemory`, `TooFewTokens`.
pub fn check_attention(
    heads: Heads,
    words_per_head: usize,
    sequences: &[SequenceRows<'_>],
    q: &[f32],
    out: &[f32],
) -> Result<(), AttentionError> {
    let width = heads.n_heads * heads.head_dim;
    if !q.len().is_multiple_of(width) {
        return Err(AttentionError::NotRows { numbers: q.len(), width });
    }
    let given = q.len() / width;
    let queries = sequences.iter().fold(0, |sum: usize, sequence| sum.saturating_add(sequence.queries));
    if queries != given {
        return Err(AttentionError::WrongQueries { queries, given, width });
    }
    if out.len() != q.len() {
        return Err(AttentionError::WrongOutput { found: out.len(), expected: q.len() });
    }
    for (sequence, rows) in sequences.iter().enumerate() {
        let numbers = rows.keys.len().min(rows.values.len());
        for run in rows.runs {
            let end = run.start.saturating_add(run.rows.saturating_mul(heads.n_kv_heads * words_per_head));
            if end > numbers {
                return Err(AttentionError::RunBeyondMemory { sequence, end, numbers });
            }
        }
        let (queries, tokens) = (rows.queries, rows.len());
        if queries > tokens {
            return Err(AttentionError::TooFewTokens { sequence, queries, tokens });
        }
    }
    Ok(())
}

/// Reads heads out of rows, as attention needs them: as numbers, however they are stored.
pub trait HeadReader {
    /// 32-bit words that a head takes in memory.
    fn words_per_head(&self) -> usize;

    /// The numbers of a head, `[head_dim]`. `words`: `[self.words_per_head()]`, where the head lies.
    fn read<'a>(&'a mut self, words: &'a [f32]) -> &'a [f32];
}

/// Heads stored as they were computed: a word is a number, and reading one copies nothing.
#[derive(Clone, Copy, Debug)]
pub struct F32Heads {
    pub head_dim: usize,
}

impl HeadReader for F32Heads {
    fn words_per_head(&self) -> usize {
        self.head_dim
    }

    fn read<'a>(&'a mut self, words: &'a [f32]) -> &'a [f32] {
        words
    }
}

/// A cache that a model computes with: attention can read its rows where they lie.
pub trait AttentionCache: Rewind {
    /// The rows of a layer, one of the layout's, of all tokens held, oldest token first. A cache whose rows don't lie
    /// side by side says where they are, so that nothing is copied.
    fn rows(&self, layer: usize) -> Rows<'_> {
        Rows::dense(self.gather(layer), self.layout())
    }
}

impl AttentionBackend {
    /// The rows of a layer, dense or where they lie: whichever of the two this backend reads.
    pub fn rows(self, cache: &dyn AttentionCache, layer: usize) -> Rows<'_> {
        match self {
            AttentionBackend::Gather => Rows::dense(cache.gather(layer), cache.layout()),
            AttentionBackend::Paged | AttentionBackend::Loops => cache.rows(layer),
        }
    }
}

/// The rows of one sequence in one layer, where they lie. As long as this lives, nothing can write to their memory.
pub struct Rows<'a> {
    keys: Lent<'a>,
    values: Lent<'a>,
    runs: Vec<Run>,
}

/// Memory that a cache owns.
enum Lent<'a> {
    Dense(Cow<'a, [f32]>),
    Shared(Ref<'a, [f32]>),
}

impl Lent<'_> {
    fn numbers(&self) -> &[f32] {
        match self {
            Lent::Dense(numbers) => numbers,
            Lent::Shared(numbers) => numbers,
        }
    }
}

impl<'a> Rows<'a> {
    /// Dense rows, as [`gather`](crate::cache::KvCache::gather) gives them: one run.
    pub fn dense((k, v): (Cow<'a, [f32]>, Cow<'a, [f32]>), layout: KvLayout) -> Self {
        let runs = vec![Run { start: 0, rows: layout.rows(&k, &v) }];
        Rows { keys: Lent::Dense(k), values: Lent::Dense(v), runs }
    }

    /// Rows in the pages of a slab. `runs`: where they lie in its keys, and in the same places of its values.
    pub fn in_pages(slab: Ref<'a, PageSlab>, runs: Vec<Run>) -> Self {
        let (keys, values) = Ref::map_split(slab, |slab| (slab.keys(), slab.values()));
        Rows { keys: Lent::Shared(keys), values: Lent::Shared(values), runs }
    }

    /// Where the rows lie, oldest token first.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Rows that were copied together to be read; 0 if they are read where they lie.
    pub fn copied(&self) -> usize {
        match self.keys {
            Lent::Dense(Cow::Owned(_)) => self.sequence_rows(0).len(),
            _ => 0,
        }
    }

    /// The rows, for a kernel. `queries`: how many of the newest tokens have one.
    pub fn sequence_rows(&self, queries: usize) -> SequenceRows<'_> {
        SequenceRows { queries, keys: self.keys.numbers(), values: self.values.numbers(), runs: &self.runs }
    }
}
