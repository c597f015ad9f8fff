//! `--pages`, `--budget` and the like: the memory that texts share, and what they may do in a step.

use anyhow::Result;
use clap::Args;
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::model::Model;
use page_by_page::prefixes::Prefixes;
use page_by_page::prefixes::none::NoPrefixes;
use page_by_page::serving::schedule::StepLimits;

use super::kv::Room;
use super::memory;
use super::report::count;

/// Slots of the pool, unless somebody says how many pages there are.
const SLOTS: usize = 4096;

/// The pages that texts are kept in, and what a step may read of them.
#[derive(Args)]
pub struct Pool {
    /// Pages of the pool [default: enough for 4,096 tokens]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16)]
    pub page_size: usize,
    /// Tokens that are read together in a step, at most
    #[arg(long, value_name = "N", default_value_t = 256)]
    budget: usize,
    /// Compute every prompt, whatever was computed before
    #[arg(long)]
    pub no_prefix_cache: bool,
}

/// What texts share that are told together.
#[derive(Args)]
pub struct Sharing {
    #[command(flatten)]
    pub pool: Pool,
    /// Texts that run at the same time, at most
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub running: usize,
}

impl Sharing {
    /// What a step may hold.
    pub fn limits(&self) -> StepLimits {
        self.pool.limits(self.running)
    }

    /// The memory of all texts, if there is as much.
    pub fn slab(&self, model: &Model) -> Result<SharedSlab> {
        self.pool.slab(model, self.running, "let a step read fewer with --budget, or fewer texts run with --running")
    }
}

impl Pool {
    /// What a step may hold. `texts`: that run at the same time, at most.
    pub fn limits(&self, texts: usize) -> StepLimits {
        StepLimits { tokens: self.budget, sequences: texts }
    }

    /// Pages of the pool. Refuses pages without slots.
    pub fn n_pages(&self) -> Result<usize> {
        let enough = Room::for_tokens(SLOTS, self.page_size)?;
        Ok(self.pages.unwrap_or(enough.n_pages))
    }

    /// Slots of all pages together.
    pub fn n_slots(&self) -> Result<usize> {
        Ok(self.n_pages()?.saturating_mul(self.page_size))
    }

    /// The memory of so many texts, if there is as much. `advice`: what to do if a step takes more.
    pub fn slab(&self, model: &Model, texts: usize, advice: &str) -> Result<SharedSlab> {
        let n_pages = self.n_pages()?;
        let layout = model.kv_layout();
        memory::require_pages(layout, self.page_size, n_pages)?;
        // Whoever reads a token has a slot for it, and whoever is answered has read one.
        let tokens = self.budget.min(n_pages.saturating_mul(self.page_size));
        let what = format!("reading {} in a step", count(tokens, "token"));
        memory::require(&what, model.step_bytes(tokens, texts.min(tokens)), advice)?;
        Ok(PageSlab::new(layout, self.page_size, n_pages)?)
    }

    /// What keeps pages when their texts have ended.
    pub fn prefixes(&self) -> Result<Box<dyn Prefixes>> {
        Ok(match self.no_prefix_cache {
            true => Box::new(NoPrefixes::new(self.page_size)?),
            false => Box::new(PrefixCache::new(self.page_size)?),
        })
    }
}
