//! `bench speculation`: when drafts pay, and why.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use page_by_page::cache_kind::{CacheKind, CacheSize};
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::experiments::drafts::{Drafted, Drafts, Stories};
use page_by_page::experiments::{PAGE_SIZE, PROMPTS};
use page_by_page::generation::drafting::{AcceptRule, DraftSource};
use page_by_page::generation::sampler::Sampling;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use serde_json::json;

use super::{Report, Row, Times, numbers, table, turns};
use crate::chapters;
use crate::drafts::{DraftOptions, accept_rules};
use crate::memory;
use crate::model_dir;
use crate::options::{ModelOption, number};
use crate::output::{count, percent};

/// Generate the same sequences with drafts of several lengths, and compare that with generating them without
///
/// First comes what the target's pass over several tokens costs, which checks a draft, and what a pass of the draft
/// model costs. Then, for each length, how many draft tokens are accepted (and, with `--accept sample`, how many are to
/// be expected), how many passes the target makes for each new token, and the time, as a share of the time without
/// drafts. Runs of all lengths take turns, and the median of each counts. Of passes the quickest counts, because
/// whatever else the computer does can only slow a pass down.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo page bench speculation
  cargo page bench speculation --temperature 0.8 --accept sample
  cargo page bench speculation --draft prompt-lookup")]
pub struct SpeculationBench {
    /// What drafts: a model folder, storyteller-draft, or prompt-lookup
    #[arg(long, value_name = "DIR", default_value = "storyteller-draft")]
    draft: PathBuf,
    #[command(flatten)]
    model: ModelOption,
    /// Which draft tokens are accepted
    #[arg(long, value_name = "RULE", value_parser = accept_rules(), default_value = "match")]
    accept: AcceptRule,
    /// Below 1 safer, above 1 wilder, 0 always the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.0, value_parser = number)]
    temperature: f32,
    /// Tokens of a draft, separated by commas; 0 is without drafts
    #[arg(long, value_name = "K,…", value_delimiter = ',', default_value = "1,2,3,4,6,8")]
    draft_lens: Vec<usize>,
    /// How each sequence begins, one sequence for each
    #[arg(long, value_name = "TEXT", default_values = PROMPTS)]
    prompts: Vec<String>,
    /// New tokens of each sequence
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_new_tokens: usize,
}

const KV: CacheKind = CacheKind::Contiguous;
const TURNS: usize = 5;
/// Tokens that a pass computes after `BEFORE` others.
const PASSES: [usize; 6] = [1, 2, 3, 5, 7, 9];
const BEFORE: usize = 64;
/// Rounds of such passes, at least and at most, and how long more than the least are made.
const ROUNDS: std::ops::Range<usize> = 15..60;
const PATIENCE: Duration = Duration::from_secs(2);

impl SpeculationBench {
    pub fn run(self) -> Result<Report> {
        chapters::ensure_started(&[KV.chapters(), self.accept.chapters()].concat())?;
        Sampling { temperature: self.temperature, top_k: 0, top_p: 0.95, seed: 0 }.check()?;
        ensure!(self.max_new_tokens > 0, "sequences of 0 tokens: expected at least 1");
        let model = self.model.open()?;
        let tokenizer = Tokenizer::open(&model_dir(&self.model.dir))?;
        let prompts: Vec<Vec<u32>> =
            self.prompts.iter().map(|prompt| tokenizer.encode(prompt)).collect::<Result<_, _>>()?;
        for prompt in &prompts {
            model.check(prompt, self.max_new_tokens)?;
        }
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) + self.max_new_tokens;
        memory::ensure_cache(KV, model.kv_layout(), CacheSize::for_tokens(longest, PAGE_SIZE)?)?;
        let draft_len = self.draft_lens.iter().copied().max().unwrap_or(0);
        let drafting = DraftOptions { drafter: Some(self.draft.clone()), draft_len, accept: self.accept };
        let tokens = longest.max(BEFORE + 1);
        let source = drafting.open(&model, &tokenizer, self.model.weights, KV, tokens, PAGE_SIZE)?;
        let mut source = source.context("nothing drafts: give --draft")?;
        let (new_tokens, temperature) = (self.max_new_tokens, self.temperature);
        let stories = Stories { target: &model, cache: KV, prompts: &prompts, new_tokens, temperature };
        let runs = self.runs(&stories, &mut source)?;
        let passes = passes(&model, &source)?;
        let text = format!("{}\n{}", table(1, passes.len(), &passes), table(1, runs.len(), &runs));
        let draft = self.draft.display().to_string();
        let more = json!({ "draft": draft, "passes": numbers(passes), "runs": numbers(runs) });
        Report::of_model(&self.model, text, more)
    }

    /// Generates the sequences with drafts of each length, in turns, and first of all without.
    fn runs(&self, stories: &Stories<'_>, source: &mut DraftSource) -> Result<Vec<Row>> {
        let lengths = [&[0], &self.draft_lens[..]].concat();
        let mut runs: Vec<(Times, Drafted)> = lengths.iter().map(|_| Default::default()).collect();
        for _ in turns("generating", TURNS..TURNS, Duration::ZERO) {
            for (k, (times, drafted)) in lengths.iter().zip(&mut runs) {
                let drafts = (*k > 0).then_some(Drafts { source, k: *k, accept: self.accept });
                *drafted = times.measure(|| stories.generate(drafts))?;
            }
        }
        let alone = runs[0].0.median();
        let row = |(draft_len, (times, Drafted { counters, to_expect, .. })): (&usize, &(Times, Drafted))| {
            let share = |share| if counters.drafted == 0 { String::new() } else { percent(share) };
            let (rate, to_expect) = (counters.acceptance_rate(), to_expect / counters.drafted.max(1) as f64);
            let (passes, time) = (counters.target_passes_per_token(), times.median() / alone);
            let mut row = Row::default()
                .count("k", *draft_len)
                .cell("drafted", counters.drafted, counters.drafted.to_string())
                .cell("accepted", counters.accepted, counters.accepted.to_string())
                .cell("share", rate, share(rate));
            if self.accept == AcceptRule::Sample {
                row = row.cell("to expect", to_expect, share(to_expect));
            }
            row.cell("passes per token", passes, format!("{passes:.2}")).cell("time", time, format!("{time:.2}"))
        };
        Ok(lengths.iter().zip(&runs).map(row).collect())
    }
}

/// Passes over a few tokens after some others, in passes over one token. The shortest time counts, and short passes are
/// made often, because on a busy computer few of them are left alone.
fn passes(model: &Model, source: &DraftSource) -> Result<Vec<Row>> {
    let mut cases: Vec<(&Model, usize, Times)> = PASSES.map(|n| (model, n, Times::default())).into();
    if let DraftSource::Model { model, .. } = source {
        cases.push((model, 1, Times::default()));
    }
    for _ in turns("measuring", ROUNDS, PATIENCE) {
        for (model, n, times) in &mut cases {
            let tokens = vec![1; BEFORE + *n];
            let mut cache = ContiguousCache::new(model.kv_layout(), tokens.len());
            let (before, rest) = tokens.split_at(BEFORE);
            model.step(before, Some(&mut cache))?;
            times.measure(|| model.forward(vec![model.chunk(rest, Some(&mut cache), rest.len())?]))?;
        }
    }
    let one = cases[0].2.best();
    let row = |(i, (_, n, times)): (usize, &(&Model, usize, Times))| {
        let whose = if i == PASSES.len() { ", draft model" } else { "" };
        let cost = times.best() / one;
        Row::default().text("a pass over", count(*n, "token") + whose).cell("costs", cost, format!("{cost:.2}"))
    };
    Ok(cases.iter().enumerate().map(row).collect())
}
