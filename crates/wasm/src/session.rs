//! A pool of pages and the sequences in it, stepped and looked at from outside.

use std::num::NonZero;

use page_by_page::cache::attention::AttentionBackend;
use page_by_page::generation::sampler::{Sampler, SamplingOverrides, SamplingParams};
use page_by_page::model::checkpoint::Checkpoint;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::model::{Model, ModelConfig};
use serde::Deserialize;
use serde_json::Value;

use crate::shared_pool::SharedPool;
use crate::speculation::Speculating;

/// What the page asks for, in JSON: `{ "start": { "prompt": "Once", "max_new_tokens": 40, … } }`. The answer to `Open`
/// is empty, and to each other the view after it; or it is an `error`.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// A new session, in place of the one before.
    Open(Settings),
    /// Sequences of one prompt.
    Start(Start),
    /// The sequences of the mistake that is on.
    StartScenario,
    Cancel(u64),
    /// One step: a pass of the model, or, with drafts, a pass of the target after those of the draft model.
    Step,
}

#[derive(Deserialize)]
pub struct Settings {
    pub(crate) pages: usize,
    pub(crate) page_size: usize,
    pub(crate) token_budget: usize,
    pub(crate) max_running: usize,
    /// Whether full pages outlive their sequences.
    pub(crate) prefix_cache: bool,
    /// The most draft tokens in a step. With more than 0, one sequence runs alone, and a small model drafts its tokens.
    #[serde(default)]
    pub(crate) drafts: usize,
    /// The mistake to switch on. It brings its own sequences, and its own page size.
    #[serde(default)]
    pub(crate) mistake: Option<String>,
}

#[derive(Deserialize)]
pub struct Start {
    pub(crate) prompt: String,
    pub(crate) max_new_tokens: usize,
    /// The first sequence's seed. Each of the others has the next number.
    seed: u64,
    /// Always the likeliest token, instead of the model's own sampling settings.
    #[serde(default)]
    greedy: bool,
    samples: NonZero<usize>,
    /// Whether the prompt is computed once, and its cache forked.
    #[serde(default)]
    pub(crate) fork: bool,
    /// How many tokens the first sequence takes back, once it has generated how many: `[17, 4]`.
    #[serde(default)]
    pub(crate) rewind: Option<(usize, usize)>,
}

impl Start {
    pub(crate) fn samplers(&self, defaults: SamplingOverrides) -> impl Iterator<Item = Sampler> + use<> {
        let sampling = if self.greedy { SamplingParams::GREEDY } else { defaults.over(SamplingParams::GREEDY) };
        let first = SamplingParams { seed: self.seed, ..sampling };
        (0..self.samples.get() as u64).map(move |sample| Sampler::new(first.for_sample(sample)))
    }
}

/// The models' files, in the order in which they are kept: `config.json`, `generation_config.json`, `tokenizer.json`
/// and `model.safetensors`; then `config.json` and `model.safetensors` of the draft model, with the same tokenizer.
#[derive(Default)]
pub struct Files {
    bytes: [Vec<u8>; 6],
    opened: Option<(&'static Model, &'static Tokenizer)>,
    draft: Option<&'static Model>,
}

impl Files {
    /// Adds a file, until it is opened.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn add(&mut self, file: usize, bytes: Vec<u8>) {
        self.bytes[file] = bytes;
    }

    /// The model and its tokenizer. They stay for as long as the module, which is opened anew for a different model.
    fn model(&mut self) -> Result<(&'static Model, &'static Tokenizer), String> {
        if self.opened.is_none() {
            let [config, generation, tokenizer, weights, ..] = &mut self.bytes;
            let model = model(config, generation, std::mem::take(weights))?;
            let tokenizer = Tokenizer::from_bytes(std::mem::take(tokenizer)).map_err(|error| error.to_string())?;
            self.opened = Some((model, Box::leak(Box::new(tokenizer))));
        }
        self.opened.ok_or_else(|| "no model is open".into())
    }

    fn draft(&mut self) -> Result<&'static Model, String> {
        if self.draft.is_none() {
            let [.., config, weights] = &mut self.bytes;
            self.draft = Some(model(config, b"{}", std::mem::take(weights))?);
        }
        self.draft.ok_or_else(|| "no draft model is open".into())
    }
}

fn model(config: &[u8], generation: &[u8], weights: Vec<u8>) -> Result<&'static Model, String> {
    let open = || {
        let config = ModelConfig::parse("".as_ref(), config, generation)?;
        Model::from_checkpoint(config, &Checkpoint::from_bytes(weights)?)
    };
    let mut model = open().map_err(|error| error.to_string())?;
    model.attention = AttentionBackend::Paged;
    Ok(Box::leak(Box::new(model)))
}

/// A pool of pages and what runs in it. Errors are words for the reader.
pub enum Session {
    /// Sequences side by side, by the loop around chapter 12's scheduler.
    Shared(Box<SharedPool>),
    /// One sequence with drafts, by chapter 8's loop.
    Alone(Box<Speculating>),
}

impl Session {
    /// An empty pool. Opens the models if they are not open yet.
    pub fn open(files: &mut Files, settings: &Settings) -> Result<Self, String> {
        let (model, tokenizer) = files.model()?;
        Ok(match settings.drafts {
            0 => Session::Shared(Box::new(SharedPool::new(model, tokenizer, settings)?)),
            _ => Session::Alone(Box::new(Speculating::new(model, files.draft()?, tokenizer, settings)?)),
        })
    }

    /// Does what is asked for, and returns the view after it.
    pub fn respond(&mut self, request: Request) -> Result<Value, String> {
        match (&mut *self, request) {
            (_, Request::Open(_)) => unreachable!("a session is opened before it is asked"),
            (Session::Shared(pool), Request::Start(start)) => pool.start(start)?,
            (Session::Shared(pool), Request::StartScenario) => pool.start_scenario()?,
            (Session::Alone(_), Request::StartScenario) => {
                return Err("start a sequence".into());
            }
            (Session::Shared(pool), Request::Cancel(id)) => pool.cancel(id)?,
            (Session::Shared(pool), Request::Step) => pool.step()?,
            (Session::Alone(speculating), Request::Start(start)) => speculating.start(start)?,
            (Session::Alone(speculating), Request::Cancel(_)) => speculating.cancel(),
            (Session::Alone(speculating), Request::Step) => speculating.step()?,
        }
        Ok(match self {
            Session::Shared(pool) => pool.view(),
            Session::Alone(speculating) => speculating.view(),
        })
    }
}
