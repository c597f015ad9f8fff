//! The oracle: what a cache must hold, as a plain list of tokens, and the comparison with what it does hold.

use std::ffi::OsString;
use std::ops::Range;

use page_by_page::cache::{CacheError, KvCache, KvLayout, Rewind};

use crate::calls::in_call;
use crate::history::History;
use crate::limits;
use crate::rows::{self, KINDS};
use crate::words::plural;

/// A sequence whose rows are never moved, shared or freed: nothing can go wrong with it.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// The tokens held, by the number that their rows carry.
    pub tokens: Vec<usize>,
    pub history: History,
}

impl Oracle {
    /// An empty sequence, and what a failure says about the run.
    pub fn new(about: impl Into<String>) -> Self {
        Oracle { tokens: Vec::new(), history: History::new(about) }
    }

    /// Extends the cache by `tokens` and writes their rows, layer by layer; takes note of it.
    pub fn append(&mut self, cache: &mut dyn KvCache, tokens: &[usize]) {
        self.history.record(format!("extend({}) and write", tokens.len()));
        let (n, len) = (tokens.len(), cache.len());
        self.expect(format!("extend({n}) on {}", plural(len, "token")), || cache.extend(n));
        self.tokens.extend_from_slice(tokens);
        same!(cache.len(), self.tokens.len(), "tokens held after extend({n})\n  {}", self.history.at());
        in_call(self.history.at(), || write(cache, tokens));
    }

    /// Rewinds the cache by `n` tokens; takes note of it.
    pub fn rewind(&mut self, cache: &mut dyn Rewind, n: usize) {
        self.history.record(format!("rewind({n})"));
        let len = self.tokens.len();
        self.expect(format!("rewind({n}) on {}", plural(len, "token")), || cache.rewind(n));
        self.tokens.truncate(len - n);
        same!(cache.len(), self.tokens.len(), "tokens held after rewind({n})\n  {}", self.history.at());
    }

    /// Makes a call that there is no reason to refuse.
    fn expect(&self, question: String, call: impl FnOnce() -> Result<(), CacheError>) {
        if let Err(error) = in_call(format!("{question}, {}", self.history.at()), call) {
            panic!("{question} failed: {error}\n  {}", self.history.at());
        }
    }

    /// Compares every row of every layer, bit for bit.
    #[track_caller]
    pub fn check(&self, cache: &dyn KvCache) {
        self.check_placed(cache, &|_| String::new());
    }

    /// Compares as [`check`](Self::check) does; a failure also says, as `place` does, where a position's token lies.
    #[track_caller]
    pub fn check_placed(&self, cache: &dyn KvCache, place: &dyn Fn(usize) -> String) {
        let layout = cache.layout();
        same!(cache.len(), self.tokens.len(), "tokens held\n  {}", self.history.at());
        for layer in 0..layout.n_layers {
            let question = format!("gather({layer}) of {}, {}", plural(self.tokens.len(), "token"), self.history.at());
            let (k, v) = in_call(question, || cache.gather(layer));
            for (kind, found) in KINDS.into_iter().zip([&k, &v]) {
                self.check_rows(layout, layer, kind, found, place);
            }
        }
    }

    #[track_caller]
    fn check_rows(&self, layout: KvLayout, layer: usize, kind: &str, found: &[f32], place: &dyn Fn(usize) -> String) {
        let width = layout.kv_width();
        let len = self.tokens.len();
        let at = self.history.at();
        let [n_rows, expected] = [found.len(), len * width].map(|numbers| rows::count(numbers, width));
        same!(n_rows, expected, "{kind} that gather({layer}) gives, {} held\n  {at}", plural(len, "token"));
        for (position, (token, found)) in self.tokens.iter().zip(found.chunks_exact(width)).enumerate() {
            let expected = rows::row(layout, *token, layer, kind);
            if found.iter().zip(&expected).any(|(a, b)| a.to_bits() != b.to_bits()) {
                let (name, place) = (rows::name(layout, found, layer, kind), place(position));
                panic!("layer {layer}, {kind}, row {position}{place}: expected t{token}, found {name}\n  {at}");
            }
        }
    }
}

/// Extends a cache that has room enough.
#[track_caller]
pub fn extend(cache: &mut dyn KvCache, n: usize) {
    let len = cache.len();
    same!(cache.extend(n), Ok(()), "extend({n}) on {}, with room enough", plural(len, "token"));
    same!(cache.len(), len + n, "tokens after extend({n}) on {len}");
}

/// Writes the rows of the newest tokens into every layer.
pub fn write(cache: &mut dyn KvCache, tokens: &[usize]) {
    let layout = cache.layout();
    for layer in 0..layout.n_layers {
        let [k, v] = KINDS.map(|kind| rows::rows(layout, tokens, layer, kind));
        let rows = rows::count(k.len(), layout.kv_width());
        let question = format!("write of {rows} to layer {layer}, tokens held: {}", cache.len());
        in_call(question, || cache.write(layer, &k, &v));
    }
}

/// The seeds that an oracle runs: `few`, or as many as `PAGE_BY_PAGE_SEEDS` asks for.
#[track_caller]
pub fn seeds(few: u64) -> Range<u64> {
    runs(std::env::var_os("PAGE_BY_PAGE_SEEDS"), few).unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// The runs of an oracle: each seed, and its rng.
#[track_caller]
pub fn seeded(few: u64) -> impl Iterator<Item = (u64, TestRng)> {
    seeds(few).map(|seed| (seed, TestRng::new(seed)))
}

/// `few` runs, or as many as were asked for. None at all would be green without a look at anything.
pub fn runs(asked: Option<OsString>, few: u64) -> Result<Range<u64>, String> {
    let Some(asked) = asked else { return Ok(0..few) };
    match asked.to_str().and_then(|text| text.parse().ok()) {
        Some(runs) if runs > 0 => Ok(0..runs),
        _ => Err(format!("PAGE_BY_PAGE_SEEDS is {asked:?}: give a whole number of runs, 1 or more")),
    }
}

/// The next `n` tokens, by the numbers that their rows carry: no row is like an earlier one.
pub fn fresh(next: &mut usize, n: usize) -> Vec<usize> {
    *next += n;
    (*next - n..*next).collect()
}

pub fn any_layout(rng: &mut TestRng) -> KvLayout {
    KvLayout { n_layers: rng.roll(1, 4), n_kv_heads: rng.roll(1, 3), head_dim: 2 * rng.roll(1, 4) }
}

/// Steps of one seed. Miri is slow: it looks at every access to memory.
pub const STEPS: usize = if cfg!(miri) { 6 } else { 80 };

/// A seeded generator of small numbers (xorshift), the same everywhere.
pub struct TestRng(u64);

impl TestRng {
    pub fn new(seed: u64) -> Self {
        TestRng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number from `low` to `high`, both included.
    pub fn roll(&mut self, low: usize, high: usize) -> usize {
        limits::heartbeat();
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        low + (self.0 >> 33) as usize % (high - low + 1)
    }
}
