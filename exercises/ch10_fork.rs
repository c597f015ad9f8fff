//! Chapter 10: fork and copy-on-write. One beginning, many texts.
//!
//! A *fork* is a second text with the same tokens so far. It shares all pages of the first:
//! each gets one more owner, and no row moves. Only one text may fill the rest of a page. So
//! a text that grows into a page with several owners takes a page of its own first and copies
//! the filled rows into it: *copy-on-write*.
//!
//! ```text
//!   page size 4, six tokens         table of a   table of b   owners of pages 0 1 2
//!   a                               0 1                       1 1 .
//!   b = a.fork()                    0 1          0 1          2 2 .
//!   b.extend(1)   copies t4 t5      0 1          0 2          2 1 1
//!   a.extend(1)   copies nothing    0 1          0 2          2 1 1
//! ```
//!
//! Page 0 is full: nobody writes to it any more, and both keep it for as long as they live.
//!
//! Check your work with `cargo test --features solution --test ch10_fork`.

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::cache::{CacheError, KvCache, KvLayout, PageId, Rewind, Usage};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::{PageTable, all_owned};
use crate::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};

/// Rows to copy from one page to another, in every layer: those of the slots `0..rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// The page that several texts have.
    pub from: PageId,
    /// The page that one of them took instead.
    pub to: PageId,
    /// Slots that are filled.
    pub rows: usize,
}

impl PageTable {
    /// A second table of the same tokens: the same pages in the same order, each with one
    /// more owner. It takes no page.
    ///
    /// Six tokens in pages 12 and 5: the fork has six tokens in pages 12 and 5 as well.
    ///
    /// # Errors
    /// If the pool is another one than the table's pages came from:
    /// [`CacheError::ForeignPage`] if it has no such page, [`CacheError::DoubleFree`] if a
    /// page has no owner there (the error of `all_owned`, asked before any page is shared).
    /// The pool is then as it was.
    pub fn fork(&self, pool: &mut PagePool) -> Result<PageTable, CacheError> {
        todo!("ch10 task 1: share every page of the table")
    }

    /// Whether the next token would go into a page that others have too: the last page is
    /// filled in part, and has more than one owner. False before the first token.
    ///
    /// # Errors
    /// [`CacheError::ForeignPage`] if the pool has no such page.
    pub fn shares_tail(&self, pool: &PagePool) -> Result<bool, CacheError> {
        todo!("ch10 task 2: is the last page filled in part, and not this table's alone?")
    }

    /// Puts a page of its own in the place of a last page that is filled in part and that
    /// others have too; says what is to be copied into it. `None` if the last page is full or
    /// its own, and before the first token: nothing changes then.
    ///
    /// Six tokens in pages 12 and 5 of 4 slots, page 5 has a second owner, page 3 is the next
    /// free one → `PageCopy { from: 5, to: 3, rows: 2 }`, and the table has pages 12 and 3.
    /// Only ids change hands here: the table knows no rows.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] if it takes a page and the pool has none left,
    /// [`CacheError::ForeignPage`] if the pool has no page of the last one's number. Table
    /// and pool are then as they were.
    pub fn own_tail(&mut self, pool: &mut PagePool) -> Result<Option<PageCopy>, CacheError> {
        todo!("ch10 task 2: put a page of its own in the place of a shared tail")
    }
}

impl PageSlab {
    /// Copies keys and values of the filled slots, in every layer: with 3 layers and 2 rows,
    /// 6 rows of keys and 6 of values. All other slots stay as they are.
    fn copy_rows(&mut self, copy: PageCopy) {
        todo!("ch10 task 3: copy the filled rows, keys and values, in every layer")
    }
}

/// The cache of a text that may share pages with others: a paged cache that can be forked.
pub struct ForkCache {
    pub(super) inner: PagedCache,
    rows_copied: u64,
}

impl ForkCache {
    /// An empty cache, without pages.
    ///
    /// # Errors
    /// Never for a slab made by [`PageSlab::new`]; the error is the page table's.
    pub fn new(slab: &SharedSlab) -> Result<Self, CacheError> {
        Ok(ForkCache { inner: PagedCache::new(slab)?, rows_copied: 0 })
    }

    /// A second cache that holds the same rows: those of the pages that both share now. No
    /// row is copied; the fork counts its own copies, from 0.
    ///
    /// All tokens held must have been written.
    ///
    /// # Errors
    /// Never for a cache whose pages are its slab's; the error is the page table's.
    ///
    /// # Panics
    /// If the slab is lent to somebody at the moment.
    pub fn fork(&self) -> Result<ForkCache, CacheError> {
        todo!("ch10 task 3: a second cache over the forked table")
    }

    /// The pages of this text.
    pub fn table(&self) -> &PageTable {
        self.inner.table()
    }
}

impl KvCache for ForkCache {
    fn layout(&self) -> KvLayout {
        self.inner.layout()
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    /// Makes room for `n` more tokens in pages that no other text has: copies the rows of a
    /// shared last page into one of its own first.
    ///
    /// `extend(0)` does nothing: no token comes, so no page need be its own.
    ///
    /// [`Usage::rows_copied`] counts a token that is copied once, whatever the layers.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] if the pool has too few for the new tokens and the copy
    /// together: six tokens in pages of 4, the second one shared, `extend(3)` → 2 needed.
    /// Nothing has changed then, and nothing was copied.
    ///
    /// # Panics
    /// If the slab is lent to somebody at the moment.
    fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        todo!("ch10 task 3: own the tail, then extend the paged cache")
    }

    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        self.inner.write(layer, k, v);
    }

    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
        self.inner.gather(layer)
    }

    fn usage(&self) -> Usage {
        Usage { rows_copied: self.rows_copied, ..self.inner.usage() }
    }
}

impl ForkCache {
    /// Makes the last page its own, if `n` more tokens then still find the pages that they
    /// need.
    fn own_tail_before(&mut self, n: usize) -> Result<(), CacheError> {
        todo!("ch10 task 3: are there pages enough for the copy and the new tokens?")
    }
}

impl Rewind for ForkCache {
    /// Rewinds the paged cache. Where this ends inside a shared page, the other text's rows
    /// stay: the next [`extend`](KvCache::extend) copies those that are left.
    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        self.inner.rewind(n)
    }
}

/// A text of a beam search that still grows.
pub struct Beam {
    /// The tokens it got, without the prompt.
    pub tokens: Vec<u32>,
    /// The sum of their log-probabilities: how likely the model finds all of them together.
    pub score: f64,
    /// Prompt and tokens, all but the newest token.
    pub cache: ForkCache,
}

/// A beam, and a token that it may go on with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The beam, by its place among the beams.
    pub beam: usize,
    /// The token.
    pub token: u32,
    /// The beam's score and the token's log-probability.
    pub score: f64,
}

/// A text of a beam search that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The tokens it got, without the prompt and without the end of text.
    pub tokens: Vec<u32>,
    /// The sum of the log-probabilities of its tokens and of the end of text.
    pub score: f64,
}

/// Beam search: the `width` likeliest texts grow side by side ([Graves,
/// 2012](https://arxiv.org/abs/1211.3711)).
pub struct Beams {
    width: usize,
    end_of_text: Vec<u32>,
    pub(super) beams: Vec<Beam>,
    ended: Vec<Ended>,
}

impl Beams {
    /// One beam without a token, after a prompt whose rows `cache` holds;
    /// [`step`](Self::step) makes up to `width` of it, 1 or more. `end_of_text`: tokens that
    /// end a text.
    pub fn new(cache: ForkCache, width: usize, end_of_text: &[u32]) -> Self {
        let beam = Beam { tokens: Vec::new(), score: 0.0, cache };
        let end_of_text = end_of_text.to_vec();
        Beams { width, end_of_text, beams: vec![beam], ended: Vec::new() }
    }

    /// The beams that grow, best first.
    pub fn beams(&self) -> &[Beam] {
        &self.beams
    }

    /// The same, for a model to fill their caches.
    pub fn beams_mut(&mut self) -> &mut [Beam] {
        &mut self.beams
    }

    /// The texts that have ended, in the order in which they did.
    pub fn ended(&self) -> &[Ended] {
        &self.ended
    }

    /// Of every beam with every token the best `n`, best first. Equal scores: the better beam
    /// first, then the lower token.
    ///
    /// `log_probabilities`: a row of `[vocab_size]` for each beam, in their order; none is
    /// NaN. −∞ may be among them, the logarithm of 0: such a candidate comes last. If `n` is
    /// more than there are, all of them. Scores are added up as `f64`.
    ///
    /// Two beams with scores -1 and -2, rows `[-4, -0.5]` and `[-0.25, -1]`, `n` 3 → beam 0
    /// with token 1 (-1.5), beam 1 with token 0 (-2.25), beam 1 with token 1 (-3).
    pub fn candidates(&self, log_probabilities: &[Vec<f32>], n: usize) -> Vec<Candidate> {
        todo!("ch10 task 4: every beam with every token, the best first")
    }

    /// Each beam gets a token or is given up. The [`candidates`](Self::candidates) are gone
    /// through, best first, until `width` of them are the new beams, in this order. One that
    /// ends a text is no beam and takes nobody's place: its text goes to
    /// [`ended`](Self::ended).
    ///
    /// A beam that several candidates go on from is forked; one that none goes on from lets
    /// its pages go.
    ///
    /// # Errors
    /// The error of [`ForkCache::fork`]; the beams are then as they were.
    pub fn step(&mut self, log_probabilities: &[Vec<f32>]) -> Result<(), CacheError> {
        todo!("ch10 task 4: the best candidates become the beams")
    }
}

fn better_first(a: &Candidate, b: &Candidate) -> Ordering {
    todo!("ch10 task 4: which of two candidates is the better one?")
}
