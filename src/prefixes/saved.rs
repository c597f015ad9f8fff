//! A prefix cache as a file: so it outlives not only its texts, but its process.
//!
//! The format is that of a [snapshot](crate::snapshot), with its header, checksum and fingerprint of the model. With two pages
//! of 16 slots, 2 layers and rows of 8 numbers it holds, in any order:
//!
//! ```text
//!   header     format "page-by-page prefix cache", version, n_layers, n_kv_heads, head_dim, page_size, model, checksum
//!   tokens     U32 [2, 16]
//!   parents    U32 [2]            the place of the page before each, from 0; 4294967295 if texts begin with it
//!   k          F32 [2, 2, 16, 8]  page, layer, slot, number
//!   v          F32 [2, 2, 16, 8]
//! ```
//!
//! Rows that are packed are files of version 2, as in a snapshot.
//!
//! A page comes after the one before it, and otherwise the most recently used first. So the first pages of a file, however
//! many one takes, are the heads of texts, whole from their beginnings: those that a smaller pool takes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use super::{HeldPage, Prefixes};
use crate::cache::{CacheError, KvCache, KvLayout, PageId};
use crate::chapters::ch06_paged::{PageSlab, SharedSlab};
use crate::chapters::ch10_fork::ForkCache;
use crate::files;
use crate::kernels::RowFormat;
use crate::model::Model;
use crate::snapshot::{Format, Header, Numbers, SnapshotError, Tensor, not_finite, sealed};

const FORMAT: Format = Format { name: "page-by-page prefix cache", version: 1, packed_version: 2 };
/// In place of the page before one that texts begin with.
const NO_PARENT: u32 = u32::MAX;

/// The pages of a prefix cache: their tokens and rows, and how they follow each other.
#[derive(Clone, Debug)]
pub struct SavedPrefixes {
    layout: KvLayout,
    page_size: usize,
    /// For each page, the place of the one before it: an earlier one.
    parents: Vec<Option<usize>>,
    /// `[pages, page_size]`
    tokens: Vec<u32>,
    /// `[pages, n_layers, page_size, kv_width]`
    k: Vec<f32>,
    /// `[pages, n_layers, page_size, kv_width]`
    v: Vec<f32>,
}

/// Rows are equal if their bits are: packed words may look like NaN.
impl PartialEq for SavedPrefixes {
    fn eq(&self, other: &Self) -> bool {
        let bits = |rows: &[f32]| rows.iter().map(|word| word.to_bits()).collect::<Vec<_>>();
        (self.layout, self.page_size) == (other.layout, other.page_size)
            && (&self.parents, &self.tokens) == (&other.parents, &other.tokens)
            && (bits(&self.k), bits(&self.v)) == (bits(&other.k), bits(&other.v))
    }
}

/// A prefix cache that has pages and does not say which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the prefix cache holds {held} pages and lists {listed}: list them all in `pages`, or do without a file")]
pub struct NotListed {
    /// Pages that it owns.
    pub held: usize,
    /// Pages that it lists.
    pub listed: usize,
}

impl SavedPrefixes {
    /// Copies the pages of a prefix cache. `slab`: where they are, of this page size. `model`: the one that made their rows, in
    /// the format that it still has.
    ///
    /// A page with a number that is not finite is left out, and so are those behind it: the model that made it fails with it.
    ///
    /// # Errors
    /// [`NotListed`].
    pub fn freeze(
        prefixes: &dyn Prefixes,
        slab: &PageSlab,
        model: &Model,
        page_size: usize,
    ) -> Result<Self, NotListed> {
        let layout = model.kv_layout();
        let pages = prefixes.pages();
        let (held, listed) = (prefixes.n_pages(), pages.len());
        if held != listed {
            return Err(NotListed { held, listed });
        }
        let (tokens, k, v) = (Vec::new(), Vec::new(), Vec::new());
        let mut saved = SavedPrefixes { layout, page_size, parents: Vec::new(), tokens, k, v };
        let mut places: HashMap<PageId, usize> = HashMap::new();
        for HeldPage { page, parent, tokens, .. } in in_order(&pages) {
            let numbers = saved.numbers(page.index());
            let (k, v) = (&slab.keys()[numbers.clone()], &slab.values()[numbers]);
            let parent = match parent.map(|parent| places.get(&parent)) {
                Some(None) => continue,
                Some(Some(place)) => Some(*place),
                None => None,
            };
            if not_finite(k, model).or(not_finite(v, model)).is_none() {
                places.insert(*page, saved.parents.len());
                saved.parents.push(parent);
                saved.tokens.extend_from_slice(tokens);
                saved.k.extend_from_slice(k);
                saved.v.extend_from_slice(v);
            }
        }
        Ok(saved)
    }

    /// How many pages there are.
    pub fn n_pages(&self) -> usize {
        self.parents.len()
    }

    /// Brings pages back: as many as there are free ones, the most recently used first, each with all that are before it.
    /// Returns how many. `slab`: of this layout and page size, and the one that `prefixes` keeps pages of.
    ///
    /// # Errors
    /// [`CacheError`], if the slab is another one.
    pub fn restore(&self, prefixes: &mut dyn Prefixes, slab: &SharedSlab) -> Result<usize, CacheError> {
        let n = self.n_pages().min(slab.borrow().pool().n_free());
        let mut is_leaf = vec![true; n];
        for parent in self.parents[..n].iter().flatten() {
            is_leaf[*parent] = false;
        }
        let before = prefixes.n_pages();
        // The least recently used text first: it will be the first to go again.
        for leaf in (0..n).rev().filter(|place| is_leaf[*place]) {
            let path = self.path(leaf);
            let text: Vec<u32> = path.iter().flat_map(|place| self.tokens_of(*place)).copied().collect();
            let mut cache = ForkCache::with_prefix(slab, prefixes, &text)?;
            let missing = &path[cache.len() / self.page_size..];
            cache.extend(missing.len() * self.page_size)?;
            for layer in 0..self.layout.n_layers {
                let rows = |of: &[f32]| -> Vec<f32> {
                    let part = self.page_size * self.layout.kv_width();
                    let of_page = |place: &usize| &of[self.numbers(*place)][layer * part..][..part];
                    missing.iter().flat_map(of_page).copied().collect()
                };
                cache.write(layer, &rows(&self.k), &rows(&self.v));
            }
            cache.insert_into(prefixes, &text)?;
        }
        Ok(prefixes.n_pages() - before)
    }

    /// The pages from the beginning of a text up to this one.
    fn path(&self, place: usize) -> Vec<usize> {
        let mut path = vec![place];
        while let Some(parent) = self.parents[path[path.len() - 1]] {
            path.push(parent);
        }
        path.reverse();
        path
    }

    fn tokens_of(&self, place: usize) -> &[u32] {
        &self.tokens[place * self.page_size..][..self.page_size]
    }

    /// Where the numbers of a page lie in a tensor of pages.
    fn numbers(&self, place: usize) -> std::ops::Range<usize> {
        let numbers = self.layout.n_layers * self.page_size * self.layout.kv_width();
        place * numbers..(place + 1) * numbers
    }

    /// Writes the pages to a file, whole or not at all. `model`: the one that made their rows.
    ///
    /// # Errors
    /// [`SnapshotError::Unwritable`]; [`SnapshotError::WrongLayout`] or [`SnapshotError::UnknownToken`] if the model cannot
    /// have made them.
    pub fn save(&self, file: &Path, model: &Model) -> Result<(), SnapshotError> {
        self.check(file, model)?;
        files::write_whole(file, &self.encode(model))
            .map_err(|error| SnapshotError::Unwritable { path: file.into(), error })
    }

    /// Reads a file that [`save`](Self::save) wrote, for the model that made the rows and pages of this size.
    ///
    /// # Errors
    /// [`SnapshotError`]: every variant but [`SnapshotError::Unwritable`] and [`SnapshotError::TooLong`].
    pub fn load(file: &Path, model: &Model, page_size: usize) -> Result<Self, SnapshotError> {
        let path = || PathBuf::from(file);
        let bytes = files::read(file, usize::MAX).map_err(|error| SnapshotError::Unreadable { path: path(), error })?;
        let header = Header::read(file, &bytes, FORMAT)?;
        header.check_model(file, model)?;
        let damaged = |problem| SnapshotError::Damaged { path: path(), problem };
        let found = header.number("page_size").map_err(damaged)?;
        if found != page_size {
            return Err(SnapshotError::WrongPageSize { path: path(), found, expected: page_size });
        }
        let saved = Self::decode(&header, &bytes, model.kv_layout(), page_size).map_err(damaged)?;
        saved.check(file, model)?;
        Ok(saved)
    }

    /// Checks that a model can have made this.
    fn check(&self, file: &Path, model: &Model) -> Result<(), SnapshotError> {
        let (found, expected) = (self.layout, model.kv_layout());
        if found != expected {
            return Err(SnapshotError::WrongLayout { path: file.into(), found, expected });
        }
        let vocab_size = model.config().vocab_size;
        if let Some(&token) = self.tokens.iter().find(|token| **token as usize >= vocab_size) {
            return Err(SnapshotError::UnknownToken { path: file.into(), token, vocab_size });
        }
        for (name, rows) in [("k", &self.k), ("v", &self.v)] {
            if let Some((head, number)) = not_finite(rows, model) {
                let row = head / self.layout.n_kv_heads;
                let place = row / (self.layout.n_layers * self.page_size);
                let slot = row % self.page_size;
                let position = (self.path(place).len() - 1) * self.page_size + slot;
                let (path, name) = (file.into(), name.into());
                return Err(SnapshotError::NotFinite { path, name, position, number });
            }
        }
        Ok(())
    }

    fn encode(&self, model: &Model) -> Vec<u8> {
        let packed = model.row_format() != RowFormat::F32;
        let parents = self.parents.iter().map(|parent| parent.map_or(NO_PARENT, |place| place as u32));
        let parents: Vec<u32> = parents.collect();
        let [of_tokens, of_parents, of_rows] = shapes(self.n_pages(), self.layout, self.page_size);
        let tensor = |name: &str, shape: &[usize], numbers| (name.into(), Tensor { shape: shape.into(), numbers });
        let tensors = vec![
            tensor("tokens", &of_tokens, Numbers::Tokens(&self.tokens)),
            tensor("parents", &of_parents, Numbers::Tokens(&parents)),
            tensor("k", &of_rows, Numbers::of_rows(&self.k, packed)),
            tensor("v", &of_rows, Numbers::of_rows(&self.v, packed)),
        ];
        sealed(FORMAT, model, &[("page_size", self.page_size.to_string())], tensors)
    }

    /// Reads the tensors, whose layout and page size are right. Says what is wrong with them if they do not fit together.
    fn decode(header: &Header, file: &[u8], layout: KvLayout, page_size: usize) -> Result<Self, String> {
        let n_pages = header.info("parents")?.shape.first().copied().unwrap_or_default();
        let [of_tokens, of_parents, of_rows] = shapes(n_pages, layout, page_size);
        let ids = |name: &str, shape: &[usize]| -> Result<Vec<u32>, String> {
            Ok(header.tensor(file, name, Dtype::U32, shape)?.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
        };
        let rows = |name: &str| header.rows(file, name, &of_rows);
        let parent = |(parent, place): (u32, usize)| match parent {
            NO_PARENT => Ok(None),
            parent if (parent as usize) < place => Ok(Some(parent as usize)),
            parent => Err(format!("page {place} follows page {parent}, and should follow an earlier one")),
        };
        let parents = ids("parents", &of_parents)?.into_iter().zip(0..).map(parent).collect::<Result<_, _>>()?;
        let tokens = ids("tokens", &of_tokens)?;
        Ok(SavedPrefixes { layout, page_size, parents, tokens, k: rows("k")?, v: rows("v")? })
    }
}

/// The shapes of tokens, parents and rows.
fn shapes(n_pages: usize, layout: KvLayout, page_size: usize) -> [Vec<usize>; 3] {
    [vec![n_pages, page_size], vec![n_pages], vec![n_pages, layout.n_layers, page_size, layout.kv_width()]]
}

/// The most recently used first, and a page after those before it.
fn in_order<'p, 'a>(pages: &'p [HeldPage<'a>]) -> Vec<&'p HeldPage<'a>> {
    let by_id: HashMap<PageId, &HeldPage<'_>> = pages.iter().map(|held| (held.page, held)).collect();
    let depth = |held: &HeldPage<'_>| {
        let mut depth = 0;
        let mut parent = held.parent;
        // A circle is not a trie; it ends here all the same.
        while let Some(held) = parent.and_then(|page| by_id.get(&page)).filter(|_| depth < pages.len()) {
            depth += 1;
            parent = held.parent;
        }
        depth
    };
    let mut pages: Vec<&HeldPage<'_>> = pages.iter().collect();
    // Whoever uses a page uses those before it: they were used last at the same time, or later.
    pages.sort_by_cached_key(|held| (Reverse(held.last_used), depth(held), held.page));
    pages
}
