//! Running the chapters' code: models, counted questions, caches whose rows can be recognised.

use std::path::{Path, PathBuf};

use anyhow::Result;
use page_by_page::cache::{CacheError, KvCache};
use page_by_page::chapters::ch01_recompute::generate;
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
        let layout = self.cache.layout();
        let tokens: Vec<usize> = (self.cache.len() - n..self.cache.len()).collect();
        for layer in 0..layout.n_layers {
            let [k, v] = KINDS.map(|kind| rows::rows(layout, &tokens, layer, kind));
            self.cache.write(layer, &k, &v);
        }
    }

    /// What each row of a layer is: `t0`, `zeros`. Keys and values must lie alike.
    pub fn row_names(&self, layer: usize) -> Vec<String> {
        let layout = self.cache.layout();
        let (k, v) = self.cache.gather(layer);
        let [k, v] = [(k, KINDS[0]), (v, KINDS[1])].map(|(found, kind)| {
            let rows = found.chunks_exact(layout.kv_width());
            rows.map(|row| rows::name(layout, row, layer, kind)).collect::<Vec<_>>()
        });
        assert_eq!(k, v, "keys and values of layer {layer}");
        k
    }

    /// Where the keys of a layer lie in memory, in bytes.
    pub fn address(&self, layer: usize) -> usize {
        self.cache.gather(layer).0.as_ptr().addr()
    }
}
