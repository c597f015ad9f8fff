//! The caches by name: what `--kv` may say, which chapters that needs, and a text written with it.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use page_by_page::cache::{KvCache, KvLayout, Usage};
use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
use page_by_page::chapters::{Source, chapter};
use page_by_page::engine::{Cached, Limits};
use page_by_page::model::{Model, StepError};

/// Where the keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kv {
    /// Nowhere: every token computes the whole text again.
    Recompute,
    /// Tensors that grow by copying.
    Flat,
    /// One reservation for the whole text.
    Contiguous,
    /// Pages of a shared slab.
    Paged,
}

/// A name that is none of the caches.
#[derive(Debug, thiserror::Error)]
#[error("unknown kv cache {0:?} (supported: recompute, flat, contiguous, paged)")]
pub struct UnknownKv(String);

impl FromStr for Kv {
    type Err = UnknownKv;

    fn from_str(name: &str) -> Result<Self, UnknownKv> {
        match name {
            "recompute" => Ok(Kv::Recompute),
            "flat" | "basic" => Ok(Kv::Flat),
            "contiguous" => Ok(Kv::Contiguous),
            "paged" => Ok(Kv::Paged),
            _ => Err(UnknownKv(name.into())),
        }
    }
}

impl fmt::Display for Kv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kv::Recompute => "recompute",
            Kv::Flat => "flat",
            Kv::Contiguous => "contiguous",
            Kv::Paged => "paged",
        })
    }
}

impl Kv {
    /// All of them, in the order of the book.
    pub const ALL: [Kv; 4] = [Kv::Recompute, Kv::Flat, Kv::Contiguous, Kv::Paged];

    /// The chapters whose code it runs.
    pub fn chapters(self) -> &'static [usize] {
        match self {
            Kv::Recompute => &[1],
            Kv::Flat => &[1, 2],
            Kv::Contiguous => &[1, 3],
            Kv::Paged => &[1, 4, 5, 6],
        }
    }
}

/// Refuses to go on if nobody has written one of these chapters.
pub fn require_chapters(numbers: &[usize]) -> Result<()> {
    for chapter in numbers.iter().map(|number| chapter(*number)) {
        if chapter.source == Source::Unstarted {
            bail!(
                "chapter {} ({}) is not started: edit exercises/{}.rs, or add --features solution",
                chapter.number,
                chapter.title,
                chapter.name
            );
        }
    }
    Ok(())
}

/// Refuses a reservation that this machine has no memory for, before it is made.
pub fn require_memory(layout: KvLayout, slots: usize) -> Result<()> {
    let bytes_per_slot = 2 * layout.n_layers * layout.kv_width() * size_of::<f32>();
    let granted =
        slots.checked_mul(bytes_per_slot).is_some_and(|bytes| Vec::<u8>::new().try_reserve_exact(bytes).is_ok());
    if !granted {
        bail!(
            "a cache of {slots} slots takes {bytes_per_slot} bytes for each: more memory than there is; reserve fewer"
        );
    }
    Ok(())
}

/// A text as it was written, and what it cost.
pub struct Written {
    /// The new tokens.
    pub tokens: Vec<u32>,
    /// Tokens that went through the model.
    pub rows_projected: u64,
    /// What the cache holds at the end; all zero without one.
    pub usage: Usage,
}

/// What there is to write: a prompt, where to stop, and the slots that a reservation has.
#[derive(Clone, Copy)]
pub struct Writing<'a> {
    /// The model.
    pub model: &'a Model,
    /// The tokens to continue.
    pub prompt: &'a [u32],
    /// When to stop.
    pub limits: Limits<'a>,
    /// Slots to reserve, where a cache reserves.
    pub capacity: usize,
    /// The memory of a paged cache.
    pub pages: Pages,
}

/// How much memory a paged cache may use, and in what pieces.
#[derive(Clone, Copy)]
pub struct Pages {
    /// Slots in a page.
    pub page_size: usize,
    /// Pages in all.
    pub n_pages: usize,
}

impl Writing<'_> {
    /// Continues the prompt with the loop of chapter 1 and this cache.
    pub fn run(
        self,
        kv: Kv,
        pick: &mut dyn FnMut(&[f32]) -> u32,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<Written, StepError> {
        let layout = self.model.config().kv_layout();
        match kv {
            Kv::Recompute => {
                let mut model = Recompute::new(self.model);
                let tokens = generate(&mut model, self.prompt, self.limits, pick, on_token)?;
                Ok(Written { tokens, rows_projected: model.rows_projected(), usage: Usage::default() })
            }
            Kv::Flat => self.run_cached(&mut FlatCache::new(layout), pick, on_token),
            Kv::Contiguous => self.run_cached(&mut ContiguousCache::new(layout, self.capacity), pick, on_token),
            Kv::Paged => {
                let slab = PageSlab::new(layout, self.pages.page_size, self.pages.n_pages)?;
                self.run_cached(&mut PagedCache::new(&slab)?, pick, on_token)
            }
        }
    }

    fn run_cached(
        self,
        cache: &mut dyn KvCache,
        pick: &mut dyn FnMut(&[f32]) -> u32,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<Written, StepError> {
        let mut model = Cached::new(self.model, cache);
        let tokens = generate(&mut model, self.prompt, self.limits, pick, on_token)?;
        let rows_projected = model.rows_projected();
        Ok(Written { tokens, rows_projected, usage: cache.usage() })
    }
}
