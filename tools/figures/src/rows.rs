//! Rows that can be recognised. Each sequence has a letter, and its tokens are `a0`, `a1`, `a2`, …

use anyhow::{Context, Result, ensure};
// The graders' rows: each number says which token and layer it belongs to, and whether it is a key or a value.
use grading::rows::{self as graders, KINDS};
use page_by_page::cache::{CacheError, KvCache, KvLayout};

pub const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 1, head_dim: 2 };

/// The stories that are told, a word a token. Each has a letter, and the colour of that letter: Silda is green, the wolf blue,
/// the princess pink. `n` is how Silda's goes on after a rewind, `i` and `j` are two samples of one prompt.
const STORIES: [(char, &str); 6] = [
    ('a', "once upon a time there lived a queen whose name"),
    ('b', "there was a wolf who had only one son"),
    ('d', "a vast she was not to be seen"),
    ('i', "the king had heard the news that he had heard"),
    ('j', "the king had chattucked the king and asked his daughter"),
    ('n', "once upon a time there lived two brothers"),
];

/// The word of a row by its name: `b3` is `wolf`.
pub fn word(name: &str) -> String {
    let story = STORIES.iter().find(|(letter, _)| name.starts_with(*letter));
    let word = story.and_then(|(_, words)| words.split(' ').nth(name[1..].parse().ok()?));
    word.unwrap_or(name).to_string()
}

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

/// Makes room for `n` tokens and writes their rows, if there is room.
pub fn append(cache: &mut dyn KvCache, letter: char, n: usize) -> Result<(), CacheError> {
    cache.extend(n)?;
    write(cache, letter, n);
    Ok(())
}

/// What the rows of a layer are, oldest token first: `a0`, or `None` for zeros.
pub fn layer_rows(cache: &dyn KvCache, layer: usize) -> Result<Vec<Option<String>>> {
    let (k, v) = cache.gather(layer);
    names(cache.layout(), layer, &k, &v)
}

/// What these rows of one layer are. `k`, `v`: `[n, kv_width]`, alike. The graders' `t103` is `b3`.
pub fn names(layout: KvLayout, layer: usize, k: &[f32], v: &[f32]) -> Result<Vec<Option<String>>> {
    let name = |(k, v)| {
        let [name, of_values] =
            [(k, KINDS[0]), (v, KINDS[1])].map(|(row, kind)| graders::name(layout, row, layer, kind));
        ensure!(name == of_values, "keys and values of layer {layer} differ: {name}, {of_values}");
        if name == "zeros" {
            return Ok(None);
        }
        let number = name.strip_prefix('t').and_then(|number| number.parse::<usize>().ok());
        let number = number.with_context(|| format!("a row is {name}"))?;
        let letter = char::from(b'a' + (number / TOKENS_PER_LETTER) as u8);
        Ok(Some(format!("{letter}{}", number % TOKENS_PER_LETTER)))
    };
    k.chunks_exact(layout.kv_width()).zip(v.chunks_exact(layout.kv_width())).map(name).collect()
}

/// Where the keys of a layer lie in memory, in bytes.
pub fn address(cache: &dyn KvCache, layer: usize) -> usize {
    cache.gather(layer).0.as_ptr().addr()
}
