//! Rows of keys and values as a cache keeps them, and where they lie.

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

impl RowFormat {
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
pub struct TextRows<'a> {
    /// Queries: one row for each of so many of the newest tokens.
    pub queries: usize,
    /// The memory that the keys lie in, with whatever else lies there.
    pub keys: &'a [f32],
    /// The memory of the values; they lie as the keys do.
    pub values: &'a [f32],
    /// Where the rows are, oldest token first.
    pub runs: &'a [Run],
}

impl TextRows<'_> {
    /// Rows in all runs.
    pub fn len(&self) -> usize {
        self.runs.iter().map(|run| run.rows).sum()
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

/// Sixteen numbers of a stored head from number `16 * chunk` on; lanes beyond its `dim` numbers are zero.
#[inline(always)]
pub(crate) fn load<V: Vector>(format: RowFormat, head: &[f32], dim: usize, chunk: usize) -> V {
    let first = chunk * LANES;
    if first + LANES <= dim {
        match format {
            RowFormat::F32 => V::load(words(&head[first..])),
            RowFormat::F16 => V::load_f16(&bytes::<8, 32>(words(&head[first / 2..]))),
            RowFormat::Bf16 => V::load_bf16(&bytes::<8, 32>(words(&head[first / 2..]))),
            RowFormat::Int8 => V::load_i8(&bytes::<4, 16>(words(&head[1 + first / 4..]))).mul(V::splat(head[0])),
        }
    } else {
        load_last(format, head, dim, chunk)
    }
}

/// The same for numbers that do not fill the lanes.
#[inline(always)]
fn load_last<V: Vector>(format: RowFormat, head: &[f32], dim: usize, chunk: usize) -> V {
    let first = chunk * LANES;
    let mut lanes: Lanes = match format {
        RowFormat::F32 => padded(&head[first..dim]),
        RowFormat::F16 => V::load_f16(&bytes::<8, 32>(words(&padded(&head[first / 2..])))).lanes(),
        RowFormat::Bf16 => V::load_bf16(&bytes::<8, 32>(words(&padded(&head[first / 2..])))).lanes(),
        RowFormat::Int8 => {
            let numbers = V::load_i8(&bytes::<4, 16>(words(&padded(&head[1 + first / 4..]))));
            numbers.mul(V::splat(head[0])).lanes()
        }
    };
    lanes[dim - first..].fill(0.0);
    V::load(&lanes)
}

#[inline(always)]
fn words<const N: usize>(words: &[f32]) -> &[f32; N] {
    words.first_chunk().expect("a head is stored in whole words")
}

/// The bytes of some words, the lowest first.
#[inline(always)]
fn bytes<const WORDS: usize, const BYTES: usize>(words: &[f32; WORDS]) -> [u8; BYTES] {
    let words = words.map(|word| word.to_bits().to_le_bytes());
    *words.as_flattened().first_chunk().expect("four bytes a word")
}
