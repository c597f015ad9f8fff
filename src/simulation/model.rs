//! What stands in for a model: what it says is decided by all rows that a text has.

use crate::cache::KvLayout;
use crate::schedule::End;

/// One layer, and rows of two numbers: the rows of a token say which it is and where it stands.
pub const LAYOUT: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 };

/// The lowest of the tokens that the model says.
pub const FIRST_NEW: u32 = 3_000_000_000;

/// What ends a text. About every 16th token is one.
pub const END_OF_TEXT: u32 = FIRST_NEW - 1;

/// The prompt of a text: those with the same `alike` are the same, as far as both go.
pub fn prompt(alike: u32, n: usize) -> Vec<u32> {
    // Above 65,535, so that no half of a token says which it is.
    (0..n as u32).map(|place| (alike + 1) * 100_003 + place).collect()
}

/// The rows of a token, keys then values.
pub(super) fn rows(token: u32, position: usize) -> [[f32; 2]; 2] {
    // A float holds 16 bits exactly, and not 32.
    let (low, high) = ((token & 0xFFFF) as f32, (token >> 16) as f32);
    [[low, high], [position as f32, low + 0.5]]
}

/// What has been read so far, in a number.
#[derive(Clone, Copy)]
pub(super) struct Read(u64);

impl Read {
    pub(super) fn nothing() -> Self {
        Read(0xcbf2_9ce4_8422_2325)
    }

    /// Reads a row more.
    pub(super) fn row(self, k: &[f32], v: &[f32]) -> Self {
        let numbers = k.iter().chain(v);
        Read(numbers.fold(self.0, |hash, number| {
            let hash = (hash ^ u64::from(number.to_bits())).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            hash ^ (hash >> 29)
        }))
    }

    /// Reads a token's rows.
    pub(super) fn token(self, token: u32, position: usize) -> Self {
        let [k, v] = rows(token, position);
        self.row(&k, &v)
    }

    /// What comes next.
    pub(super) fn next(self) -> u32 {
        match self.0 >> 32 {
            hash if hash.is_multiple_of(16) => END_OF_TEXT,
            hash => FIRST_NEW + (hash % 20) as u32,
        }
    }
}

/// The text as it is when nobody else is there: its new tokens, without an end of text, and why it ends.
pub fn alone(prompt: &[u32], max_new_tokens: usize) -> (Vec<u32>, End) {
    let mut read = Read::nothing();
    for (position, token) in prompt.iter().enumerate() {
        read = read.token(*token, position);
    }
    let mut told = Vec::new();
    while told.len() < max_new_tokens {
        let token = read.next();
        if token == END_OF_TEXT {
            return (told, End::EndOfText);
        }
        read = read.token(token, prompt.len() + told.len());
        told.push(token);
    }
    (told, End::Limit)
}
