//! `bench speculation`: when guessing ahead pays, and why.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Args;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::chapters::ch09_chance::share_to_expect;
use page_by_page::decode::Limits;
use page_by_page::decode::drafting::{AcceptRule, DraftCounters, DraftSource};
use page_by_page::decode::generation::Generation;
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::model::{LogitRows, Model};
use serde::Serialize;

use super::{Output, median};
use crate::drafts::{DraftOptions, accept_rules};
use crate::output::{Progress, Table, print};
use crate::{model_dir, require};

/// Write the same texts with guesses of several lengths, and compare that with writing them without
///
/// First comes what a pass of the model costs that reads several tokens, as it must to check guesses, and what a pass of
/// the draft model costs. Then, for each length: how many guesses are kept (and, with `--accept sample`, how many of them
/// are to be expected), how many passes the model makes for each new token, and the time, as a share of the time without
/// guesses. Runs of all lengths take turns, and the median of each counts. Of passes the quickest counts: whatever else the
/// computer does can only slow a pass down.
#[derive(Args)]
#[command(after_help = "\
Examples:
  page-by-page bench speculation
  page-by-page bench speculation --temperature 0.8 --accept sample
  page-by-page bench speculation --draft prompt-lookup")]
pub struct Speculation {
    /// Who guesses: a model folder, storyteller-draft, or prompt-lookup
    #[arg(long, value_name = "DIR", default_value = "storyteller-draft")]
    draft: std::path::PathBuf,
    /// Model folder, or a bundled model: who checks the guesses
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    model: std::path::PathBuf,
    /// Which guesses are kept
    #[arg(long, value_name = "RULE", value_parser = accept_rules(), default_value = "match")]
    accept: AcceptRule,
    /// Below 1 safer, above 1 wilder, 0 always the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Tokens to guess ahead, separated by commas; 0 is without guesses
    #[arg(long, value_name = "K,…", value_delimiter = ',', default_value = "1,2,3,4,6,8")]
    draft_lens: Vec<usize>,
    /// How each text begins, one text for each
    #[arg(
        long,
        value_name = "TEXT",
        default_values = ["Once upon a time", "There was a king", "In a small house", "The youngest daughter"]
    )]
    prompts: Vec<String>,
    /// Tokens in each text
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_new_tokens: usize,
    /// The cache of both models: flat, contiguous or paged
    #[arg(long, value_name = "CACHE", default_value = "contiguous")]
    kv: CacheKind,
    #[command(flatten)]
    output: Output,
}

const TURNS: usize = 5;
const PAGE_SIZE: usize = 16;
/// Tokens that a pass reads behind a text of `BEHIND` tokens.
const PASSES: [usize; 6] = [1, 2, 3, 5, 7, 9];
const BEHIND: usize = 64;
/// Rounds of such passes: at least so many, and more as long as time is left.
const ROUNDS: usize = 15;
const MOST_ROUNDS: usize = 60;
const LONGEST: Duration = Duration::from_secs(2);

/// What was measured.
#[derive(Serialize)]
struct Numbers {
    model: String,
    draft: String,
    accept: AcceptRule,
    temperature: f32,
    #[serde(flatten)]
    passes: Passes,
    runs: Vec<Run>,
}

/// What passes cost, in passes of the model over one token.
#[derive(Serialize)]
struct Passes {
    /// Of the model, over so many tokens.
    passes: Vec<(usize, f64)>,
    /// Of the draft model, over one token.
    draft_pass: Option<f64>,
}

/// All texts with one length of guesses.
#[derive(Serialize)]
struct Run {
    draft_len: usize,
    #[serde(flatten)]
    guesses: DraftCounters,
    acceptance_rate: f64,
    /// The share of the guesses that the sample rule is to accept, by the probabilities of those that were looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_to_expect: Option<f64>,
    target_passes_per_token: f64,
    /// Of the time without guesses.
    share_of_time: f64,
}

impl Speculation {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        self.output.check()?;
        require::chapters(&[self.kv.chapters(), self.accept.chapters()].concat())?;
        self.sampling(0).check()?;
        ensure!(self.max_new_tokens > 0, "texts of 0 tokens: expected at least 1");
        let model = Model::open(&model_dir(&self.model))?;
        let tokenizer = Tokenizer::open(&model_dir(&self.model))?;
        let prompts: Vec<Vec<u32>> =
            self.prompts.iter().map(|prompt| tokenizer.encode(prompt)).collect::<Result<_, _>>()?;
        for prompt in &prompts {
            model.check(prompt, self.max_new_tokens)?;
        }
        let lengths: Vec<usize> = [&[0], &self.draft_lens[..]].concat();
        let progress = Progress::new("writing", (TURNS * lengths.len() * prompts.len()) as u64);
        let mut times = vec![Vec::new(); lengths.len()];
        let mut guesses = vec![DraftCounters::default(); lengths.len()];
        let mut to_expect = vec![0.0; lengths.len()];
        for _ in 0..TURNS {
            for (index, k) in lengths.iter().enumerate() {
                let mut time = Duration::ZERO;
                (guesses[index], to_expect[index]) = Default::default();
                for (seed, prompt) in prompts.iter().enumerate() {
                    let counters = (&mut guesses[index], &mut to_expect[index]);
                    time += self.write(&model, &tokenizer, prompt, seed as u64, *k, counters)?;
                    progress.advance(1);
                }
                times[index].push(time);
            }
        }
        drop(progress);
        let seconds: Vec<f64> = times.iter().map(|times| median(times)).collect();
        let runs = (0..lengths.len()).map(|run| Run {
            draft_len: lengths[run],
            guesses: guesses[run],
            acceptance_rate: guesses[run].acceptance_rate(),
            rate_to_expect: (self.accept == AcceptRule::Sample)
                .then(|| to_expect[run] / guesses[run].drafted.max(1) as f64),
            target_passes_per_token: guesses[run].target_passes_per_token(),
            share_of_time: seconds[run] / seconds[0],
        });
        let numbers = Numbers {
            model: self.model.display().to_string(),
            draft: self.draft.display().to_string(),
            accept: self.accept,
            temperature: self.temperature,
            passes: self.passes(&model, &tokenizer)?,
            runs: runs.collect(),
        };
        print(&render(&numbers))?;
        self.output.write(&numbers)
    }

    /// How all texts are drawn, each with its own seed.
    fn sampling(&self, seed: u64) -> Sampling {
        Sampling { temperature: self.temperature, top_k: 0, top_p: 0.95, seed }
    }

    fn guesser(&self, model: &Model, tokenizer: &Tokenizer, tokens: usize) -> Result<DraftSource> {
        let draft_len = self.draft_lens.iter().copied().max().unwrap_or(0);
        let drafting = DraftOptions { drafter: Some(self.draft.clone()), draft_len, accept: self.accept };
        match drafting.open(model, tokenizer, self.kv, tokens, PAGE_SIZE)? {
            Some(guesser) => Ok(guesser),
            None => bail!("nobody drafts: give --draft"),
        }
    }

    /// Writes one text; returns the time that it took. Counts the guesses, and how many the sample rule is to accept.
    fn write(
        &self,
        model: &Model,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        seed: u64,
        k: usize,
        (guesses, to_expect): (&mut DraftCounters, &mut f64),
    ) -> Result<Duration> {
        let sampling = self.sampling(seed);
        let tokens = prompt.len() + self.max_new_tokens;
        let mut cache = self.kv.cache(model.kv_layout(), CacheSize::for_tokens(tokens, PAGE_SIZE)?)?;
        let mut guesser = self.guesser(model, tokenizer, tokens)?;
        let mut sampler = Sampler::new(sampling);
        let limits = Limits { max_new_tokens: self.max_new_tokens, end_of_text: &[] };
        let writing = Generation { model, prompt, limits };
        let start = Instant::now();
        if k == 0 {
            let mut pick = |row: &[f32]| {
                guesses.count(&Default::default(), 1);
                sampler.pick(row)
            };
            writing.run(cache.as_deref_mut(), &mut pick, &mut |_| {})?;
            return Ok(start.elapsed());
        }
        guesser.work(self.accept, sampling, |drafter| {
            let mut accept = |draft: &_, rows: &[Vec<f32>]| {
                let mut seen = |p: &[f32], q: &[f32]| *to_expect += share_to_expect(p, q);
                let new_tokens = self.accept.judge(draft, rows, &mut sampler, &mut seen);
                guesses.count(draft, new_tokens.len());
                new_tokens
            };
            writing.run_with_drafts(cache.as_deref_mut(), drafter, k, &mut accept, &mut |_| {})
        })?;
        Ok(start.elapsed())
    }

    fn passes(&self, model: &Model, tokenizer: &Tokenizer) -> Result<Passes> {
        let most = BEHIND + PASSES[PASSES.len() - 1];
        let small = match self.guesser(model, tokenizer, most)? {
            DraftSource::Model { model, .. } => Some(model),
            DraftSource::Lookup(_) => None,
        };
        let mut cases: Vec<(&Model, usize)> = PASSES.iter().map(|n| (model, *n)).collect();
        cases.extend(small.as_ref().map(|small| (&**small, 1)));
        let mut seconds = vec![Vec::new(); cases.len()];
        let start = Instant::now();
        // Short passes are made more often: on a busy computer, few of them are left alone.
        for round in 0..MOST_ROUNDS {
            if round >= ROUNDS && start.elapsed() > LONGEST {
                break;
            }
            for ((model, n), seconds) in cases.iter().zip(&mut seconds) {
                let Some(mut cache) = self.kv.cache(model.kv_layout(), CacheSize::for_tokens(most, PAGE_SIZE)?)? else {
                    bail!("--kv recompute has no passes over a few tokens: use flat, contiguous or paged");
                };
                let tokens = vec![1; BEHIND + n];
                model.step(&tokens[..BEHIND], Some(cache.as_mut()))?;
                let start = Instant::now();
                model.forward(vec![model.chunk(&tokens[BEHIND..], Some(cache.as_mut()), LogitRows::All)?])?;
                seconds.push(start.elapsed());
            }
        }
        let seconds: Vec<f64> = seconds.iter().map(|times| fastest(times)).collect();
        let passes = PASSES.iter().zip(&seconds).map(|(n, time)| (*n, time / seconds[0])).collect();
        let draft_pass = small.is_some().then(|| seconds[PASSES.len()] / seconds[0]);
        Ok(Passes { passes, draft_pass })
    }
}

/// The least of some times, in seconds.
fn fastest(times: &[Duration]) -> f64 {
    times.iter().min().map_or(0.0, Duration::as_secs_f64)
}

fn render(numbers: &Numbers) -> String {
    let mut passes = Table::new(1, &["a pass over", "costs"]);
    for (n, cost) in &numbers.passes.passes {
        let tokens = if *n == 1 { "1 token".into() } else { format!("{n} tokens") };
        passes.line([tokens, format!("{cost:.2}")]);
    }
    if let Some(cost) = numbers.passes.draft_pass {
        passes.line(["1 token, draft model".into(), format!("{cost:.2}")]);
    }
    let sampled = numbers.accept == AcceptRule::Sample;
    let to_expect = sampled.then_some("to expect");
    let heading = ["k", "drafted", "accepted", "share"].into_iter().chain(to_expect);
    let mut runs = Table::new(1, &heading.chain(["passes per token", "time"]).collect::<Vec<_>>());
    for run in &numbers.runs {
        let Run { draft_len, guesses, target_passes_per_token, share_of_time, .. } = run;
        let share = |share: f64| if guesses.drafted == 0 { "".into() } else { format!("{:.1} %", 100.0 * share) };
        let shares = [Some(run.acceptance_rate), run.rate_to_expect].into_iter().flatten().map(share);
        let mut line = vec![draft_len.to_string(), guesses.drafted.to_string(), guesses.accepted.to_string()];
        line.extend(shares);
        line.extend([format!("{target_passes_per_token:.2}"), format!("{share_of_time:.2}")]);
        runs.line(line);
    }
    format!("{}\n{}", passes.render(), runs.render())
}
