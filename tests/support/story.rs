//! The bundled story teller, and the story that it writes without any cache.

use std::borrow::Cow;
use std::path::PathBuf;

use page_by_page::cache::{CacheError, KvCache, KvLayout, Rewind, Usage};
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::decode::{Cached, LanguageModel};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;

use super::asking::asking;
use super::rows;

/// How the checks sample: not greedy, because so small a model then falls into loops. The seed fixes the story.
pub const SAMPLING: Sampling = Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed: 7 };

pub const PROMPT: &str = "Once upon a time";

pub struct Storyteller {
    pub model: Model,
    pub tokenizer: Tokenizer,
}

impl Storyteller {
    pub fn open() -> Self {
        let dir = assets().join("storyteller");
        Storyteller {
            model: Model::open(&dir).expect("the bundled model opens"),
            tokenizer: Tokenizer::open(&dir).expect("the bundled tokenizer opens"),
        }
    }

    pub fn prompt(&self) -> Vec<u32> {
        self.tokenizer.encode(PROMPT).expect("the prompt is text")
    }

    /// The next `n` tokens when `logits_after` answers for the whole sequence so far, sampled with the fixed seed.
    pub fn continue_with(&self, n: usize, mut logits_after: impl FnMut(&[u32]) -> Vec<f32>) -> Vec<u32> {
        let prompt = self.prompt();
        let mut sampler = Sampler::new(SAMPLING);
        let mut tokens = prompt.clone();
        for _ in 0..n {
            let token = sampler.pick(&logits_after(&tokens));
            tokens.push(token);
        }
        tokens.split_off(prompt.len())
    }

    /// The story as recomputing generates it.
    pub fn recompute(&self, n: usize) -> Vec<u32> {
        self.continue_with(n, |tokens| self.model.step(tokens, None).expect("a short sequence fits"))
    }

    /// Generates a story of `n` tokens through a cache, and compares it with the recomputed one. Before each step,
    /// `meanwhile` is called. Returns the rows that the model projected.
    #[track_caller]
    pub fn assert_through(&self, cache: &mut dyn Rewind, what: &str, n: usize, mut meanwhile: impl FnMut()) -> u64 {
        let mut watched = Watched(cache);
        let mut model = Cached::new(&self.model, &mut watched);
        let question = asking(format!("a story through the {what}"));
        let story = self.continue_with(n, |sequence| {
            meanwhile();
            let refused = |error| panic!("the {what} refuses a sequence of {} tokens: {error}", sequence.len());
            model.next_logits(sequence).unwrap_or_else(refused)
        });
        drop(question);
        self.assert_same_story(&story, &self.recompute(n));
        model.rows_projected()
    }

    /// The next `n` tokens without any cache, each with the logits that it is sampled from.
    pub fn alone(&self, prompt: &[u32], n: usize) -> Vec<(u32, Vec<f32>)> {
        let (mut tokens, mut sampler) = (prompt.to_vec(), Sampler::new(SAMPLING));
        let next = |_| {
            let logits = self.model.step(&tokens, None).expect("a short sequence fits");
            tokens.push(sampler.pick(&logits));
            (tokens[tokens.len() - 1], logits)
        };
        (0..n).map(next).collect()
    }

    /// Compares two stories; says where they part.
    #[track_caller]
    pub fn assert_same_story(&self, found: &[u32], expected: &[u32]) {
        if found == expected {
            return;
        }
        let same = found.iter().zip(expected).take_while(|(a, b)| a == b).count();
        let text = |tokens: &[u32]| self.tokenizer.decode(tokens).unwrap_or_default();
        panic!(
            "the first {same} new tokens are right, then the story goes another way\n  expected: {}\n  yours:    {}",
            text(expected),
            text(found)
        );
    }
}

pub fn assets() -> PathBuf {
    super::root().join("assets")
}

/// A cache whose `gather` is looked at before the model sees it: it must give rows for just the tokens that are held.
pub struct Watched<'a>(pub &'a mut dyn Rewind);

impl KvCache for Watched<'_> {
    fn layout(&self) -> KvLayout {
        self.0.layout()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        let _asking = asking(format!("extend({n}) on {} tokens, within the story", self.0.len()));
        self.0.extend(n)
    }

    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        let rows = k.len() / self.layout().kv_width();
        let _asking =
            asking(format!("write of {rows} rows to layer {layer}, {} tokens held, within the story", self.0.len()));
        self.0.write(layer, k, v);
    }

    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
        let asking = asking(format!("gather({layer}) of {} tokens, within the story", self.0.len()));
        let (k, v) = self.0.gather(layer);
        drop(asking);
        let (len, width) = (self.len(), self.layout().kv_width());
        for (kind, numbers) in [("keys", k.len()), ("values", v.len())] {
            same!(
                rows::count(numbers, width),
                rows::count(len * width, width),
                "{kind} that gather({layer}) gives the model, {len} tokens held"
            );
        }
        (k, v)
    }

    fn usage(&self) -> Usage {
        self.0.usage()
    }
}

impl Rewind for Watched<'_> {
    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        let _asking = asking(format!("rewind({n}) on {} tokens, within the story", self.0.len()));
        self.0.rewind(n)
    }
}
