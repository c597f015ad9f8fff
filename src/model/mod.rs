//! Qwen3: tokens in, logits out.
//!
//! ```text
//!   tokens ─ embedding ─┬─ layer 0 ─ … ─ layer L-1 ─ norm ─ output ─ logits [vocab_size]
//!                       │
//!     a layer:  x += attention(norm(x))      q, k, v projections; norm and rotate q, k; k, v go to the cache
//!               x += feed_forward(norm(x))   silu(gate) * up, then down
//! ```
//!
//! The rows of a step meet only in attention, and only those of one sequence. So a step can carry any number of tokens
//! of any number of sequences: a *prefill* carries a prompt, a *decode* step one token, a batch several of either. A
//! row's result has the same bits in all of them.
//!
//! Architecture: [Qwen3 technical report, 2025](https://arxiv.org/abs/2505.09388); tensor names as Hugging Face
//! publishes them.

mod attention;
pub mod checkpoint;
mod config;
mod fingerprint;
mod large_pages;
mod rope;
pub mod sampling_params;
mod step;
pub mod tokenizer;
mod weights;

use std::path::Path;

use crate::cache::KvLayout;
use crate::cache::attention::AttentionBackend;
use crate::chapters::ch14_kv_quantization::packed;
use crate::files::FileError;
use crate::kernels::{KvDtype, MatmulDtype};
use crate::model::checkpoint::{Checkpoint, MappedFiles, Weight};

pub use config::ModelConfig;
pub use step::{Chunk, StepError};
use weights::Layer;

/// A Qwen3 model. Its weights lie in the checkpoint's files, until they are [copied](Model::copy_weights).
pub struct Model {
    config: ModelConfig,
    embedding: Weight,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// `None`: the embedding serves as output too.
    output: Option<Weight>,
    mapped: MappedFiles,
    /// How attention reads caches that let it choose; at first [`AttentionBackend::Gather`].
    pub attention: AttentionBackend,
    /// How the numbers of keys and values are stored; at first [`KvDtype::F32`].
    ///
    /// Begin with empty caches after a change. Most that hold rows are refused because their layout differs
    /// ([`StepError::WrongLayout`]), but `F16` and `Bf16` have the same layout.
    pub kv_dtype: KvDtype,
    /// How numbers are multiplied with weights in bf16; at first [`MatmulDtype::F32`]. Begin with empty caches after a change:
    /// rows of one never continue those of the other.
    pub matmul_dtype: MatmulDtype,
}

impl Model {
    /// Opens a model folder, checks every tensor against the config, and reads all weights once: all must be finite.
    pub fn open(dir: &Path) -> Result<Self, FileError> {
        Self::from_checkpoint(ModelConfig::open(dir)?, &Checkpoint::open(dir)?)
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn mapped(&self) -> &MappedFiles {
        &self.mapped
    }

    /// The shape of the rows that caches get: of numbers, or of the 32-bit words that these are packed into.
    pub fn cache_layout(&self) -> KvLayout {
        match self.kv_dtype {
            KvDtype::F32 => self.config.kv_layout(),
            dtype => packed(dtype, self.config.kv_layout()),
        }
    }
}
