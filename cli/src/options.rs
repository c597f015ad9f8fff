//! Options that several commands share: the model, sampling, the pool of pages, how rows are kept, files of caches.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use page_by_page::cache::Rewind;
use page_by_page::cache::in_place::Attention;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::cache::snapshot::Snapshot;
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::chapters::{Chapter, Source, chapter};
use page_by_page::decode::sampler::Sampling;
use page_by_page::kernels::RowFormat;
use page_by_page::model::checkpoint::Weight;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::model::{Model, ModelConfig, SamplingDefaults};
use page_by_page::prefixes::Prefixes;
use page_by_page::prefixes::none::NoPrefixes;
use page_by_page::serving::schedule::StepLimits;
use serde::Serialize;

use crate::output::{count, thousands};
use crate::{model_dir, require};

pub const SEED: u64 = 23;

/// `--model` and `--weights`.
#[derive(Args)]
pub struct ModelOption {
    /// Model folder, or a bundled model: storyteller, storyteller-draft
    #[arg(long = "model", value_name = "DIR", default_value = "storyteller")]
    pub dir: PathBuf,
    /// Where the weights lie: in their files (mapped), or in memory of their own, in large pages (copied); auto copies
    /// those of a large model if there is memory for twice as much
    #[arg(long, value_name = "WHERE", value_parser = named(&WEIGHTS), hide_possible_values = true, default_value = "auto")]
    pub weights: Weights,
}

impl ModelOption {
    pub fn open(&self) -> Result<Model> {
        self.weights.open(&model_dir(&self.dir))
    }

    /// The model and its tokenizer. `rows`: how they are kept in this kind of cache.
    pub fn with_tokenizer(&self, rows: RowOptions, kv: CacheKind) -> Result<(Model, Tokenizer)> {
        Ok((self.with_rows(rows, kv)?, Tokenizer::open(&model_dir(&self.dir))?))
    }

    pub fn with_rows(&self, rows: RowOptions, kv: CacheKind) -> Result<Model> {
        let mut model = self.open()?;
        rows.apply(&mut model, kv)?;
        Ok(model)
    }

    pub fn name(&self) -> String {
        self.dir.display().to_string()
    }
}

/// Where the weights of a model lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// Copied if they are large and there is room, else mapped.
    Auto,
    Mapped,
    Copied,
}

const WEIGHTS: [(&str, Weights); 3] =
    [("auto", Weights::Auto), ("mapped", Weights::Mapped), ("copied", Weights::Copied)];

/// Bytes from which weights are worth copying: they take more small pages than a processor remembers.
const LARGE: usize = 32 << 20;

impl Weights {
    /// Opens a model, and copies its weights where that is asked for or worth it.
    pub fn open(self, dir: &Path) -> Result<Model> {
        let mut model = Model::open(dir)?;
        let bytes = model.weight_bytes();
        match self {
            Weights::Mapped => {}
            Weights::Copied => {
                require::memory("a copy of the weights", bytes, "give --weights mapped")?;
                model.copy_weights().context("cannot copy the weights; give --weights mapped")?;
            }
            // An equal amount of memory is left for rows. If the copy fails, the weights stay where they are.
            Weights::Auto => {
                if bytes >= LARGE && require::large_pages() && require::available().is_some_and(|n| n / 2 >= bytes) {
                    drop(model.copy_weights());
                }
            }
        }
        Ok(model)
    }
}

/// Where the weights lie, if it is not in their files: `, copied, 100 % in large pages`, to follow how many they are.
pub fn where_weights_lie(model: &Model) -> String {
    if !model.weights().any(Weight::is_copied) {
        return String::new();
    }
    match model.weight_bytes_in_large_pages() {
        Some(large) => format!(", copied, {:.0} % in large pages", 100.0 * large as f64 / model.weight_bytes() as f64),
        None => ", copied".into(),
    }
}

/// How tokens are chosen.
#[derive(Args)]
pub struct SamplingOptions {
    /// Below 1 safer, above 1 wilder, 0 always the likeliest token [default: the model's, or 0.8]
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = number)]
    pub temperature: Option<f32>,
    /// Choose among the K likeliest tokens only, 0 among all [default: the model's, or 0]
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Choose among the likeliest tokens that together reach this probability [default: the model's, or 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number)]
    pub top_p: Option<f32>,
    /// Same seed, same output
    #[arg(long, value_name = "S", default_value_t = SEED)]
    pub seed: u64,
}

impl SamplingOptions {
    /// What the command asks for, or else the model's folder, or else our defaults.
    pub fn sampling(&self, config: &ModelConfig) -> Result<Sampling> {
        let asked = SamplingDefaults { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p };
        sampling(asked, self.seed, config)
    }
}

/// What a request asks for, or else the model's folder, or else our defaults.
pub fn sampling(asked: SamplingDefaults, seed: u64, config: &ModelConfig) -> Result<Sampling> {
    let ours = Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed };
    Ok(asked.over(config.sampling.over(ours)).check()?)
}

/// A number that 32 bits can hold. Rounded to 32 bits, 1e308 would be infinite and 1e-320 would be 0, which is greedy.
pub fn number(text: &str) -> Result<f32, String> {
    narrow(text.parse::<f64>().map_err(|error| error.to_string())?)
}

/// The same for a number that was read already.
pub fn narrow(wide: f64) -> Result<f32, String> {
    let number = wide as f32;
    let is_lost = wide.is_finite() && (number.is_infinite() || (number == 0.0 && wide != 0.0));
    if is_lost { Err(format!("{wide:e} is out of the range of 32-bit floats")) } else { Ok(number) }
}

/// How the rows of a cache are stored and read.
#[derive(Args, Clone, Copy)]
pub struct RowOptions {
    /// How attention reads keys and values, gather (copied together first), paged (where they lie) or plain (where they
    /// lie, with the loops of chapter 13) [default: paged, or gather while chapter 13 is unfinished]
    #[arg(long, value_name = "HOW", value_parser = named(&ATTENTIONS), hide_possible_values = true)]
    attention: Option<Attention>,
    /// How the numbers of keys and values are stored: f32, f16, bf16 or int8
    #[arg(long, value_name = "TYPE", value_parser = named(&FORMATS), hide_possible_values = true, default_value = "f32")]
    kv_dtype: RowFormat,
}

pub const ATTENTIONS: [(&str, Attention); 3] =
    [("gather", Attention::Gather), ("paged", Attention::Paged), ("plain", Attention::Plain)];
pub const FORMATS: [(&str, RowFormat); 4] =
    [("f32", RowFormat::F32), ("f16", RowFormat::F16), ("bf16", RowFormat::Bf16), ("int8", RowFormat::Int8)];

pub fn named<T: Copy + Send + Sync>(values: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T> {
    let names = values.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    PossibleValuesParser::new(names).map(|given| {
        let found = values.iter().find(|(name, _)| *name == given);
        found.expect("no other names are possible").1
    })
}

impl RowOptions {
    /// How attention reads a cache: in place by default, if chapter 13 is written.
    fn attention(self) -> Attention {
        match self.attention {
            Some(attention) => attention,
            None if is_written(chapter(13)) => Attention::Paged,
            None => Attention::Gather,
        }
    }

    pub fn chapters(self, kv: CacheKind) -> Vec<usize> {
        let mut chapters = Vec::new();
        let is_in_place = kv == CacheKind::Paged && self.attention() == Attention::Paged;
        if is_in_place || self.attention() == Attention::Plain {
            chapters.push(13);
        }
        if self.kv_dtype != RowFormat::F32 {
            chapters.push(14);
        }
        chapters
    }

    /// Sets up the model.
    ///
    /// # Errors
    /// If a chapter that this needs is not started.
    pub fn apply(self, model: &mut Model, kv: CacheKind) -> Result<()> {
        require::chapters(&self.chapters(kv))?;
        model.set_attention(self.attention());
        model.set_row_format(self.kv_dtype);
        Ok(())
    }
}

pub fn is_written(chapter: &Chapter) -> bool {
    match chapter.source {
        Source::Reference => true,
        Source::Yours => chapter.tasks_left().is_empty(),
        Source::Unstarted => false,
    }
}

const SLOTS: usize = 4096;

/// The pool of pages, and what a step may compute.
#[derive(Args)]
pub struct PoolOptions {
    /// Pages of the pool [default: enough for 4,096 tokens]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16)]
    pub page_size: usize,
    /// Tokens that a step computes, at most
    #[arg(long, value_name = "N", default_value_t = 256)]
    budget: usize,
    /// Compute every prompt, whatever was computed before
    #[arg(long)]
    pub no_prefix_cache: bool,
}

/// The pool, and how many sequences share it.
#[derive(Args)]
pub struct SchedulingOptions {
    #[command(flatten)]
    pub pool: PoolOptions,
    /// Sequences that run at the same time, at most
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub running: usize,
}

impl PoolOptions {
    /// What a step may hold. `running`: sequences at the same time, at most.
    pub fn limits(&self, running: usize) -> StepLimits {
        StepLimits { tokens: self.budget, sequences: running }
    }

    /// Pages of the pool. Refuses pages without slots.
    pub fn n_pages(&self) -> Result<usize> {
        let enough = CacheSize::for_tokens(SLOTS, self.page_size)?;
        Ok(self.pages.unwrap_or(enough.n_pages))
    }

    pub fn n_slots(&self) -> Result<usize> {
        Ok(self.n_pages()?.saturating_mul(self.page_size))
    }

    /// The memory of the pool, if the machine has it, and also that of a step.
    pub fn slab(&self, model: &Model, running: usize) -> Result<SharedSlab> {
        let n_pages = self.n_pages()?;
        let layout = model.kv_layout();
        require::pages(layout, self.page_size, n_pages)?;
        // Each token that is computed has a slot, and each row of logits belongs to such a token.
        let tokens = self.budget.min(n_pages.saturating_mul(self.page_size));
        let what = format!("computing {} in a step", count(tokens, "token"));
        require::memory(&what, model.step_bytes(tokens, running.min(tokens)), "lower it with --budget")?;
        Ok(PageSlab::new(layout, self.page_size, n_pages)?)
    }

    pub fn prefixes(&self) -> Result<Box<dyn Prefixes>> {
        prefixes(self.page_size, !self.no_prefix_cache)
    }
}

/// What keeps pages after their sequences have ended; `is_kept`: whether any are kept.
pub fn prefixes(page_size: usize, is_kept: bool) -> Result<Box<dyn Prefixes>> {
    Ok(if is_kept { Box::new(PrefixCache::new(page_size)?) } else { Box::new(NoPrefixes::new(page_size)?) })
}

/// `--save-cache` and `--load-cache` of one sequence: the next prompt that begins alike starts from its rows.
#[derive(Args)]
pub struct SnapshotOptions {
    /// When the output is complete, save the cache to this file, for --load-cache
    #[arg(long, value_name = "FILE")]
    save_cache: Option<PathBuf>,
    /// Start from a saved cache: what it holds of the prompt is not recomputed. Any --kv but recompute can load it
    #[arg(long, value_name = "FILE")]
    load_cache: Option<PathBuf>,
}

#[derive(Clone, Copy, Serialize)]
pub struct Restored {
    pub saved: usize,
    /// Tokens of the prompt that it held.
    pub kept: usize,
}

impl Restored {
    pub fn describe(&self) -> String {
        format!("{} of {}", thousands(self.kept), count(self.saved, "saved token"))
    }
}

#[derive(Serialize)]
pub struct Saved {
    file: String,
    tokens: usize,
}

impl Saved {
    pub fn describe(&self) -> String {
        format!("{} to {}", count(self.tokens, "token"), self.file)
    }
}

impl SnapshotOptions {
    pub fn chapters(&self) -> &'static [usize] {
        if self.load_cache.is_some() { &[7] } else { &[] }
    }

    pub fn is_asked(&self) -> bool {
        self.save_cache.is_some() || self.load_cache.is_some()
    }

    /// Refuses what could only fail after the output is complete.
    pub fn check(&self) -> Result<()> {
        if let Some(file) = &self.save_cache {
            Snapshot::check_writable(file)?;
        }
        Ok(())
    }

    pub fn load(&self, model: &Model) -> Result<Option<Snapshot>> {
        Ok(self.load_cache.as_ref().map(|file| Snapshot::load(file, model)).transpose()?)
    }

    /// Writes the file of `--save-cache`, if there is one. `tokens`: begin with those that the cache holds.
    pub fn save(&self, cache: Option<&dyn Rewind>, tokens: &[u32], model: &Model) -> Result<Option<Saved>> {
        let (Some(file), Some(cache)) = (&self.save_cache, cache) else {
            return Ok(None);
        };
        Snapshot::freeze(cache, &tokens[..cache.len()]).save(file, model)?;
        Ok(Some(Saved { file: file.display().to_string(), tokens: cache.len() }))
    }
}

/// Restores a snapshot and rewinds the cache to what the prompt has in common with it.
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
