//! `--save-cache` and `--load-cache`: what was computed for one text serves the next that begins like it.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use page_by_page::cache::Rewind;
use page_by_page::cache::snapshot::Snapshot;
use page_by_page::model::Model;
use serde::Serialize;

use super::kv::Kv;

/// The files of caches.
#[derive(Args)]
pub struct SavedCache {
    /// When the text is written, save the cache to this file, for --load-cache
    #[arg(long, value_name = "FILE")]
    save_cache: Option<PathBuf>,
    /// Start from a saved cache: what it holds of the prompt is not computed again. Any --kv but recompute can load it
    #[arg(long, value_name = "FILE")]
    load_cache: Option<PathBuf>,
}

/// What was taken from a saved cache.
#[derive(Clone, Copy, Serialize)]
pub struct Restored {
    /// Tokens in the file.
    pub saved: usize,
    /// Tokens that the prompt begins with: their rows were not computed again.
    pub kept: usize,
}

/// What went to a file.
#[derive(Serialize)]
pub struct Saved {
    /// The file.
    pub file: PathBuf,
    /// Tokens in it.
    pub tokens: usize,
}

impl SavedCache {
    /// The chapters whose code it runs.
    pub fn chapters(&self) -> &'static [usize] {
        if self.load_cache.is_some() { &[7] } else { &[] }
    }

    /// Whether a file was named.
    pub fn is_asked(&self) -> bool {
        self.save_cache.is_some() || self.load_cache.is_some()
    }

    /// Refuses what could only fail after the text is written.
    pub fn check(&self, kv: Kv) -> Result<()> {
        let file = self.load_cache.as_ref().or(self.save_cache.as_ref());
        ensure!(
            kv != Kv::Recompute || file.is_none(),
            "--kv recompute keeps nothing that could be saved or loaded; use flat, contiguous or paged"
        );
        if let Some(file) = &self.save_cache {
            Snapshot::check_writable(file)?;
        }
        Ok(())
    }

    /// Reads the file of `--load-cache`, if there is one.
    pub fn load(&self, model: &Model) -> Result<Option<Snapshot>> {
        Ok(self.load_cache.as_ref().map(|file| Snapshot::load(file, model)).transpose()?)
    }

    /// Writes the file of `--save-cache`, if there is one. `text`: begins with the tokens that the cache holds.
    pub fn save(&self, cache: Option<&dyn Rewind>, text: &[u32], model: &Model) -> Result<Option<Saved>> {
        let (Some(file), Some(cache)) = (&self.save_cache, cache) else {
            return Ok(None);
        };
        let snapshot = Snapshot::freeze(cache, &text[..cache.len()]);
        snapshot.save(file, model)?;
        Ok(Some(Saved { file: file.clone(), tokens: cache.len() }))
    }
}

/// Restores a snapshot and rewinds the cache to what the prompt begins with.
///
/// At least one token of the prompt stays out: the logits of the next one are computed from it.
pub fn restore(snapshot: &Snapshot, cache: &mut dyn Rewind, prompt: &[u32]) -> Result<Restored> {
    let saved = snapshot.tokens().len();
    snapshot.restore(cache).with_context(|| format!("the saved cache holds {saved} tokens"))?;
    let common = snapshot.tokens().iter().zip(prompt).take_while(|(saved, asked)| saved == asked).count();
    let kept = common.min(prompt.len() - 1);
    cache.rewind(saved - kept)?;
    Ok(Restored { saved, kept })
}
