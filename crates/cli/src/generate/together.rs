//! Several prompts, or several samples of one, generated together in the pages of one pool.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use page_by_page::cache_kind::CacheKind;
use page_by_page::chapters::ch06_paged::SharedSlab;
use page_by_page::generation::sampler::SamplingParams;
use page_by_page::model::Model;

use super::outputs::{Output, OutputSet};
use super::terminal::Live;
use super::{Generate, MAX_SEQUENCES, OutputRequest, pages_of_forks};
use crate::memory;
use crate::options::PoolSize;
use crate::output::{Progress, plural, print, print_json, say, say_report};
use crate::requirements::{self, SCHEDULER, SCHEDULER_AND_ARGMAX};

pub const MAX_TOKENS_IN_STEP: usize = 4096;

impl Generate {
    pub(super) fn generate_together(&self) -> Result<()> {
        let (model, tokenizer) = self.model.open_with_tokenizer(self.cache.kv_options, CacheKind::Paged)?;
        requirements::ensure_started(&self.chapters_of_scheduler(self.sampling.sampling(model.config())?))?;
        let requests = self.requests(&model, &tokenizer)?;
        let are_samples = self.sequences.samples.is_some();
        ensure_memory_to_read(&requests, &model, are_samples)?;
        let pool = self.pool(&requests, &model, are_samples)?;
        let mut outputs = OutputSet::new(requests, are_samples, self.cache.check_reads, pool, (&model, &tokenizer))?;
        self.grow(&mut outputs)?;
        if self.json {
            print_json(&outputs.to_json())?;
        } else {
            say_report(outputs.table().as_ref(), &outputs.lines(self, &model));
        }
        let mut failed = outputs.failed();
        let Some(last) = failed.pop() else { return Ok(()) };
        failed.iter().for_each(|output| say(&format!("error: {output}")));
        bail!(last)
    }

    /// Generates the outputs, and shows them as they grow unless JSON is asked for.
    fn grow(&self, set: &mut OutputSet<'_>) -> Result<()> {
        let new_tokens = set.outputs.iter().map(|output| output.request.max_new_tokens as u64).sum();
        let progress = self.json.then(|| Progress::new("generating", new_tokens));
        let mut live = if self.json { None } else { Live::on_terminal() };
        let mut in_order = InOrder { index: 0, written: None };
        // How long a step takes at least while it shows on a terminal.
        let least = Duration::from_secs(1).checked_div(self.sequences.pace).unwrap_or_default();
        while !set.engine.is_done() {
            let start = Instant::now();
            let n_new = set.step()?;
            if let Some(progress) = &progress {
                progress.advance(n_new as u64);
            } else if let Some(live) = &mut live {
                live.draw(set);
                thread::sleep(least.saturating_sub(start.elapsed()));
            } else {
                in_order.print(self, &set.outputs)?;
            }
        }
        if let Some(live) = live {
            live.clear();
        }
        if self.json { Ok(()) } else { in_order.print(self, &set.outputs) }
    }

    /// The chapters whose code it runs; the `argmax` of chapter 1 chooses where nothing is drawn.
    pub(super) fn chapters_of_scheduler(&self, sampling: SamplingParams) -> Vec<usize> {
        let chapters = if sampling.temperature == 0.0 { &SCHEDULER_AND_ARGMAX[..] } else { &SCHEDULER };
        [chapters, &self.cache.kv_options.chapters(CacheKind::Paged)].concat()
    }

    /// The pool, and its memory. Samples share the pages of their prompt.
    fn pool(&self, requests: &[OutputRequest<'_>], model: &Model, are_samples: bool) -> Result<(PoolSize, SharedSlab)> {
        let page_size = self.cache.pages.page_size.max(1);
        let enough = match requests {
            [request, ..] if are_samples => {
                pages_of_forks(request.prompt.len(), request.max_new_tokens, requests.len(), page_size)
            }
            _ => sum_of_largest(requests.iter().map(|request| request.max_len().div_ceil(page_size))),
        };
        let size = self.cache.pages.pool(model.cache_layout(), enough)?;
        Ok((size, size.slab()?))
    }
}

fn ensure_memory_to_read(requests: &[OutputRequest<'_>], model: &Model, are_samples: bool) -> Result<()> {
    let prompts = || requests.iter().map(|request| request.prompt.len());
    let longest = prompts().max().unwrap_or(0);
    let tokens = match are_samples {
        true => longest.max(requests.len()),
        false => sum_of_largest(prompts()).min(longest.max(MAX_TOKENS_IN_STEP)),
    };
    let what = format!("computing {} in a step", plural(tokens, "token"));
    let bytes = model.step_bytes(tokens, requests.len().min(MAX_SEQUENCES));
    memory::ensure(&what, bytes, "ask for fewer outputs, or give shorter prompts")
}

/// The sum of those that can run at once: the largest, if there are more.
fn sum_of_largest(sizes: impl Iterator<Item = usize>) -> usize {
    let mut sizes: Vec<usize> = sizes.collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.into_iter().take(MAX_SEQUENCES).fold(0, usize::saturating_add)
}

/// Writes outputs one after the other, each piece as soon as all before it is written.
struct InOrder {
    index: usize,
    /// Bytes of it that are written already; `None` before its heading.
    written: Option<usize>,
}

impl InOrder {
    fn print(&mut self, options: &Generate, outputs: &[Output<'_>]) -> Result<()> {
        let mut out = String::new();
        while let Some(output) = outputs.get(self.index).filter(|output| output.has_begun()) {
            if self.written.is_none() {
                out += &options.heading(self.index + 1, &output.request);
                out += output.request.prompt_text;
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
