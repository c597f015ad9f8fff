//! Running the chapters' code: models, counted questions, caches whose rows can be recognised.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use page_by_page::cache::{CacheError, KvCache, PageId};
use page_by_page::chapters::ch01_recompute::generate;
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch06_paged::{PagedCache, SharedSlab};
use page_by_page::engine::{LanguageModel, Limits};

// The graders' rows: each number tells its token, its layer, keys or values.
#[allow(dead_code)]
#[path = "../../../tests/support/rows.rs"]
mod rows;

use rows::KINDS;

/// The folder of a bundled model.
pub fn bundled(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets").join(model)
}

/// Lets a model write `n` tokens after a prompt of one, by the loop of chapter 1. Which tokens does not matter.
pub fn write_tokens(model: &mut dyn LanguageModel, n: usize) -> Result<()> {
    let limits = Limits { max_new_tokens: n, end_of_text: &[] };
    generate(model, &[0], limits, &mut |_| 1, &mut |_| {})?;
    Ok(())
}

/// A cache that is told tokens 0, 1, 2, … and asked what it holds.
pub struct Told<C> {
    pub cache: C,
}

impl<C: KvCache> Told<C> {
    /// Makes room for `n` more tokens.
    ///
    /// # Errors
    /// The cache's own.
    pub fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        self.cache.extend(n)
    }

    /// Writes the rows of the newest `n` tokens into every layer. A token's number is its position.
    pub fn write(&mut self, n: usize) {
        let tokens: Vec<usize> = (self.cache.len() - n..self.cache.len()).collect();
        write_rows(&mut self.cache, &tokens);
    }

    /// What each row of a layer is: `t0`, `zeros`. Keys and values must lie alike.
    pub fn row_names(&self, layer: usize) -> Vec<String> {
        row_names(&self.cache, layer)
    }

    /// Where the keys of a layer lie in memory, in bytes.
    pub fn address(&self, layer: usize) -> usize {
        self.cache.gather(layer).0.as_ptr().addr()
    }
}

/// Writes the rows of the newest tokens into every layer.
fn write_rows(cache: &mut dyn KvCache, tokens: &[usize]) {
    let layout = cache.layout();
    for layer in 0..layout.n_layers {
        let [k, v] = KINDS.map(|kind| rows::rows(layout, tokens, layer, kind));
        cache.write(layer, &k, &v);
    }
}

fn row_names(cache: &dyn KvCache, layer: usize) -> Vec<String> {
    let layout = cache.layout();
    let (k, v) = cache.gather(layer);
    let [k, v] = [(k, KINDS[0]), (v, KINDS[1])].map(|(found, kind)| {
        let rows = found.chunks_exact(layout.kv_width());
        rows.map(|row| rows::name(layout, row, layer, kind)).collect::<Vec<_>>()
    });
    assert_eq!(k, v, "keys and values of layer {layer}");
    k
}

/// A pool of 16 pages that hands out these next; the others are taken.
pub fn pool_that_gives(pages: &[u32]) -> Result<PagePool, CacheError> {
    let mut pool = PagePool::new(16)?;
    pool.alloc_n(16)?;
    for page in pages.iter().rev() {
        pool.free(PageId(*page))?;
    }
    Ok(pool)
}

pub fn page_numbers(pages: &[PageId]) -> Vec<u32> {
    pages.iter().map(|page| page.0).collect()
}

/// A text with a name of one letter, in pages of a slab. Its tokens are `a0`, `a1`, `a2`, …
pub struct Text {
    pub name: char,
    pub cache: PagedCache,
}

/// Where a row lies, and what it is: `a0`, or `None` where only zeros are.
pub struct Row {
    pub page: usize,
    pub slot: usize,
    pub name: Option<String>,
}

/// The tokens of one letter have numbers of their own.
const TOKENS_PER_LETTER: usize = 100;

impl Text {
    pub fn new(name: char, slab: &SharedSlab) -> Result<Self, CacheError> {
        Ok(Text { name, cache: PagedCache::new(slab)? })
    }

    /// Makes room for `n` more tokens and writes their rows.
    ///
    /// # Errors
    /// The cache's own.
    pub fn append(&mut self, n: usize) -> Result<(), CacheError> {
        self.cache.extend(n)?;
        let first = (self.name as usize - 'a' as usize) * TOKENS_PER_LETTER;
        let tokens: Vec<usize> = (self.cache.len() - n..self.cache.len()).map(|position| first + position).collect();
        write_rows(&mut self.cache, &tokens);
        Ok(())
    }

    pub fn pages(&self) -> Vec<u32> {
        page_numbers(self.cache.table().pages())
    }

    /// The rows in the order of the tokens, as `gather` shows them and `locate` finds them. All layers must lie alike.
    pub fn rows(&self) -> Result<Vec<Row>> {
        let mut layers = (0..self.cache.layout().n_layers).map(|layer| row_names(&self.cache, layer));
        let names = layers.next().context("a model has layers")?;
        ensure!(layers.all(|other| other == names), "not the same rows in every layer");
        let row = |(position, name): (usize, String)| {
            let place = self.cache.table().locate(position)?;
            Ok(Row { page: place.page.index(), slot: place.slot, name: letter_name(&name)? })
        };
        names.into_iter().enumerate().map(row).collect()
    }
}

/// `t103` is `b3`.
fn letter_name(name: &str) -> Result<Option<String>> {
    if name == "zeros" {
        return Ok(None);
    }
    let number = name.strip_prefix('t').and_then(|number| number.parse::<usize>().ok());
    let number = number.with_context(|| format!("a row is {name}"))?;
    let letter = ('a'..='z').nth(number / TOKENS_PER_LETTER).with_context(|| format!("whose is {name}?"))?;
    Ok(Some(format!("{letter}{}", number % TOKENS_PER_LETTER)))
}
