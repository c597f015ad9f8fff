//! `config.json` and `generation_config.json`, as transformers 4 and 5 write them.

use std::path::Path;

use serde::Deserialize;

use crate::cache::KvLayout;
use crate::escape::quoted;
use crate::files::FileError;
use crate::kernels::Heads;
use crate::model::checkpoint::{parse_json, read};
use crate::model::sampling_params::{SamplingOverrides, SamplingParams};

/// The shape of a Qwen3 model and what else its config fixes.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Numbers in a row between the layers.
    pub hidden_size: usize,
    /// Numbers inside the feed-forward block.
    pub intermediate_size: usize,
    pub n_layers: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    /// Numbers in a head; independent of `hidden_size / n_heads`.
    pub head_dim: usize,
    /// Positions that the model was made for.
    pub max_positions: usize,
    /// Base of the rotary position angles.
    pub rope_theta: f32,
    /// Added under the root in every norm.
    pub rms_norm_eps: f32,
    pub attention_bias: bool,
    /// True if the output uses the embedding matrix.
    pub tie_word_embeddings: bool,
    pub eos_token_ids: Vec<u32>,
    /// How the model's makers would sample from it.
    pub sampling: SamplingOverrides,
}

/// Bytes of a config: hundreds of times what any has.
const MAX_BYTES: usize = 1 << 20;

impl ModelConfig {
    /// Reads and checks the config of a model folder.
    ///
    /// # Errors
    /// [`FileError`] for a file that cannot be read or is not JSON; a different architecture, rope scaling, sliding
    /// windows or quantized weights; and numbers that cannot be.
    pub fn open(dir: &Path) -> Result<Self, FileError> {
        let config = read(&dir.join("config.json"), MAX_BYTES)?;
        let generation_path = dir.join("generation_config.json");
        let generation = if generation_path.exists() { read(&generation_path, MAX_BYTES)? } else { b"{}".to_vec() };
        Self::parse(dir, &config, &generation)
    }

    /// A config from the bytes of `config.json` and `generation_config.json`. `dir`: the folder that errors speak of.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn parse(dir: &Path, config: &[u8], generation: &[u8]) -> Result<Self, FileError> {
        let (path, generation_path) = (dir.join("config.json"), dir.join("generation_config.json"));
        let json: ConfigJson = parse_json(&path, config)?;
        let generation: GenerationJson = parse_json(&generation_path, generation)?;

        let config = ModelConfig {
            vocab_size: json.vocab_size,
            hidden_size: json.hidden_size,
            intermediate_size: json.intermediate_size,
            n_layers: json.num_hidden_layers,
            n_heads: json.num_attention_heads,
            n_kv_heads: json.num_key_value_heads,
            head_dim: json.head_dim.unwrap_or(128),
            max_positions: json.max_position_embeddings.unwrap_or(32_768),
            rope_theta: json.rope_theta(),
            rms_norm_eps: json.rms_norm_eps.unwrap_or(1e-6),
            attention_bias: json.attention_bias.unwrap_or(false),
            tie_word_embeddings: json.tie_word_embeddings.unwrap_or(false),
            eos_token_ids: generation.eos_token_id.or(json.eos_token_id.clone()).map(Ids::into_vec).unwrap_or_default(),
            sampling: generation.sampling,
        };
        if let Err(error) = generation.sampling.over(SamplingParams::GREEDY).validate() {
            return Err(FileError::new(&generation_path, error.to_string()));
        }
        if let Some(problem) = json.unsupported() {
            return Err(FileError::new(&path, problem));
        }
        config.validate().map_err(|problem| FileError::new(&path, problem))?;
        Ok(config)
    }

    fn validate(&self) -> Result<(), String> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.n_layers),
            ("num_attention_heads", self.n_heads),
            ("num_key_value_heads", self.n_kv_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_positions),
        ];
        for (name, size) in sizes {
            if size == 0 || size > 1 << 24 {
                return Err(format!("{name} is {size}, expected 1 to {}", 1 << 24));
            }
        }
        if self.n_layers > 10_000 {
            return Err(format!("num_hidden_layers is {}, expected at most 10000", self.n_layers));
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            let (q, kv) = (self.n_heads, self.n_kv_heads);
            return Err(format!("num_attention_heads ({q}) is not a multiple of num_key_value_heads ({kv})"));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!(
                "head_dim is {}, expected an even number, because positions turn pairs",
                self.head_dim
            ));
        }
        if !(self.rope_theta.is_finite() && self.rope_theta >= 1.0) {
            return Err(format!("rope_theta is {}, expected a finite number, 1 or more", self.rope_theta));
        }
        if !(self.rms_norm_eps.is_finite() && self.rms_norm_eps >= 0.0) {
            return Err(format!("rms_norm_eps is {}, expected a finite number, 0 or more", self.rms_norm_eps));
        }
        Ok(())
    }

    pub fn kv_layout(&self) -> KvLayout {
        KvLayout { n_layers: self.n_layers, n_kv_heads: self.n_kv_heads, head_dim: self.head_dim }
    }

    pub fn heads(&self) -> Heads {
        Heads { n_heads: self.n_heads, n_kv_heads: self.n_kv_heads, head_dim: self.head_dim }
    }
}

#[derive(Deserialize)]
struct ConfigJson {
    model_type: Option<String>,
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: Option<usize>,
    max_position_embeddings: Option<usize>,
    rms_norm_eps: Option<f32>,
    attention_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    eos_token_id: Option<Ids>,
    hidden_act: Option<String>,
    use_sliding_window: Option<bool>,
    layer_types: Option<Vec<String>>,
    quantization_config: Option<serde_json::Value>,
    /// transformers 4.
    rope_theta: Option<f32>,
    /// transformers 4.
    rope_scaling: Option<serde_json::Value>,
    /// transformers 5.
    rope_parameters: Option<RopeJson>,
}

#[derive(Deserialize)]
struct RopeJson {
    rope_theta: Option<f32>,
    rope_type: Option<String>,
    partial_rotary_factor: Option<f32>,
}

#[derive(Deserialize)]
struct GenerationJson {
    eos_token_id: Option<Ids>,
    #[serde(flatten)]
    sampling: SamplingOverrides,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Many(Vec<u32>),
}

impl Ids {
    fn into_vec(self) -> Vec<u32> {
        match self {
            Ids::One(id) => vec![id],
            Ids::Many(ids) => ids,
        }
    }
}

impl ConfigJson {
    fn rope_theta(&self) -> f32 {
        self.rope_parameters.as_ref().and_then(|rope| rope.rope_theta).or(self.rope_theta).unwrap_or(10_000.0)
    }

    fn unsupported(&self) -> Option<String> {
        let model_type = self.model_type.as_deref().unwrap_or("(none)");
        let activation = self.hidden_act.as_deref().unwrap_or("silu");
        let rope = self.rope_parameters.as_ref();
        let rope_type = rope.and_then(|rope| rope.rope_type.as_deref()).unwrap_or("default");
        let factor = rope.and_then(|rope| rope.partial_rotary_factor).unwrap_or(1.0);
        let is_scaled = self.rope_scaling.as_ref().is_some_and(|scaling| !scaling.is_null());
        let mut layer_types = self.layer_types.iter().flatten();
        let slides = self.use_sliding_window == Some(true) || layer_types.any(|kind| kind != "full_attention");
        let problem = if model_type != "qwen3" {
            format!("the architecture {} is not supported (supported: \"qwen3\")", quoted(model_type))
        } else if self.quantization_config.is_some() {
            "quantized weights are not supported (quantization_config); use the bf16 checkpoint".into()
        } else if slides {
            "sliding-window attention is not supported (use_sliding_window, layer_types)".into()
        } else if is_scaled {
            "rope scaling is not supported (rope_scaling); remove it to run without".into()
        } else if rope_type != "default" {
            format!("rope scaling is not supported (rope_type {}, supported: \"default\")", quoted(rope_type))
        } else if factor != 1.0 {
            format!("partial rotary positions are not supported (partial_rotary_factor {factor})")
        } else if activation != "silu" {
            format!("the activation {} is not supported (supported: \"silu\")", quoted(activation))
        } else {
            return None;
        };
        Some(problem)
    }
}
