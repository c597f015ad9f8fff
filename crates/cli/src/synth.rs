//! `synth`: a checkpoint of random weights in the shape of a real one, for benchmarks and tests without a download.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use half::bf16;
use page_by_page::cache::KvLayout;
use page_by_page::files;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;
use safetensors::{Dtype, View};
use serde_json::json;

use crate::memory;
use crate::model_dir;
use crate::options::named;
use crate::output::{mib, plural, say};

/// Write a checkpoint of random weights
///
/// It has the shape, the file format and the speed of the real model, but no tokenizer, so it is for `logits` and
/// `bench engine`, not for `generate`. The same seed writes the same bytes. Until all of it is
/// written, the folder has the name DIR.partial. If you stop it before, the next run for the same DIR removes what is
/// there.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo page synth --shape qwen3-0.6b --out /tmp/qwen3-0.6b
  cargo page synth --shape tiny --out /tmp/tiny")]
pub struct Synth {
    /// The model whose shape it takes
    #[arg(long, value_parser = named(SHAPES))]
    shape: Sizes,
    /// The folder to write, which must not exist yet or be empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Same seed, same weights
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
}

/// The numbers that distinguish one Qwen3 model from another. All of these tie the output to the embedding.
#[derive(Clone, Copy)]
pub struct Sizes {
    vocab: usize,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    positions: usize,
    rope_theta: f64,
    end_of_text: u32,
}

const QWEN3_SMALL: Sizes = Sizes {
    vocab: 151_936,
    hidden: 1024,
    intermediate: 3072,
    layers: 28,
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    positions: 40_960,
    rope_theta: 1e6,
    end_of_text: 151_645,
};

const STORYTELLER: Sizes = Sizes {
    vocab: 4096,
    hidden: 192,
    intermediate: 512,
    layers: 6,
    heads: 6,
    kv_heads: 2,
    head_dim: 32,
    positions: 1024,
    rope_theta: 1e4,
    end_of_text: 0,
};

const SHAPES: [(&str, Sizes); 4] = [
    ("tiny", Sizes { vocab: 256, hidden: 64, intermediate: 128, layers: 2, heads: 4, head_dim: 16, ..STORYTELLER }),
    ("storyteller-draft", Sizes { hidden: 96, intermediate: 256, layers: 2, heads: 3, kv_heads: 1, ..STORYTELLER }),
    ("storyteller", STORYTELLER),
    ("qwen3-0.6b", QWEN3_SMALL),
];

const BYTES: usize = 2;

pub fn shape(name: &str) -> &'static Sizes {
    &SHAPES.iter().find(|(other, _)| *other == name).expect("one of the shapes").1
}

impl Synth {
    pub fn run(self) -> Result<()> {
        let out = &self.out;
        if model_dir(out) != *out {
            bail!("{} is the name of a bundled model; write ./{} to mean a folder", out.display(), out.display());
        }
        if fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("{} is not empty; choose another folder, or empty this one", out.display());
        }
        if out.exists() && !out.is_dir() {
            bail!("{} is a file; choose a folder", out.display());
        }
        let tensors = self.shape.tensors(self.seed);
        let largest = tensors.iter().map(|tensor| tensor.len() * BYTES).max().unwrap_or(0);
        memory::ensure("the largest tensor", largest, "choose a smaller shape")?;
        let name = out.file_name().with_context(|| format!("{} is not a name for a new folder", out.display()))?;
        let partial = out.with_file_name(format!("{}.partial", name.to_string_lossy()));
        let at = || format!("cannot write {}", partial.display());
        fs::create_dir_all(&partial).with_context(at)?;
        let config =
            File::options().write(true).create(true).truncate(false).open(partial.join(CONFIG)).with_context(at)?;
        if config.try_lock().is_err() {
            bail!("{}: another program is writing there at the moment", partial.display());
        }
        let written = self.write(&partial, config, &tensors).with_context(at);
        written.inspect_err(|_| drop(fs::remove_dir_all(&partial)))?;
        let numbers: usize = tensors.iter().map(Tensor::len).sum();
        let (weights, tensors) = (plural(numbers, "weight"), plural(tensors.len(), "tensor"));
        say(&format!("wrote {}: {weights} in {tensors}, {}", out.display(), mib(numbers * BYTES)));
        Ok(())
    }

    /// Writes the weights and the config, after removing what a killed run has left, and gives the folder its name.
    fn write(&self, partial: &Path, mut config: File, tensors: &[Tensor]) -> Result<()> {
        for left in fs::read_dir(partial)? {
            let left = left?;
            if left.file_name() != CONFIG {
                fs::remove_file(left.path())?;
            }
        }
        config.set_len(0)?;
        config.write_all(format!("{:#}\n", self.shape.config()).as_bytes())?;
        let weights = partial.join("model.safetensors");
        let named = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor));
        safetensors::serialize_to_file(named, Some(HashMap::from([("format".into(), "pt".into())])), &weights)?;
        // The library writes a file that only its owner can read.
        fs::set_permissions(&weights, config.metadata()?.permissions())?;
        File::options().write(true).open(&weights)?.sync_all()?;
        config.sync_all()?;
        files::sync_folder(partial)?;
        // Not all systems rename a folder with an open file, or onto an empty folder.
        drop(config);
        let _ = fs::remove_dir(&self.out);
        fs::rename(partial, &self.out)?;
        Ok(files::sync_folder(files::folder_of(&self.out))?)
    }
}

/// Written first, and locked as long as this program writes. A program that is killed leaves it, but not the lock.
const CONFIG: &str = "config.json";

/// A tensor whose numbers are made when they are written, so that one at a time is in memory.
struct Tensor {
    name: String,
    shape: Vec<usize>,
    /// Its place among the tensors: which sets its random numbers apart from those of the others.
    index: usize,
    seed: u64,
}

impl Tensor {
    fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Sizes {
    pub fn weights(&self) -> usize {
        self.tensors(0).iter().map(Tensor::len).sum()
    }

    pub fn bytes(&self) -> usize {
        self.weights() * BYTES
    }

    pub fn layout(&self) -> KvLayout {
        KvLayout { n_layers: self.layers, n_kv_heads: self.kv_heads, head_dim: self.head_dim }
    }

    fn tensors(&self, seed: u64) -> Vec<Tensor> {
        let (hidden, q_width, kv_width) = (self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut tensors = Vec::new();
        let mut add = |name: String, shape: &[usize]| {
            tensors.push(Tensor { name: name + ".weight", shape: shape.into(), index: tensors.len(), seed });
        };
        add("model.embed_tokens".into(), &[self.vocab, hidden]);
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: &[usize]| add(format!("model.layers.{layer}.{name}"), shape);
            add("input_layernorm", &[hidden]);
            add("self_attn.q_proj", &[q_width, hidden]);
            add("self_attn.k_proj", &[kv_width, hidden]);
            add("self_attn.v_proj", &[kv_width, hidden]);
            add("self_attn.o_proj", &[hidden, q_width]);
            add("self_attn.q_norm", &[self.head_dim]);
            add("self_attn.k_norm", &[self.head_dim]);
            add("post_attention_layernorm", &[hidden]);
            add("mlp.gate_proj", &[self.intermediate, hidden]);
            add("mlp.up_proj", &[self.intermediate, hidden]);
            add("mlp.down_proj", &[hidden, self.intermediate]);
        }
        add("model.norm".into(), &[hidden]);
        tensors
    }

    /// `config.json` as transformers 5 writes it, with the names that transformers 4 reads beside them.
    fn config(&self) -> serde_json::Value {
        json!({
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": false,
            "dtype": "bfloat16",
            "eos_token_id": self.end_of_text,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.positions,
            "max_window_layers": self.layers,
            "model_type": "qwen3",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_parameters": { "rope_theta": self.rope_theta, "rope_type": "default" },
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": true,
            "torch_dtype": "bfloat16",
            "use_sliding_window": false,
            "vocab_size": self.vocab,
        })
    }
}

impl View for &Tensor {
    fn dtype(&self) -> Dtype {
        Dtype::BF16
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Uniform numbers with a standard deviation of 0.02, as models are initialised.
    fn data(&self) -> Cow<'_, [u8]> {
        const NUMBERS_PER_STREAM: usize = 1 << 16;
        // A norm multiplies.
        let mean = if self.shape.len() == 1 { 1.0 } else { 0.0 };
        let mut bytes = vec![0; self.data_len()];
        bytes.par_chunks_mut(NUMBERS_PER_STREAM * BYTES).enumerate().for_each(|(stream, bytes)| {
            let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
            rng.set_stream((self.index << 32 | stream) as u64);
            for bytes in bytes.chunks_exact_mut(BYTES) {
                let uniform = rng.next_u32() as f32 / u32::MAX as f32 * 2.0 - 1.0;
                let number = mean + uniform * 0.02 * 3f32.sqrt();
                bytes.copy_from_slice(&bf16::from_f32(number).to_le_bytes());
            }
        });
        bytes.into()
    }

    fn data_len(&self) -> usize {
        self.len() * BYTES
    }
}
