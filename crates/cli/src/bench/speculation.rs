//! `bench speculation`: when drafts pay, and why.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use page_by_page::cache_kind::{CacheKind, CacheSize};
use page_by_page::experiments::drafts::{Drafted, Drafts, Stories};
use page_by_page::experiments::{PAGE_SIZE, PROMPTS};
use page_by_page::generation::drafting::{AcceptRule, DraftSource};
use page_by_page::generation::sampler::SamplingParams;
use page_by_page::model::tokenizer::Tokenizer;
use serde_json::json;

use super::{Report, Row, numbers, table, turns};
use crate::drafts::{ACCEPT_RULES, DraftOptions};
use crate::memory;
use crate::model_dir;
use crate::options::{ModelOption, named, number};
use crate::output::percent;
use crate::requirements;

/// Generate the same sequences with drafts of several lengths, and compare that with generating them without
///
/// For each length: how many draft tokens are accepted (and, with `--accept sample`, how many are to be expected), how
/// many passes the target makes for each new token, what it takes to verify a draft and to make one, and the time. The
/// unit is a token's time without drafts, so passes per token × (verify + draft) = time. To verify includes choosing
/// tokens, to draft includes what brings the drafter's cache to the new ones. All of it is measured inside the runs,
/// because a pass by itself takes a different time. Runs of all lengths take turns, and the median of each counts.
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
    #[arg(long, value_name = "RULE", value_parser = named(ACCEPT_RULES), default_value = "match")]
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

impl SpeculationBench {
    pub fn run(self) -> Result<Report> {
        requirements::ensure_started(&[KV.chapters(), self.accept.chapters()].concat())?;
        SamplingParams { temperature: self.temperature, ..SamplingParams::DEFAULT }.validate()?;
        ensure!(self.max_new_tokens > 0, "sequences of 0 tokens: expected at least 1");
        let model = self.model.open()?;
        let tokenizer = Tokenizer::open(&model_dir(&self.model.dir))?;
        let prompts: Vec<Vec<u32>> =
            self.prompts.iter().map(|prompt| tokenizer.encode(prompt)).collect::<Result<_, _>>()?;
        for prompt in &prompts {
            model.validate(prompt, self.max_new_tokens)?;
        }
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) + self.max_new_tokens;
        memory::ensure_cache(KV, model.cache_layout(), CacheSize::for_tokens(longest, PAGE_SIZE)?)?;
        let draft_len = self.draft_lens.iter().copied().max().unwrap_or(0);
        let drafting = DraftOptions { drafter: Some(self.draft.clone()), draft_len, accept: self.accept };
        let source = drafting.open(&model, &tokenizer, self.model.weights, KV, longest, PAGE_SIZE)?;
        let mut source = source.context("nothing drafts: give --draft")?;
        let (new_tokens, temperature) = (self.max_new_tokens, self.temperature);
        let stories = Stories { target: &model, cache: KV, prompts: &prompts, new_tokens, temperature };
        let runs = self.runs(&stories, &mut source)?;
        let text = table(1, runs.len(), &runs);
        let draft = self.draft.display().to_string();
        let more = json!({ "draft": draft, "runs": numbers(runs) });
        Report::of_model(&self.model, text, more)
    }

    /// Generates the sequences with drafts of each length, in turns, and first of all without.
    fn runs(&self, stories: &Stories<'_>, source: &mut DraftSource) -> Result<Vec<Row>> {
        let lengths = [&[0], &self.draft_lens[..]].concat();
        let mut runs: Vec<Vec<(Duration, Drafted)>> = lengths.iter().map(|_| Vec::new()).collect();
        for _ in turns("generating", TURNS..TURNS, Duration::ZERO) {
            for (k, runs) in lengths.iter().zip(&mut runs) {
                let drafts = (*k > 0).then_some(Drafts { source, k: *k, accept: self.accept });
                let start = Instant::now();
                let drafted = stories.generate(drafts)?;
                runs.push((start.elapsed(), drafted));
            }
        }
        let median = |mut runs: Vec<(Duration, Drafted)>| {
            runs.sort_by_key(|(time, _)| *time);
            runs.swap_remove(TURNS / 2)
        };
        let runs: Vec<_> = runs.into_iter().map(median).collect();
        let alone = runs[0].0.as_secs_f64();
        let row = |(draft_len, (time, drafted)): (&usize, &(Duration, Drafted))| {
            let Drafted { counters, to_expect, drafting, .. } = drafted;
            let share = |share| if counters.drafted == 0 { String::new() } else { percent(share) };
            let (rate, to_expect) = (counters.acceptance_rate(), to_expect / counters.drafted.max(1) as f64);
            let passes = counters.target_passes_per_token();
            let [verify, draft, time] = [*time - *drafting, *drafting, *time].map(|time| time.as_secs_f64() / alone);
            let mut row = Row::default()
                .count("k", *draft_len)
                .cell("drafted", counters.drafted, counters.drafted.to_string())
                .cell("accepted", counters.accepted, counters.accepted.to_string())
                .cell("share", rate, share(rate));
            if self.accept == AcceptRule::Sample {
                row = row.cell("to expect", to_expect, share(to_expect));
            }
            let costs =
                [("passes per token", passes), ("verify", verify / passes), ("draft", draft / passes), ("time", time)];
            costs.into_iter().fold(row, |row, (heading, cost)| row.cell(heading, cost, format!("{cost:.2}")))
        };
        Ok(lengths.iter().zip(&runs).map(row).collect())
    }
}
