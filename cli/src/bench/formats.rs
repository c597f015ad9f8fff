//! `bench formats`: what rows in fewer bits save, and what the rounding does to a text.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use page_by_page::cache::CacheError;
use page_by_page::chapters::ch01_recompute::{argmax, generate};
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch14_half_the_bytes::token_bytes;
use page_by_page::decode::{Cached, Limits};
use page_by_page::files;
use page_by_page::kernels::RowFormat;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::model::{LogitRows, Model};

use super::{Benchmark, Report, Row, table};
use crate::output::{Object, Progress, count, thousands};
use crate::{model_dir, require};

/// Read a text and write stories with rows in each format, and compare with f32
///
/// The text is read once for each format. Its loss is how much its tokens surprise the model: the mean of -ln(probability) of
/// each token after the first. Then come the largest difference of a logit from that in f32, and after how many tokens of the
/// text another token is the likeliest. The stories are greedy; the table says how many are the same to the last token, and
/// the earliest new token that is not. Last, what fits into a pool of pages.
#[derive(Args)]
#[command(after_help = "\
Example:
  page-by-page bench formats
  page-by-page bench formats --pool-mib 1024 --text-tokens 4096 --model DIR")]
pub struct Formats {
    /// Model folder, or a bundled model
    #[arg(long, value_name = "DIR", default_value = "storyteller")]
    model: PathBuf,
    /// The text to read [default: a passage of Alice's Adventures in Wonderland]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// How each story begins
    #[arg(
        long,
        value_name = "TEXT",
        default_values = [
            "Once upon a time", "There was a king", "In a small house", "The youngest daughter",
            "An old woman", "The fox said", "Far away in the forest", "When the sun rose"
        ]
    )]
    prompts: Vec<String>,
    /// New tokens of each story
    #[arg(long, value_name = "N", default_value_t = 200)]
    max_new_tokens: usize,
    /// Memory of the pool
    #[arg(long, value_name = "MIB", default_value_t = 16)]
    pool_mib: usize,
    /// Tokens of each text in the pool
    #[arg(long, value_name = "N", default_value_t = 200)]
    text_tokens: usize,
    /// Slots in a page
    #[arg(long, value_name = "P", default_value_t = 16)]
    page_size: usize,
}

/// The text that is read by default.
const ALICE: &str = include_str!("../../../lab/golden/alice.txt");
/// A text to read, at most: its logits are all kept.
const MOST_BYTES: usize = 1 << 20;

/// What the model makes of text and stories in one format.
struct Answers {
    /// `[tokens, vocab_size]`
    logits: Vec<f32>,
    stories: Vec<Vec<u32>>,
}

impl Benchmark for Formats {
    fn run(self) -> Result<Report> {
        require::chapters(&[1, 3, 13, 14])?;
        ensure!(self.page_size > 0, CacheError::NoSlots);
        ensure!(self.text_tokens > 0, "texts of 0 tokens: give them at least one (--text-tokens)");
        let dir = model_dir(&self.model);
        let (mut model, tokenizer) = (Model::open(&dir)?, Tokenizer::open(&dir)?);
        let text = tokenizer.encode(&self.text()?)?;
        let prompts = self.prompts.iter().map(|prompt| tokenizer.encode(prompt)).collect::<Result<Vec<_>, _>>()?;
        self.check(&model, &text, &prompts)?;
        let progress = Progress::new("reading and writing", (RowFormat::ALL.len() * (1 + prompts.len())) as u64);
        let mut formats = Vec::new();
        let mut plain: Option<Answers> = None;
        for format in RowFormat::ALL {
            model.set_row_format(format);
            let answers = self.ask(&model, &text, &prompts, &progress)?;
            let of_f32 = plain.as_ref().unwrap_or(&answers);
            formats.push(self.compare(&model, &text, &answers, of_f32)?);
            plain.get_or_insert(answers);
        }
        drop(progress);
        let numbers = Object::default()
            .with("model", self.model.display().to_string())
            .with("tokens", text.len())
            .with("stories", prompts.len())
            .with("max_new_tokens", self.max_new_tokens)
            .with("pool_bytes", self.pool_bytes()?)
            .with("page_size", self.page_size)
            .with("text_tokens", self.text_tokens)
            .with("formats", &formats);
        Report::new(table(1, formats.len(), &formats), &numbers)
    }
}

impl Formats {
    /// Refuses what is too short to measure, or too long for the model or the memory.
    fn check(&self, model: &Model, text: &[u32], prompts: &[Vec<u32>]) -> Result<()> {
        ensure!(text.len() > 1, "the text has {}: give one of two at least", count(text.len(), "token"));
        model.check(text, 0)?;
        let what = format!("reading {} in each format", count(text.len(), "token"));
        let logits = text.len().saturating_mul(2 * size_of::<f32>() * model.config().vocab_size);
        let bytes = model.step_bytes(text.len(), text.len()).saturating_add(logits);
        require::memory(&what, bytes, "give a shorter text")?;
        for (prompt, tokens) in self.prompts.iter().zip(prompts) {
            ensure!(!tokens.is_empty(), "an empty prompt: give each story at least one word (--prompts)");
            let len = tokens.len().saturating_add(self.max_new_tokens);
            let most = model.config().max_positions;
            ensure!(
                len <= most,
                "{prompt:?} and {} new tokens are more than the model's {} positions; ask for fewer",
                thousands(self.max_new_tokens),
                thousands(most)
            );
        }
        Ok(())
    }

    fn text(&self) -> Result<String> {
        let Some(file) = &self.text else { return Ok(ALICE.into()) };
        let name = || file.display().to_string();
        let bytes = files::read(file, MOST_BYTES).with_context(name)?;
        String::from_utf8(bytes).with_context(name)
    }

    fn ask(&self, model: &Model, text: &[u32], prompts: &[Vec<u32>], progress: &Progress) -> Result<Answers> {
        let logits = model.forward(vec![model.chunk(text, None, LogitRows::All)?])?;
        progress.advance(1);
        let limits = Limits { max_new_tokens: self.max_new_tokens, end_of_text: &model.config().eos_token_ids };
        let mut stories = Vec::new();
        for prompt in prompts {
            let slots = prompt.len() + self.max_new_tokens;
            require::slots(model.kv_layout(), slots)?;
            let mut cache = ContiguousCache::new(model.kv_layout(), slots);
            let mut cached = Cached::in_place(model, &mut cache);
            stories.push(generate(&mut cached, prompt, limits, &mut argmax, &mut |_| ())?);
            progress.advance(1);
        }
        Ok(Answers { logits, stories })
    }

    fn compare(&self, model: &Model, text: &[u32], answers: &Answers, of_f32: &Answers) -> Result<Row> {
        let vocab = model.config().vocab_size;
        let rows = || answers.logits.chunks_exact(vocab).zip(of_f32.logits.chunks_exact(vocab));
        let differences = answers.logits.iter().zip(&of_f32.logits).map(|(a, b)| (a - b).abs());
        let first_differences: Vec<Option<usize>> =
            answers.stories.iter().zip(&of_f32.stories).map(|(story, plain)| first_difference(story, plain)).collect();
        let bytes_a_token = token_bytes(model.row_format(), model.config().kv_layout());
        let pages = self.pool_bytes()? / bytes_a_token.saturating_mul(self.page_size);
        let argmax_flips = rows().filter(|(row, plain)| argmax(row) != argmax(plain)).count();
        let largest_difference = differences.fold(0.0, f32::max);
        let loss_of = |answers: &Answers| loss(&answers.logits, text, vocab);
        let (loss, above_f32) = (loss_of(answers), loss_of(answers) - loss_of(of_f32));
        let unchanged = first_differences.iter().filter(|first| first.is_none()).count();
        let first = first_differences.iter().flatten().min();
        Ok(Row::default()
            .number("format", model.row_format().name())
            .cell("rows", model.row_format().name())
            .count("bytes_a_token", "bytes a token", bytes_a_token)
            // Nats a token.
            .number("loss", loss)
            .cell("loss", format!("{loss:.5}"))
            .number("loss_above_f32", above_f32)
            .cell("above f32", format!("{above_f32:+.5}"))
            .number("largest_logit_difference", largest_difference)
            .cell("logit off by", format!("{largest_difference:.4}"))
            // Positions after which a different token is the likeliest.
            .number("argmax_flips", argmax_flips)
            .cell("other likeliest", format!("{} of {}", thousands(argmax_flips), thousands(text.len())))
            .number("stories_unchanged", unchanged)
            .cell("stories same", format!("{unchanged} of {}", answers.stories.len()))
            // For each story, the first new token that differs, from 0; null if none does.
            .number("first_differences", &first_differences)
            .cell("first other", first.map_or("none".into(), |first| format!("token {}", thousands(*first))))
            .number("pages", pages)
            .count(
                "texts",
                &format!("texts in {} MiB", thousands(self.pool_mib)),
                pages / self.text_tokens.div_ceil(self.page_size),
            ))
    }

    fn pool_bytes(&self) -> Result<usize> {
        self.pool_mib
            .checked_mul(1 << 20)
            .context("a pool of more bytes than can be counted; give fewer with --pool-mib")
    }
}

/// The mean of -ln(probability) of each token after the first. `logits`: `[tokens, vocab]`.
fn loss(logits: &[f32], tokens: &[u32], vocab: usize) -> f64 {
    let mut sum = 0.0;
    for (row, next) in logits.chunks_exact(vocab).zip(&tokens[1..]) {
        let largest = f64::from(row.iter().copied().fold(f32::MIN, f32::max));
        let all: f64 = row.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
        sum += largest + all.ln() - f64::from(row[*next as usize]);
    }
    sum / (tokens.len() - 1) as f64
}

/// Where two stories part; the end of the shorter, if one is the beginning of the other.
fn first_difference(story: &[u32], other: &[u32]) -> Option<usize> {
    if story == other {
        return None;
    }
    Some(story.iter().zip(other).take_while(|(a, b)| a == b).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_is_the_mean_surprise_of_the_tokens_after_the_first() {
        // Four tokens: after the first all are equally likely, after the second one has e times the weight.
        let logits = [[0.0; 4], [1.0, 0.0, 0.0, 0.0], [900.0, 0.0, 0.0, 0.0]].concat();
        let e = 1.0_f64.exp();
        let expected = (4.0_f64.ln() + (e + 3.0).ln() - 1.0) / 2.0;
        assert!((loss(&logits, &[3, 2, 0], 4) - expected).abs() < 1e-12);
    }

    #[test]
    fn stories_part_at_the_first_other_token() {
        assert_eq!(first_difference(&[1, 2, 3], &[1, 2, 3]), None);
        assert_eq!(first_difference(&[1, 2, 3], &[1, 5, 3]), Some(1));
        assert_eq!(first_difference(&[1, 2], &[1, 2, 3]), Some(2));
    }
}
