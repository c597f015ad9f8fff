//! `bench append`: what one more token costs, in a short sequence and in a long one.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::KvLayout;
use page_by_page::cache::in_place::InPlace;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::experiments::{append, rows};

use super::{KINDS, PAGE_SIZE, Report, Row, Times, bundled_layout, filled, turns};
use crate::output::{rate, thousands};
use crate::require;

/// Append tokens to short sequences and to long ones, and compare what a token costs
///
/// Appending makes room for a token and writes its rows in every layer; no model computes. The lengths take turns: 16
/// tokens are appended, one by one, and then forgotten again, so that each turn finds the same sequence and memory that was
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
    /// Caches to append to, separated by commas: flat, contiguous, paged
    #[arg(long, value_name = "CACHE,…", value_delimiter = ',', default_values_t = KINDS)]
    kv: Vec<CacheKind>,
}

const TURN: usize = 16;

/// A cache of one length, and what the newest turn did to it.
struct Case {
    tokens: usize,
    cache: Box<dyn InPlace>,
    times: Times,
    rows_copied: u64,
    slots_taken: usize,
}

impl Append {
    pub fn run(self) -> Result<Report> {
        // Chapter 7 takes the tokens off again.
        let of_caches = self.kv.iter().flat_map(|kind| kind.chapters()).copied().filter(|chapter| *chapter > 1);
        require::chapters(&of_caches.chain([7]).collect::<Vec<_>>())?;
        ensure!(
            !self.kv.contains(&CacheKind::Recompute),
            "recompute keeps no rows to append to; choose flat, contiguous or paged"
        );
        let layout = bundled_layout()?;
        let size = |tokens: &usize| CacheSize::for_tokens(tokens.saturating_add(TURN), PAGE_SIZE);
        let sizes = self.tokens.iter().map(size).collect::<Result<Vec<_>, _>>()?;
        // Tensors that grow are there twice.
        let slots = sizes.iter().map(|size| size.slots()).fold(0, usize::saturating_add);
        require::slots(layout, slots.saturating_mul(2))?;
        let mut costs = Vec::new();
        for kind in &self.kv {
            costs.extend(self.measure(*kind, layout, &sizes)?);
        }
        Report::table(1, self.tokens.len(), &costs)
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
            let pages = (kind == CacheKind::Paged).then_some(case.slots_taken / PAGE_SIZE);
            let (micros, over_first) = (case.times.median() / TURN as f64 * 1e6, case.times.median() / first);
            Row::default()
                .text("cache", kind)
                .count("tokens held", case.tokens)
                .count("rows copied for each", case.rows_copied / TURN as u64)
                .cell("pages taken for 16", pages, pages.map_or("–".into(), thousands))
                .cell("µs for each", micros, rate(micros))
                .cell("× first", over_first, format!("{over_first:.1}"))
        });
        Ok(costs.collect())
    }
}
