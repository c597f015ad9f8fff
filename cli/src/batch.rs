//! `batch`: many prompts from a file, served by the scheduler in the pages of one slab.

mod progress;
mod report;
mod request;
mod results;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use page_by_page::cache::kind::CacheKind;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::disk::tier::Tier;
use page_by_page::files;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::model::{Model, SamplingDefaults};
use page_by_page::serving::schedule::{FinishReason, SequenceId};
use page_by_page::serving::{Generated, Serving};

use crate::generate::MAX_NEW_TOKENS;
use crate::input::{Line, Lines, Next};
use crate::interrupt::Interrupt;
use crate::options::{ModelOption, RowOptions, SEED, SchedulingOptions, sampling};
use crate::output::{count, print_json, say_report, thousands};
use crate::page_file::PageFileOptions;
use crate::require;
use progress::BatchProgress;
use report::{Counters, Pages, Report, Timings};
use request::Request;
use results::{Outcome, Results, Tokens};

/// Requests that wait for a place, at most: the next lines are read when one of them runs.
const MOST_WAITING: usize = 4096;
/// What it runs: the pool, its tables and slab, forks, the prefix cache, the scheduler.
const CHAPTERS: [usize; 6] = [4, 5, 6, 10, 11, 12];

/// Continue many prompts from a file, as many at a time as there is memory for
///
/// Reads one JSON object a line, with a prompt and, if you like, how to go on:
///
///   {"prompt": "Once upon a time", "max_new_tokens": 100, "temperature": 0.8, "top_k": 0, "top_p": 0.95, "seed": 7}
///
/// What a line leaves out is as in `generate`, and each output is the one that `generate` writes. The scheduler shares a pool
/// of pages among the requests: what some have in common is computed once, and a request that gets no page waits for one.
///
/// Writes one JSON object a line, in the order of the lines read: the output, why it ended, what it has cost. A line that
/// is refused has its reason there, and the others go on. Ctrl-C ends the run after the step under way; what is done is
/// kept. A second Ctrl-C ends it at once.
#[derive(Args)]
#[command(after_help = "\
Examples:
  page-by-page batch prompts.jsonl
  page-by-page batch prompts.jsonl --out outputs.jsonl --pages 64 --budget 128
  page-by-page batch prompts.jsonl --page-file prompts.pages --pages 64
  echo '{\"prompt\": \"The king had\", \"seed\": 7}' | page-by-page batch -

The exit code is 0 if all requests were completed, and 1 if any was not.")]
pub struct Batch {
    /// A file with one JSON object a line, - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    model: ModelOption,
    #[command(flatten)]
    scheduling: SchedulingOptions,
    #[command(flatten)]
    rows: RowOptions,
    #[command(flatten)]
    page_file: PageFileOptions,
    /// Write the results to this file, in place of what is in it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object instead, when all is done: the texts, and what they cost together
    #[arg(long, conflicts_with = "out")]
    json: bool,
}

/// A request that was taken in.
struct Taken {
    place: usize,
    line: usize,
    prompt: String,
    sampling: Sampling,
    /// When its line was read.
    start: Instant,
    steps_before: u64,
    first: Option<First>,
    last: Instant,
}

/// A request whose pages are being read.
struct Held {
    /// What its pages come with.
    ticket: u64,
    place: usize,
    line: usize,
    request: Request,
    /// When its line was read.
    start: Instant,
}

/// The first token of an output.
struct First {
    at: Instant,
    /// From when its line was read.
    steps: u64,
}

/// What a run has to do with.
struct Run<'m> {
    model: &'m Model,
    tokenizer: &'m Tokenizer,
    serving: Serving<'m>,
    /// Pages beyond those of memory.
    tier: Option<Tier>,
    /// Requests whose pages are being read, in the order in which they were asked for.
    held: VecDeque<Held>,
    lines: Lines,
    /// A file gives its next line at once; standard input may take its time.
    is_file: bool,
    /// Whether all lines are read.
    is_read: bool,
    /// Lines so far that are not empty.
    n_lines: usize,
    taken: HashMap<SequenceId, Taken>,
    results: Results,
    progress: BatchProgress,
}

impl Batch {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        require::chapters(&CHAPTERS)?;
        let lines = self.lines()?;
        let (model, tokenizer) = self.model.open(self.rows, CacheKind::Paged)?;
        let slab = self.scheduling.slab(&model)?;
        require::chapters(self.page_file.chapters())?;
        let prefixes = self.scheduling.pool.prefixes()?;
        let (prefixes, tier) = self.page_file.open(prefixes, &model, self.scheduling.pool.page_size, &slab)?;
        let serving = Serving::new(&model, &slab, prefixes, self.scheduling.limits(), &model.config().eos_token_ids)?;
        let results = match &self.out {
            Some(out) => Results::to_file(out, &self.file)?,
            None if self.json => Results::kept(),
            None => Results::to_stdout(),
        };
        let interrupt = Interrupt::watch().context("Ctrl-C cannot be watched for")?;
        let mut run = Run {
            model: &model,
            tokenizer: &tokenizer,
            serving,
            tier,
            held: VecDeque::new(),
            lines,
            is_file: self.file.as_os_str() != "-",
            is_read: false,
            n_lines: 0,
            taken: HashMap::new(),
            results,
            progress: BatchProgress::new(),
        };
        run.tell_all(self.scheduling.running.min(MOST_WAITING), &interrupt)?;
        self.report(run)
    }

    /// The lines of the file, or of standard input if it is `-`.
    fn lines(&self) -> Result<Lines> {
        if self.file.as_os_str() == "-" {
            return Ok(Lines::of(io::stdin())?);
        }
        let open = files::open(&self.file).with_context(|| {
            format!("{}: name a file with one JSON object a line, or - for standard input", self.file.display())
        })?;
        Ok(Lines::of(open)?)
    }

    /// Says what the requests cost together; an error if any of them was not completed.
    fn report(&self, run: Run<'_>) -> Result<()> {
        let Run { serving, tier, is_read, n_lines, results, progress, .. } = run;
        let is_stdin = self.file.as_os_str() == "-";
        if is_read && n_lines == 0 {
            let name = if is_stdin { "standard input".into() } else { self.file.display().to_string() };
            bail!(
                "{name}: there is no line; write one JSON object a line, such as {{\"prompt\": \"Once upon a time\"}}"
            );
        }
        let ends = results.ends.clone();
        let pool = &self.scheduling.pool;
        let kept = serving.scheduler().prefixes().n_pages();
        let pages = Pages::new(pool.page_size, pool.n_pages()?, kept, serving.totals());
        let report = Report {
            outputs: results.finish()?,
            model: self.model.name(),
            counters: Counters::from(serving.totals()),
            pages,
            page_file: self.page_file.report(tier.as_ref()),
            timings: Timings::new(progress.elapsed(), serving.totals()),
        };
        if self.json {
            print_json(&report)?;
        } else {
            let chapters = [&CHAPTERS[..], &self.rows.chapters(CacheKind::Paged), self.page_file.chapters()].concat();
            say_report(None, &report.lines(n_lines, &ends, !pool.no_prefix_cache, &chapters));
        }
        let incomplete: usize = ends.iter().filter(|(end, _)| !results::is_complete(end)).map(|(_, n)| n).sum();
        if !is_read {
            bail!(
                "interrupted: {} complete, {} not, and the lines after these were not read",
                count(n_lines - incomplete, "request"),
                thousands(incomplete)
            );
        }
        if incomplete > 0 {
            bail!("{} of {} not completed: the results say why", thousands(incomplete), count(n_lines, "request"));
        }
        Ok(())
    }
}

impl Run<'_> {
    /// Serves all requests, or those that are complete when Ctrl-C is pressed. `ahead`: requests that can wait.
    fn tell_all(&mut self, ahead: usize, interrupt: &Interrupt) -> Result<()> {
        loop {
            if !interrupt.is_asked() {
                self.read_lines(ahead, interrupt)?;
                self.begin_arrived()?;
            }
            if interrupt.is_asked() {
                self.progress.say("interrupted: what is done is kept; Ctrl-C again ends at once");
                while let Some(held) = self.held.pop_front() {
                    self.begin(held)?;
                }
                let cancelled = self.serving.cancel_all()?;
                return cancelled.into_iter().try_for_each(|told| self.end(told));
            }
            if self.is_read && self.held.is_empty() && self.serving.is_done() {
                return Ok(());
            }
            let step = self.serving.step()?;
            let (now, steps) = (Instant::now(), self.serving.totals().steps);
            for pick in step.new_tokens {
                if let Some(taken) = self.taken.get_mut(&pick.sequence) {
                    taken.first.get_or_insert(First { at: now, steps: steps - taken.steps_before });
                    taken.last = now;
                }
            }
            if let Some(tier) = &mut self.tier {
                tier.keep(self.serving.scheduler(), &step.generated)?;
            }
            step.generated.into_iter().try_for_each(|generated| self.end(generated))?;
            let (totals, open) = (self.serving.totals(), self.taken.len() + self.held.len());
            self.progress.show(self.n_lines - open, open, totals.new_tokens);
        }
    }

    /// Takes in as many lines as may wait, and are there.
    fn read_lines(&mut self, ahead: usize, interrupt: &Interrupt) -> Result<()> {
        let mut waiting = self.serving.scheduler().waiting().count() + self.held.len();
        while !self.is_read && waiting < ahead {
            // A sequence that could go on does not wait for a line of standard input.
            let wait = self.is_file || (self.held.is_empty() && self.serving.is_done());
            match self.lines.next(wait, interrupt)? {
                Next::Line(Line { text: Ok(text), .. }) if text.trim().is_empty() => {}
                Next::Line(line) => waiting += usize::from(self.take(line)?),
                Next::Nothing => return Ok(()),
                Next::End => self.is_read = true,
            }
        }
        Ok(())
    }

    /// Takes a line in, or notes why not; whether it waits now.
    fn take(&mut self, line: Line) -> Result<bool> {
        let (place, Line { number, text }) = (self.n_lines, line);
        self.n_lines += 1;
        let request = match text.and_then(|text| Request::read(&text)) {
            Ok(request) => request,
            Err(problem) => {
                let refused = Outcome::refused(number, None, format!("line {number}: {problem}"));
                return self.put(place, refused).map(|()| false);
            }
        };
        let mut held = Held { ticket: 0, place, line: number, request, start: Instant::now() };
        if let Some(tier) = &mut self.tier
            && let Ok(prompt) = self.tokenizer.encode(&held.request.prompt)
            && let Some(ticket) = tier.ask(&prompt)?
        {
            held.ticket = ticket;
            self.held.push_back(held);
            return Ok(true);
        }
        self.begin(held)
    }

    /// Hands over the requests whose pages have been read. If there is nothing else to do, waits for the first of them.
    fn begin_arrived(&mut self) -> Result<()> {
        let Some(tier) = &mut self.tier else { return Ok(()) };
        for ticket in tier.arrived(self.serving.is_done() && !self.held.is_empty())? {
            if self.held.front().is_some_and(|held| held.ticket == ticket)
                && let Some(held) = self.held.pop_front()
            {
                self.begin(held)?;
            }
        }
        Ok(())
    }

    /// Hands a request to the scheduler, or notes why not; whether it waits now.
    fn begin(&mut self, held: Held) -> Result<bool> {
        let Held { place, line, request, start, .. } = held;
        let prompt = request.prompt.clone();
        match self.submit(request) {
            Ok((text, sampling)) => {
                let steps_before = self.serving.totals().steps;
                let taken = Taken { place, line, prompt, sampling, start, steps_before, first: None, last: start };
                self.taken.insert(text, taken);
                Ok(true)
            }
            Err(problem) => {
                let refused = Outcome::refused(line, Some(prompt), format!("line {line}: {problem:#}"));
                self.put(place, refused).map(|()| false)
            }
        }
    }

    fn submit(&mut self, request: Request) -> Result<(SequenceId, Sampling)> {
        let Request { prompt, max_new_tokens, temperature, top_k, top_p, seed } = request;
        let config = self.model.config();
        let sampling = sampling(SamplingDefaults { temperature, top_k, top_p }, seed.unwrap_or(SEED), config)?;
        if sampling.temperature == 0.0 {
            // Greedy is `argmax`.
            require::chapters(&[1])?;
        }
        let prompt = self.tokenizer.encode(&prompt)?;
        let max_new_tokens = max_new_tokens.unwrap_or(MAX_NEW_TOKENS);
        // As `generate` does: what does not fit into the model's positions is not written.
        let room = config.max_positions.saturating_sub(prompt.len());
        let most = if room == 0 { 1 } else { max_new_tokens.min(room) };
        let text = self.serving.submit(prompt, most, Sampler::new(sampling))?;
        Ok((text, sampling))
    }

    /// Writes the result of a request.
    fn end(&mut self, generated: Generated) -> Result<()> {
        let Generated { sequence: text, end, held } = generated;
        let Some(taken) = self.taken.remove(&text.id) else { return Ok(()) };
        let (end, error) = match end {
            Ok(FinishReason::EndOfText) => ("stop", None),
            Ok(FinishReason::Limit) => ("length", None),
            Ok(FinishReason::Cancelled) => ("cancelled", None),
            Err(error) => ("failed", Some(format!("line {}: {error}", taken.line))),
        };
        let mut stream = self.tokenizer.stream();
        for token in text.new_tokens() {
            stream.push(*token)?;
        }
        stream.finish()?;
        let Taken { place, line, prompt, sampling, start, first, last, .. } = taken;
        let (n_new, counters) = (text.new_tokens().len(), text.counters);
        let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
        let Sampling { temperature, top_k, top_p, seed } = sampling;
        let outcome = Outcome {
            line,
            prompt: Some(prompt),
            text: Some(stream.text().into()),
            tokens: Some(Tokens { prompt: text.tokens[..text.n_prompt].into(), generated: text.new_tokens().into() }),
            finish_reason: end,
            error,
            sampling: Some(results::Sampling { temperature, top_k, top_p, seed }),
            counters: Some(results::Counters {
                prompt_tokens: text.n_prompt,
                generated_tokens: n_new,
                cached: counters.cached,
                cached_again: counters.cached_again,
                computed: counters.computed,
                recomputed: held.recomputed,
                preemptions: counters.preemptions,
                steps_to_first_token: first.as_ref().map(|first| first.steps),
            }),
            timings: Some(results::Timings {
                first_token_ms: first.as_ref().map(|first| ms(start, first.at)),
                ms_per_token: first.filter(|_| n_new > 1).map(|first| ms(first.at, last) / (n_new - 1) as f64),
            }),
        };
        self.put(place, outcome)
    }

    fn put(&mut self, place: usize, outcome: Outcome) -> Result<()> {
        let results = &mut self.results;
        self.progress.beside(|| results.put(place, outcome))
    }
}
