//! Several prompts, or several samples of one, generated together.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use page_by_page::caches::{CacheKind, CacheSize};
use page_by_page::chapters::ch06_paged::SharedSlab;
use page_by_page::decode::sampler::Sampling;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::serving::schedule::{ScheduleError, max_rows};

use super::outputs::{Output, OutputSet};
use super::terminal::Live;
use super::{Generate, MOST_SEQUENCES, pages_of_forks};
use crate::chapters;
use crate::memory;
use crate::options::PoolSize;
use crate::output::{Progress, count, print, print_json, say, say_report};

pub const MOST_TOKENS_IN_STEP: usize = 4096;

#[derive(Clone)]
pub struct OutputRequest<'a> {
    pub beginning: &'a str,
    pub prompt: Vec<u32>,
    pub max_new_tokens: usize,
    pub seed: u64,
}

impl OutputRequest<'_> {
    pub fn most(&self) -> usize {
        self.prompt.len() + self.max_new_tokens
    }
}

pub struct Pool {
    pub size: PoolSize,
    pub slab: SharedSlab,
}

pub struct SeveralSetup {
    /// Each with its own seed.
    pub sampling: Sampling,
    /// All have the same prompt.
    pub are_samples: bool,
    /// Samples are forks of the first, which computes the prompt: they share its pages.
    pub are_forks: bool,
    /// The pages of all. `None`: each output has a cache of its own, or none.
    pub pool: Option<Pool>,
    pub chapters: Vec<usize>,
}

impl Generate {
    pub(super) fn generate_several(&self, n_samples: Option<usize>) -> Result<()> {
        let (model, tokenizer) = self.model.with_tokenizer(self.cache.rows, self.kv())?;
        let sampling = self.sampling.sampling(model.config())?;
        let chapters = self.chapters_of_several(sampling);
        chapters::ensure_started(&chapters)?;
        let requests = match n_samples {
            Some(n_samples) => self.samples(n_samples, sampling, &model, &tokenizer)?,
            None => self.requests(&model, &tokenizer)?,
        };
        let are_samples = n_samples.is_some();
        let are_forks = are_samples && requests.len() > 1 && self.kv() == CacheKind::Paged;
        self.require_memory_to_read(&requests, &model, are_forks)?;
        let pool = self.pool(&requests, &model, are_forks)?;
        let setup = SeveralSetup { sampling, are_samples, are_forks, pool, chapters };
        let mut growing = OutputSet::new(self, requests, setup, (&model, &tokenizer))?;
        self.grow(&mut growing)?;
        if self.json {
            print_json(&growing.report(self))?;
        } else {
            say_report(growing.table().as_ref(), &growing.lines(self, &model));
        }
        let mut failed = growing.failed();
        let Some(last) = failed.pop() else { return Ok(()) };
        failed.iter().for_each(|output| say(&format!("error: {output}")));
        bail!(last)
    }

    /// Generates the outputs, and shows them as they grow unless JSON is asked for.
    fn grow(&self, growing: &mut OutputSet<'_>) -> Result<()> {
        let new_tokens = growing.outputs.iter().map(|output| output.request.max_new_tokens as u64).sum();
        let progress = self.json.then(|| Progress::new("generating", new_tokens));
        let mut live = if self.json { None } else { Live::on_terminal() };
        let mut in_order = InOrder { names_seeds: growing.setup.are_samples, index: 0, written: None };
        // How long a step takes at least while it shows on a terminal.
        let least = Duration::from_secs(1).checked_div(self.sequences.pace).unwrap_or_default();
        while !growing.is_done() {
            let start = Instant::now();
            let n_new = growing.step()?;
            if let Some(progress) = &progress {
                progress.advance(n_new as u64);
            } else if let Some(live) = &mut live {
                live.draw(growing);
                thread::sleep(least.saturating_sub(start.elapsed()));
            } else {
                in_order.print(&growing.outputs)?;
            }
        }
        if let Some(live) = live {
            live.clear();
        }
        if self.json { Ok(()) } else { in_order.print(&growing.outputs) }
    }

    /// The chapters whose code it runs. The loop of chapter 1 is for one sequence; its `argmax` chooses where nothing
    /// is drawn.
    fn chapters_of_several(&self, sampling: Sampling) -> Vec<usize> {
        let of_cache = self.kv().chapters().iter().copied();
        let of_cache = of_cache.filter(|number| *number != 1 || sampling.temperature == 0.0);
        let of_loop: &[usize] = if self.kv() == CacheKind::Paged { &[10, 11, 12] } else { &[] };
        of_cache.chain(of_loop.iter().copied()).chain(self.cache.rows.chapters(self.kv())).collect()
    }

    fn requests(&self, model: &Model, tokenizer: &Tokenizer) -> Result<Vec<OutputRequest<'_>>> {
        let mut requests = Vec::new();
        for (beginning, number) in self.prompt.iter().zip(1..) {
            let which = format!("sequence {number}: ");
            ensure!(!beginning.is_empty(), "{which}the prompt is empty; give the text a beginning");
            let (prompt, max_new_tokens) = self.encode(&which, beginning, model, tokenizer)?;
            requests.push(OutputRequest { beginning, prompt, max_new_tokens, seed: self.sampling.seed });
        }
        Ok(requests)
    }

    /// Several outputs of one prompt, each with a seed of its own. In pages, they share those of the prompt.
    fn samples(
        &self,
        n: usize,
        sampling: Sampling,
        model: &Model,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<OutputRequest<'_>>> {
        if sampling.temperature == 0.0 && n > 1 {
            say("note: at temperature 0 nothing is drawn: all samples are the same");
        }
        let beginning = self.prompt[0].as_str();
        let (prompt, max_new_tokens) = self.encode("", beginning, model, tokenizer)?;
        let seeds = (0..n as u64).map(|sample| self.sampling.seed.wrapping_add(sample));
        Ok(seeds.map(|seed| OutputRequest { beginning, prompt: prompt.clone(), max_new_tokens, seed }).collect())
    }

    /// The pool, where sequences are kept in pages. `are_forks`: they share those of their prompt.
    fn pool(&self, requests: &[OutputRequest<'_>], model: &Model, are_forks: bool) -> Result<Option<Pool>> {
        let page_size = self.cache.pages.page_size;
        let of_each = requests.iter().map(|request| Ok(CacheSize::for_tokens(request.most(), page_size)?.n_pages));
        let of_each = of_each.collect::<Result<Vec<usize>>>()?;
        if self.kv() != CacheKind::Paged {
            return Ok(None);
        }
        let enough = match requests {
            [request, ..] if are_forks => {
                pages_of_forks(request.prompt.len(), request.max_new_tokens, requests.len(), page_size)
            }
            _ => sum_of_largest(of_each.into_iter()),
        };
        let size = self.cache.pages.pool(model.kv_layout(), enough)?;
        let n_pages = size.n_pages;
        let slab = size.slab()?;
        for (request, number) in requests.iter().zip(1..) {
            let (prompt, max_new_tokens) = (request.prompt.len(), request.max_new_tokens);
            let needed = max_rows(prompt, max_new_tokens).div_ceil(page_size);
            if needed > n_pages {
                let error = ScheduleError::NeverFits { prompt, max_new_tokens, needed, n_pages };
                bail!("sequence {number}: {error} (--kv-memory, --pages)");
            }
        }
        Ok(Some(Pool { size, slab }))
    }

    fn require_memory_to_read(&self, requests: &[OutputRequest<'_>], model: &Model, are_forks: bool) -> Result<()> {
        if self.kv() == CacheKind::Contiguous {
            let slots = requests.iter().map(|request| self.cache.capacity.unwrap_or(request.most()));
            memory::ensure_slots(model.kv_layout(), sum_of_largest(slots))?;
        }
        let prompts = || requests.iter().map(|request| request.prompt.len());
        let longest = prompts().max().unwrap_or(0);
        let tokens = match self.kv() {
            _ if are_forks => longest.max(requests.len()),
            CacheKind::Paged => sum_of_largest(prompts()).min(longest.max(MOST_TOKENS_IN_STEP)),
            // The last step recomputes the whole sequence.
            CacheKind::Recompute => requests.iter().map(OutputRequest::most).max().unwrap_or(0),
            CacheKind::Flat | CacheKind::Contiguous => longest,
        };
        let what = format!("computing {} in a step", count(tokens, "token"));
        let bytes = model.step_bytes(tokens, requests.len().min(MOST_SEQUENCES));
        memory::ensure(&what, bytes, "ask for fewer outputs, or give shorter prompts")
    }
}

/// The sum of those that can run at once: the largest, if there are more.
fn sum_of_largest(sizes: impl Iterator<Item = usize>) -> usize {
    let mut sizes: Vec<usize> = sizes.collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.into_iter().take(MOST_SEQUENCES).fold(0, usize::saturating_add)
}

/// Writes outputs one after the other, each piece as soon as all before it is written.
struct InOrder {
    names_seeds: bool,
    index: usize,
    /// Bytes of it that are written already; `None` before its heading.
    written: Option<usize>,
}

impl InOrder {
    fn print(&mut self, outputs: &[Output<'_>]) -> Result<()> {
        let mut out = String::new();
        while let Some(output) = outputs.get(self.index).filter(|output| output.has_begun()) {
            if self.written.is_none() {
                let gap = if self.index == 0 { "" } else { "\n" };
                let OutputRequest { beginning, seed, .. } = &output.request;
                let seed = if self.names_seeds { format!(", seed {seed}") } else { String::new() };
                out.push_str(&format!("{gap}sequence {}{seed}\n{beginning}", self.index + 1));
            }
            out.push_str(&output.text[self.written.unwrap_or(0)..]);
            self.written = Some(output.text.len());
            if output.finished.is_none() {
                break;
            }
            out.push('\n');
            (self.index, self.written) = (self.index + 1, None);
        }
        if out.is_empty() { Ok(()) } else { print(&out) }
    }
}
