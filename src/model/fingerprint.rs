//! What distinguishes a model from all others of the same shape.

use crc32fast::Hasher;

use super::{Layer, Model, ModelConfig};
use crate::kernels::{ARITHMETIC_VERSION, MatmulDtype};

impl Model {
    /// A checksum (CRC-32) of everything that keys, values and logits depend on: the [arithmetic](ARITHMETIC_VERSION) and
    /// its [dtype of products](Self::matmul_dtype), the numbers of the config and the bytes of every weight.
    ///
    /// Reads all weights once. Leaves out what changes no row: when to stop, how to sample, the number of positions.
    pub fn fingerprint(&self) -> u32 {
        let mut sum = Hasher::new_with_initial(ARITHMETIC_VERSION);
        if self.matmul_dtype != MatmulDtype::F32 {
            sum.update(self.matmul_dtype.name().as_bytes());
        }
        // Taken apart by name: a new field does not compile until it is decided whether it belongs here.
        let ModelConfig {
            vocab_size,
            hidden_size,
            intermediate_size,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            rope_theta,
            rms_norm_eps,
            attention_bias,
            tie_word_embeddings,
            max_positions: _,
            eos_token_ids: _,
            sampling: _,
        } = &self.config;
        for size in [vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim] {
            sum.update(&(*size as u64).to_le_bytes());
        }
        sum.update(&[u8::from(*attention_bias), u8::from(*tie_word_embeddings)]);
        add_numbers(&mut sum, &[*rope_theta, *rms_norm_eps]);

        let input = self.output.as_ref().map(|_| &self.embedding);
        for weight in self.weights().chain(input) {
            sum.update(format!("{:?}", weight.dtype()).as_bytes());
            sum.update(weight.bytes());
        }
        add_numbers(&mut sum, &self.norm);
        for layer in &self.layers {
            let Layer { attention_norm, q_norm, k_norm, feed_forward_norm, projections, feed_forward: _ } = layer;
            let norms = [attention_norm, q_norm, k_norm, feed_forward_norm];
            let biases = projections.iter().filter_map(|projection| projection.bias.as_ref());
            norms.into_iter().chain(biases).for_each(|vector| add_numbers(&mut sum, vector));
        }
        sum.finalize()
    }
}

fn add_numbers(sum: &mut Hasher, numbers: &[f32]) {
    for number in numbers {
        sum.update(&number.to_le_bytes());
    }
}
