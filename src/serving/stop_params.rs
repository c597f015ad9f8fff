//! When a sequence ends before it has all the tokens that were asked for.
//!
//! ```text
//!   generated      0   1   2   3   4   5        min_tokens 3: no token that can end the sequence is among the first
//!   can end here               ✗   ✓   ✓        three; the fourth can be one, and is then not part of the output
//! ```
//!
//! The fields mean what they mean in vLLM's
//! [`SamplingParams`](https://github.com/vllm-project/vllm/blob/v0.33.0/vllm/sampling_params.py).

/// When a sequence ends before its limit. By default, the model's end-of-text tokens end it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopParams {
    /// Tokens that end it beside the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Strings that end it, none empty; not part of the output. They need a [tokenizer](super::Engine::with_tokenizer).
    pub stop_strings: Vec<String>,
    /// Whether the model's end-of-text tokens are tokens like all others.
    pub ignore_eos: bool,
    /// Tokens generated at least. Until then, all tokens that can end a sequence have probability 0, even an end of
    /// text that is ignored, and stop strings end nothing.
    pub min_tokens: usize,
}
