//! The weights of a model: taken from its checkpoint, and copied into large pages.

use std::io;

use super::checkpoint::{Checkpoint, Weight};
use super::{Model, ModelConfig, large_pages};
use crate::cache::attention::AttentionBackend;
use crate::files::FileError;
use crate::kernels::{KvDtype, MatmulDtype, matmuls};

pub(super) struct Layer {
    pub(super) attention_norm: Vec<f32>,
    /// Queries, keys, values, output.
    pub(super) projections: [Projection; 4],
    pub(super) q_norm: Vec<f32>,
    pub(super) k_norm: Vec<f32>,
    pub(super) feed_forward_norm: Vec<f32>,
    /// Gate, up, down.
    pub(super) feed_forward: [Weight; 3],
}

pub(super) struct Projection {
    weight: Weight,
    pub(super) bias: Option<Vec<f32>>,
}

/// Projects the same rows several ways at once. `x`: `[n, inputs]`, each output: `[n, outputs]`.
pub(super) fn project(matmul_dtype: MatmulDtype, x: &[f32], projections: &mut [(&Projection, &mut Vec<f32>)]) {
    let outputs = projections.iter_mut().map(|(projection, out)| (projection.weight.matrix(), &mut out[..]));
    matmuls(matmul_dtype, x, &mut outputs.collect::<Vec<_>>());
    for (projection, out) in projections {
        if let Some(bias) = &projection.bias {
            for row in out.chunks_exact_mut(bias.len()) {
                add(row, bias);
            }
        }
    }
}

pub(super) fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

impl Model {
    /// A model of this shape, with the weights of this checkpoint. Each tensor is checked against the config.
    pub fn from_checkpoint(config: ModelConfig, checkpoint: &Checkpoint) -> Result<Self, FileError> {
        let hidden = config.hidden_size;
        let q_width = config.n_heads * config.head_dim;
        let kv_width = config.kv_layout().kv_width();

        let embedding = checkpoint.weight("model.embed_tokens.weight", config.vocab_size, hidden)?;
        let layers = (0..config.n_layers)
            .map(|index| {
                let weight = |name: &str, rows, cols| {
                    checkpoint.weight(&format!("model.layers.{index}.{name}.weight"), rows, cols)
                };
                let vector = |name: &str, len| checkpoint.vector(&format!("model.layers.{index}.{name}.weight"), len);
                let projection = |name: &str, rows, cols| -> Result<Projection, FileError> {
                    let bias = format!("model.layers.{index}.{name}.bias");
                    Ok(Projection {
                        weight: weight(name, rows, cols)?,
                        bias: if config.attention_bias { Some(checkpoint.vector(&bias, rows)?) } else { None },
                    })
                };
                Ok(Layer {
                    attention_norm: vector("input_layernorm", hidden)?,
                    projections: [
                        projection("self_attn.q_proj", q_width, hidden)?,
                        projection("self_attn.k_proj", kv_width, hidden)?,
                        projection("self_attn.v_proj", kv_width, hidden)?,
                        projection("self_attn.o_proj", hidden, q_width)?,
                    ],
                    q_norm: vector("self_attn.q_norm", config.head_dim)?,
                    k_norm: vector("self_attn.k_norm", config.head_dim)?,
                    feed_forward_norm: vector("post_attention_layernorm", hidden)?,
                    feed_forward: [
                        weight("mlp.gate_proj", config.intermediate_size, hidden)?,
                        weight("mlp.up_proj", config.intermediate_size, hidden)?,
                        weight("mlp.down_proj", hidden, config.intermediate_size)?,
                    ],
                })
            })
            .collect::<Result<Vec<_>, FileError>>()?;
        let norm = checkpoint.vector("model.norm.weight", hidden)?;
        let output = if config.tie_word_embeddings {
            None
        } else {
            Some(checkpoint.weight("lm_head.weight", config.vocab_size, hidden)?)
        };
        let (mapped, attention) = (checkpoint.mapped.clone(), AttentionBackend::Gather);
        let (kv_dtype, matmul_dtype) = (KvDtype::F32, MatmulDtype::F32);
        Ok(Model { config, embedding, layers, norm, output, mapped, attention, kv_dtype, matmul_dtype })
    }

    /// The weights that a decode step reads from the first byte to the last, in the order in which it reads them.
    pub fn weights(&self) -> impl Iterator<Item = &Weight> {
        let layers = self
            .layers
            .iter()
            .flat_map(|layer| layer.projections.iter().map(|projection| &projection.weight).chain(&layer.feed_forward));
        layers.chain([self.output()])
    }

    pub(super) fn output(&self) -> &Weight {
        self.output.as_ref().unwrap_or(&self.embedding)
    }

    /// Moves the weights of [`weights`](Self::weights) out of their files, into memory for which large pages were
    /// asked. A step takes less time then, and gives the same bits. What becomes of the files no longer matters to
    /// these weights.
    ///
    /// # Errors
    /// What the system says if it has no room; the weights then stay where they are.
    pub fn copy_weights(&mut self) -> io::Result<()> {
        let copies = large_pages::copy(&self.weights().map(Weight::bytes).collect::<Vec<_>>())?;
        let layers = self.layers.iter_mut().flat_map(|layer| {
            let projections = layer.projections.iter_mut().map(|projection| &mut projection.weight);
            projections.chain(&mut layer.feed_forward)
        });
        let weights = layers.chain([self.output.as_mut().unwrap_or(&mut self.embedding)]);
        weights.zip(copies).for_each(|(weight, copy)| weight.move_to(copy));
        Ok(())
    }

    /// Bytes of [`weights`](Self::weights).
    pub fn weight_bytes(&self) -> usize {
        self.weights().map(|weight| weight.bytes().len()).sum()
    }

    /// How many of these bytes lie in large pages now; `None` where the system does not say.
    pub fn weight_bytes_in_large_pages(&self) -> Option<usize> {
        large_pages::in_large_pages(self.weights().map(Weight::bytes))
    }
}
