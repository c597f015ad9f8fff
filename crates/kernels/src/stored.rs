//! Stored heads, sixteen numbers at a time.

use crate::matmul::prefetch;
use crate::rows::KvDtype;
use crate::vector::{LANES, Lanes, Plain, Vector, padded};

pub(crate) fn words_per_head(dtype: KvDtype, dim: usize) -> usize {
    match dtype {
        KvDtype::F32 => dim,
        KvDtype::F16 | KvDtype::Bf16 => dim.div_ceil(2),
        KvDtype::Int8 => 1 + dim.div_ceil(4),
    }
}

/// A KV dtype as a type, so that each loop is compiled for each of them.
pub(crate) trait Stored: Copy + Send + Sync {
    /// The words of sixteen numbers.
    type Chunk: Words;

    /// The number that all numbers of a head are multiplied by, and the words of the numbers.
    #[inline(always)]
    fn split(head: &[f32]) -> (f32, &[f32]) {
        (1.0, head)
    }

    fn decode<V: Vector>(chunk: &Self::Chunk, scale: V) -> V;
}

/// Some words side by side.
pub(crate) trait Words: Sized {
    /// The whole chunks; words that don't fill one are left out.
    fn chunks(words: &[f32]) -> &[Self];
    /// The first chunk, filled up with zeros.
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
    pub(crate) full: &'a [S::Chunk],
    /// The words after them.
    rest: &'a [f32],
    /// Numbers in the rest.
    n_rest: usize,
}

impl<'a, S: Stored> Head<'a, S> {
    /// `words`: of one head, of `dim` numbers.
    #[inline(always)]
    pub(crate) fn new(words: &'a [f32], dim: usize) -> Self {
        let (scale, words) = S::split(words);
        let full = &S::Chunk::chunks(words)[..dim / LANES];
        let rest = &words[size_of_val(full) / size_of::<f32>()..];
        Head { scale, full, rest, n_rest: dim % LANES }
    }

    #[inline(always)]
    pub(crate) fn scale<V: Vector>(&self) -> V {
        V::splat(self.scale)
    }

    /// Chunk number `at`, full or not; lanes after the last number are zero.
    #[inline(always)]
    pub(crate) fn chunk<V: Vector>(&self, at: usize) -> V {
        match self.full.get(at) {
            Some(chunk) => S::decode(chunk, self.scale()),
            None => V::load(&self.last()),
        }
    }

    /// The chunk that is not full.
    #[inline(always)]
    pub(crate) fn last(&self) -> Lanes {
        last::<S>(self.rest, self.scale, self.n_rest)
    }
}

/// The first `n` numbers of some words, then zeros. No known model has such heads, so it is not compiled for speed.
#[inline(never)]
fn last<S: Stored>(words: &[f32], scale: f32, n: usize) -> Lanes {
    let mut lanes = S::decode(&S::Chunk::last(words), Plain::splat(scale)).lanes();
    lanes[n..].fill(0.0);
    lanes
}

/// One head in all rows of a memory.
#[derive(Clone, Copy)]
pub(crate) struct HeadColumn<'a, S> {
    pub(crate) _stored: S,
    pub(crate) memory: &'a [f32],
    /// Where the head begins in a row.
    pub(crate) first: usize,
    pub(crate) words: usize,
    pub(crate) dim: usize,
}

impl<'a, S: Stored> HeadColumn<'a, S> {
    #[inline(always)]
    pub(crate) fn with_head(&self, head: usize) -> Self {
        HeadColumn { first: head * self.words, ..*self }
    }

    /// The head in the row that starts at this place.
    #[inline(always)]
    pub(crate) fn at(&self, place: usize) -> Head<'a, S> {
        Head::new(&self.memory[place + self.first..][..self.words], self.dim)
    }

    /// Prefetches the head in `n` rows from position `at` on.
    #[inline(always)]
    pub(crate) fn prefetch(&self, places: &[usize], at: usize, n: usize) {
        for place in places.iter().skip(at).take(n) {
            for line in (0..self.words).step_by(16) {
                prefetch(self.memory.as_ptr().wrapping_add(place + self.first + line).cast());
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
