//! `bench batch`: what a step costs when several sequences share it.
//!
//! The weights are read once for all sequences of a step, the rows of each sequence once for itself. So as long as
//! reading the weights is what takes the time, more sequences cost little more than one.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use page_by_page::cache::Rewind;
use page_by_page::cache_kind::CacheKind;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
use page_by_page::experiments::paged_attention::step;
use page_by_page::model::Model;
use serde_json::json;

use super::attention::filled;
use super::{PAGE_SIZE, Report, Row, Times, numbers, table, turns};
use crate::memory;
use crate::options::ensure_in_range;
use crate::options::{KvOptions, ModelOption};
use crate::output::{plural, rate};
use crate::requirements;

/// Compare a step of several sequences with a step of one
///
/// Each sequence has the same number of tokens in pages of one slab and reads one more, again and again. All sizes take
/// turns, so that whatever else the machine does hits all of them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo page bench batch
  cargo page bench batch --context 512 --attention gather
  cargo page bench batch --model /tmp/qwen3-0.6b --threads 2")]
pub struct BatchBench {
    #[command(flatten)]
    model: ModelOption,
    /// Tokens that each sequence has before the step
    #[arg(long, value_name = "N", default_value_t = 128)]
    context: usize,
    #[command(flatten)]
    kv_options: KvOptions,
    /// How long to measure; three turns are taken at least
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(0..=3600))]
    seconds: u64,
}

const SIZES: [usize; 7] = [1, 2, 3, 4, 8, 9, MAX_SEQUENCES];
const MAX_SEQUENCES: usize = 16;

impl BatchBench {
    pub fn run(self) -> Result<Report> {
        // The pages, and a sequence that reads a token and forgets it again.
        requirements::ensure_started(&[6, 7])?;
        let model = self.model.open_for(self.kv_options, CacheKind::Paged)?;
        let mut caches = self.caches(&model)?;
        let mut times = SIZES.map(|_| Times::default());
        let mut n_turns = 0;
        for turn in turns("measuring", 3..usize::MAX, Duration::from_secs(self.seconds)) {
            n_turns = turn + 1;
            for (size, times) in SIZES.iter().zip(&mut times) {
                times.measure(|| step(&model, &mut caches[..*size]))?;
                caches[..*size].iter_mut().try_for_each(|cache| cache.rewind(1))?;
            }
        }
        let alone = times[0].median();
        let row = |(sequences, times): (&usize, &Times)| {
            let (ms, speed) = (1e3 * times.median(), times.rates(*sequences as f64).median);
            let against_one = speed * alone;
            Row::default()
                .count("sequences", *sequences)
                .cell("ms a step", ms, format!("{ms:.2}"))
                .cell("tokens/s", speed, rate(speed))
                .cell("against 1", against_one, format!("{against_one:.2} ×"))
        };
        let rows: Vec<Row> = SIZES.iter().zip(&times).map(row).collect();
        let text = format!(
            "{}, {}: sequences of {} in pages of {PAGE_SIZE} slots, one token each in a step\n\n{}\n{} of all sizes; \
             medians\n",
            self.model.name(),
            plural(rayon::current_num_threads(), "thread"),
            plural(self.context, "token"),
            table(0, rows.len(), &rows),
            plural(n_turns, "turn"),
        );
        Report::of_model(&self.model, text, json!({ "context": self.context, "sizes": numbers(rows) }))
    }

    /// As many caches as the largest step needs, each with the rows of its sequence.
    fn caches(&self, model: &Model) -> Result<Vec<PagedCache>> {
        // A step reads one token more.
        let most = model.config().max_positions.saturating_sub(1);
        ensure_in_range(self.context as u64, most as u64, "--context", "the model")?;
        let pages = MAX_SEQUENCES * (self.context + 1).div_ceil(PAGE_SIZE);
        memory::ensure_pages(model.cache_layout(), PAGE_SIZE, pages)?;
        memory::ensure("a step", model.step_bytes(MAX_SEQUENCES, MAX_SEQUENCES), "take a smaller model")?;
        let slab = PageSlab::new(model.cache_layout(), PAGE_SIZE, pages)?;
        (0..MAX_SEQUENCES as u64).map(|seed| filled(PagedCache::new(&slab)?, self.context, model, seed)).collect()
    }
}
