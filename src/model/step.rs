//! A step: the new tokens of some sequences are computed, their rows go to the caches, and the logits come out.

use super::rope::Rotation;
use super::weights::{add, project};
use super::{Model, ModelConfig};
use crate::cache::attention::AttentionCache;
use crate::cache::{CacheError, KvLayout};
use crate::kernels::{matmul, matmuls, rms_norm, silu_times};

/// Why a step was refused. Nothing has changed, in the cache or elsewhere, unless it says so.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StepError {
    #[error("no tokens: a step needs at least one; give a prompt")]
    NoTokens,
    #[error("token id {token} is outside the vocabulary: ids go from 0 to {}", vocab_size - 1)]
    UnknownToken { token: u32, vocab_size: usize },
    #[error(
        "{len} tokens are more than the model's {max_positions} positions; shorten the prompt or ask for fewer tokens"
    )]
    TooLong { len: usize, max_positions: usize },
    #[error(
        "the logits after the newest {wanted} tokens were asked for, but the step has {tokens}; ask for at most \
         {tokens}"
    )]
    TooFewTokens { wanted: usize, tokens: usize },
    #[error("the cache holds rows of {found:?}, the model makes rows of {expected:?}")]
    WrongLayout { found: KvLayout, expected: KvLayout },
    /// The step was computed, and gave logits that no token can be chosen from. The caches of the step hold its tokens,
    /// and rows that are worth nothing: rewind them, or drop them.
    #[error(
        "the logits after position {position} (token id {token}) are not finite: on the way to them the numbers have \
         left the range of 32-bit floats; the weights are too large, or not those of this config.json"
    )]
    NotFinite { position: usize, token: u32 },
    #[error("the sequence was cancelled")]
    Cancelled,
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// The new tokens of one sequence, with room made for them in its cache.
///
/// [`Model::prepare_chunk`] makes it after checking everything that can be wrong before the numbers are known.
pub struct Chunk<'a> {
    pub(super) tokens: &'a [u32],
    start: usize,
    /// `None`: the tokens are the whole sequence, and their keys and values are forgotten after the step.
    pub(super) cache: Option<&'a mut dyn AttentionCache>,
    /// How many of the newest tokens are turned into logits.
    n_logits: usize,
}

impl Chunk<'_> {
    /// Position and id of each token that is turned into logits.
    fn wanted(&self) -> impl Iterator<Item = (usize, u32)> {
        (self.start..).zip(self.tokens.iter().copied()).skip(self.tokens.len() - self.n_logits)
    }
}

impl Model {
    /// Computes the next tokens of one sequence; returns the logits after the last of them, `[vocab_size]`. Without a
    /// cache, `tokens` is the whole sequence.
    ///
    /// # Errors
    /// [`StepError`]; the cache is then as it was, except for [`StepError::NotFinite`].
    pub fn step<'a>(
        &self,
        tokens: &'a [u32],
        cache: Option<&'a mut dyn AttentionCache>,
    ) -> Result<Vec<f32>, StepError> {
        self.forward(vec![self.prepare_chunk(tokens, cache, 1)?])
    }

    /// Checks a sequence's next tokens and makes room for them in its cache. Without one, they are the whole sequence.
    ///
    /// `n_logits`: how many of the newest tokens are turned into logits. One gives what follows the whole sequence,
    /// none is for a piece of a prompt that is not yet complete, and `tokens.len()` gives what follows each token.
    ///
    /// # Errors
    /// [`StepError`]; the cache is then as it was.
    pub fn prepare_chunk<'a>(
        &self,
        tokens: &'a [u32],
        mut cache: Option<&'a mut dyn AttentionCache>,
        n_logits: usize,
    ) -> Result<Chunk<'a>, StepError> {
        let start = cache.as_ref().map_or(0, |cache| cache.len());
        self.check_chunk(tokens, start, cache.as_deref().map(|cache| cache.layout()), n_logits)?;
        if let Some(cache) = &mut cache {
            cache.extend(tokens.len())?;
        }
        Ok(Chunk { tokens, start, cache, n_logits })
    }

    /// A chunk whose tokens are the newest that its cache holds, as a scheduler leaves them. Panics if it holds fewer.
    pub fn chunk_with_room<'a>(
        &self,
        tokens: &'a [u32],
        cache: &'a mut dyn AttentionCache,
        n_logits: usize,
    ) -> Result<Chunk<'a>, StepError> {
        let held = cache.len();
        assert!(tokens.len() <= held, "room is made for {} tokens, but {held} are held", tokens.len());
        let start = held - tokens.len();
        self.check_chunk(tokens, start, Some(cache.layout()), n_logits)?;
        Ok(Chunk { tokens, start, cache: Some(cache), n_logits })
    }

    /// Refuses a chunk for all reasons but a lack of room. `found`: the layout of its cache.
    fn check_chunk(
        &self,
        tokens: &[u32],
        start: usize,
        found: Option<KvLayout>,
        n_logits: usize,
    ) -> Result<(), StepError> {
        self.validate(tokens, start)?;
        if n_logits > tokens.len() {
            return Err(StepError::TooFewTokens { wanted: n_logits, tokens: tokens.len() });
        }
        let expected = self.cache_layout();
        match found.filter(|found| *found != expected) {
            Some(found) => Err(StepError::WrongLayout { found, expected }),
            None => Ok(()),
        }
    }

    /// Checks that `tokens` can follow `start` tokens: in the vocabulary, and within the model's positions.
    ///
    /// # Errors
    /// [`StepError::NoTokens`], [`StepError::UnknownToken`], [`StepError::TooLong`].
    pub fn validate(&self, tokens: &[u32], start: usize) -> Result<(), StepError> {
        let (vocab_size, max_positions) = (self.config.vocab_size, self.config.max_positions);
        if tokens.is_empty() {
            return Err(StepError::NoTokens);
        }
        if let Some(&token) = tokens.iter().find(|token| **token as usize >= vocab_size) {
            return Err(StepError::UnknownToken { token, vocab_size });
        }
        let len = start.saturating_add(tokens.len());
        if len > max_positions {
            return Err(StepError::TooLong { len, max_positions });
        }
        Ok(())
    }

    /// Bytes that [`forward`](Self::forward) takes on its way from `tokens` to `rows` of logits, about, without caches.
    pub fn step_bytes(&self, tokens: usize, rows: usize) -> usize {
        let ModelConfig { hidden_size, intermediate_size, head_dim, vocab_size, .. } = self.config;
        let (q_width, kv_width) = (self.config.n_heads * head_dim, self.config.kv_layout().kv_width());
        // Keys and values are made, and packed for attention. What a product takes in pairs is gone before what the next makes.
        let token = 3 * hidden_size + 2 * q_width + 4 * kv_width + 2 * intermediate_size + head_dim;
        let numbers = tokens.saturating_mul(token).saturating_add(rows.saturating_mul(hidden_size + vocab_size));
        numbers.saturating_mul(size_of::<f32>())
    }

    /// Computes all rows of a batch and fills the caches.
    ///
    /// Returns the logits of the rows that the chunks ask for, chunk after chunk: `[rows, vocab_size]`, all finite.
    ///
    /// # Errors
    /// [`StepError::NotFinite`].
    pub fn forward(&self, mut batch: Vec<Chunk<'_>>) -> Result<Vec<f32>, StepError> {
        let x = self.hidden_states(&mut batch);
        let logits = self.logits(&x, &wanted_rows(&batch));
        self.check_finite(&batch, 0, &logits)?;
        Ok(logits)
    }

    /// Computes a batch with many rows of logits, of which at most `at_once`, 1 or more, are in memory at the same
    /// time. `see` gets one after the other, in order, with its place. A row is `[vocab_size]`, and finite.
    ///
    /// # Errors
    /// [`StepError::NotFinite`]. Rows before that one may have been seen.
    pub fn forward_in_parts(
        &self,
        mut batch: Vec<Chunk<'_>>,
        at_once: usize,
        see: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), StepError> {
        let x = self.hidden_states(&mut batch);
        for (part, rows) in wanted_rows(&batch).chunks(at_once).enumerate() {
            let (first, logits) = (part * at_once, self.logits(&x, rows));
            self.check_finite(&batch, first, &logits)?;
            logits.chunks_exact(self.config.vocab_size).zip(first..).for_each(|(row, place)| see(place, row));
        }
        Ok(())
    }

    /// Computes all rows of a batch and fills the caches: `[tokens, hidden_size]`.
    fn hidden_states(&self, batch: &mut [Chunk<'_>]) -> Vec<f32> {
        let config = &self.config;
        let (hidden, head_dim) = (config.hidden_size, config.head_dim);
        let tokens: Vec<u32> = batch.iter().flat_map(|chunk| chunk.tokens).copied().collect();
        let positions: Vec<usize> =
            batch.iter().flat_map(|chunk| chunk.start..chunk.start + chunk.tokens.len()).collect();
        let rotation = Rotation::new(&positions, head_dim, config.rope_theta);

        let mut x = vec![0.0; tokens.len() * hidden];
        for (token, row) in tokens.iter().zip(x.chunks_exact_mut(hidden)) {
            self.embedding.matrix().read_row(*token as usize, row);
        }
        // Used again by each layer, because fresh memory costs time.
        let zeros = |width| vec![0.0; tokens.len() * width];
        let (q_width, kv_width) = (config.n_heads * head_dim, config.n_kv_heads * head_dim);
        let (mut normed, mut change) = (zeros(hidden), zeros(hidden));
        let (mut q, mut k, mut v) = (zeros(q_width), zeros(kv_width), zeros(kv_width));
        let mut attended = zeros(q_width);
        let (mut gate, mut up) = (zeros(config.intermediate_size), zeros(config.intermediate_size));
        for (index, layer) in self.layers.iter().enumerate() {
            self.norm_rows(&x, &layer.attention_norm, &mut normed);
            let [to_q, to_k, to_v, to_output] = &layer.projections;
            project(self.matmul_dtype, &normed, &mut [(to_q, &mut q), (to_k, &mut k), (to_v, &mut v)]);
            self.norm_and_rotate(&mut q, &layer.q_norm, &rotation);
            self.norm_and_rotate(&mut k, &layer.k_norm, &rotation);
            self.attend_chunks(index, batch, &q, &k, &v, &mut attended);
            project(self.matmul_dtype, &attended, &mut [(to_output, &mut change)]);
            add(&mut x, &change);

            self.norm_rows(&x, &layer.feed_forward_norm, &mut normed);
            let [to_gate, to_up, to_down] = &layer.feed_forward;
            matmuls(self.matmul_dtype, &normed, &mut [(to_gate.matrix(), &mut gate), (to_up.matrix(), &mut up)]);
            silu_times(&mut gate, &up);
            matmul(self.matmul_dtype, &gate, &to_down.matrix(), &mut change);
            add(&mut x, &change);
        }
        x
    }

    /// The logits of some rows of `x`: `[rows, vocab_size]`.
    fn logits(&self, x: &[f32], rows: &[usize]) -> Vec<f32> {
        let ModelConfig { hidden_size: hidden, vocab_size, rms_norm_eps, .. } = self.config;
        let mut wanted: Vec<f32> = rows.iter().flat_map(|row| &x[row * hidden..][..hidden]).copied().collect();
        rms_norm(&mut wanted, &self.norm, rms_norm_eps);
        let mut logits = vec![0.0; rows.len() * vocab_size];
        matmul(self.matmul_dtype, &wanted, &self.output().matrix(), &mut logits);
        logits
    }

    /// Refuses logits that no token can be chosen from. `first`: the place of the first row among the wanted ones.
    fn check_finite(&self, batch: &[Chunk<'_>], first: usize, logits: &[f32]) -> Result<(), StepError> {
        // No early end, so that several are looked at together.
        let finite = |row: &[f32]| row.iter().fold(true, |finite, logit| finite & logit.is_finite());
        match logits.chunks_exact(self.config.vocab_size).position(|row| !finite(row)) {
            Some(row) => {
                let (position, token) =
                    batch.iter().flat_map(Chunk::wanted).nth(first + row).expect("a row that was asked for");
                Err(StepError::NotFinite { position, token })
            }
            None => Ok(()),
        }
    }

    fn norm_rows(&self, x: &[f32], weight: &[f32], out: &mut [f32]) {
        out.copy_from_slice(x);
        rms_norm(out, weight, self.config.rms_norm_eps);
    }
}

fn wanted_rows(batch: &[Chunk<'_>]) -> Vec<usize> {
    let mut rows = Vec::new();
    let mut end = 0;
    for chunk in batch {
        end += chunk.tokens.len();
        rows.extend(end - chunk.n_logits..end);
    }
    rows
}
