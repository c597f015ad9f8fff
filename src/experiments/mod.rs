//! What the chapters gain, counted: a small experiment for each idea, which runs the chapters' code and returns its
//! counters.
//!
//! Nothing here takes a time, so each number is the same on every machine. The commands `gains` and `bench` and the
//! charts of the book show these numbers. An experiment returns an error if there is no room, or if it finds the code
//! at odds with itself. [`mistakes`] has what `break` and the book's pages switch on.

mod costs;
pub mod disk;
pub mod drafts;
pub mod first_fit;
pub mod forks;
pub mod generation;
pub mod memory;
pub mod mistakes;
pub mod paged_attention;
pub mod prefixes;
pub mod rewind;

pub use costs::{StubbornDrafter, count_schedule, shrunk_events};

use std::path::{Path, PathBuf};

use crate::cache::{CacheError, KvCache, KvLayout};

/// Slots in a page, where an experiment has no reason for another number.
pub const PAGE_SIZE: usize = 16;

/// Rows that are small, because no model reads them: 2 layers, and 2 numbers in a row.
pub const SMALL: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 2 };

/// The prompts of the four stories that chapters 8 and 9 count drafts in.
pub const PROMPTS: [&str; 4] = ["Once upon a time", "There was a king", "In a small house", "The youngest daughter"];

/// The folder of a bundled model: `storyteller` or `storyteller-draft`.
pub fn bundled(model: &str) -> PathBuf {
    // A page has no folders, and its module is the same wherever it was compiled.
    let root = if cfg!(target_family = "wasm") { "" } else { env!("CARGO_MANIFEST_DIR") };
    Path::new(root).join("assets").join(model)
}

/// Rows of `tokens` tokens, all the same: `[tokens, kv_width]`.
pub fn rows(layout: KvLayout, tokens: usize) -> Vec<f32> {
    vec![1.0; tokens * layout.kv_width()]
}

/// Makes room for new tokens and writes `rows` as their keys and as their values in every layer, `[tokens, kv_width]`.
pub fn append(cache: &mut (impl KvCache + ?Sized), rows: &[f32]) -> Result<(), CacheError> {
    let layout = cache.layout();
    cache.extend(layout.rows(rows, rows))?;
    (0..layout.n_layers).for_each(|layer| cache.write(layer, rows, rows));
    Ok(())
}
