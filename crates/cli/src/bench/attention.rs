//! `bench attention`: a decode step on a long sequence, its rows gathered, in pages, and side by side.

mod online;

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::KvCache;
use page_by_page::cache::attention::{AttentionBackend, AttentionCache};
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};
use page_by_page::chapters::ch14_kv_quantization::encode_rows;
use page_by_page::experiments::paged_attention::{copied, same_bits, step};
use page_by_page::kernels::KvDtype;
use page_by_page::model::Model;
use serde_json::json;

use super::{Report, Row, Times, numbers, table, turns};
use crate::memory;
use crate::options::ensure_in_range;
use crate::options::{ATTENTIONS, ModelOption, kv_dtypes, named};
use crate::output::{mib, plural, rate, thousands};
use crate::requirements;

/// Compare decode steps on long sequences: rows gathered, read in their pages, or side by side
///
/// Sequences of random rows lie in contiguous caches and in scattered pages of a slab. A step computes one token more
/// of each, in turns with the other ways, and it is forgotten again. Of two such steps the second counts, and the
/// median of all turns. All ways must give the same logits, bit for bit. Below that, an online softmax of the same kind
/// of rows is compared with the one in two passes.
#[derive(Args)]
#[command(after_help = "\
Example:
  cargo page bench attention --sequences 8
  cargo page synth --shape qwen3-0.6b --out /tmp/qwen3-0.6b
  cargo page bench attention --model /tmp/qwen3-0.6b --contexts 256,1024,4096")]
pub struct AttentionBench {
    /// Tokens that each sequence has before, separated by commas [default: 256, 1024 and 4096, as far as the model has
    /// positions]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    contexts: Vec<usize>,
    /// Sequences that read a token in each step
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    sequences: u16,
    /// Ways to read pages, separated by commas: gather, paged, loops (where they lie, with the loops of chapter 13)
    #[arg(long, value_name = "HOW,…", value_delimiter = ',', value_parser = named(ATTENTIONS), hide_possible_values = true,
          default_values = ["gather", "paged"])]
    attention: Vec<AttentionBackend>,
    /// How the numbers of keys and values are stored: f32, f16, bf16 or int8
    #[arg(long, value_name = "TYPE", value_parser = kv_dtypes(), hide_possible_values = true, default_value = "f32")]
    kv_dtype: KvDtype,
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    page_size: u32,
    #[command(flatten)]
    model: ModelOption,
    /// How long to measure each length; three turns are taken at least
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=3600))]
    seconds: u64,
}

/// The contiguous caches, or a way to read pages.
fn name(way: Option<AttentionBackend>) -> &'static str {
    match way {
        None => "side by side",
        Some(AttentionBackend::Gather) => "pages, gathered",
        Some(AttentionBackend::Paged) => "pages, in place",
        Some(AttentionBackend::Loops) => "pages, chapter 13's loops",
    }
}

const CONTEXTS: [usize; 3] = [256, 1024, 4096];
/// Tokens that are written at once when a sequence is made.
const PIECE: usize = 256;
const TURNS: std::ops::Range<usize> = 3..1000;

impl AttentionBench {
    pub fn run(self) -> Result<Report> {
        let in_place = self.attention.iter().any(|way| *way != AttentionBackend::Gather);
        requirements::ensure_started(if in_place { &[3, 6, 7, 13] } else { &[3, 6, 7] })?;
        requirements::ensure_started(if self.kv_dtype == KvDtype::F32 { &[] } else { &[14] })?;
        let mut model = self.model.open()?;
        model.kv_dtype = self.kv_dtype;
        let contexts = self.contexts(model.config().max_positions)?;
        let longest = contexts.iter().copied().max().unwrap_or(0) + 1;
        let slots = longest.next_multiple_of(self.page_size as usize);
        // A cache of each kind for each sequence.
        memory::ensure_slots(model.cache_layout(), slots.saturating_mul(2 * usize::from(self.sequences)))?;
        let mut steps = Vec::new();
        for tokens in &contexts {
            steps.extend(self.measure(&mut model, *tokens)?);
        }
        let heads = model.config().heads();
        let softmax: Vec<Row> = contexts.iter().flat_map(|tokens| online::differences(heads, *tokens)).collect();
        let text = format!(
            "{}, {}, pages of {}: a step of {}, after as many tokens as shown\n\n{}\nall logits have the same bits\n\n\
             attention of one token, one layer, against two passes\n\n{}",
            self.model.name(),
            plural(rayon::current_num_threads(), "thread"),
            plural(self.page_size, "slot"),
            plural(self.sequences, "sequence"),
            table(2, 1 + self.attention.len(), &steps),
            table(1, softmax.len(), &softmax),
        );
        let (sequences, kv_dtype) = (self.sequences, self.kv_dtype.to_string());
        let (steps, softmax) = (numbers(steps), numbers(softmax));
        let more = json!({ "sequences": sequences, "kv_dtype": kv_dtype, "steps": steps, "online_softmax": softmax });
        Report::of_model(&self.model, text, more)
    }

    /// The lengths that were asked for, or the usual ones; refuses what the model has no positions for.
    fn contexts(&self, positions: usize) -> Result<Vec<usize>> {
        ensure!(positions > 1, "the model has {positions} positions, too few to measure it");
        // A step reads one token more.
        let most = positions - 1;
        for tokens in &self.contexts {
            ensure_in_range(*tokens as u64, most as u64, "--contexts", "the model")?;
        }
        let mut usual = CONTEXTS.map(|tokens| tokens.min(most)).to_vec();
        usual.dedup();
        Ok(if self.contexts.is_empty() { usual } else { self.contexts.clone() })
    }

    fn measure(&self, model: &mut Model, tokens: usize) -> Result<Vec<Row>> {
        let (layout, page_size) = (model.cache_layout(), self.page_size as usize);
        let slab = PageSlab::new(layout, page_size, (tokens + 1).div_ceil(page_size) * usize::from(self.sequences))?;
        scatter(&slab, page_size)?;
        let (mut contiguous, mut paged) = (Vec::new(), Vec::new());
        for seed in 0..self.sequences.into() {
            contiguous.push(filled(ContiguousCache::new(layout, tokens + 1), tokens, model, seed)?);
            paged.push(filled(PagedCache::new(&slab)?, tokens, model, seed)?);
        }
        let ways = [None].into_iter().chain(self.attention.iter().copied().map(Some));
        let mut measured: Vec<(Option<AttentionBackend>, Times, usize)> =
            ways.map(|way| (way, Times::default(), 0)).collect();
        let mut expected: Option<Vec<f32>> = None;
        for _ in turns("measuring", TURNS, Duration::from_secs(self.seconds)) {
            for (way, times, copied_tokens) in &mut measured {
                model.attention = way.unwrap_or(AttentionBackend::Gather);
                let logits;
                (logits, *copied_tokens) = match way {
                    None => second_step(model, &mut contiguous, times)?,
                    Some(_) => second_step(model, &mut paged, times)?,
                };
                ensure!(
                    same_bits(&logits, expected.get_or_insert_with(|| logits.clone())),
                    "after {tokens} tokens, {}, the logits have other bits than side by side",
                    name(*way)
                );
            }
        }
        let row_bytes = 2 * layout.n_layers * layout.kv_width() * size_of::<f32>();
        let side_by_side = measured[0].1.median();
        let row = |(i, (way, times, copied_tokens)): (usize, &(Option<AttentionBackend>, Times, usize))| {
            let (seconds, bytes_copied) = (times.median(), copied_tokens * row_bytes);
            let over = seconds / side_by_side;
            Row::default()
                .number("mean ms a step", times.mean() * 1e3)
                .cell("tokens", tokens, if i == 0 { thousands(tokens) } else { String::new() })
                .text("rows", name(*way))
                .cell("ms a step", seconds * 1e3, rate(seconds * 1e3))
                .cell("× side by side", over, format!("{over:.2}"))
                .count("tokens copied", *copied_tokens)
                .cell("copied", bytes_copied, mib(bytes_copied))
        };
        Ok(measured.iter().enumerate().map(row).collect())
    }
}

/// Two steps, each forgotten again. The second counts: the first finds in the caches what the way before has left.
fn second_step<C: AttentionCache>(model: &Model, caches: &mut [C], times: &mut Times) -> Result<(Vec<f32>, usize)> {
    step(model, caches)?;
    caches.iter_mut().try_for_each(|cache| cache.rewind(1))?;
    let counted = (times.measure(|| step(model, caches))?, copied(model, caches));
    caches.iter_mut().try_for_each(|cache| cache.rewind(1))?;
    Ok(counted)
}

/// Appends made-up rows to an empty cache: what they hold makes no difference to the time.
pub fn filled<C: KvCache>(mut cache: C, tokens: usize, model: &Model, seed: u64) -> Result<C> {
    let (layout, numbers) = (cache.layout(), model.config().kv_layout());
    let mut rows = online::RandomNumbers(seed).take(PIECE * numbers.kv_width() * 2);
    if model.kv_dtype != KvDtype::F32 {
        rows = encode_rows(model.kv_dtype, numbers, &rows);
    }
    let (keys, values) = rows.split_at(PIECE * layout.kv_width());
    for first in (0..tokens).step_by(PIECE) {
        let n = PIECE.min(tokens - first) * layout.kv_width();
        cache.extend(n / layout.kv_width())?;
        for layer in 0..layout.n_layers {
            cache.write(layer, &keys[..n], &values[..n]);
        }
    }
    Ok(cache)
}

/// Scatters the free pages of a slab, so that no sequence gets neighbours.
fn scatter(slab: &SharedSlab, page_size: usize) -> Result<()> {
    let n = slab.borrow().pool().n_pages();
    let mut holders = Vec::new();
    for _ in 0..n {
        let mut holder = PagedCache::new(slab)?;
        holder.extend(page_size)?;
        holders.push(Some(holder));
    }
    // 7919 is a prime number: each page comes back once, unless it divides their number.
    let step = if n.is_multiple_of(7919) { 1 } else { 7919 };
    for i in 0..n {
        holders[i * step % n] = None;
    }
    Ok(())
}
