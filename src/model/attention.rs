//! Attention in a step: the only place where rows meet, and the only one that knows caches.

use std::borrow::Cow;

use super::rope::Rotation;
use super::{Chunk, Model};
use crate::cache::attention::{AttentionBackend, F32Heads, Rows, SequenceRows};
use crate::chapters::ch13_paged_attention::attend_batch;
use crate::chapters::ch14_kv_quantization::{PackedHeads, encode_rows};
use crate::kernels::{KvDtype, attend, rms_norm};

impl Model {
    /// Norms every head of every row and rotates it by its token's position.
    pub(super) fn norm_and_rotate(&self, x: &mut [f32], norm: &[f32], rotation: &Rotation) {
        rms_norm(x, norm, self.config.rms_norm_eps);
        let row_len = x.len() / rotation.tokens();
        for (token, row) in x.chunks_exact_mut(row_len).enumerate() {
            for head in row.chunks_exact_mut(self.config.head_dim) {
                rotation.rotate(token, head);
            }
        }
    }

    /// Attention of one layer. The new rows of all sequences are stored first; then all sequences are read, at once.
    pub(super) fn attend_chunks(
        &self,
        layer: usize,
        batch: &mut [Chunk<'_>],
        q: &[f32],
        k: &[f32],
        v: &[f32],
        out: &mut [f32],
    ) {
        let kv_width = self.config.kv_layout().kv_width();
        let mut first = 0;
        let mut new_rows = Vec::with_capacity(batch.len());
        for chunk in batch.iter_mut() {
            let numbers = first * kv_width..(first + chunk.tokens.len()) * kv_width;
            let (k, v) = (self.stored(&k[numbers.clone()]), self.stored(&v[numbers]));
            if let Some(cache) = &mut chunk.cache {
                cache.write(layer, &k, &v);
            }
            new_rows.push((k, v));
            first += chunk.tokens.len();
        }
        let rows = batch.iter().zip(new_rows).map(|(chunk, new_rows)| match &chunk.cache {
            Some(cache) => self.attention.rows(&**cache, layer),
            None => Rows::dense(new_rows, self.cache_layout()),
        });
        let rows: Vec<Rows<'_>> = rows.collect();
        let sequences = batch.iter().zip(&rows).map(|(chunk, rows)| rows.sequence_rows(chunk.tokens.len()));
        self.attend(&sequences.collect::<Vec<_>>(), q, out);
    }

    fn stored<'a>(&self, rows: &'a [f32]) -> Cow<'a, [f32]> {
        match self.kv_dtype {
            KvDtype::F32 => rows.into(),
            dtype => encode_rows(dtype, self.config.kv_layout(), rows).into(),
        }
    }

    fn attend(&self, sequences: &[SequenceRows<'_>], q: &[f32], out: &mut [f32]) {
        let heads = self.config.heads();
        let attended = match (self.attention, self.kv_dtype) {
            (AttentionBackend::Gather | AttentionBackend::Paged, dtype) => {
                attend(heads, dtype, sequences, q, out);
                Ok(())
            }
            (AttentionBackend::Loops, KvDtype::F32) => {
                attend_batch(heads, &mut F32Heads { head_dim: heads.head_dim }, sequences, q, out)
            }
            (AttentionBackend::Loops, dtype) => {
                attend_batch(heads, &mut PackedHeads::new(dtype, heads.head_dim), sequences, q, out)
            }
        };
        attended.unwrap_or_else(|error| panic!("attention refuses the model's own batch: {error}"));
    }
}
