//! Outputs that grow together, in pages that one loop serves.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use page_by_page::cache::{CacheUsage, PageId};
use page_by_page::chapters::ch06_paged::SharedSlab;
use page_by_page::generation::read_checker::ReadChecker;
use page_by_page::generation::sampler::Sampler;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::prefix_cache::PrefixCacheKind;
use page_by_page::serving::schedule::{NextToken, StepLimits};
use page_by_page::serving::{Engine, FinishedSequence, GenerationRequest, StepOutput};

use super::together::MAX_TOKENS_IN_STEP;
use super::{MAX_SEQUENCES, OutputRequest};
use crate::options::PoolSize;

pub struct Output<'a> {
    pub request: OutputRequest<'a>,
    pub text: String,
    pub n_new: usize,
    pub runs: bool,
    pub pages: Vec<PageId>,
    /// `None` until it has finished.
    pub finished: Option<FinishedSequence>,
}

impl Output<'_> {
    /// Whether its prompt was computed, or is not going to be.
    pub fn has_begun(&self) -> bool {
        self.runs || self.n_new > 0 || self.finished.is_some()
    }

    pub fn usage(&self) -> CacheUsage {
        self.finished.as_ref().map_or(CacheUsage::default(), |finished| finished.sequence.counters.usage)
    }

    pub fn pages_at_end(&self) -> usize {
        self.finished.as_ref().map_or(0, |finished| finished.sequence.counters.n_pages)
    }
}

#[derive(Clone, Copy, Default)]
pub struct PassTotals {
    pub steps: u64,
    pub computed_tokens: u64,
    /// Sequences that they answered, each with a new token or its end.
    pub new_tokens: u64,
    pub time: Duration,
}

/// Outputs that grow together. The first has the number 0, which is also its index in the list.
pub struct OutputSet<'m> {
    /// All have the same prompt, and are forks of the first, which computes it: they share its pages.
    pub are_samples: bool,
    pub pool: PoolSize,
    pub engine: Engine<'m>,
    pub outputs: Vec<Output<'m>>,
    /// Passes that computed a prompt, whatever else they computed.
    pub prefill: PassTotals,
    /// The other passes, which compute the newest token of each sequence.
    pub decode: PassTotals,
    /// Checks what attention reads, if that is wanted, and how many wrong reads there were.
    pub checker: Option<(Rc<ReadChecker>, u64)>,
}

impl<'m> OutputSet<'m> {
    pub fn new(
        requests: Vec<OutputRequest<'m>>,
        are_samples: bool,
        checks_reads: bool,
        (pool, slab): (PoolSize, SharedSlab),
        (model, tokenizer): (&'m Model, &'m Tokenizer),
    ) -> Result<Self> {
        let limits = StepLimits { token_budget: MAX_TOKENS_IN_STEP, max_running: MAX_SEQUENCES };
        let prefix_cache = PrefixCacheKind::None.new_cache(pool.page_size)?;
        let mut engine =
            Engine::new(model, &slab, prefix_cache, limits, &model.config().eos_token_ids)?.with_tokenizer(tokenizer);
        let checker = checks_reads.then(|| Rc::new(ReadChecker::new(None)));
        if let Some(checker) = &checker {
            engine = engine.with_read_checker(checker);
        }
        // Samples are one request; otherwise each prompt is one.
        for (requests, number) in requests.chunks(if are_samples { requests.len() } else { 1 }).zip(1..) {
            let OutputRequest { prompt, max_new_tokens, .. } = requests[0].clone();
            let samplers = requests.iter().map(|request| Sampler::new(request.sampling)).collect();
            let submitted = engine.submit_request(GenerationRequest::new(prompt, max_new_tokens, samplers));
            submitted.map_err(|error| anyhow!("sequence {number}: {error} (--kv-memory, --pages)"))?;
        }
        let output =
            |request| Output { request, text: String::new(), n_new: 0, runs: false, pages: Vec::new(), finished: None };
        let outputs = requests.into_iter().map(output).collect();
        let (checker, [prefill, decode]) = (checker.map(|checker| (checker, 0)), [PassTotals::default(); 2]);
        Ok(OutputSet { are_samples, pool, engine, outputs, prefill, decode, checker })
    }

    /// Whether the outputs share the pages of one prompt.
    pub fn are_forks(&self) -> bool {
        self.are_samples && self.outputs.len() > 1
    }

    /// One pass of the model; how many new tokens there are.
    pub fn step(&mut self) -> Result<usize> {
        let start = Instant::now();
        let step = self.engine.step()?;
        let is_new = |output: &Output<'_>| output.n_new == 0;
        let is_prefill =
            step.chunks.iter().any(|chunk| chunk.n_tokens > 1 || is_new(&self.outputs[chunk.sequence_id.0 as usize]));
        let passes = if is_prefill { &mut self.prefill } else { &mut self.decode };
        passes.steps += u64::from(!step.chunks.is_empty());
        passes.computed_tokens += step.chunks.iter().map(|chunk| chunk.n_tokens as u64).sum::<u64>();
        passes.new_tokens += step.chunks.iter().filter(|chunk| chunk.caught_up).count() as u64;
        passes.time += start.elapsed();
        if let Some((checker, n_wrong)) = &mut self.checker {
            *n_wrong += super::say_wrong(checker, *n_wrong);
        }
        Ok(self.record(step))
    }

    fn record(&mut self, step: StepOutput) -> usize {
        for NextToken { sequence_id: sequence, .. } in &step.new_tokens {
            self.outputs[sequence.0 as usize].n_new += 1;
        }
        self.outputs.iter_mut().for_each(|output| (output.runs, output.pages) = (false, Vec::new()));
        for (sequence, table) in self.engine.scheduler().running() {
            let output = &mut self.outputs[sequence.id.0 as usize];
            (output.runs, output.pages) = (true, table.pages().to_vec());
        }
        for (sequence, delta) in &step.deltas {
            self.outputs[sequence.0 as usize].text += &delta.text;
        }
        for finished in step.finished {
            let output = &mut self.outputs[finished.sequence.id.0 as usize];
            output.text.clone_from(&finished.text);
            (output.runs, output.finished) = (false, Some(finished));
        }
        step.new_tokens.len()
    }
}
