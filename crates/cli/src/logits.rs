//! `logits`: the model's logits in full precision, to compare with other implementations.

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use crate::memory;
use crate::options::ModelOption;
use crate::output::{plural, print_json};

/// Print the logits after some tokens, as JSON
///
/// The numbers are 32-bit floats in the shortest form that reads back to the same bits. The model folder needs no
/// tokenizer.
#[derive(Args)]
#[command(after_help = "\
Example:
  cargo page logits --tokens 0,435,591 --model storyteller")]
pub struct Logits {
    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    #[command(flatten)]
    model: ModelOption,
    /// One array for each position, not only the last
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Answer<L: Serialize> {
    tokens: Vec<u32>,
    logits: L,
}

impl Logits {
    pub fn run(self) -> Result<()> {
        let model = self.model.open()?;
        let n_rows = if self.all { self.tokens.len() } else { 1 };
        model.validate(&self.tokens, 0)?;
        // As JSON, a number takes up to 16 bytes.
        let text = 16 * n_rows * model.config().vocab_size;
        let what = format!("computing {}", plural(self.tokens.len(), "token"));
        memory::ensure(&what, model.step_bytes(self.tokens.len(), n_rows) + text, "give fewer tokens")?;
        let logits = model.forward(vec![model.prepare_chunk(&self.tokens, None, n_rows)?])?;
        if !self.all {
            return print_json(&Answer { tokens: self.tokens, logits });
        }
        let logits: Vec<&[f32]> = logits.chunks(model.config().vocab_size).collect();
        print_json(&Answer { tokens: self.tokens, logits })
    }
}
