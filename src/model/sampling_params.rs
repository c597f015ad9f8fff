//! How a model's next token is to be chosen, as its `generation_config.json` and a request give it.

use serde::{Deserialize, Deserializer, de};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by this. Below 1 is safer, above 1 is wilder, and 0 always picks the likeliest token.
    pub temperature: f32,
    /// Only the `top_k` likeliest tokens; 0 is no limit.
    pub top_k: usize,
    /// Only the likeliest tokens that together reach this probability; 1 is no limit.
    pub top_p: f32,
    pub seed: u64,
}

/// Why sampling parameters were refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    #[error("the temperature is {0}, expected 0 (greedy) or {MIN_TEMPERATURE} to {MAX_TEMPERATURE}")]
    Temperature(f32),
    #[error("top-p is {0}, expected a probability from 0 to 1")]
    TopP(f32),
}

/// Models whose authors mean greedy choice publish this temperature, because some engines refuse 0.
const MIN_TEMPERATURE: f32 = 0.000_001;
/// At this temperature all tokens are about equally likely.
const MAX_TEMPERATURE: f32 = 1000.0;

impl SamplingParams {
    /// Gives these back if a sampler can use them.
    ///
    /// `temperature`: 0, or 0.000001 to 1000. `top_p`: 0 to 1, 0 for the likeliest token only. The others: any number.
    pub fn validate(self) -> Result<Self, SamplingError> {
        let SamplingParams { temperature, top_p, .. } = self;
        if temperature != 0.0 && !(MIN_TEMPERATURE..=MAX_TEMPERATURE).contains(&temperature) {
            return Err(SamplingError::Temperature(temperature));
        }
        if !(0.0..=1.0).contains(&top_p) {
            return Err(SamplingError::TopP(top_p));
        }
        Ok(self)
    }

    /// These for one of several outputs of a prompt: output 0 has the seed, output 1 the next number, and so on.
    pub fn for_sample(self, sample: u64) -> Self {
        SamplingParams { seed: self.seed.wrapping_add(sample), ..self }
    }

    /// As the program samples unless a model or its user says otherwise.
    pub const DEFAULT: SamplingParams = SamplingParams { temperature: 0.8, top_k: 0, top_p: 0.95, seed: 23 };

    /// Always the likeliest token.
    pub const GREEDY: SamplingParams = SamplingParams { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 };
}

/// The settings of a model's `generation_config.json`, or of a request, where they are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct SamplingOverrides {
    #[serde(default, deserialize_with = "deserialize_f32")]
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    #[serde(default, deserialize_with = "deserialize_f32")]
    pub top_p: Option<f32>,
}

pub fn deserialize_f32<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f32>, D::Error> {
    let number = Option::<f64>::deserialize(deserializer)?;
    number.map(narrow_to_f32).transpose().map_err(de::Error::custom)
}

/// A number in 32 bits; refused if it would become infinite, or 0.
pub fn narrow_to_f32(wide: f64) -> Result<f32, String> {
    let number = wide as f32;
    let is_lost = wide.is_finite() && (number.is_infinite() || (number == 0.0 && wide != 0.0));
    if is_lost { Err(format!("{wide:e} is out of the range of 32-bit floats")) } else { Ok(number) }
}

impl SamplingOverrides {
    /// These where they are given, `sampling` where not.
    pub fn over(self, sampling: SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(sampling.temperature),
            top_k: self.top_k.unwrap_or(sampling.top_k),
            top_p: self.top_p.unwrap_or(sampling.top_p),
            seed: sampling.seed,
        }
    }
}
