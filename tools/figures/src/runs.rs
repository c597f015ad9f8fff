//! Running the chapters' code: models, counted questions, caches whose rows can be recognised.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use page_by_page::cache::{CacheError, KvCache, KvLayout, PageId};
use page_by_page::chapters::ch01_recompute::generate;
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};
use page_by_page::decode::{LanguageModel, Limits};
use serde::Serialize;

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

/// A slab of 16 pages that hands out these next; the others are taken, by the caches that come with it. Nothing was
/// ever written.
pub fn slab_that_gives(
    layout: KvLayout,
    page_size: usize,
    pages: &[u32],
) -> Result<(SharedSlab, Vec<PagedCache>), CacheError> {
    let slab = PageSlab::new(layout, page_size, 16)?;
    let mut others = Vec::new();
    for _ in 0..16 {
        let mut other = PagedCache::new(&slab)?;
        other.extend(1)?;
        others.push(other);
    }
    for page in pages.iter().rev() {
        others.retain(|other| other.table().pages()[0] != PageId(*page));
    }
    Ok((slab, others))
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
        write_letters(&mut self.cache, self.name, n);
        Ok(())
    }

    pub fn pages(&self) -> Vec<u32> {
        page_numbers(self.cache.table().pages())
    }

    /// The rows in the order of the tokens, as `gather` shows them and `locate` finds them. All layers must lie alike.
    pub fn rows(&self) -> Result<Vec<Row>> {
        let row = |(position, name)| {
            let place = self.cache.table().locate(position)?;
            Ok(Row { page: place.page.index(), slot: place.slot, name })
        };
        letter_names(&self.cache)?.into_iter().enumerate().map(row).collect()
    }
}

/// Writes the rows of the newest `n` tokens into every layer. Their names are a letter and their position.
pub fn write_letters(cache: &mut dyn KvCache, letter: char, n: usize) {
    let first = (letter as usize - 'a' as usize) * TOKENS_PER_LETTER;
    let tokens: Vec<usize> = (cache.len() - n..cache.len()).map(|position| first + position).collect();
    write_rows(cache, &tokens);
}

/// What the rows of a cache are, oldest token first: `a0`, or `None` where only zeros are. All layers must lie alike.
pub fn letter_names(cache: &dyn KvCache) -> Result<Vec<Option<String>>> {
    let mut layers = (0..cache.layout().n_layers).map(|layer| row_names(cache, layer));
    let names = layers.next().context("a model has layers")?;
    ensure!(layers.all(|other| other == names), "not the same rows in every layer");
    names.iter().map(|name| letter_name(name)).collect()
}

/// A page of a slab in one layer; the others look the same.
#[derive(Serialize)]
pub struct Page {
    pub owner: Option<char>,
    pub slots: Vec<Slot>,
}

#[derive(PartialEq, Serialize)]
pub struct Slot {
    /// What lies there; `null` if nothing was ever written.
    pub row: Option<String>,
    /// Whether it is a token of a text.
    pub held: bool,
}

impl Slot {
    /// The row of a token that no text holds.
    pub fn stale(&self) -> Option<&String> {
        if self.held { None } else { self.row.as_ref() }
    }
}

/// Reads every slot of a slab, also those that no text holds: all free room is taken with `extend`, and nothing is
/// written there. What `gather` then shows was there before. The slab is of no use afterwards.
pub fn every_slot(slab: &SharedSlab, mut texts: Vec<Text>, page_size: usize) -> Result<Vec<Page>> {
    let held: Vec<usize> = texts.iter().map(|text| text.cache.len()).collect();
    for text in &mut texts {
        let usage = text.cache.usage();
        text.cache.extend(usage.wasted())?;
    }
    let mut rest = Text::new('z', slab)?;
    let (n_pages, n_free) = (slab.borrow().pool().n_pages(), slab.borrow().pool().n_free());
    rest.cache.extend(n_free * page_size)?;

    let mut found: Vec<Vec<Option<Slot>>> = (0..n_pages).map(|_| (0..page_size).map(|_| None).collect()).collect();
    let mut owners = vec![None; n_pages];
    for (text, held) in texts.iter().zip(held).chain([(&rest, 0)]) {
        for (position, row) in text.rows()?.into_iter().enumerate() {
            owners[row.page] = (held > 0).then_some(text.name);
            found[row.page][row.slot] = Some(Slot { row: row.name, held: position < held });
        }
    }
    let page = |(owner, slots): (Option<char>, Vec<Option<Slot>>)| {
        let slots = slots.into_iter().collect::<Option<Vec<_>>>().context("a slot was not read")?;
        ensure!(owner.is_some() || slots.iter().all(|slot| !slot.held), "a free page holds a token");
        Ok(Page { owner, slots })
    };
    owners.into_iter().zip(found).map(page).collect()
}

/// What lies in every slot of a slab, page by page: `a0`, or `None` where nothing was ever written. All layers, keys and
/// values must lie alike.
pub fn slot_names(slab: &SharedSlab, layout: KvLayout, page_size: usize) -> Result<Vec<Vec<Option<String>>>> {
    let slab = slab.borrow();
    let mut pages = Vec::new();
    let page_numbers = layout.n_layers * page_size * layout.kv_width();
    for (k, v) in slab.keys().chunks_exact(page_numbers).zip(slab.values().chunks_exact(page_numbers)) {
        let mut tensors = Vec::new();
        for (numbers, kind) in [(k, KINDS[0]), (v, KINDS[1])] {
            for (layer, layer_numbers) in numbers.chunks_exact(page_size * layout.kv_width()).enumerate() {
                let rows = layer_numbers.chunks_exact(layout.kv_width());
                tensors.push(rows.map(|row| rows::name(layout, row, layer, kind)).collect::<Vec<_>>());
            }
        }
        ensure!(tensors.iter().all(|names| *names == tensors[0]), "not the same rows in every layer: {tensors:?}");
        pages.push(tensors[0].iter().map(|name| letter_name(name)).collect::<Result<_>>()?);
    }
    Ok(pages)
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
