//! `bench speculation`: when guessing ahead pays, and why.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;
use page_by_page::cache::kind::{CacheKind, CacheSize};
use page_by_page::decode::drafting::{AcceptRule, DraftCounters, DraftSource};
use page_by_page::decode::sampler::Sampling;
use page_by_page::experiments::drafts::{Drafted, Drafts, Stories};
use page_by_page::experiments::{PAGE_SIZE, PROMPTS};
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::model::{LogitRows, Model};
use serde::Serialize;

use super::{Benchmark, Report, Times, turns};
use crate::drafts::{DraftOptions, accept_rules};
use crate::options::number;
use crate::output::{Object, Table};
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
    draft: PathBuf,
    /// Model folder, or a bundled model: who checks the guesses
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    model: PathBuf,
    /// Which guesses are kept
    #[arg(long, value_name = "RULE", value_parser = accept_rules(), default_value = "match")]
    accept: AcceptRule,
    /// Below 1 safer, above 1 wilder, 0 always the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true, value_parser = number)]
    temperature: f32,
    /// Tokens to guess ahead, separated by commas; 0 is without guesses
    #[arg(long, value_name = "K,…", value_delimiter = ',', default_value = "1,2,3,4,6,8")]
    draft_lens: Vec<usize>,
    /// How each text begins, one text for each
    #[arg(long, value_name = "TEXT", default_values = PROMPTS)]
    prompts: Vec<String>,
    /// Tokens in each text
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_new_tokens: usize,
    /// The cache of both models: flat, contiguous or paged
    #[arg(long, value_name = "CACHE", default_value = "contiguous")]
    kv: CacheKind,
}

const TURNS: usize = 5;
/// Tokens that a pass computes after `BEFORE` others.
const PASSES: [usize; 6] = [1, 2, 3, 5, 7, 9];
const BEFORE: usize = 64;
/// Rounds of such passes, at least and at most, and how long more than the least are made.
const ROUNDS: std::ops::Range<usize> = 15..60;
const PATIENCE: Duration = Duration::from_secs(2);

/// What passes cost, in passes of the model over one token.
struct Passes {
    /// Of the model, each over this many tokens.
    passes: Vec<(usize, f64)>,
    /// Of the draft model, over one token.
    draft_pass: Option<f64>,
}

/// All sequences with drafts of one length.
#[derive(Serialize)]
struct Run {
    draft_len: usize,
    #[serde(flatten)]
    drafts: DraftCounters,
    acceptance_rate: f64,
    /// The share of the draft tokens that the sample rule should accept.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_to_expect: Option<f64>,
    target_passes_per_token: f64,
    /// Of the time without drafts.
    share_of_time: f64,
}

impl Benchmark for Speculation {
    fn run(self) -> Result<Report> {
        require::chapters(&[self.kv.chapters(), self.accept.chapters()].concat())?;
        Sampling { temperature: self.temperature, top_k: 0, top_p: 0.95, seed: 0 }.check()?;
        ensure!(self.max_new_tokens > 0, "texts of 0 tokens: expected at least 1");
        ensure!(
            self.kv != CacheKind::Recompute,
            "--kv recompute has no passes over a few tokens: use flat, contiguous or paged"
        );
        let model = Model::open(&model_dir(&self.model))?;
        let tokenizer = Tokenizer::open(&model_dir(&self.model))?;
        let prompts: Vec<Vec<u32>> =
            self.prompts.iter().map(|prompt| tokenizer.encode(prompt)).collect::<Result<_, _>>()?;
        for prompt in &prompts {
            model.check(prompt, self.max_new_tokens)?;
        }
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) + self.max_new_tokens;
        require::cache(self.kv, model.kv_layout(), CacheSize::for_tokens(longest, PAGE_SIZE)?)?;
        let draft_len = self.draft_lens.iter().copied().max().unwrap_or(0);
        let drafting = DraftOptions { drafter: Some(self.draft.clone()), draft_len, accept: self.accept };
        let tokens = longest.max(BEFORE + 1);
        let Some(mut source) = drafting.open(&model, &tokenizer, self.kv, tokens, PAGE_SIZE)? else {
            bail!("nothing drafts: give --draft");
        };
        let (new_tokens, temperature) = (self.max_new_tokens, self.temperature);
        let stories = Stories { target: &model, cache: self.kv, prompts: &prompts, new_tokens, temperature };
        let runs = self.runs(&stories, &mut source)?;
        self.report(&self.passes(&model, &source)?, &runs)
    }
}

impl Speculation {
    /// Generates the sequences with drafts of each length, in turns, and first of all without.
    fn runs(&self, stories: &Stories<'_>, source: &mut DraftSource) -> Result<Vec<Run>> {
        let lengths = [&[0], &self.draft_lens[..]].concat();
        let mut runs: Vec<(Times, Drafted)> = lengths.iter().map(|_| Default::default()).collect();
        for _ in turns("writing", TURNS..TURNS, Duration::ZERO) {
            for (k, (times, drafted)) in lengths.iter().zip(&mut runs) {
                let drafts = (*k > 0).then_some(Drafts { source, k: *k, accept: self.accept });
                *drafted = times.of(|| stories.generate(drafts))?;
            }
        }
        let alone = runs[0].0.median();
        let run = |(draft_len, (times, drafted)): (&usize, &(Times, Drafted))| Run {
            draft_len: *draft_len,
            drafts: drafted.counters,
            acceptance_rate: drafted.counters.acceptance_rate(),
            rate_to_expect: (self.accept == AcceptRule::Sample)
                .then(|| drafted.to_expect / drafted.counters.drafted.max(1) as f64),
            target_passes_per_token: drafted.counters.target_passes_per_token(),
            share_of_time: times.median() / alone,
        };
        Ok(lengths.iter().zip(&runs).map(run).collect())
    }

    /// Passes over a few tokens after some others. The shortest time counts, and short passes are made often, because on a busy
    /// computer few of them are left alone.
    fn passes(&self, model: &Model, source: &DraftSource) -> Result<Passes> {
        let mut cases: Vec<(&Model, usize, Times)> = PASSES.map(|n| (model, n, Times::default())).into();
        if let DraftSource::Model { model, .. } = source {
            cases.push((model, 1, Times::default()));
        }
        for _ in turns("measuring", ROUNDS, PATIENCE) {
            for (model, n, times) in &mut cases {
                let tokens = vec![1; BEFORE + *n];
                let size = CacheSize::for_tokens(tokens.len(), PAGE_SIZE)?;
                let Some(mut cache) = self.kv.cache(model.kv_layout(), size)? else { bail!("a pass needs a cache") };
                model.step(&tokens[..BEFORE], Some(cache.as_mut()))?;
                let rest = &tokens[BEFORE..];
                times.of(|| model.forward(vec![model.chunk(rest, Some(cache.as_mut()), LogitRows::All)?]))?;
            }
        }
        let one = cases[0].2.best();
        let costs: Vec<(usize, f64)> = cases.iter().map(|(_, n, times)| (*n, times.best() / one)).collect();
        let (passes, of_draft) = costs.split_at(PASSES.len());
        Ok(Passes { passes: passes.to_vec(), draft_pass: of_draft.first().map(|(_, cost)| *cost) })
    }

    fn report(&self, Passes { passes, draft_pass }: &Passes, runs: &[Run]) -> Result<Report> {
        let mut costs = Table::new(1, &["a pass over", "costs"]);
        for (n, cost) in passes {
            let tokens = if *n == 1 { "1 token".into() } else { format!("{n} tokens") };
            costs.line([tokens, format!("{cost:.2}")]);
        }
        if let Some(cost) = draft_pass {
            costs.line(["1 token, draft model".into(), format!("{cost:.2}")]);
        }
        let to_expect = (self.accept == AcceptRule::Sample).then_some("to expect");
        let heading = ["k", "drafted", "accepted", "share"].into_iter().chain(to_expect);
        let mut table = Table::new(1, &heading.chain(["passes per token", "time"]).collect::<Vec<_>>());
        for Run { draft_len, drafts, acceptance_rate, rate_to_expect, target_passes_per_token, share_of_time } in runs {
            let share = |share: f64| if drafts.drafted == 0 { "".into() } else { format!("{:.1} %", 100.0 * share) };
            let mut line = vec![draft_len.to_string(), drafts.drafted.to_string(), drafts.accepted.to_string()];
            line.extend([Some(*acceptance_rate), *rate_to_expect].into_iter().flatten().map(share));
            line.extend([target_passes_per_token, share_of_time].map(|number| format!("{number:.2}")));
            table.line(line);
        }
        let numbers = Object::default()
            .with("model", self.model.display().to_string())
            .with("draft", self.draft.display().to_string())
            .with("accept", self.accept)
            .with("temperature", self.temperature)
            .with("passes", passes)
            .with("draft_pass", draft_pass)
            .with("runs", runs);
        Report::new(format!("{}\n{}", costs.render(), table.render()), &numbers)
    }
}
