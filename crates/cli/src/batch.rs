//! `batch`: many prompts from a file, served by the scheduler in the pages of one slab.

mod results;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use page_by_page::cache_kind::CacheKind;
use page_by_page::generation::sampler::{Sampler, SamplingOverrides};
use page_by_page::model::Model;
use page_by_page::model::sampling_params::deserialize_f32;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::serving::schedule::{FinishReason, SequenceId};
use page_by_page::serving::{Engine, FinishedSequence, TierQueue};
use page_by_page::{escape, files};
use serde::Deserialize;
use serde_json::json;

use crate::generate::{MAX_NEW_TOKENS, token_ids};
use crate::input::{Line, LineReader, Next};
use crate::interrupt::Interrupt;
use crate::options::{KvOptions, ModelOption, PoolOptions, SEED, sampling};
use crate::output::{self, add, per_second, plural, prompts_cached, rate, say, say_report, thousands, time};
use crate::page_file::{self, PageFileOptions};
use crate::requirements::{self, SCHEDULER};
use results::Results;

/// Requests that wait for a place, at most: the next lines are read when one of them runs.
const MAX_WAITING: usize = 4096;

/// Continue many prompts from a file, as many at a time as there is memory for
///
/// Reads one JSON object a line, with a prompt and, if you like, how to go on, such as
///
///     {"prompt": "Once upon a time", "max_new_tokens": 100, "temperature": 0.8, "top_k": 0, "top_p": 0.95, "seed": 7}
///
/// What a line leaves out is as in `generate`, and each output is the one that `generate` writes. The scheduler shares
/// a pool of pages among the requests. What some have in common is computed once, and a request that gets no page waits
/// for one.
///
/// Writes one JSON object a line, in the order of the lines read, with the output, why it ended and what it cost. A
/// line that is refused has its reason there, and the others go on. Ctrl-C ends the run after the step under way; what
/// is done is kept. A second Ctrl-C ends it at once.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo page batch prompts.jsonl
  cargo page batch prompts.jsonl --out outputs.jsonl --pages 64 --token-budget 128
  cargo page batch prompts.jsonl --page-file prompts.pages --pages 64
  echo '{\"prompt\": \"The king had\", \"seed\": 7}' | cargo page batch -

The exit code is 0 if all requests were completed, and 1 if any was not.")]
pub struct Batch {
    /// A file with one JSON object a line, - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    model: ModelOption,
    #[command(flatten)]
    pool: PoolOptions,
    /// Sequences that run at the same time, at most
    #[arg(long, value_name = "N", default_value_t = 16)]
    max_running: usize,
    #[command(flatten)]
    kv_options: KvOptions,
    #[command(flatten)]
    page_file: PageFileOptions,
    /// Write the results to this file, in place of what is in it; - for standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// What a line asks for. All but the prompt may be missing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchRequest {
    #[serde(skip)]
    line: usize,
    prompt: String,
    max_new_tokens: Option<usize>,
    /// 0 is greedy.
    #[serde(default, deserialize_with = "deserialize_f32")]
    temperature: Option<f32>,
    /// 0 is no limit.
    top_k: Option<usize>,
    /// 1 is no limit.
    #[serde(default, deserialize_with = "deserialize_f32")]
    top_p: Option<f32>,
    seed: Option<u64>,
}

impl BatchRequest {
    /// Reads a line; or says what is wrong with it, in a few words without control characters.
    fn read(number: usize, line: &str) -> Result<Self, String> {
        // Else a list of values would pass for an object.
        if !line.trim_start().starts_with('{') {
            return Err("it is not a JSON object; write one, such as {\"prompt\": \"Once upon a time\"}".into());
        }
        let request: BatchRequest = serde_json::from_str(line).map_err(|error| {
            let (column, text) = (error.column(), error.to_string());
            // It counts the lines of what it was given: always one.
            let problem = text.rsplit_once(" at line ").map_or(text.as_str(), |(problem, _)| problem);
            format!("column {column}: {}", escape::field(problem))
        })?;
        if request.prompt.is_empty() {
            return Err("the prompt is empty; give the text a beginning, such as \"Once upon a time\"".into());
        }
        Ok(BatchRequest { line: number, ..request })
    }
}

struct BatchRun<'m> {
    model: &'m Model,
    tokenizer: &'m Tokenizer,
    engine: Engine<'m>,
    /// Requests whose pages are being read, each with the tokens of its prompt.
    tier_queue: TierQueue<(BatchRequest, Vec<u32>)>,
    lines: LineReader,
    /// A file gives its next line at once; standard input may take its time.
    is_file: bool,
    is_read: bool,
    taken: HashMap<SequenceId, BatchRequest>,
    results: Results,
    start: Instant,
}

impl Batch {
    pub fn run(self) -> Result<()> {
        requirements::ensure_started(&SCHEDULER)?;
        let lines = self.lines()?;
        let (model, tokenizer) = self.model.open_with_tokenizer(self.kv_options, CacheKind::Paged)?;
        let slab = self.pool.slab(&model, self.max_running)?;
        requirements::ensure_started(self.page_file.chapters())?;
        let tier = self.page_file.open(&model, self.pool.pages.page_size)?;
        let (prefix_cache, limits) = (self.pool.prefix_cache()?, self.pool.limits(self.max_running));
        let engine =
            Engine::new(&model, &slab, prefix_cache, limits, &model.config().eos_token_ids)?.with_tokenizer(&tokenizer);
        let results = Results::begin(self.out.as_deref(), &self.file)?;
        let interrupt = Interrupt::listen()?;
        let mut run = BatchRun {
            model: &model,
            tokenizer: &tokenizer,
            engine,
            tier_queue: TierQueue::new(tier),
            lines,
            is_file: !self.is_stdin(),
            is_read: false,
            taken: HashMap::new(),
            results,
            start: Instant::now(),
        };
        run.serve_all(self.max_running.min(MAX_WAITING), &interrupt)?;
        self.report(run)
    }

    fn is_stdin(&self) -> bool {
        self.file.as_os_str() == "-"
    }

    fn lines(&self) -> Result<LineReader> {
        if self.is_stdin() {
            return Ok(LineReader::read(io::stdin())?);
        }
        let open = files::open(&self.file).with_context(|| {
            format!("{}: name a file with one JSON object a line, or - for standard input", self.file.display())
        })?;
        Ok(LineReader::read(open)?)
    }

    /// Says what the requests cost together; an error if any of them was not completed.
    fn report(&self, mut run: BatchRun<'_>) -> Result<()> {
        let ends = &run.results.ends;
        let (is_read, n_lines) = (run.is_read, ends.values().sum::<usize>());
        let name = if self.is_stdin() { "standard input".into() } else { self.file.display().to_string() };
        ensure!(
            !is_read || n_lines > 0,
            "{name}: there is no line; write one JSON object a line, such as {{\"prompt\": \"Once upon a time\"}}"
        );
        let complete: usize =
            [FinishReason::Stop, FinishReason::Length].iter().filter_map(|end| ends.get(&Some(*end))).sum();
        run.results.finish()?;
        say_report(None, &self.lines_of_costs(&run, n_lines)?);
        let (all, incomplete) = (plural(n_lines, "request"), thousands(n_lines - complete));
        let complete_ones = plural(complete, "request");
        ensure!(
            is_read,
            "interrupted: {complete_ones} complete, {incomplete} not, and the lines after these were not read"
        );
        ensure!(complete == n_lines, "{incomplete} of {all} not completed: the results say why");
        Ok(())
    }

    fn lines_of_costs(&self, run: &BatchRun<'_>, n_lines: usize) -> Result<output::ReportLines> {
        let totals = run.engine.totals();
        let elapsed = run.start.elapsed();
        let pool = &self.pool;
        let (n_lines, ends, most) = (thousands(n_lines), run.results.describe(), totals.peak_sequences);
        let (steps, generated) = (plural(totals.steps, "step"), plural(totals.new_tokens, "token"));
        let speed = rate(per_second(totals.new_tokens as usize, elapsed));
        let (computed, again) = (plural(totals.computed_tokens, "token"), thousands(totals.recomputed_tokens));
        let prefix_cache = if pool.no_prefix_cache { "none kept".into() } else { prompts_cached(&totals) };
        let size = pool.size(run.model)?;
        let (peak, n_pages, slots) =
            (thousands(totals.peak_pages), thousands(size.n_pages), plural(size.page_size, "slot"));
        let kept = thousands(run.engine.scheduler().prefix_cache().n_pages());
        let mut lines = vec![
            ("model", self.model.name()),
            ("requests", format!("{n_lines}: {ends}; at most {most} in a step")),
            ("steps", format!("{steps}, {generated} generated in {}, {speed} tokens/s", time(elapsed))),
            ("computed", format!("{computed}, {again} of them recomputed after a preemption")),
            ("prefixes", prefix_cache),
            ("preempted", plural(totals.preemptions, "time")),
            ("KV cache", size.describe()),
            ("pages", format!("{peak} of {n_pages} in use at the peak, {slots} each; {kept} kept at the end")),
        ];
        lines.extend(run.tier_queue.tier().map(|tier| ("page file", page_file::describe(tier))));
        let chapters =
            [&SCHEDULER[..], &self.kv_options.chapters(CacheKind::Paged), self.page_file.chapters()].concat();
        lines.push(("chapters", requirements::describe(&chapters)));
        Ok(lines)
    }
}

impl BatchRun<'_> {
    /// Serves all requests, or those that are complete when Ctrl-C is pressed. `ahead`: requests that can wait.
    fn serve_all(&mut self, ahead: usize, interrupt: &Interrupt) -> Result<()> {
        loop {
            self.read_lines(ahead, interrupt)?;
            // If there is nothing else to do, it waits for the next pages.
            for (request, tokens) in self.tier_queue.take_ready(&mut self.engine)? {
                self.begin(request, tokens)?;
            }
            if interrupt.is_pressed() {
                say("interrupted: keeping what is done; Ctrl-C again ends at once");
                for (request, tokens) in self.tier_queue.take_all() {
                    self.begin(request, tokens)?;
                }
                let cancelled = self.engine.cancel_all()?;
                return cancelled.iter().try_for_each(|finished| self.end(finished));
            }
            if self.is_read && self.tier_queue.waiting().len() == 0 && self.engine.is_done() {
                return Ok(());
            }
            let step = self.engine.step()?;
            self.tier_queue.store(&mut self.engine, &step.finished)?;
            step.finished.iter().try_for_each(|finished| self.end(finished))?;
        }
    }

    /// Takes in as many lines as may wait, and are there.
    fn read_lines(&mut self, ahead: usize, interrupt: &Interrupt) -> Result<()> {
        while !self.is_read
            && !interrupt.is_pressed()
            && self.engine.scheduler().waiting().count() + self.tier_queue.waiting().len() < ahead
        {
            // A sequence that could go on does not wait for a line of standard input.
            let wait = self.is_file || (self.tier_queue.waiting().len() == 0 && self.engine.is_done());
            match self.lines.next(wait, interrupt)? {
                Next::Line(Line { text: Ok(text), .. }) if text.trim().is_empty() => {}
                Next::Line(line) => self.take(line)?,
                Next::Nothing => return Ok(()),
                Next::End => self.is_read = true,
            }
        }
        Ok(())
    }

    fn take(&mut self, Line { number, text }: Line) -> Result<()> {
        self.results.expect(number);
        let request = match text.and_then(|text| BatchRequest::read(number, &text)) {
            Ok(request) => request,
            Err(problem) => return self.refuse(number, None, &problem),
        };
        let tokens = match self.tokenizer.encode(&request.prompt) {
            Ok(tokens) => tokens,
            Err(problem) => return self.refuse(number, Some(&request.prompt), &problem.to_string()),
        };
        match self.tier_queue.prefetch(&mut self.engine, [&tokens[..]])? {
            Some(ticket) => {
                self.tier_queue.park(ticket, (request, tokens));
                Ok(())
            }
            None => self.begin(request, tokens),
        }
    }

    fn begin(&mut self, request: BatchRequest, tokens: Vec<u32>) -> Result<()> {
        match self.submit(&request, tokens) {
            Ok(id) => {
                self.taken.insert(id, request);
                Ok(())
            }
            Err(problem) => self.refuse(request.line, Some(&request.prompt), &format!("{problem:#}")),
        }
    }

    fn submit(&mut self, request: &BatchRequest, prompt: Vec<u32>) -> Result<SequenceId> {
        let BatchRequest { temperature, top_k, top_p, seed, .. } = *request;
        let config = self.model.config();
        let sampling = sampling(SamplingOverrides { temperature, top_k, top_p }, seed.unwrap_or(SEED), config)?;
        if sampling.temperature == 0.0 {
            // Greedy is `argmax`.
            requirements::ensure_started(&[1])?;
        }
        let max_new_tokens = request.max_new_tokens.unwrap_or(MAX_NEW_TOKENS);
        // As `generate` does: what does not fit into the model's positions is not written.
        let room = config.max_positions.saturating_sub(prompt.len());
        let most = if room == 0 { 1 } else { max_new_tokens.min(room) };
        Ok(self.engine.submit(prompt, most, Sampler::new(sampling))?)
    }

    fn end(&mut self, finished: &FinishedSequence) -> Result<()> {
        let FinishedSequence { sequence, text, outcome, .. } = finished;
        let Some(BatchRequest { line, prompt: prompt_text, .. }) = self.taken.remove(&sequence.id) else {
            return Ok(());
        };
        let (prompt, new) = (&sequence.tokens[..sequence.n_prompt], sequence.new_tokens());
        let counters = json!({
            "prompt_tokens": prompt.len(),
            "new_tokens": new.len(),
            "cached_tokens": sequence.counters.cached_tokens,
            "cached_after_preemption": sequence.counters.cached_after_preemption,
            "computed_tokens": sequence.counters.computed_tokens,
            "recomputed_tokens": sequence.counters.recomputed_tokens,
            "preemptions": sequence.counters.preemptions,
        });
        let mut result = json!({
            "line": line,
            "prompt": prompt_text,
            "text": text,
            "tokens": token_ids(prompt, new),
            "finish_reason": finished.reason().as_str(),
            "counters": counters,
        });
        add(&mut result, "error", outcome.as_ref().err().map(|error| format!("line {line}: {error}")));
        self.results.put(line, Some(finished.reason()), result)
    }

    fn refuse(&mut self, line: usize, prompt: Option<&str>, problem: &str) -> Result<()> {
        let mut result = json!({ "line": line });
        add(&mut result, "prompt", prompt);
        add(&mut result, "finish_reason", Some("refused"));
        add(&mut result, "error", Some(format!("line {line}: {problem}")));
        self.results.put(line, None, result)
    }
}
