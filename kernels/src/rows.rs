//! Rows of keys and values as a cache keeps them, and where they lie.

use std::fmt;
use std::str::FromStr;

use crate::vector::{LANES, Lanes, Vector, padded};

/// Rows side by side in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where the first number of the first row lies.
    pub start: usize,
    /// How many rows.
    pub rows: usize,
}

/// How the numbers of a row are stored. A cache keeps 32-bit words and does not look into them; a head takes whole words.
///
/// ```text
///   head of 5 numbers    words
///   F32                  x0 | x1 | x2 | x3 | x4
///   F16, Bf16            x0 x1 | x2 x3 | x4 0              the lower half of a word first
///   Int8                 scale | x0 x1 x2 x3 | x4 0 0 0    the lowest byte first; a number is its byte times the scale
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowFormat {
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

/// A name that is none of the formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFormat(String);

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown row format {:?} (supported: f32, f16, bf16, int8)", self.0)
    }
}

impl std::error::Error for UnknownFormat {}

impl FromStr for RowFormat {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let named = RowFormat::ALL.into_iter().find(|format| format.name() == name);
        named.ok_or_else(|| UnknownFormat(name.into()))
    }
}

impl fmt::Display for RowFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl RowFormat {
    /// All of them, the largest first.
    pub const ALL: [RowFormat; 4] = [RowFormat::F32, RowFormat::F16, RowFormat::Bf16, RowFormat::Int8];

    /// As options and files call it.
    pub fn name(self) -> &'static str {
        match self {
            RowFormat::F32 => "f32",
            RowFormat::F16 => "f16",
            RowFormat::Bf16 => "bf16",
            RowFormat::Int8 => "int8",
        }
    }

    /// Words of a head.
    pub(crate) fn words(self, head_dim: usize) -> usize {
        match self {
            RowFormat::F32 => head_dim,
            RowFormat::F16 | RowFormat::Bf16 => head_dim.div_ceil(2),
            RowFormat::Int8 => 1 + head_dim.div_ceil(4),
        }
    }
}

/// The rows of one text in one layer, where they lie, and how many of its tokens have queries.
#[derive(Clone, Copy, Debug)]
pub struct SequenceRows<'a> {
    /// Queries: one row for each of so many of the newest tokens.
    pub queries: usize,
    /// The memory that the keys lie in, with whatever else lies there.
    pub keys: &'a [f32],
    /// The memory of the values; they lie as the keys do.
    pub values: &'a [f32],
    /// Where the rows are, oldest token first.
    pub runs: &'a [Run],
}

impl SequenceRows<'_> {
    /// Rows in all runs; `usize::MAX` if they are too many to be counted.
    pub fn len(&self) -> usize {
        self.runs.iter().fold(0, |sum: usize, run| sum.saturating_add(run.rows))
    }

    /// True if there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the rows of the first `n` positions start. `row`: numbers, or words, of a row.
    pub(crate) fn places(&self, row: usize, n: usize) -> Vec<usize> {
        let mut places = Vec::with_capacity(n);
        for run in self.runs {
            let rows = run.rows.min(n - places.len());
            places.extend((0..rows).map(|i| run.start + i * row));
        }
        places
    }
}

/// A format, for loops that are compiled for each of them.
pub(crate) trait Stored: Copy + Send + Sync {
    /// The words of sixteen numbers.
    type Chunk: Words;

    /// The number that all numbers of a head are multiplied by, and the words of the numbers.
    #[inline(always)]
    fn split(head: &[f32]) -> (f32, &[f32]) {
        (1.0, head)
    }

    /// Sixteen numbers.
    fn decode<V: Vector>(chunk: &Self::Chunk, scale: V) -> V;
}

/// Some words side by side.
pub(crate) trait Words: Sized {
    /// So many at a time; what is left over is left out.
    fn chunks(words: &[f32]) -> &[Self];
    /// So many, or fewer with zeros behind them.
    fn last(words: &[f32]) -> Self;
}

impl<const N: usize> Words for [f32; N] {
    #[inline(always)]
    fn chunks(words: &[f32]) -> &[Self] {
        words.as_chunks().0
    }

    #[inline(always)]
    fn last(words: &[f32]) -> Self {
        padded(words)
    }
}

/// Numbers as they are.
#[derive(Clone, Copy)]
pub(crate) struct F32;

impl Stored for F32 {
    type Chunk = Lanes;

    #[inline(always)]
    fn decode<V: Vector>(chunk: &Lanes, _: V) -> V {
        V::load(chunk)
    }
}

/// Two numbers a word.
#[derive(Clone, Copy)]
pub(crate) struct F16;

impl Stored for F16 {
    type Chunk = [f32; LANES / 2];

    #[inline(always)]
    fn decode<V: Vector>(chunk: &Self::Chunk, _: V) -> V {
        V::load_f16(&bytes(chunk))
    }
}

/// Two numbers a word.
#[derive(Clone, Copy)]
pub(crate) struct Bf16;

impl Stored for Bf16 {
    type Chunk = [f32; LANES / 2];

    #[inline(always)]
    fn decode<V: Vector>(chunk: &Self::Chunk, _: V) -> V {
        V::load_bf16(&bytes(chunk))
    }
}

/// The scale, then four numbers a word.
#[derive(Clone, Copy)]
pub(crate) struct Int8;

impl Stored for Int8 {
    type Chunk = [f32; LANES / 4];

    #[inline(always)]
    fn split(head: &[f32]) -> (f32, &[f32]) {
        (head[0], &head[1..])
    }

    #[inline(always)]
    fn decode<V: Vector>(chunk: &Self::Chunk, scale: V) -> V {
        V::load_i8(&bytes(chunk)).mul(scale)
    }
}

/// A stored head, for reading sixteen numbers at a time.
pub(crate) struct Head<'a, S: Stored> {
    scale: f32,
    /// The chunks that are full.
    chunks: &'a [S::Chunk],
    /// The words behind them.
    rest: &'a [f32],
    /// Numbers in the rest.
    n_rest: usize,
}

impl<'a, S: Stored> Head<'a, S> {
    /// `words`: of one head, of `dim` numbers.
    #[inline(always)]
    pub(crate) fn new(words: &'a [f32], dim: usize) -> Self {
        let (scale, words) = S::split(words);
        let chunks = &S::Chunk::chunks(words)[..dim / LANES];
        let rest = &words[size_of_val(chunks) / size_of::<f32>()..];
        Head { scale, chunks, rest, n_rest: dim % LANES }
    }

    /// How many chunks are full.
    #[inline(always)]
    pub(crate) fn n_full(&self) -> usize {
        self.chunks.len()
    }

    /// The first `n` chunks, all of them full.
    #[inline(always)]
    pub(crate) fn full(&self, n: usize) -> &'a [S::Chunk] {
        &self.chunks[..n]
    }

    /// What the numbers are multiplied by.
    #[inline(always)]
    pub(crate) fn scale<V: Vector>(&self) -> V {
        V::splat(self.scale)
    }

    /// Chunk number `at`, full or not; lanes beyond the numbers are zero.
    #[inline(always)]
    pub(crate) fn chunk<V: Vector>(&self, at: usize) -> V {
        match self.chunks.get(at) {
            Some(chunk) => S::decode(chunk, self.scale()),
            None => {
                let mut lanes = S::decode::<V>(&S::Chunk::last(self.rest), self.scale()).lanes();
                lanes[self.n_rest..].fill(0.0);
                V::load(&lanes)
            }
        }
    }
}

/// The bytes of some words, the lowest first.
#[inline(always)]
fn bytes<const WORDS: usize, const BYTES: usize>(words: &[f32; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *to = word.to_bits().to_le_bytes();
    }
    bytes
}
