//! `bench append`: what one more token costs, in a short text and in a long one.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::cache::{CacheError, KvLayout};
use page_by_page::model::ModelConfig;
use serde::Serialize;

use super::{KINDS, Output, append, filled, median, require_little_memory, rows};
use crate::output::{Progress, Table, print, rate, thousands};
use crate::{model_dir, require};

/// Append tokens to short texts and to long ones, and compare what a token costs
///
/// Appending makes room for a token and writes its rows in every layer; no model computes. The lengths take turns: 16
/// tokens are appended, one by one, and then forgotten again, so that each turn finds the same text and memory that was
/// touched before. The median turn counts; rows copied are the mean of its 16 tokens.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench append --tokens 1024,8192,32768
  page-by-page bench append --kv flat --tokens 1024,8192")]
pub struct Append {
    /// Tokens that the caches hold before, separated by commas; times are compared with the first
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1024,32768")]
    tokens: Vec<usize>,
    /// Model folder, or a bundled model: whose rows are appended
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    model: PathBuf,
    /// Caches to append to, separated by commas: flat, contiguous, paged
    #[arg(long, value_name = "CACHE,…", value_delimiter = ',', default_values_t = KINDS)]
    kv: Vec<CacheKind>,
    /// Slots in a page of the paged cache
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
    #[command(flatten)]
    output: Output,
}

/// Tokens appended in a turn.
const TURN: usize = 16;
/// Turns of each length, at most.
const TURNS: usize = 50;
/// Turns of each length, at least.
const FEW_TURNS: usize = 5;
/// No more turns of a cache than the fewest after this.
const PATIENCE: Duration = Duration::from_secs(2);

/// What it costs to append to one cache of one length.
#[derive(Serialize)]
struct Cost {
    kv: String,
    tokens: usize,
    tokens_appended: usize,
    rows_copied: u64,
    /// `None` where there are no pages.
    pages_taken: Option<usize>,
    turns: usize,
    seconds_per_token: f64,
    times_the_first: f64,
}

impl Append {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.output.check()?;
        require::chapters(&self.chapters())?;
        ensure!(
            !self.kv.contains(&CacheKind::Recompute),
            "recompute keeps no rows to append to; choose flat, contiguous or paged"
        );
        let layout = ModelConfig::open(&model_dir(&self.model))?.kv_layout();
        let rooms: Vec<CacheSize> = self.tokens.iter().map(|tokens| self.room(*tokens)).collect::<Result<_, _>>()?;
        require_little_memory(layout, rooms.iter().map(|room| room.slots()).fold(0, usize::saturating_add))?;

        let progress = Progress::new("appending", (self.kv.len() * TURNS) as u64);
        let mut costs = Vec::new();
        for (kv, done) in self.kv.iter().copied().zip(1..) {
            costs.extend(self.measure(kv, layout, &progress)?);
            progress.reach((done * TURNS) as u64);
        }
        drop(progress);
        print(&table(&costs, self.tokens.len()).render())?;
        self.output.write(&costs)
    }

    /// CacheSize for a text of so many tokens and for a turn.
    fn room(&self, tokens: usize) -> Result<CacheSize, CacheError> {
        CacheSize::for_tokens(tokens.saturating_add(TURN), self.page_size)
    }

    /// The chapters whose code it runs: those of the caches, and chapter 7, which takes the tokens off again.
    fn chapters(&self) -> Vec<usize> {
        let of_caches = self.kv.iter().flat_map(|kv| kv.chapters()).copied().filter(|chapter| *chapter > 1);
        of_caches.chain([7]).collect()
    }

    /// Appends to caches of one kind, one of each length, in turns.
    fn measure(&self, kv: CacheKind, layout: KvLayout, progress: &Progress) -> Result<Vec<Cost>> {
        let mut caches = Vec::new();
        for tokens in &self.tokens {
            caches.push(filled(kv, layout, *tokens, self.room(*tokens)?)?);
        }
        let (mut rows_copied, mut slots_taken) = (vec![0; caches.len()], vec![0; caches.len()]);
        let mut times = vec![Vec::new(); caches.len()];
        let row = rows(layout, 1);
        let start = Instant::now();
        for turn in 0..TURNS {
            if turn >= FEW_TURNS && start.elapsed() > PATIENCE {
                break;
            }
            for (index, cache) in caches.iter_mut().enumerate() {
                let before = cache.usage();
                let start = Instant::now();
                for _ in 0..TURN {
                    append(cache.as_mut(), &row)?;
                }
                times[index].push(start.elapsed());
                let after = cache.usage();
                rows_copied[index] = after.rows_copied - before.rows_copied;
                slots_taken[index] = after.slots - before.slots;
                cache.rewind(TURN)?;
            }
            progress.advance(1);
        }
        let medians: Vec<f64> = times.iter().map(|times| median(times)).collect();
        let costs = self.tokens.iter().enumerate().map(|(index, tokens)| Cost {
            kv: kv.to_string(),
            tokens: *tokens,
            tokens_appended: TURN,
            rows_copied: rows_copied[index],
            pages_taken: (kv == CacheKind::Paged).then(|| slots_taken[index] / self.page_size),
            turns: times[index].len(),
            seconds_per_token: medians[index] / TURN as f64,
            times_the_first: medians[index] / medians[0],
        });
        Ok(costs.collect())
    }
}

fn table(costs: &[Cost], lengths: usize) -> Table {
    let heading = ["cache", "tokens held", "rows copied for each", "pages taken for 16", "µs for each", "× first"];
    let mut table = Table::new(1, &heading);
    for (i, cost) in costs.iter().enumerate() {
        if i > 0 && i % lengths == 0 {
            table.line([""]);
        }
        table.line([
            cost.kv.clone(),
            thousands(cost.tokens as u64),
            thousands(cost.rows_copied / cost.tokens_appended as u64),
            cost.pages_taken.map_or("–".into(), |pages| thousands(pages as u64)),
            rate(cost.seconds_per_token * 1e6),
            format!("{:.1}", cost.times_the_first),
        ]);
    }
    table
}
