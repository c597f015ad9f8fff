//! `bench batch`: what a step costs when several texts share it.
//!
//! The weights are read once for all texts of a step, the rows of each text once for itself. So as long as reading the
//! weights is what takes the time, more texts cost little more than one.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use page_by_page::cache::Rewind;
use page_by_page::cache::in_place::CacheRef;
use page_by_page::cache::kind::CacheKind;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
use page_by_page::model::{LogitRows, Model};
use serde::Serialize;

use super::Output;
use super::engine::{Rates, Times};
use crate::options::RowOptions;
use crate::output::{Progress, Table, count, print, rate, thousands};
use crate::{model_dir, require};

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
    #[command(flatten)]
    output: Output,
}

/// The pages, and a text that reads a token and forgets it again.
const CHAPTERS: [usize; 4] = [4, 5, 6, 7];

#[derive(Serialize)]
struct Numbers {
    model: String,
    threads: usize,
    context: usize,
    page_size: usize,
    turns: usize,
    sizes: Vec<Size>,
}

#[derive(Serialize)]
struct Size {
    texts: usize,
    milliseconds_per_step: f64,
    tokens_per_second: Rates,
    /// Tokens a second, against the first size of the list.
    over_first: Rates,
}

impl Batch {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.output.check()?;
        require::chapters(&CHAPTERS)?;
        ensure!(self.page_size > 0, "a page needs at least one slot: the page size is 0");
        let mut model = Model::open(&model_dir(&self.model))?;
        self.rows.apply(&mut model, CacheKind::Paged)?;
        let config = model.config();
        let positions = config.max_positions;
        ensure!(
            self.context > 0 && self.context < positions,
            "the texts have {} tokens and read one more, and the model has {} positions; give --context from 1 to {}",
            thousands(self.context as u64),
            thousands(positions as u64),
            thousands(positions.saturating_sub(1) as u64)
        );
        let sizes: Vec<usize> = self.texts.iter().map(|texts| usize::from(*texts)).collect();
        let most = sizes.iter().copied().max().unwrap_or(1);
        let pages = most.saturating_mul((self.context + 1).div_ceil(self.page_size));
        require::pages(model.kv_layout(), self.page_size, pages)?;
        require::memory("a step", model.step_bytes(most.max(self.context), most), "give fewer --texts")?;
        let slab = PageSlab::new(model.kv_layout(), self.page_size, pages)?;

        let token = |i: usize| (i * 7919 % config.vocab_size) as u32;
        let progress = Progress::new("reading the texts", most as u64);
        let mut caches = Vec::new();
        for text in 0..most {
            let tokens: Vec<u32> = (0..self.context).map(|i| token(i + 31 * text)).collect();
            let mut cache = PagedCache::new(&slab)?;
            let chunk = model.chunk_of(&tokens, CacheRef::InPlace(&mut cache), LogitRows::None)?;
            model.forward(vec![chunk])?;
            caches.push(cache);
            progress.advance(1);
        }
        drop(progress);

        let mut times: Vec<Times> = sizes.iter().map(|_| Times::default()).collect();
        let patience = Duration::from_secs(self.seconds);
        let progress = Progress::new("measuring", patience.as_millis() as u64);
        let start = Instant::now();
        while times[0].count() < 3 || start.elapsed() < patience {
            for (size, times) in sizes.iter().zip(&mut times) {
                let before = Instant::now();
                step(&model, &mut caches[..*size], token(times.count()))?;
                times.push(before);
                caches[..*size].iter_mut().try_for_each(|cache| cache.rewind(1))?;
            }
            progress.reach(start.elapsed().as_millis() as u64);
        }
        drop(progress);

        let first = times[0].rates(sizes[0] as f64);
        let numbers = Numbers {
            model: self.model.display().to_string(),
            threads: rayon::current_num_threads(),
            context: self.context,
            page_size: self.page_size,
            turns: times[0].count(),
            sizes: sizes
                .iter()
                .zip(&times)
                .map(|(texts, times)| {
                    let tokens_per_second = times.rates(*texts as f64);
                    Size {
                        texts: *texts,
                        milliseconds_per_step: 1e3 / times.rates(1.0).median,
                        tokens_per_second,
                        over_first: tokens_per_second.over(first),
                    }
                })
                .collect(),
        };
        print(&numbers.render())?;
        self.output.write(&numbers)
    }
}

/// Each text reads the token.
fn step(model: &Model, caches: &mut [PagedCache], token: u32) -> Result<()> {
    let tokens = [token];
    let chunks = caches
        .iter_mut()
        .map(|cache| model.chunk_of(&tokens, CacheRef::InPlace(cache), LogitRows::Newest(1)))
        .collect::<Result<Vec<_>, _>>()?;
    std::hint::black_box(model.forward(chunks)?);
    Ok(())
}

impl Numbers {
    fn render(&self) -> String {
        let first = self.sizes.first().map_or(1, |size| size.texts);
        let against = format!("against {first}");
        let mut table = Table::new(0, &["texts", "ms a step", "tokens/s", against.as_str()]);
        for size in &self.sizes {
            table.line([
                size.texts.to_string(),
                format!("{:.2}", size.milliseconds_per_step),
                rate(size.tokens_per_second.median),
                format!("{:.2} ×", size.over_first.median),
            ]);
        }
        format!(
            "{}, {}: texts of {} in pages of {}, each reads one token a step\n\n{}\n{} of all sizes; medians\n",
            self.model,
            count(self.threads, "thread"),
            count(self.context, "token"),
            count(self.page_size, "slot"),
            table.render(),
            count(self.turns, "turn"),
        )
    }
}
