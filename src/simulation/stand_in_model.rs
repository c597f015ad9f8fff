//! What stands in for a model: its output is decided by all rows that a sequence has.

use crate::cache::KvLayout;
use crate::serving::schedule::FinishReason;

/// One layer, and rows of two numbers: the rows of a token say which it is and where it stands.
pub const LAYOUT: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 };

/// The lowest of the tokens that the model generates.
pub const FIRST_NEW: u32 = 3_000_000_000;

/// The end of text. About every 16th token is one.
pub const END_OF_TEXT: u32 = FIRST_NEW - 1;

/// A prompt: those with the same `prefix_id` are the same, as far as both go.
pub fn prompt(prefix_id: u32, n: usize) -> Vec<u32> {
    // Tokens above 65,535, so that the low 16 bits alone never identify one.
    (0..n as u32).map(|position| (prefix_id + 1) * 100_003 + position).collect()
}

/// The rows of a token, keys then values.
pub(super) fn rows(token: u32, position: usize) -> [[f32; 2]; 2] {
    // A float holds 16 bits exactly, and not 32.
    let (low, high) = ((token & 0xFFFF) as f32, (token >> 16) as f32);
    [[low, high], [position as f32, low + 0.5]]
}

/// All rows so far, in a number.
#[derive(Clone, Copy)]
pub(super) struct Rows(u64);

impl Rows {
    pub(super) fn none() -> Self {
        Rows(0xcbf2_9ce4_8422_2325)
    }

    pub(super) fn row(self, k: &[f32], v: &[f32]) -> Self {
        let numbers = k.iter().chain(v);
        Rows(numbers.fold(self.0, |hash, number| {
            let hash = (hash ^ u64::from(number.to_bits())).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            hash ^ (hash >> 29)
        }))
    }

    pub(super) fn token(self, token: u32, position: usize) -> Self {
        let [k, v] = rows(token, position);
        self.row(&k, &v)
    }

    pub(super) fn next(self) -> u32 {
        match self.0 >> 32 {
            hash if hash.is_multiple_of(16) => END_OF_TEXT,
            hash => FIRST_NEW + (hash % 20) as u32,
        }
    }
}

/// The output of a sequence that runs alone: its new tokens, without an end of text, and why it finishes.
pub fn run_alone(prompt: &[u32], max_new_tokens: usize) -> (Vec<u32>, FinishReason) {
    run_alone_until(prompt, max_new_tokens, &[END_OF_TEXT])
}

/// The output of a sequence that runs alone, where any of these tokens ends a text.
pub fn run_alone_until(prompt: &[u32], max_new_tokens: usize, end_of_text: &[u32]) -> (Vec<u32>, FinishReason) {
    let mut rows = Rows::none();
    for (position, token) in prompt.iter().enumerate() {
        rows = rows.token(*token, position);
    }
    let mut output = Vec::new();
    while output.len() < max_new_tokens {
        let token = rows.next();
        if end_of_text.contains(&token) {
            return (output, FinishReason::Stop);
        }
        rows = rows.token(token, prompt.len() + output.len());
        output.push(token);
    }
    (output, FinishReason::Length)
}
