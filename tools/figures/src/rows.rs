//! Rows that can be recognised. Each sequence has a letter, and its tokens are `a0`, `a1`, `a2`, …

use anyhow::{Context, Result};
use page_by_page::cache::{KvCache, KvLayout};

// The graders' rows: each number says which token and layer it belongs to, and whether it is a key or a value.
#[allow(dead_code)]
#[path = "../../../tests/support/rows.rs"]
mod graders;

use graders::KINDS;

/// A small model's rows.
pub const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 2 };

/// The tokens of a letter have numbers of their own.
const TOKENS_PER_LETTER: usize = 100;

/// Writes the rows of the newest `n` tokens into every layer. Their names are the letter and their position.
pub fn write(cache: &mut dyn KvCache, letter: char, n: usize) {
    let layout = cache.layout();
    let first = (letter as usize - 'a' as usize) * TOKENS_PER_LETTER;
    let tokens: Vec<usize> = (cache.len() - n..cache.len()).map(|position| first + position).collect();
    for layer in 0..layout.n_layers {
        let [k, v] = KINDS.map(|kind| graders::rows(layout, &tokens, layer, kind));
        cache.write(layer, &k, &v);
    }
}

/// What the rows of a layer are, oldest token first: `a0`, or `None` for zeros.
pub fn of_layer(cache: &dyn KvCache, layer: usize) -> Result<Vec<Option<String>>> {
    let (k, v) = cache.gather(layer);
    names(cache.layout(), layer, &k, &v)
}

/// What these rows of one layer are. `k`, `v`: `[n, kv_width]`, alike.
pub fn names(layout: KvLayout, layer: usize, k: &[f32], v: &[f32]) -> Result<Vec<Option<String>>> {
    let [k, v] = [(k, KINDS[0]), (v, KINDS[1])].map(|(numbers, kind)| {
        let rows = numbers.chunks_exact(layout.kv_width());
        rows.map(|row| graders::name(layout, row, layer, kind)).collect::<Vec<_>>()
    });
    anyhow::ensure!(k == v, "keys and values of layer {layer} differ: {k:?}, {v:?}");
    k.iter().map(|name| letter_name(name)).collect()
}

/// `t103` is `b3`.
fn letter_name(name: &str) -> Result<Option<String>> {
    if name == "zeros" {
        return Ok(None);
    }
    let number = name.strip_prefix('t').and_then(|number| number.parse::<usize>().ok());
    let number = number.with_context(|| format!("a row is {name}"))?;
    let letter = ('a'..='z').nth(number / TOKENS_PER_LETTER).with_context(|| format!("no sequence has {name}"))?;
    Ok(Some(format!("{letter}{}", number % TOKENS_PER_LETTER)))
}

/// Where the keys of a layer lie in memory, in bytes.
pub fn address(cache: &dyn KvCache, layer: usize) -> usize {
    cache.gather(layer).0.as_ptr().addr()
}
