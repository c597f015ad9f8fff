//! Qwen3: tokens in, logits out.
//!
//! ```text
//!   tokens ─ embedding ─┬─ layer 0 ─ … ─ layer L-1 ─ norm ─ output ─ logits [vocab_size]
//!                       │
//!     a layer:  x += attention(norm(x))      q, k, v projections; norm and rotate q, k; k, v go to the cache
//!               x += feed_forward(norm(x))   silu(gate) * up, then down
//! ```
//!
//! The rows of a step meet only in attention, and only those of one sequence. So a step can carry any number of tokens of any
//! number of sequences: a *prefill* carries a prompt, a *decode* step one token, a batch several of either. A row's result has the
//! same bits in all of them.
//!
//! Architecture: [Qwen3 technical report, 2025](https://arxiv.org/abs/2505.09388); tensor names as Hugging Face
//! publishes them.

pub mod checkpoint;
mod chunk;
mod config;
mod fingerprint;
mod large_pages;
mod rope;
pub mod tokenizer;

use std::borrow::Cow;
use std::io;
use std::path::Path;

use crate::cache::in_place::{Attention, CacheRef, F32Heads, Rows, SequenceRows};
use crate::cache::{KvCache, KvLayout};
use crate::chapters::ch13_paged_attention::attend_batch;
use crate::chapters::ch14_half_the_bytes::{PackedHeads, encode_rows, packed};
use crate::files::FileError;
use crate::kernels::{RowFormat, attend, matmul, matmuls, rms_norm, silu_times};
use crate::model::checkpoint::{Checkpoint, Weight};

pub use chunk::{Chunk, LogitRows, StepError};
pub use config::{ModelConfig, SamplingDefaults};
use rope::Rotation;

/// A Qwen3 model. Its weights lie in the checkpoint's files, until they are [copied](Model::copy_weights).
pub struct Model {
    config: ModelConfig,
    embedding: Weight,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// `None`: the embedding serves as output too.
    output: Option<Weight>,
    attention: Attention,
    row_format: RowFormat,
}

struct Layer {
    attention_norm: Vec<f32>,
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    feed_forward_norm: Vec<f32>,
    gate: Weight,
    up: Weight,
    down: Weight,
}

/// A weight with an optional bias.
struct Projection {
    weight: Weight,
    bias: Option<Vec<f32>>,
}

/// Projects the same rows several ways at once. `x`: `[n, inputs]`, each output: `[n, outputs]`.
fn project(x: &[f32], projections: &mut [(&Projection, &mut Vec<f32>)]) {
    let products = projections.iter_mut().map(|(projection, out)| (projection.weight.matrix(), &mut out[..]));
    matmuls(x, &mut products.collect::<Vec<_>>());
    for (projection, out) in projections {
        if let Some(bias) = &projection.bias {
            for row in out.chunks_exact_mut(bias.len()) {
                add(row, bias);
            }
        }
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

impl Model {
    /// Opens a model folder and checks every tensor against the config. All weights are read once, to see that they are finite.
    pub fn open(dir: &Path) -> Result<Self, FileError> {
        Self::of(ModelConfig::open(dir)?, &Checkpoint::open(dir)?)
    }

    /// A model of this shape, with the weights of this checkpoint. Each tensor is checked against the config.
    pub fn of(config: ModelConfig, checkpoint: &Checkpoint) -> Result<Self, FileError> {
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
                    q: projection("self_attn.q_proj", q_width, hidden)?,
                    k: projection("self_attn.k_proj", kv_width, hidden)?,
                    v: projection("self_attn.v_proj", kv_width, hidden)?,
                    o: projection("self_attn.o_proj", hidden, q_width)?,
                    q_norm: vector("self_attn.q_norm", config.head_dim)?,
                    k_norm: vector("self_attn.k_norm", config.head_dim)?,
                    feed_forward_norm: vector("post_attention_layernorm", hidden)?,
                    gate: weight("mlp.gate_proj", config.intermediate_size, hidden)?,
                    up: weight("mlp.up_proj", config.intermediate_size, hidden)?,
                    down: weight("mlp.down_proj", hidden, config.intermediate_size)?,
                })
            })
            .collect::<Result<Vec<_>, FileError>>()?;
        let norm = checkpoint.vector("model.norm.weight", hidden)?;
        let output = if config.tie_word_embeddings {
            None
        } else {
            Some(checkpoint.weight("lm_head.weight", config.vocab_size, hidden)?)
        };
        Ok(Model { config, embedding, layers, norm, output, attention: Attention::Gather, row_format: RowFormat::F32 })
    }

    /// The model's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// How attention reads caches that let it choose; at first [`Attention::Gather`].
    pub fn set_attention(&mut self, attention: Attention) {
        self.attention = attention;
    }

    /// How attention reads caches that let it choose.
    pub fn attention(&self) -> Attention {
        self.attention
    }

    /// How the numbers of keys and values are stored; at first [`RowFormat::F32`].
    ///
    /// Begin with empty caches then. Most that hold rows are refused because their layout differs ([`StepError::WrongLayout`]),
    /// but `F16` and `Bf16` have the same layout.
    pub fn set_row_format(&mut self, format: RowFormat) {
        self.row_format = format;
    }

    /// How the numbers of keys and values are stored.
    pub fn row_format(&self) -> RowFormat {
        self.row_format
    }

    /// The shape of the rows that the model gives its caches: of numbers, or of the 32-bit words that they are packed into.
    pub fn kv_layout(&self) -> KvLayout {
        match self.row_format {
            RowFormat::F32 => self.config.kv_layout(),
            format => packed(format, self.config.kv_layout()),
        }
    }

    /// The weights that a decode step reads from the first byte to the last, in the order in which it reads them.
    pub fn weights(&self) -> impl Iterator<Item = &Weight> {
        let layers = self
            .layers
            .iter()
            .flat_map(|l| [&l.q.weight, &l.k.weight, &l.v.weight, &l.o.weight, &l.gate, &l.up, &l.down]);
        layers.chain([self.output.as_ref().unwrap_or(&self.embedding)])
    }

    /// Moves the weights of [`weights`](Self::weights) out of their files, into memory for which large pages were asked. A step
    /// takes less time then, and gives the same bits. What becomes of the files no longer matters to these weights.
    ///
    /// # Errors
    /// What the system says if it has no room; the weights then stay where they are.
    pub fn copy_weights(&mut self) -> io::Result<()> {
        let copies = large_pages::copy(&self.weights().map(Weight::bytes).collect::<Vec<_>>())?;
        let layers = self.layers.iter_mut().flat_map(|l| {
            [&mut l.q.weight, &mut l.k.weight, &mut l.v.weight, &mut l.o.weight, &mut l.gate, &mut l.up, &mut l.down]
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

    /// Checks the next tokens of a sequence and makes room for them in its cache. Without one, `tokens` is the whole sequence.
    ///
    /// # Errors
    /// [`StepError`]; the cache is then as it was.
    pub fn chunk<'a>(
        &self,
        tokens: &'a [u32],
        cache: Option<&'a mut dyn KvCache>,
        logits: LogitRows,
    ) -> Result<Chunk<'a>, StepError> {
        match cache {
            Some(cache) => self.chunk_of(tokens, CacheRef::Gather(cache), logits),
            None => self.checked(tokens, 0, None, logits),
        }
    }

    /// The same with a cache that says how it can be read.
    pub fn chunk_of<'a>(
        &self,
        tokens: &'a [u32],
        cache: CacheRef<'a>,
        logits: LogitRows,
    ) -> Result<Chunk<'a>, StepError> {
        let mut chunk = self.checked(tokens, cache.cache().len(), Some(cache), logits)?;
        if let Some(cache) = &mut chunk.cache {
            cache.cache_mut().extend(tokens.len())?;
        }
        Ok(chunk)
    }

    /// The same for tokens that their cache has made room for already: they are the newest that it holds. Panics if
    /// it holds fewer.
    pub fn chunk_with_room<'a>(
        &self,
        tokens: &'a [u32],
        cache: CacheRef<'a>,
        logits: LogitRows,
    ) -> Result<Chunk<'a>, StepError> {
        let held = cache.cache().len();
        assert!(tokens.len() <= held, "room is made for {} tokens, but {held} are held", tokens.len());
        self.checked(tokens, held - tokens.len(), Some(cache), logits)
    }

    /// A chunk in which all is right but a lack of room.
    fn checked<'a>(
        &self,
        tokens: &'a [u32],
        start: usize,
        cache: Option<CacheRef<'a>>,
        logits: LogitRows,
    ) -> Result<Chunk<'a>, StepError> {
        self.check(tokens, start)?;
        if let LogitRows::Newest(wanted) = logits
            && wanted > tokens.len()
        {
            return Err(StepError::TooFewTokens { wanted, tokens: tokens.len() });
        }
        let (found, expected) = (cache.as_ref().map(|cache| cache.cache().layout()), self.kv_layout());
        if let Some(found) = found.filter(|found| *found != expected) {
            return Err(StepError::WrongLayout { found, expected });
        }
        Ok(Chunk { tokens, start, cache, logits })
    }

    /// Checks that `tokens` can follow `start` tokens: in the vocabulary, and within the model's positions.
    ///
    /// # Errors
    /// [`StepError::NoTokens`], [`StepError::UnknownToken`], [`StepError::TooLong`].
    pub fn check(&self, tokens: &[u32], start: usize) -> Result<(), StepError> {
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

    /// Bytes that [`forward`](Self::forward) takes on its way from `tokens` to `rows` of logits, about, without the caches.
    pub fn step_bytes(&self, tokens: usize, rows: usize) -> usize {
        let ModelConfig { hidden_size, intermediate_size, head_dim, vocab_size, .. } = self.config;
        let (q_width, kv_width) = (self.config.n_heads * head_dim, self.config.kv_layout().kv_width());
        // Keys and values are made, and packed for attention.
        let token = 3 * hidden_size + 2 * q_width + 4 * kv_width + 2 * intermediate_size + head_dim;
        let numbers = tokens.saturating_mul(token).saturating_add(rows.saturating_mul(hidden_size + vocab_size));
        numbers.saturating_mul(size_of::<f32>())
    }

    /// Computes the next tokens of one sequence; returns the logits after the last of them, `[vocab_size]`. Without a cache,
    /// `tokens` is the whole sequence.
    ///
    /// # Errors
    /// [`StepError`]; the cache is then as it was, except for [`StepError::NotFinite`].
    pub fn step(&self, tokens: &[u32], cache: Option<&mut dyn KvCache>) -> Result<Vec<f32>, StepError> {
        match cache {
            None => self.forward(vec![self.chunk(tokens, None, LogitRows::Newest(1))?]),
            Some(cache) => self.forward(vec![self.chunk(tokens, Some(&mut *cache), LogitRows::Newest(1))?]),
        }
    }

    /// Computes all rows of a batch and fills the caches.
    ///
    /// Returns the logits of the rows that the chunks ask for, chunk after chunk: `[rows, vocab_size]`, all finite.
    ///
    /// # Errors
    /// [`StepError::NotFinite`].
    pub fn forward(&self, mut batch: Vec<Chunk<'_>>) -> Result<Vec<f32>, StepError> {
        let x = self.read(&mut batch);
        let logits = self.logits(&x, &wanted_rows(&batch));
        self.check_finite(&batch, 0, &logits)?;
        Ok(logits)
    }

    /// The same for many rows of logits, of which at most `at_once`, 1 or more, are in memory at the same time. `see` gets one
    /// after the other, in order, with its place. A row is `[vocab_size]`, and finite.
    ///
    /// # Errors
    /// [`StepError::NotFinite`]. Rows before that one may have been seen.
    pub fn forward_in_parts(
        &self,
        mut batch: Vec<Chunk<'_>>,
        at_once: usize,
        see: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), StepError> {
        let x = self.read(&mut batch);
        for (part, rows) in wanted_rows(&batch).chunks(at_once).enumerate() {
            let (first, logits) = (part * at_once, self.logits(&x, rows));
            self.check_finite(&batch, first, &logits)?;
            logits.chunks_exact(self.config.vocab_size).zip(first..).for_each(|(row, place)| see(place, row));
        }
        Ok(())
    }

    /// Computes all rows of a batch and fills the caches: `[tokens, hidden_size]`.
    fn read(&self, batch: &mut [Chunk<'_>]) -> Vec<f32> {
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
            project(&normed, &mut [(&layer.q, &mut q), (&layer.k, &mut k), (&layer.v, &mut v)]);
            self.norm_and_turn(&mut q, &layer.q_norm, &rotation);
            self.norm_and_turn(&mut k, &layer.k_norm, &rotation);
            self.attend_chunks(index, batch, &q, &k, &v, &mut attended);
            project(&attended, &mut [(&layer.o, &mut change)]);
            add(&mut x, &change);

            self.norm_rows(&x, &layer.feed_forward_norm, &mut normed);
            matmuls(&normed, &mut [(layer.gate.matrix(), &mut gate), (layer.up.matrix(), &mut up)]);
            silu_times(&mut gate, &up);
            matmul(&gate, &layer.down.matrix(), &mut change);
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
        matmul(&wanted, &self.output.as_ref().unwrap_or(&self.embedding).matrix(), &mut logits);
        logits
    }

    /// Refuses logits that no token can be chosen from. `first`: the place of the first row among those that are wanted.
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

    /// Norms every head of every row and turns it to its token's position.
    fn norm_and_turn(&self, x: &mut [f32], norm: &[f32], rotation: &Rotation) {
        rms_norm(x, norm, self.config.rms_norm_eps);
        let row_len = x.len() / rotation.tokens();
        for (token, row) in x.chunks_exact_mut(row_len).enumerate() {
            for head in row.chunks_exact_mut(self.config.head_dim) {
                rotation.turn(token, head);
            }
        }
    }

    /// Attention of one layer: the only place where rows meet, and the only one that knows caches. The new rows of all
    /// sequences are stored first; then all sequences are read, at once.
    fn attend_chunks(&self, layer: usize, batch: &mut [Chunk<'_>], q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]) {
        let kv_width = self.config.kv_layout().kv_width();
        let mut rows = Vec::with_capacity(batch.len());
        let mut first = 0;
        for chunk in batch.iter_mut() {
            let numbers = first * kv_width..(first + chunk.tokens.len()) * kv_width;
            let (k, v) = (self.stored(&k[numbers.clone()]), self.stored(&v[numbers]));
            match &mut chunk.cache {
                None => rows.push(Some(Rows::dense((k, v), self.kv_layout()))),
                Some(cache) => {
                    cache.cache_mut().write(layer, &k, &v);
                    rows.push(None);
                }
            }
            first += chunk.tokens.len();
        }
        for (chunk, rows) in batch.iter().zip(&mut rows) {
            if let Some(cache) = &chunk.cache {
                *rows = Some(cache.rows(layer, self.attention));
            }
        }
        let sequences =
            batch.iter().zip(&rows).filter_map(|(chunk, rows)| Some(rows.as_ref()?.of_sequence(chunk.tokens.len())));
        self.attend(&sequences.collect::<Vec<_>>(), q, out);
    }

    /// Rows as they are stored.
    fn stored<'a>(&self, rows: &'a [f32]) -> Cow<'a, [f32]> {
        match self.row_format {
            RowFormat::F32 => rows.into(),
            format => encode_rows(format, self.config.kv_layout(), rows).into(),
        }
    }

    fn attend(&self, sequences: &[SequenceRows<'_>], q: &[f32], out: &mut [f32]) {
        let heads = self.config.heads();
        let attended = match (self.attention, self.row_format) {
            (Attention::Gather | Attention::Paged, format) => {
                attend(heads, format, sequences, q, out);
                Ok(())
            }
            (Attention::Plain, RowFormat::F32) => {
                attend_batch(heads, &mut F32Heads { head_dim: heads.head_dim }, sequences, q, out)
            }
            (Attention::Plain, format) => {
                attend_batch(heads, &mut PackedHeads::new(format, heads.head_dim), sequences, q, out)
            }
        };
        attended.unwrap_or_else(|error| panic!("attention refuses the model's own batch: {error}"));
    }
}

/// The rows of a batch that are to become logits.
fn wanted_rows(batch: &[Chunk<'_>]) -> Vec<usize> {
    let mut rows = Vec::new();
    let mut end = 0;
    for chunk in batch {
        end += chunk.tokens.len();
        rows.extend(end - chunk.rows()..end);
    }
    rows
}
