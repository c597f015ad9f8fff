//! `bench attention`: a decode step on a long text, its rows gathered, in pages, and side by side.

mod online;

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use page_by_page::cache::in_place::{Attention, CacheRef, InPlace};
use page_by_page::cache::{KvCache, KvLayout, Rewind};
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache, SharedSlab};
use page_by_page::model::{LogitRows, Model};
use serde::Serialize;

use super::{Output, median};

use crate::output::{Progress, Table, count, mib, print, rate, thousands};
use crate::{model_dir, require};
use online::Difference;

/// Compare decode steps on long texts: rows gathered, read in their pages, or side by side
///
/// Texts of so many random rows lie in contiguous caches and in scattered pages of a slab. A step computes one token more of
/// each, in turns with the other ways, and it is forgotten again. Of two such steps the second counts, and the median of all
/// turns. All ways must give the same logits, bit for bit. Below that, an online softmax of the same kind of rows is compared
/// with the one in two passes.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench attention --texts 8
  page-by-page synth --shape qwen3-0.6b --out /tmp/qwen3-0.6b
  page-by-page bench attention --model /tmp/qwen3-0.6b --contexts 256,1024,4096")]
pub struct AttentionBench {
    /// Tokens that each text has before, separated by commas [default: 256, 1024 and 4096, as far as the model has positions]
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    contexts: Vec<usize>,
    /// Texts that read a token in each step
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    texts: u16,
    /// Ways to read pages, separated by commas: gather, paged, plain (where they lie, with the loops of chapter 13)
    #[arg(long, value_name = "HOW,…", value_delimiter = ',', value_enum, hide_possible_values = true,
          default_values_t = [Way::Gather, Way::Paged])]
    attention: Vec<Way>,
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    page_size: u32,
    /// Model folder, or a bundled model: storyteller, storyteller-draft
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    model: PathBuf,
    /// How long to measure each length; three turns are taken at least
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=3600))]
    seconds: u64,
    #[command(flatten)]
    output: Output,
}

/// Ways to read pages.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
    Gather,
    Paged,
    Plain,
}

impl Way {
    fn attention(self) -> Attention {
        match self {
            Way::Gather => Attention::Gather,
            Way::Paged => Attention::Paged,
            Way::Plain => Attention::Plain,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Way::Gather => "pages, gathered",
            Way::Paged => "pages, in place",
            Way::Plain => "pages, chapter 13's loops",
        }
    }
}

/// Lengths that are measured if nobody asks for others.
const CONTEXTS: [usize; 3] = [256, 1024, 4096];
/// Tokens that are written at once when a text is made.
const PIECE: usize = 256;
/// Turns of each length, at most.
const TURNS: usize = 1000;

/// What a step costs.
#[derive(Serialize)]
struct Cost {
    /// Of each text, before the step.
    tokens: usize,
    way: &'static str,
    /// Tokens whose rows were copied together, in each layer.
    rows_copied: usize,
    bytes_copied: usize,
    turns: usize,
    seconds: f64,
    times_contiguous: f64,
}

#[derive(Serialize)]
struct Numbers {
    model: String,
    threads: usize,
    texts: u16,
    page_size: u32,
    steps: Vec<Cost>,
    online_softmax: Vec<Difference>,
}

impl AttentionBench {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.output.check()?;
        let in_place = self.attention.iter().any(|way| *way != Way::Gather);
        require::chapters(&[3, 4, 5, 6, 7])?;
        require::chapters(if in_place { &[13] } else { &[] })?;
        let mut model = Model::open(&model_dir(&self.model))?;
        let contexts = self.contexts(model.config().max_positions)?;
        let longest = contexts.iter().copied().max().unwrap_or(0) + 1;
        let slots = longest.next_multiple_of(self.page_size as usize);
        // A cache of each kind for each text.
        require::slots(model.kv_layout(), slots.saturating_mul(2 * usize::from(self.texts)))?;

        let progress = Progress::new("measuring", contexts.len() as u64 * 1000);
        let mut steps = Vec::new();
        for (done, tokens) in (1..).zip(&contexts) {
            steps.extend(self.measure(&mut model, *tokens)?);
            progress.reach(done * 1000);
        }
        drop(progress);
        let heads = model.config().heads();
        let numbers = Numbers {
            model: self.model.display().to_string(),
            threads: rayon::current_num_threads(),
            texts: self.texts,
            page_size: self.page_size,
            steps,
            online_softmax: contexts.iter().flat_map(|tokens| online::differences(heads, *tokens)).collect(),
        };
        print(&numbers.render())?;
        self.output.write(&numbers)
    }

    /// The lengths that were asked for, or the usual ones; refuses what the model has no positions for.
    fn contexts(&self, positions: usize) -> Result<Vec<usize>> {
        for tokens in &self.contexts {
            ensure!(*tokens > 0, "a text of 0 tokens has nothing to read; give 1 or more");
            ensure!(
                *tokens < positions,
                "the model has {} positions: a text of {} and one token more do not fit; give at most {}",
                thousands(positions),
                count(*tokens, "token"),
                thousands(positions.saturating_sub(1))
            );
        }
        if !self.contexts.is_empty() {
            return Ok(self.contexts.clone());
        }
        ensure!(positions > 1, "the model has {} positions, too few to measure it", positions);
        let mut contexts = CONTEXTS.map(|tokens| tokens.min(positions - 1)).to_vec();
        contexts.dedup();
        Ok(contexts)
    }

    /// Steps behind so many tokens, in turns.
    fn measure(&self, model: &mut Model, tokens: usize) -> Result<Vec<Cost>> {
        let (layout, page_size) = (model.kv_layout(), self.page_size as usize);
        let mut contiguous = Vec::new();
        let slab = PageSlab::new(layout, page_size, (tokens + 1).div_ceil(page_size) * usize::from(self.texts))?;
        scatter(&slab, page_size)?;
        let mut paged = Vec::new();
        for text in 0..self.texts.into() {
            contiguous.push(ContiguousCache::new(layout, tokens + 1));
            paged.push(PagedCache::new(&slab)?);
            fill(&mut contiguous[text], tokens, text as u64)?;
            fill(&mut paged[text], tokens, text as u64)?;
        }

        let mut times = vec![Vec::new(); 1 + self.attention.len()];
        let mut expected: Option<Vec<f32>> = None;
        let start = Instant::now();
        for turn in 0..TURNS {
            if turn >= 3 && start.elapsed() > Duration::from_secs(self.seconds) {
                break;
            }
            let ways = [None].into_iter().chain(self.attention.iter().copied().map(Some));
            for (way, times) in ways.zip(&mut times) {
                model.set_attention(way.map_or(Attention::Gather, Way::attention));
                // The second step counts: the first finds in the processor's caches what the way before left there.
                for counts in [false, true] {
                    let before = Instant::now();
                    let logits = match way {
                        None => step(model, &mut contiguous)?,
                        Some(_) => step(model, &mut paged)?,
                    };
                    if counts {
                        times.push(before.elapsed());
                    }
                    contiguous.iter_mut().try_for_each(|cache| cache.rewind(cache.len() - tokens))?;
                    paged.iter_mut().try_for_each(|cache| cache.rewind(cache.len() - tokens))?;
                    let expected = expected.get_or_insert_with(|| logits.clone());
                    let same = logits.iter().zip(&*expected).all(|(a, b)| a.to_bits() == b.to_bits());
                    let name = way.map_or("side by side", Way::name);
                    ensure!(same, "after {tokens} tokens, {name}, the logits have other bits than side by side");
                }
            }
        }
        let medians: Vec<f64> = times.iter().map(|times| median(times)).collect();
        let copied = [copied_by(&contiguous[0], Attention::Gather)]
            .into_iter()
            .chain(self.attention.iter().map(|way| copied_by(&paged[0], way.attention())));
        let names = ["side by side"].into_iter().chain(self.attention.iter().map(|way| way.name()));
        let costs = names.zip(copied).zip(medians.iter().zip(&times));
        Ok(costs
            .map(|((way, copies), (seconds, times))| {
                // With the token that is computed.
                let rows_copied = if copies { usize::from(self.texts) * (tokens + 1) } else { 0 };
                Cost {
                    tokens,
                    way,
                    rows_copied,
                    bytes_copied: rows_copied * row_bytes(layout),
                    turns: times.len(),
                    seconds: *seconds,
                    times_contiguous: seconds / medians[0],
                }
            })
            .collect())
    }
}

/// One token more of each text, in one pass; the logits after each.
fn step<C: InPlace>(model: &Model, caches: &mut [C]) -> Result<Vec<f32>> {
    let chunk = |cache| model.chunk_of(&[1], CacheRef::InPlace(cache), LogitRows::Newest(1));
    let batch = caches.iter_mut().map(|cache| chunk(cache)).collect::<Result<Vec<_>, _>>()?;
    Ok(model.forward(batch)?)
}

/// Keys and values of a token, in all layers.
fn row_bytes(layout: KvLayout) -> usize {
    2 * layout.n_layers * layout.kv_width() * size_of::<f32>()
}

/// Whether attention gets a copy of the rows.
fn copied_by(cache: &dyn InPlace, attention: Attention) -> bool {
    attention == Attention::Gather && matches!(cache.gather(0), (Cow::Owned(_), _))
}

/// Fills an empty cache with random rows, those of this seed.
fn fill(cache: &mut dyn KvCache, tokens: usize, seed: u64) -> Result<()> {
    let layout = cache.layout();
    let mut numbers = online::Numbers::new(seed);
    let rows = numbers.take(PIECE * layout.kv_width() * 2);
    let (keys, values) = rows.split_at(PIECE * layout.kv_width());
    for first in (0..tokens).step_by(PIECE) {
        let n = PIECE.min(tokens - first) * layout.kv_width();
        cache.extend(n / layout.kv_width())?;
        for layer in 0..layout.n_layers {
            cache.write(layer, &keys[..n], &values[..n]);
        }
    }
    Ok(())
}

/// Gives the free pages of a slab an order that is none.
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

impl Numbers {
    fn render(&self) -> String {
        let heading = ["tokens", "rows", "ms a step", "× side by side", "rows copied", "copied"];
        let mut table = Table::new(2, &heading);
        for (i, cost) in self.steps.iter().enumerate() {
            let is_new = i == 0 || self.steps[i - 1].tokens != cost.tokens;
            if is_new && i > 0 {
                table.line([""]);
            }
            table.line([
                if is_new { thousands(cost.tokens as u64) } else { String::new() },
                cost.way.to_string(),
                rate(cost.seconds * 1e3),
                format!("{:.2}", cost.times_contiguous),
                thousands(cost.rows_copied as u64),
                mib(cost.bytes_copied),
            ]);
        }
        let mut differences = Table::new(1, &["online softmax", "tokens", "largest difference", "other bits"]);
        for Difference { tokens, blocks, largest, different, numbers } in &self.online_softmax {
            differences.line([
                blocks.to_string(),
                thousands(*tokens as u64),
                format!("{largest:.1e}"),
                format!("{different} of {numbers}"),
            ]);
        }
        format!(
            "{}, {}, pages of {}: a step of {} behind so many tokens\n\n{}\nall logits have the same bits\n\n\
             attention of one token, one layer, against two passes\n\n{}",
            self.model,
            count(self.threads, "thread"),
            count(self.page_size as usize, "slot"),
            count(self.texts, "text"),
            table.render(),
            differences.render(),
        )
    }
}
