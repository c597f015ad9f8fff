//! Weights as they lie in a checkpoint.

use rayon::prelude::*;

use crate::vector::{LANES, Lanes, Plain, Vector, f32_lanes, padded};

/// How the numbers of a weight are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F32,
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
}

impl Dtype {
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }
}

/// A weight matrix `[rows, cols]`, row-major and little-endian, in the bytes of the checkpoint.
///
/// A row holds the weights of one output, so `matmul` takes the dot product of each input row with each weight row.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    bytes: &'a [u8],
    pub(crate) dtype: Dtype,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix over `bytes`, which hold exactly `rows * cols` numbers.
    ///
    /// # Panics
    /// If they do not.
    pub fn new(bytes: &'a [u8], dtype: Dtype, rows: usize, cols: usize) -> Self {
        let len = rows.checked_mul(cols).and_then(|numbers| numbers.checked_mul(dtype.size()));
        assert_eq!(Some(bytes.len()), len, "bytes of a [{rows}, {cols}] {dtype:?} matrix");
        Matrix { bytes, dtype, rows, cols }
    }

    pub(crate) fn row(&self, row: usize) -> &'a [u8] {
        let size = self.cols * self.dtype.size();
        &self.bytes[row * size..][..size]
    }

    /// Row and column of the first number that is not finite. Reads the whole matrix, as fast as memory gives it.
    pub fn first_not_finite(&self) -> Option<(usize, usize)> {
        // A whole number of numbers of any type, so that several threads can look.
        const BYTES_PER_TASK: usize = 1 << 20;
        let finite = |bytes: &[u8]| all_finite(self.dtype, bytes);
        let task = self.bytes.par_chunks(BYTES_PER_TASK).position_first(|bytes| !finite(bytes))?;
        let bytes = self.bytes[task * BYTES_PER_TASK..].chunks(self.dtype.size());
        let number = task * BYTES_PER_TASK / self.dtype.size() + bytes.into_iter().position(|bytes| !finite(bytes))?;
        Some((number / self.cols, number % self.cols))
    }

    /// Converts one row to `f32`. `out`: `[cols]`.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let size = LANES * self.dtype.size();
        for (out, bytes) in out.chunks_mut(LANES).zip(self.row(row).chunks(size)) {
            out.copy_from_slice(&decode_rest(self.dtype, bytes)[..out.len()]);
        }
    }
}

/// True if no number among these is NaN or infinite: if none has all bits of its exponent set.
fn all_finite(dtype: Dtype, bytes: &[u8]) -> bool {
    fn most<const N: usize>(bytes: &[u8], exponent: impl Fn([u8; N]) -> u32) -> u32 {
        bytes.as_chunks().0.iter().fold(0, |most, number| most.max(exponent(*number)))
    }
    match dtype {
        Dtype::F32 => most(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000) < 0x7f80_0000,
        Dtype::F16 => most(bytes, |b| (u16::from_le_bytes(b) & 0x7c00).into()) < 0x7c00,
        Dtype::Bf16 => most(bytes, |b| (u16::from_le_bytes(b) & 0x7f80).into()) < 0x7f80,
    }
}

/// How numbers are multiplied with weights in bf16. With weights of other types all is as with `F32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MatmulDtype {
    /// Both as 32-bit floats, into which every bf16 number fits.
    #[default]
    F32,
    /// The numbers are rounded to bf16 first (to nearest, ties to even); of both, what is below 2^-56 counts as zero.
    /// Products are exact, and sums are 32-bit floats: number `i` goes to lane `i / 2 % 16`, and of two neighbours the
    /// second one is added first.
    Bf16,
}

impl MatmulDtype {
    /// All of them. Files name each by its place here: a new one goes to the end.
    pub const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// As `--matmul-dtype` takes it.
    pub fn name(self) -> &'static str {
        match self {
            MatmulDtype::F32 => "f32",
            MatmulDtype::Bf16 => "bf16",
        }
    }
}

/// What a product multiplies, sixteen lanes at a time.
#[derive(Clone, Copy)]
pub(crate) enum Factors {
    /// A number in each lane. Weights are converted from this type.
    Numbers(Dtype),
    /// Two bf16 numbers in each lane.
    Pairs,
}

impl Factors {
    /// Numbers that sixteen lanes take.
    #[inline(always)]
    pub(crate) fn n_numbers(self) -> usize {
        match self {
            Factors::Numbers(_) => LANES,
            Factors::Pairs => 2 * LANES,
        }
    }

    /// Bytes of as many weights in a checkpoint.
    #[inline(always)]
    pub(crate) fn bytes(self) -> usize {
        match self {
            Factors::Numbers(dtype) => LANES * dtype.size(),
            Factors::Pairs => 4 * LANES,
        }
    }

    /// Sixteen lanes of weights, from the bytes of a checkpoint.
    #[inline(always)]
    pub(crate) fn decode<V: Vector>(self, bytes: &[u8]) -> V {
        match self {
            Factors::Numbers(dtype) => decode(dtype, bytes),
            Factors::Pairs => V::load(&f32_lanes(&padded(bytes))).without_tiny(),
        }
    }

    /// The last weights of a row, which fill fewer lanes, then zeros.
    #[inline(never)]
    pub(crate) fn decode_rest(self, bytes: &[u8]) -> Lanes {
        self.decode::<Plain>(bytes).lanes()
    }

    /// Adds the products to `sum`.
    #[inline(always)]
    pub(crate) fn mul_add<V: Vector>(self, a: V, b: V, sum: V) -> V {
        match self {
            Factors::Numbers(_) => a.mul_add(b, sum),
            Factors::Pairs => a.mul_add_pairs(b, sum),
        }
    }
}

/// Sixteen stored numbers.
#[inline(always)]
pub(crate) fn decode<V: Vector>(dtype: Dtype, bytes: &[u8]) -> V {
    match dtype {
        Dtype::F32 => V::load(&f32_lanes(&padded(bytes))),
        Dtype::F16 => V::load_f16(&padded(bytes)),
        Dtype::Bf16 => V::load_bf16(&padded(bytes)),
    }
}

/// Up to sixteen stored numbers, then zeros. Few rows end in the middle of a vector, so this is not compiled for speed.
#[inline(never)]
pub(crate) fn decode_rest(dtype: Dtype, bytes: &[u8]) -> Lanes {
    decode::<Plain>(dtype, bytes).lanes()
}
