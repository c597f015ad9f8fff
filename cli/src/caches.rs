//! The caches by name: what `--kv` takes, which chapters each needs, and one sequence generated with it.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use page_by_page::cache::in_place::InPlace;
use page_by_page::cache::{CacheError, KvLayout, Usage};
use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
use page_by_page::chapters::ch08_speculative::Speculation;
use page_by_page::decode::{Accept, Cached, Drafter, Limits};
use page_by_page::model::{Model, StepError};

use crate::require;

/// Where the keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kv {
    /// Nowhere: every token recomputes the whole sequence.
    Recompute,
    /// Tensors that grow by copying.
    Flat,
    /// One reservation for the whole sequence.
    Contiguous,
    /// Pages of a shared slab.
    Paged,
}

/// A name that no cache has.
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

    /// An empty cache; `None` where nothing is kept. Refuses one that there is no memory for.
    pub fn cache(self, layout: KvLayout, room: Room) -> Result<Option<Box<dyn InPlace>>> {
        Ok(match self {
            Kv::Recompute => None,
            Kv::Flat => Some(Box::new(FlatCache::new(layout))),
            Kv::Contiguous => {
                require::slots(layout, room.capacity)?;
                Some(Box::new(ContiguousCache::new(layout, room.capacity)))
            }
            Kv::Paged => {
                require::pages(layout, room.page_size, room.n_pages)?;
                Some(Box::new(PagedCache::new(&PageSlab::new(layout, room.page_size, room.n_pages)?)?))
            }
        })
    }
}

/// How much memory a cache may use, where it does not simply grow.
#[derive(Clone, Copy)]
pub struct Room {
    /// Slots that a contiguous cache reserves.
    pub capacity: usize,
    /// Slots in a page of a paged cache.
    pub page_size: usize,
    /// Pages of a paged cache in all.
    pub n_pages: usize,
}

impl Room {
    /// Room for this many tokens, in any cache. Refuses pages without slots.
    pub fn for_tokens(tokens: usize, page_size: usize) -> Result<Self, CacheError> {
        if page_size == 0 {
            return Err(CacheError::NoSlots);
        }
        Ok(Room { capacity: tokens, page_size, n_pages: tokens.div_ceil(page_size) })
    }

    /// Slots that the largest of the caches takes.
    pub fn slots(self) -> usize {
        self.capacity.max(self.n_pages.saturating_mul(self.page_size))
    }
}

/// A sequence that is finished, and what it cost.
pub struct Generated {
    /// The generated tokens.
    pub tokens: Vec<u32>,
    /// Tokens that went through the model.
    pub rows_projected: u64,
    /// What the cache holds at the end; all zero without one.
    pub usage: Usage,
}

/// One sequence to generate.
#[derive(Clone, Copy)]
pub struct Generation<'a> {
    /// The model.
    pub model: &'a Model,
    /// The tokens to continue.
    pub prompt: &'a [u32],
    /// When to stop.
    pub limits: Limits<'a>,
}

impl Generation<'_> {
    /// Continues the prompt with the loop of chapter 1 and this cache, or recomputes everything without one.
    ///
    /// The cache may hold the first tokens of the prompt already, but not all of them.
    pub fn run(
        self,
        cache: Option<&mut (dyn InPlace + 'static)>,
        pick: &mut dyn FnMut(&[f32]) -> u32,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<Generated, StepError> {
        let Some(cache) = cache else {
            let mut model = Recompute::new(self.model);
            let tokens = generate(&mut model, self.prompt, self.limits, pick, on_token)?;
            return Ok(Generated { tokens, rows_projected: model.rows_projected(), usage: Usage::default() });
        };
        let mut model = Cached::in_place(self.model, cache);
        let tokens = generate(&mut model, self.prompt, self.limits, pick, on_token)?;
        let rows_projected = model.rows_projected();
        Ok(Generated { tokens, rows_projected, usage: cache.usage() })
    }

    /// The same with drafts of at most `k` tokens, of which `accept` keeps some.
    pub fn run_with_drafts(
        self,
        cache: Option<&mut (dyn InPlace + 'static)>,
        drafter: &mut dyn Drafter,
        k: usize,
        accept: &mut Accept<'_>,
        on_token: &mut dyn FnMut(u32),
    ) -> Result<Generated, StepError> {
        let Some(cache) = cache else {
            let mut target = Recompute::new(self.model);
            let mut speculation = Speculation { target: &mut target, drafter, accept };
            let tokens = speculation.generate(self.prompt, self.limits, k, on_token)?;
            return Ok(Generated { tokens, rows_projected: target.rows_projected(), usage: Usage::default() });
        };
        let mut target = Cached::in_place(self.model, cache);
        let mut speculation = Speculation { target: &mut target, drafter, accept };
        let tokens = speculation.generate(self.prompt, self.limits, k, on_token)?;
        let rows_projected = target.rows_projected();
        Ok(Generated { tokens, rows_projected, usage: cache.usage() })
    }
}
