//! `bench batch`: what a step costs when several texts share it.
//!
//! The weights are read once for all texts of a step, the rows of each text once for itself. So as long as reading the
//! weights is what takes the time, more texts cost little more than one.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::Rewind;
use page_by_page::cache::in_place::CacheRef;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
use page_by_page::model::{LogitRows, Model};

use super::{Benchmark, Report, Row, Times, paged_model, table, turns};
use crate::options::RowOptions;
use crate::output::{Object, Progress, count, rate, thousands};
use crate::require;

/// Compare a step of several texts with a step of one
///
/// Each text has the same number of tokens in pages of one slab and reads one more, again and again. All sizes take turns,
/// so that whatever else the machine does hits all of them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  page-by-page bench batch
  page-by-page bench batch --texts 1,8 --context 512 --attention gather
  page-by-page bench batch --model /tmp/qwen3-0.6b --threads 2")]
pub struct Batch {
    /// Model folder, or a bundled model: storyteller, storyteller-draft
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    model: PathBuf,
    /// How many texts share a step: a list
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 2, 3, 4, 8, 9, 16],
          value_parser = clap::value_parser!(u16).range(1..=256))]
    texts: Vec<u16>,
    /// Tokens that each text has before the step
    #[arg(long, value_name = "N", default_value_t = 128)]
    context: usize,
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
    #[command(flatten)]
    rows: RowOptions,
    /// How long to measure; three turns are taken at least
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(0..=3600))]
    seconds: u64,
}

/// The pages, and a sequence that reads a token and forgets it again.
const CHAPTERS: [usize; 4] = [4, 5, 6, 7];

impl Benchmark for Batch {
    fn run(self) -> Result<Report> {
        require::chapters(&CHAPTERS)?;
        let model = paged_model(&self.model, self.rows, self.page_size)?;
        let sizes: Vec<usize> = self.texts.iter().map(|texts| usize::from(*texts)).collect();
        let most = sizes.iter().copied().max().unwrap_or(1);
        let mut caches = self.caches(&model, most)?;
        let mut times: Vec<Times> = sizes.iter().map(|_| Times::default()).collect();
        for turn in turns("measuring", 3..usize::MAX, Duration::from_secs(self.seconds)) {
            for (size, times) in sizes.iter().zip(&mut times) {
                times.of(|| step(&model, &mut caches[..*size], token(&model, turn)))?;
                caches[..*size].iter_mut().try_for_each(|cache| cache.rewind(1))?;
            }
        }
        let first = times[0].rates(sizes[0] as f64);
        let row = |(texts, times): (&usize, &Times)| {
            let (milliseconds, tokens_per_second) = (1e3 * times.median(), times.rates(*texts as f64));
            // Against the first size of the list.
            let over_first = tokens_per_second.over(first);
            Row::default()
                .number("texts", texts)
                .cell("texts", texts.to_string())
                .number("milliseconds_per_step", milliseconds)
                .cell("ms a step", format!("{milliseconds:.2}"))
                .number("tokens_per_second", tokens_per_second)
                .cell("tokens/s", rate(tokens_per_second.median))
                .number("over_first", over_first)
                .cell(format!("against {}", sizes[0]), format!("{:.2} ×", over_first.median))
        };
        let measured: Vec<Row> = sizes.iter().zip(&times).map(row).collect();
        self.report(times[0].count(), &measured)
    }
}

impl Batch {
    /// As many caches as the largest step needs, each with the tokens of its sequence.
    fn caches(&self, model: &Model, most: usize) -> Result<Vec<PagedCache>> {
        let positions = model.config().max_positions;
        ensure!(
            self.context > 0 && self.context < positions,
            "the texts have {} tokens and read one more, and the model has {} positions; give --context from 1 to {}",
            thousands(self.context),
            thousands(positions),
            thousands(positions.saturating_sub(1))
        );
        let pages = most.saturating_mul((self.context + 1).div_ceil(self.page_size));
        require::pages(model.kv_layout(), self.page_size, pages)?;
        require::memory("a step", model.step_bytes(most.max(self.context), most), "give fewer --texts")?;
        let slab = PageSlab::new(model.kv_layout(), self.page_size, pages)?;
        let progress = Progress::new("reading the texts", most as u64);
        let mut caches = Vec::new();
        for sequence in 0..most {
            let tokens: Vec<u32> = (0..self.context).map(|i| token(model, i + 31 * sequence)).collect();
            let mut cache = PagedCache::new(&slab)?;
            let chunk = model.chunk_of(&tokens, CacheRef::InPlace(&mut cache), LogitRows::None)?;
            model.forward(vec![chunk])?;
            caches.push(cache);
            progress.advance(1);
        }
        Ok(caches)
    }

    fn report(&self, turns: usize, sizes: &[Row]) -> Result<Report> {
        let (model, threads) = (self.model.display().to_string(), rayon::current_num_threads());
        let table = table(0, sizes.len(), sizes);
        let text = format!(
            "{model}, {}: texts of {} in pages of {}, each reads one token a step\n\n{table}\n{} of all sizes; medians\n",
            count(threads, "thread"),
            count(self.context, "token"),
            count(self.page_size, "slot"),
            count(turns, "turn"),
        );
        let numbers = Object::default().with("model", model).with("threads", threads).with("context", self.context);
        let numbers = numbers.with("page_size", self.page_size).with("turns", turns).with("sizes", sizes);
        Report::new(text, &numbers)
    }
}

/// A token of a made-up text.
fn token(model: &Model, place: usize) -> u32 {
    (place * 7919 % model.config().vocab_size) as u32
}

/// Each sequence reads the token.
fn step(model: &Model, caches: &mut [PagedCache], token: u32) -> Result<()> {
    let tokens = [token];
    let chunks = caches
        .iter_mut()
        .map(|cache| model.chunk_of(&tokens, CacheRef::InPlace(cache), LogitRows::Newest(1)))
        .collect::<Result<Vec<_>, _>>()?;
    std::hint::black_box(model.forward(chunks)?);
    Ok(())
}
