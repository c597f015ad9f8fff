//! `bench append`: what one more token costs, in a short text and in a long one.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::KvLayout;
use page_by_page::cache::in_place::InPlace;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::experiments::{append, rows};
use page_by_page::model::ModelConfig;

use super::{Benchmark, KINDS, Report, Row, Times, filled, require_little_memory, table, turns};
use crate::output::{rate, thousands};
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
}

/// Tokens appended in a turn.
const TURN: usize = 16;

impl Benchmark for Append {
    fn run(self) -> Result<Report> {
        require::chapters(&self.chapters())?;
        ensure!(
            !self.kv.contains(&CacheKind::Recompute),
            "recompute keeps no rows to append to; choose flat, contiguous or paged"
        );
        let layout = ModelConfig::open(&model_dir(&self.model))?.kv_layout();
        let size = |tokens: &usize| CacheSize::for_tokens(tokens.saturating_add(TURN), self.page_size);
        let sizes = self.tokens.iter().map(size).collect::<Result<Vec<_>, _>>()?;
        require_little_memory(layout, sizes.iter().map(|size| size.slots()).fold(0, usize::saturating_add))?;
        let mut costs = Vec::new();
        for kind in &self.kv {
            costs.extend(self.measure(*kind, layout, &sizes)?);
        }
        Report::new(table(1, self.tokens.len(), &costs), &costs)
    }
}

impl Append {
    /// The chapters whose code it runs: those of the caches, and chapter 7, which takes the tokens off again.
    fn chapters(&self) -> Vec<usize> {
        let of_caches = self.kv.iter().flat_map(|kind| kind.chapters()).copied().filter(|chapter| *chapter > 1);
        of_caches.chain([7]).collect()
    }

    /// Appends to caches of one kind, one of each length, in turns.
    fn measure(&self, kind: CacheKind, layout: KvLayout, sizes: &[CacheSize]) -> Result<Vec<Row>> {
        let mut cases = Vec::new();
        for (tokens, size) in self.tokens.iter().zip(sizes) {
            let cache = filled(kind, layout, *tokens, *size)?;
            cases.push(Case { tokens: *tokens, cache, times: Times::default(), rows_copied: 0, slots_taken: 0 });
        }
        let row = rows(layout, 1);
        for _ in turns("appending", 5..50, Duration::from_secs(2)) {
            for Case { cache, times, rows_copied, slots_taken, .. } in &mut cases {
                let before = cache.usage();
                times.of(|| (0..TURN).try_for_each(|_| append(cache.as_mut(), &row)))?;
                let after = cache.usage();
                (*rows_copied, *slots_taken) = (after.rows_copied - before.rows_copied, after.slots - before.slots);
                cache.rewind(TURN)?;
            }
        }
        let first = cases.first().map_or(0.0, |case| case.times.median());
        let costs = cases.iter().map(|case| {
            let pages = (kind == CacheKind::Paged).then(|| case.slots_taken / self.page_size);
            let (seconds, over_first) = (case.times.median() / TURN as f64, case.times.median() / first);
            Row::default()
                .number("kv", kind.to_string())
                .cell("cache", kind.to_string())
                .count("tokens", "tokens held", case.tokens)
                .number("tokens_appended", TURN)
                .number("rows_copied", case.rows_copied)
                .cell("rows copied for each", thousands(case.rows_copied / TURN as u64))
                .number("pages_taken", pages)
                .cell("pages taken for 16", pages.map_or("–".into(), thousands))
                .number("turns", case.times.count())
                .number("seconds_per_token", seconds)
                .cell("µs for each", rate(seconds * 1e6))
                .number("times_the_first", over_first)
                .cell("× first", format!("{over_first:.1}"))
        });
        Ok(costs.collect())
    }
}

/// A cache of one length, and what the newest turn did to it.
struct Case {
    tokens: usize,
    cache: Box<dyn InPlace>,
    times: Times,
    rows_copied: u64,
    slots_taken: usize,
}
