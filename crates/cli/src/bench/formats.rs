//! `bench formats`: what rows in fewer bits save, and what the rounding does to a text.

use anyhow::Result;
use clap::Args;
use page_by_page::chapters::ch01_recompute::{argmax, generate};
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch14_kv_quantization::token_bytes;
use page_by_page::generation::logprobs::log_softmax;
use page_by_page::generation::{CachedModel, StopConditions};
use page_by_page::kernels::{KvDtype, MatmulDtype};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use serde_json::json;

use super::{PAGE_SIZE, Report, Row, numbers, table};
use crate::memory;
use crate::model_dir;
use crate::options::ModelOption;
use crate::output::{Progress, plural, thousands};
use crate::requirements;

/// Read a text and generate stories with rows in each format, and with products in 16 bits, and compare with f32
///
/// A passage of Alice's Adventures in Wonderland is read once for each. Its loss is how much its tokens surprise
/// the model: the mean of -ln(probability) of each token after the first. Then come the largest difference of a logit
/// from that in f32, and after how many tokens of the text another token is the likeliest. The stories are greedy, and
/// the table shows how many are the same to the last token, and the earliest new token that is not. Last, how many
/// sequences of 200 tokens fit into pages of 16 MiB.
#[derive(Args)]
#[command(after_help = "\
Example:
  cargo page bench formats
  cargo page bench formats --model DIR")]
pub struct FormatsBench {
    #[command(flatten)]
    model: ModelOption,
    /// New tokens of each story
    #[arg(long, value_name = "N", default_value_t = 200)]
    max_new_tokens: usize,
}

const PROMPTS: [&str; 8] = [
    "Once upon a time",
    "There was a king",
    "In a small house",
    "The youngest daughter",
    "An old woman",
    "The fox said",
    "Far away in the forest",
    "When the sun rose",
];
/// Bytes of the pool that the last column is about, and tokens of a sequence there.
const POOL: usize = 16 << 20;
const POOL_TOKENS: usize = 200;
const ALICE: &str = include_str!("../../../../lab/golden/alice.txt");

struct Answers {
    /// `[tokens, vocab_size]`
    logits: Vec<f32>,
    stories: Vec<Vec<u32>>,
}

impl FormatsBench {
    pub fn run(self) -> Result<Report> {
        requirements::ensure_started(&[1, 3, 13, 14])?;
        let mut model = self.model.open()?;
        let tokenizer = Tokenizer::open(&model_dir(&self.model.dir))?;
        let text = tokenizer.encode(ALICE)?;
        let prompts = PROMPTS.iter().map(|prompt| tokenizer.encode(prompt)).collect::<Result<Vec<_>, _>>()?;
        self.check(&model, &text, &prompts)?;
        // Last come rows in f32 that are made with products in 16 bits.
        let all = KvDtype::ALL.map(|dtype| (dtype, self.model.matmul_dtype)).into_iter();
        let all: Vec<_> = all.chain([(KvDtype::F32, MatmulDtype::Bf16)]).collect();
        let progress = Progress::new("reading and writing", (all.len() * (1 + prompts.len())) as u64);
        let mut formats = Vec::new();
        let mut plain: Option<Answers> = None;
        for (dtype, products) in all {
            (model.kv_dtype, model.matmul_dtype) = (dtype, products);
            let answers = self.answers(&model, &text, &prompts, &progress)?;
            let of_f32 = plain.as_ref().unwrap_or(&answers);
            formats.push(compare(&model, &text, &answers, of_f32));
            plain.get_or_insert(answers);
        }
        drop(progress);
        let text = table(2, formats.len(), &formats);
        Report::of_model(&self.model, text, json!({ "formats": numbers(formats) }))
    }

    /// Refuses what is too long for the model or the memory.
    fn check(&self, model: &Model, text: &[u32], prompts: &[Vec<u32>]) -> Result<()> {
        model.validate(text, 0)?;
        let what = format!("reading {} in each format", plural(text.len(), "token"));
        let logits = text.len().saturating_mul(2 * size_of::<f32>() * model.config().vocab_size);
        let bytes = model.step_bytes(text.len(), text.len()).saturating_add(logits);
        memory::ensure(&what, bytes, "take a smaller model")?;
        prompts.iter().try_for_each(|prompt| model.validate(prompt, self.max_new_tokens))?;
        Ok(())
    }

    fn answers(&self, model: &Model, text: &[u32], prompts: &[Vec<u32>], progress: &Progress) -> Result<Answers> {
        let logits = model.forward(vec![model.prepare_chunk(text, None, text.len())?])?;
        progress.advance(1);
        let stop = StopConditions { max_new_tokens: self.max_new_tokens, end_of_text: &model.config().eos_token_ids };
        let mut stories = Vec::new();
        for prompt in prompts {
            let slots = prompt.len() + self.max_new_tokens;
            memory::ensure_slots(model.cache_layout(), slots)?;
            let mut cache = ContiguousCache::new(model.cache_layout(), slots);
            let mut cached = CachedModel::new(model, &mut cache);
            stories.push(generate(&mut cached, prompt, stop, &mut argmax, &mut |_| ())?);
            progress.advance(1);
        }
        Ok(Answers { logits, stories })
    }
}

fn compare(model: &Model, text: &[u32], answers: &Answers, of_f32: &Answers) -> Row {
    let (config, dtype) = (model.config(), model.kv_dtype);
    let rows = || answers.logits.chunks_exact(config.vocab_size).zip(of_f32.logits.chunks_exact(config.vocab_size));
    let flips = rows().filter(|(row, plain)| argmax(row) != argmax(plain)).count();
    let largest = answers.logits.iter().zip(&of_f32.logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let [loss, plain_loss] = [answers, of_f32].map(|answers| loss(&answers.logits, text, config.vocab_size));
    let above = loss - plain_loss;
    let stories = answers.stories.iter().zip(&of_f32.stories);
    let differences: Vec<usize> = stories.filter_map(|(story, plain)| first_difference(story, plain)).collect();
    let same = answers.stories.len() - differences.len();
    let first = differences.iter().min();
    let bytes_a_token = token_bytes(dtype, config.kv_layout());
    let pages = POOL / (bytes_a_token * PAGE_SIZE);
    Row::default()
        .text("rows", dtype.name())
        .text("products", model.matmul_dtype.name())
        .count("bytes a token", bytes_a_token)
        .cell("loss", loss, format!("{loss:.5}"))
        .cell("above f32", above, format!("{above:+.5}"))
        .cell("logit off by", largest, format!("{largest:.4}"))
        .cell("other likeliest", flips, format!("{} of {}", thousands(flips), thousands(text.len())))
        .cell("stories same", same, format!("{same} of {}", answers.stories.len()))
        .cell("first other", first, first.map_or("none".into(), |first| format!("token {}", thousands(*first))))
        .count("sequences in 16 MiB", pages / POOL_TOKENS.div_ceil(PAGE_SIZE))
}

/// The mean of -ln(probability) of each token after the first. `logits`: `[tokens, vocab]`.
fn loss(logits: &[f32], tokens: &[u32], vocab: usize) -> f64 {
    let rows = logits.chunks_exact(vocab).zip(&tokens[1..]);
    let surprise = rows.map(|(row, next)| -f64::from(log_softmax(row)[*next as usize]));
    surprise.sum::<f64>() / (tokens.len() - 1) as f64
}

/// Where two stories part; the end of the shorter, if one is the beginning of the other.
fn first_difference(story: &[u32], other: &[u32]) -> Option<usize> {
    (story != other).then(|| story.iter().zip(other).take_while(|(a, b)| a == b).count())
}
