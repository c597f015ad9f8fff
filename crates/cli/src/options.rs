//! Options that several commands share: the model, sampling, the pool of pages, how rows are kept, files of caches.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use page_by_page::cache::attention::AttentionBackend;
use page_by_page::cache::{CacheError, KvLayout};
use page_by_page::cache_kind::CacheKind;
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::chapter;
use page_by_page::generation::sampler::{SamplingOverrides, SamplingParams};
use page_by_page::kernels::{KvDtype, MatmulDtype};
use page_by_page::model::checkpoint::Weight;
use page_by_page::model::sampling_params::narrow_to_f32;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::model::{Model, ModelConfig};
use page_by_page::prefix_cache::{PrefixCache, PrefixCacheKind};
use page_by_page::serving::schedule::StepLimits;

use crate::memory;
use crate::model_dir;
use crate::output::{mib, plural, thousands};
use crate::requirements;

pub const SEED: u64 = SamplingParams::DEFAULT.seed;

/// `--model`, `--weights` and `--matmul-dtype`.
#[derive(Args)]
pub struct ModelOption {
    /// Model folder, or a bundled model: storyteller, storyteller-draft
    #[arg(long = "model", value_name = "DIR", default_value = "storyteller")]
    pub dir: PathBuf,
    /// Where the weights lie: in their files (mapped), or in memory of their own, in large pages (copied); auto copies
    /// those of a large model if there is memory for twice as much
    #[arg(long, value_name = "WHERE", value_parser = named(WEIGHTS), hide_possible_values = true, default_value = "auto")]
    pub weights: Weights,
    /// How numbers are multiplied with weights in bf16, f32 or bf16 (rounded to 16 bits first)
    #[arg(long, value_name = "TYPE", value_parser = matmul_dtypes(), hide_possible_values = true, default_value = "f32")]
    pub matmul_dtype: MatmulDtype,
}

impl ModelOption {
    pub fn open(&self) -> Result<Model> {
        let mut model = self.weights.open(&model_dir(&self.dir))?;
        model.matmul_dtype = self.matmul_dtype;
        Ok(model)
    }

    /// The model and its tokenizer. `options`: how rows are kept in this kind of cache.
    pub fn open_with_tokenizer(&self, options: KvOptions, kv: CacheKind) -> Result<(Model, Tokenizer)> {
        Ok((self.open_for(options, kv)?, Tokenizer::open(&model_dir(&self.dir))?))
    }

    pub fn open_for(&self, options: KvOptions, kv: CacheKind) -> Result<Model> {
        requirements::ensure_started(&options.chapters(kv))?;
        let mut model = self.open()?;
        (model.attention, model.kv_dtype) = (options.attention(), options.kv_dtype);
        Ok(model)
    }

    pub fn name(&self) -> String {
        self.dir.display().to_string()
    }
}

#[derive(Clone, Copy)]
pub enum Weights {
    /// Copied if they are large and there is room, else mapped.
    Auto,
    Mapped,
    Copied,
}

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
                memory::ensure("a copy of the weights", bytes, "give --weights mapped")?;
                model.copy_weights().context("cannot copy the weights; give --weights mapped")?;
            }
            // An equal amount of memory is left for rows. If the copy fails, the weights stay where they are.
            Weights::Auto => {
                if bytes >= LARGE && memory::large_pages() && memory::available().is_some_and(|n| n / 2 >= bytes) {
                    drop(model.copy_weights());
                }
            }
        }
        Ok(model)
    }
}

/// Where the weights lie, if it is not in their files, and how they are multiplied, if not as 32-bit floats: `, copied,
/// 100 % in large pages, products in bf16`, to follow how many they are.
pub fn notes_on_weights(model: &Model) -> String {
    let place = match model.weight_bytes_in_large_pages() {
        _ if !model.weights().any(Weight::is_copied) => String::new(),
        Some(large) => format!(", copied, {:.0} % in large pages", 100.0 * large as f64 / model.weight_bytes() as f64),
        None => ", copied".into(),
    };
    match model.matmul_dtype {
        MatmulDtype::F32 => place,
        products => format!("{place}, products in {}", products.name()),
    }
}

#[derive(Args)]
pub struct SamplingOptions {
    /// Below 1 safer, above 1 wilder, 0 always the likeliest token [default: the model's, or 0.8]
    #[arg(long, value_name = "T", value_parser = number)]
    pub temperature: Option<f32>,
    /// Choose among the K likeliest tokens only, 0 among all [default: the model's, or 0]
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Choose among the likeliest tokens that together reach this probability [default: the model's, or 0.95]
    #[arg(long, value_name = "P", value_parser = number)]
    pub top_p: Option<f32>,
    /// Same seed, same output
    #[arg(long, value_name = "S", default_value_t = SEED)]
    pub seed: u64,
}

impl SamplingOptions {
    /// What the command asks for, or else the model's folder, or else our defaults.
    pub fn sampling(&self, config: &ModelConfig) -> Result<SamplingParams> {
        let given = SamplingOverrides { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p };
        sampling(given, self.seed, config)
    }
}

/// What a request asks for, or else the model's folder, or else our defaults.
pub fn sampling(given: SamplingOverrides, seed: u64, config: &ModelConfig) -> Result<SamplingParams> {
    let ours = SamplingParams { seed, ..SamplingParams::DEFAULT };
    Ok(given.over(config.sampling.over(ours)).validate()?)
}

/// A number that 32 bits can hold. Rounded to 32 bits, 1e308 would be infinite and 1e-320 would be 0, which is greedy.
pub fn number(text: &str) -> Result<f32, String> {
    narrow_to_f32(text.parse::<f64>().map_err(|error| error.to_string())?)
}

/// How the rows of a cache are stored and read.
#[derive(Args, Clone, Copy)]
pub struct KvOptions {
    /// How attention reads keys and values, gather (copied together first), paged (where they lie) or loops (where they
    /// lie, with the loops of chapter 13) [default: paged, or gather while chapter 13 is unfinished]
    #[arg(long, value_name = "HOW", value_parser = named(ATTENTIONS), hide_possible_values = true)]
    attention: Option<AttentionBackend>,
    /// How the numbers of keys and values are stored: f32, f16, bf16 or int8
    #[arg(long, value_name = "TYPE", value_parser = kv_dtypes(), hide_possible_values = true, default_value = "f32")]
    pub kv_dtype: KvDtype,
}

pub const ATTENTIONS: [(&str, AttentionBackend); 3] =
    [("gather", AttentionBackend::Gather), ("paged", AttentionBackend::Paged), ("loops", AttentionBackend::Loops)];
const WEIGHTS: [(&str, Weights); 3] =
    [("auto", Weights::Auto), ("mapped", Weights::Mapped), ("copied", Weights::Copied)];

pub fn cache_kinds() -> impl TypedValueParser<Value = CacheKind> {
    named(CacheKind::ALL.map(|kind| (kind.name(), kind)))
}

fn matmul_dtypes() -> impl TypedValueParser<Value = MatmulDtype> {
    named(MatmulDtype::ALL.map(|dtype| (dtype.name(), dtype)))
}

pub fn kv_dtypes() -> impl TypedValueParser<Value = KvDtype> {
    named(KvDtype::ALL.map(|dtype| (dtype.name(), dtype)))
}

/// Takes one of these values by its name.
pub fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [(&'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.map(|(name, _)| name)).map(move |given| {
        let found = values.iter().find(|(name, _)| *name == given);
        found.expect("no other names are possible").1
    })
}

impl KvOptions {
    /// How attention reads a cache: in place by default, if chapter 13 is written.
    fn attention(self) -> AttentionBackend {
        match self.attention {
            Some(attention) => attention,
            None if requirements::is_written(chapter(13)) => AttentionBackend::Paged,
            None => AttentionBackend::Gather,
        }
    }

    pub fn chapters(self, kv: CacheKind) -> Vec<usize> {
        let mut chapters = Vec::new();
        let is_in_place = kv == CacheKind::Paged && self.attention() == AttentionBackend::Paged;
        if is_in_place || self.attention() == AttentionBackend::Loops {
            chapters.push(13);
        }
        if self.kv_dtype != KvDtype::F32 {
            chapters.push(14);
        }
        chapters
    }
}

/// How many pages a pool has, and how large they are.
#[derive(Args, Clone, Copy)]
pub struct PageOptions {
    /// Memory for the keys and values of all sequences, such as 512MiB or 2GiB: as many pages as fit in it
    #[arg(long, value_name = "SIZE", value_parser = memory_size, conflicts_with = "pages")]
    kv_memory: Option<usize>,
    /// The same as a number of pages [default: enough for 4,096 tokens; in `generate`, for prompts and outputs]
    #[arg(long, value_name = "N")]
    pages: Option<usize>,
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16)]
    pub page_size: usize,
}

/// The size of a pool, whose pages take memory for rows of this layout.
#[derive(Clone, Copy)]
pub struct PoolSize {
    pub layout: KvLayout,
    pub page_size: usize,
    pub n_pages: usize,
}

impl PageOptions {
    pub fn is_given(self) -> bool {
        self.kv_memory.is_some() || self.pages.is_some()
    }

    /// The pool for rows of this layout. `enough`: its pages where no size is given.
    ///
    /// # Errors
    /// If not even one page fits in the memory, or a page has no slots.
    pub fn pool(self, layout: KvLayout, enough: usize) -> Result<PoolSize> {
        let page_size = self.page_size;
        ensure!(page_size > 0, CacheError::NoSlots);
        let mut n_pages = self.pages.unwrap_or(enough);
        if let Some(bytes) = self.kv_memory {
            let page_bytes = memory::slot_bytes(layout, page_size)?;
            n_pages = bytes / page_bytes;
            ensure!(
                n_pages > 0,
                "--kv-memory is {}, and a page of {} takes {}: give more, or smaller pages (--page-size)",
                plural(bytes, "byte"),
                plural(page_size, "token"),
                plural(page_bytes, "byte")
            );
        }
        Ok(PoolSize { layout, page_size, n_pages })
    }
}

impl PoolSize {
    pub fn n_slots(self) -> usize {
        self.n_pages.saturating_mul(self.page_size)
    }

    /// The memory of the pool, if the machine has it.
    pub fn slab(self) -> Result<SharedSlab> {
        memory::ensure_pages(self.layout, self.page_size, self.n_pages)?;
        Ok(PageSlab::new(self.layout, self.page_size, self.n_pages)?)
    }

    /// `256 pages of 16 tokens, 4,096 tokens in all, 12.00 MiB`
    pub fn describe(self) -> String {
        let (pages, size) = (plural(self.n_pages, "page"), plural(self.page_size, "token"));
        format!("{pages} of {size}, {} in all, {}", plural(self.n_slots(), "token"), self.mib(self.n_pages))
    }

    /// `28 of 32 at the peak, 16 slots each`
    pub fn describe_peak(self, peak_pages: usize) -> String {
        let (peak, all) = (thousands(peak_pages), thousands(self.n_pages));
        format!("{peak} of {all} at the peak, {} each", plural(self.page_size, "slot"))
    }

    pub fn mib(self, n_pages: usize) -> String {
        mib(memory::slot_bytes(self.layout, n_pages.saturating_mul(self.page_size)).unwrap_or(usize::MAX))
    }
}

/// An amount of memory in bytes, from text such as `2GiB`, `1.5 MiB` or `500MB`.
fn memory_size(text: &str) -> Result<usize, String> {
    const KIB: f64 = 1024.0;
    const UNITS: [(&str, f64); 9] = [
        ("KiB", KIB),
        ("MiB", KIB * KIB),
        ("GiB", KIB * KIB * KIB),
        ("TiB", KIB * KIB * KIB * KIB),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("B", 1.0),
    ];
    let known = || UNITS.map(|(name, _)| name).join(", ");
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let unit = unit.trim();
    let number: f64 = number.parse().map_err(|_| "expected a number and a unit, such as 512MiB or 2GiB")?;
    if unit.is_empty() {
        return Err(format!("the unit is missing, as in {text}MiB or {text}GiB (supported: {})", known()));
    }
    let found = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let (_, bytes) = found.ok_or_else(|| format!("unknown unit {unit:?} (supported: {})", known()))?;
    match (number * bytes) as usize {
        0 => Err("no page fits in 0 bytes; give more".into()),
        bytes => Ok(bytes),
    }
}

const SLOTS: usize = 4096;

/// The pool of pages, and what a step may compute.
#[derive(Args)]
pub struct PoolOptions {
    #[command(flatten)]
    pub pages: PageOptions,
    /// Tokens that a step computes, at most
    #[arg(long, value_name = "N", default_value_t = 256)]
    token_budget: usize,
    /// Compute every prompt, whatever was computed before
    #[arg(long)]
    pub no_prefix_cache: bool,
}

impl PoolOptions {
    /// What a step may hold. `max_running`: sequences at the same time, at most.
    pub fn limits(&self, max_running: usize) -> StepLimits {
        StepLimits { token_budget: self.token_budget, max_running }
    }

    pub fn size(&self, model: &Model) -> Result<PoolSize> {
        self.pages.pool(model.cache_layout(), SLOTS.div_ceil(self.pages.page_size.max(1)))
    }

    /// The memory of the pool, if the machine has it, and also that of a step.
    pub fn slab(&self, model: &Model, max_running: usize) -> Result<SharedSlab> {
        let pool = self.size(model)?;
        // Each token that is computed has a slot, and each row of logits belongs to such a token.
        let tokens = self.token_budget.min(pool.n_slots());
        let what = format!("computing {} in a step", plural(tokens, "token"));
        memory::ensure(&what, model.step_bytes(tokens, max_running.min(tokens)), "lower it with --token-budget")?;
        pool.slab()
    }

    pub fn prefix_cache(&self) -> Result<Box<dyn PrefixCache>> {
        let kind = if self.no_prefix_cache { PrefixCacheKind::None } else { PrefixCacheKind::Trie };
        Ok(kind.new_cache(self.pages.page_size)?)
    }
}

/// Refuses a number below 1, or above what there is any use for.
pub fn ensure_in_range(number: u64, most: u64, option: &str, what: &str) -> Result<()> {
    let (shown, most_shown) = (thousands(number), thousands(most));
    ensure!((1..=most).contains(&number), "{option} is {shown}; {what} takes from 1 to {most_shown}");
    Ok(())
}
