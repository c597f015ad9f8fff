//! The bundled story teller, and the story that it writes without any cache.

use std::path::PathBuf;

use page_by_page::cache::attention::AttentionCache;
use page_by_page::generation::read_checker::{ReadChecker, WrongRead};
use page_by_page::generation::sampler::{Sampler, SamplingParams};
use page_by_page::generation::{CachedModel, LanguageModel};
use page_by_page::kernels::KvDtype;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;

use crate::calls::{expect_ok, expect_panic};
use crate::whose_code;

/// How the checks sample: not greedy, because so small a model then falls into loops. The seed fixes the story.
pub const SAMPLING: SamplingParams = SamplingParams { seed: 7, ..SamplingParams::DEFAULT };

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
            let token = sampler.sample(&logits_after(&tokens));
            tokens.push(token);
        }
        tokens.split_off(prompt.len())
    }

    /// Generates a story of `n` tokens through a cache, calls `meanwhile` before each step, and compares it with the
    /// recomputed one. Returns how many tokens were computed. From chapter 6 on, a failure names the first wrong read.
    #[track_caller]
    pub fn assert_through(
        &self,
        cache: &mut dyn AttentionCache,
        what: &str,
        n: usize,
        mut meanwhile: impl FnMut(),
    ) -> u64 {
        let mut model = CachedModel::new(&self.model, cache);
        let story = self.continue_with(n, |sequence| {
            meanwhile();
            let question = format!("a story of {} tokens through the {what}", sequence.len());
            expect_ok(question, || model.next_logits(sequence))
        });
        let computed_tokens = model.computed_tokens();
        if let Ok(parting) = expect_panic(|| self.assert_recomputed(n, &story)) {
            let is_paged = whose_code::grader().is_none_or(|grader| grader.number >= 6);
            let may_check = is_paged && self.model.kv_dtype == KvDtype::F32;
            // If the cache panics when the story is told again, what failed is still the story.
            match expect_panic(|| may_check.then(|| self.first_wrong_read(cache, &story)).flatten()) {
                Err(Some(read)) => panic!("{parting}\n  wrong read: {read}"),
                _ => panic!("{parting}"),
            }
        }
        computed_tokens
    }

    /// Tells a story again, with its tokens as they are, and watches what is read of the cache.
    fn first_wrong_read(&self, cache: &mut dyn AttentionCache, story: &[u32]) -> Option<WrongRead> {
        let (prompt, checker) = (self.prompt(), ReadChecker::new(None));
        cache.rewind(cache.len()).ok()?;
        let tokens = [&prompt[..], story].concat();
        (prompt.len()..tokens.len()).find_map(|len| {
            let held = cache.len();
            self.model.step(&tokens[held..len], Some(&mut checker.checked(0, &tokens, cache))).ok()?;
            checker.take_wrong_reads().first().copied()
        })
    }

    /// Compares a story with the `n` tokens that recomputing generates. One step that gives the logits of all its tokens
    /// will tell: they have the same bits as those of a step for each.
    #[track_caller]
    pub fn assert_recomputed(&self, n: usize, story: &[u32]) {
        let (mut sampler, vocab) = (Sampler::new(SAMPLING), self.model.config().vocab_size);
        let follows =
            |rows: Vec<f32>| story.iter().zip(rows.chunks(vocab)).all(|(token, row)| *token == sampler.sample(row));
        let tokens = [&self.prompt()[..], story].concat();
        let logits =
            self.model.prepare_chunk(&tokens, None, story.len() + 1).and_then(|all| self.model.forward(vec![all]));
        if story.len() != n || !logits.is_ok_and(follows) {
            let expected: Vec<u32> = self.alone(&self.prompt(), n).into_iter().map(|(token, _)| token).collect();
            self.assert_same_story(story, &expected);
        }
    }

    /// The next `n` tokens without any cache, each with the logits that it is sampled from.
    pub fn alone(&self, prompt: &[u32], n: usize) -> Vec<(u32, Vec<f32>)> {
        let (mut tokens, mut sampler) = (prompt.to_vec(), Sampler::new(SAMPLING));
        let next = |_| {
            let logits = self.model.step(&tokens, None).expect("a short sequence fits");
            tokens.push(sampler.sample(&logits));
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
        let (expected, yours) = (text(expected), text(found));
        let what = format!("the first {same} new tokens are right, then the story goes another way");
        panic!("{what}\n  expected: {expected}\n  yours:    {yours}");
    }
}

pub fn assets() -> PathBuf {
    crate::root().join("assets")
}
