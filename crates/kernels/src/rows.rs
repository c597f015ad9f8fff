//! Rows of keys and values: where they lie in memory, and in which format.

use std::fmt;

// ANCHOR: run
/// Rows side by side in memory.
///
/// A run lies within its memory if its end, the place after its last row, is at most the memory's length. A run of no
/// rows ends where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where the first number of the first row lies.
    pub start: usize,
    /// How many rows; 0 is allowed.
    pub rows: usize,
}
// ANCHOR_END: run

/// How the numbers of a row are stored. A cache keeps 32-bit words and does not look into them; a head takes whole
/// words.
///
/// ```text
///   head of 5 numbers    words
///   F32                  x0 | x1 | x2 | x3 | x4
///   F16, Bf16            x0 x1 | x2 x3 | x4 0              the lower half of a word first
///   Int8                 scale | x0 x1 x2 x3 | x4 0 0 0    the lowest byte first; a number is its byte times the scale
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvDtype {
    /// 32-bit floats, as they were computed.
    #[default]
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// Whole numbers from -127 to 127, and for each head of each row a 32-bit scale.
    Int8,
}

impl fmt::Display for KvDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl KvDtype {
    /// All of them. Files name each by its place here: a new one goes to the end.
    pub const ALL: [KvDtype; 4] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Int8];

    /// The name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            KvDtype::F32 => "f32",
            KvDtype::F16 => "f16",
            KvDtype::Bf16 => "bf16",
            KvDtype::Int8 => "int8",
        }
    }
}

// ANCHOR: sequence_rows
/// The rows of one sequence in one layer, where they lie, and how many of its tokens have queries.
///
/// In a sequence of 6 tokens with 2 queries, the queries are those of positions 4 and 5.
#[derive(Clone, Copy, Debug)]
pub struct SequenceRows<'a> {
    /// How many of the newest tokens have a query; at most [`len`](Self::len).
    pub queries: usize,
    /// The memory that holds the keys, among whatever else it holds.
    pub keys: &'a [f32],
    /// The memory that holds the values; they lie at the same places as the keys.
    pub values: &'a [f32],
    /// Where the rows are, oldest token first. Runs without rows add nothing.
    pub runs: &'a [Run],
}
// ANCHOR_END: sequence_rows

impl SequenceRows<'_> {
    /// Tokens of the sequence: the rows in all runs. `usize::MAX` if they are too many to be counted.
    pub fn len(&self) -> usize {
        self.runs.iter().fold(0, |sum: usize, run| sum.saturating_add(run.rows))
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
