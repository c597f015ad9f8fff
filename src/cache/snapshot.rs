//! The cache of one sequence as a file: its rows as dense tensors, and the tokens that they belong to.
//!
//! Freezing takes what every cache gives ([`KvCache::gather`]), restoring gives what every cache takes
//! ([`KvCache::extend`], [`KvCache::write`]). So the two need not be of one kind: what a paged cache held, a contiguous
//! one can go on from, with the same bits.
//!
//! A file is a safetensors file. After three tokens of the model in the [contract's](crate::cache) picture it holds:
//!
//! ```text
//!   header        format "page-by-page cache", version, n_layers, n_kv_heads, head_dim, model, checksum
//!   tokens        U32 [3]
//!   layers.0.k    F32 [3, 8]
//!   layers.0.v    F32 [3, 8]
//!   layers.1.k    …
//! ```
//!
//! Rows that are [packed](RowFormat) are the same files of version 2: `row_format` says how, and the tensors hold the words of
//! the rows as `U32 [3, words of a row]`. `head_dim` counts numbers in both versions.
//!
//! Rows mean something only to the model that made them, so `model` is its [fingerprint](Model::fingerprint). `checksum` is the
//! CRC-32 of the whole file, taken while its own eight digits are zeros: a changed byte is found wherever it is. It guards
//! against accidents, not against people. A file is there whole or not at all: see [`files`].

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensors, View};

use crate::cache::{CacheError, KvCache, KvLayout};
use crate::chapters::ch14_half_the_bytes::decode;
use crate::kernels::RowFormat;
use crate::model::Model;
use crate::model::checkpoint::what_is_damaged;
use crate::{escape, files};

/// The keys and values of a sequence, in every layer, and its tokens.
#[derive(Clone, Debug)]
pub struct Snapshot {
    layout: KvLayout,
    tokens: Vec<u32>,
    layers: Vec<FrozenLayer>,
}

/// The rows of one layer.
#[derive(Clone, Debug)]
struct FrozenLayer {
    /// `[tokens, kv_width]`, row-major.
    k: Vec<f32>,
    /// `[tokens, kv_width]`, row-major.
    v: Vec<f32>,
}

/// Why a snapshot was not restored. The cache is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The cache is for rows of a different shape.
    #[error("the snapshot holds rows of {found:?}, the cache is for rows of {expected:?}")]
    WrongLayout {
        /// The snapshot's layout.
        found: KvLayout,
        /// The cache's layout.
        expected: KvLayout,
    },
    /// The cache holds tokens already.
    #[error("the cache holds {len} tokens already; restore into an empty one")]
    NotEmpty {
        /// Tokens held.
        len: usize,
    },
    /// The cache has no room for the tokens.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// Why a snapshot was not saved, or a file not loaded. A file that was there before is as it was.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file cannot be opened or read.
    #[error("{}: {error}; give a file with a saved cache", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file cannot be written.
    #[error("{}: {error}; to save a cache, name a file in a folder that exists and may be written to", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is something else.
    #[error("{}: not a saved cache: {problem}", path.display())]
    NotASnapshot {
        /// The file.
        path: PathBuf,
        /// What is missing.
        problem: String,
    },
    /// The file was cut short, or some of its bytes have changed.
    #[error("{}: the saved cache is damaged: {problem}; save it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not add up.
        problem: String,
    },
    /// The rows are whole, but this model did not make them or cannot go on from them: a different shape, format or model, a
    /// token or a position that it lacks, a number that is not finite. Or a later version of the program saved them.
    #[error("{}: {problem}", path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What does not fit, with the numbers, and what to do.
        problem: String,
    },
}

/// What the header calls the format.
const FORMAT: &str = "page-by-page cache";
/// Goes up when the meaning of a file changes, the arithmetic that makes the rows included.
const VERSION: u32 = 1;
/// The same for files whose rows are packed.
const PACKED_VERSION: u32 = 2;

impl Snapshot {
    /// Copies the rows that a cache holds. `tokens`: those that the rows belong to.
    ///
    /// # Panics
    /// If the cache holds a different number of tokens.
    pub fn freeze(cache: &dyn KvCache, tokens: &[u32]) -> Self {
        assert_eq!(tokens.len(), cache.len(), "tokens given, and tokens held");
        let layout = cache.layout();
        let freeze_layer = |layer| {
            let (k, v) = cache.gather(layer);
            FrozenLayer { k: k.into_owned(), v: v.into_owned() }
        };
        Snapshot { layout, tokens: tokens.into(), layers: (0..layout.n_layers).map(freeze_layer).collect() }
    }

    /// The tokens that the rows belong to.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The shape of a row as its cache saw it: of words, if the rows are packed.
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Fills an empty cache with the rows.
    ///
    /// # Errors
    /// [`RestoreError`]; the cache is then as it was.
    pub fn restore(&self, cache: &mut dyn KvCache) -> Result<(), RestoreError> {
        let (found, expected) = (self.layout, cache.layout());
        if found != expected {
            return Err(RestoreError::WrongLayout { found, expected });
        }
        if !cache.is_empty() {
            return Err(RestoreError::NotEmpty { len: cache.len() });
        }
        cache.extend(self.tokens.len())?;
        for (index, layer) in self.layers.iter().enumerate() {
            cache.write(index, &layer.k, &layer.v);
        }
        Ok(())
    }

    /// Writes the rows and their tokens to a file, whole or not at all. `model`: the one that made them, in the format that it
    /// still has.
    ///
    /// # Errors
    /// [`SnapshotError::Unwritable`]; [`SnapshotError::Unfit`] if the model cannot have made them.
    pub fn save(&self, file: &Path, model: &Model) -> Result<(), SnapshotError> {
        self.check(file, model)?;
        files::write_whole(file, &self.encode(model))
            .map_err(|error| SnapshotError::Unwritable { path: file.into(), error })
    }

    /// Checks that [`save`](Self::save) could write this file now, before a long computation. Nothing changes.
    ///
    /// # Errors
    /// [`SnapshotError::Unwritable`].
    pub fn check_writable(file: &Path) -> Result<(), SnapshotError> {
        files::check_writable(file).map_err(|error| SnapshotError::Unwritable { path: file.into(), error })
    }

    /// Reads a file that [`save`](Self::save) wrote, for the model that made the rows, in the format that it has now.
    ///
    /// # Errors
    /// [`SnapshotError`]: every variant but [`SnapshotError::Unwritable`].
    pub fn load(file: &Path, model: &Model) -> Result<Self, SnapshotError> {
        let path = || PathBuf::from(file);
        let bytes =
            files::read(file, most_bytes(model)).map_err(|error| SnapshotError::Unreadable { path: path(), error })?;
        let header = Header::read(file, &bytes)?;
        header.check_model(file, model)?;
        let decoded = header.decode(&bytes, model.kv_layout());
        let snapshot = decoded.map_err(|problem| SnapshotError::Damaged { path: path(), problem })?;
        snapshot.check(file, model)?;
        Ok(snapshot)
    }

    /// Checks that a model can have made this.
    fn check(&self, file: &Path, model: &Model) -> Result<(), SnapshotError> {
        let unfit = |problem| Err(SnapshotError::Unfit { path: file.into(), problem });
        let config = model.config();
        let (vocab_size, max_positions) = (config.vocab_size, config.max_positions);
        let len = self.tokens.len();
        if self.layout != model.kv_layout() {
            return unfit(wrong_layout(self.layout, model.kv_layout()));
        }
        if let Some(token) = self.tokens.iter().find(|token| **token as usize >= vocab_size) {
            let last = vocab_size - 1;
            return unfit(format!("token id {token} is outside the vocabulary: ids go from 0 to {last}"));
        }
        if len > max_positions {
            let than = format!("the model's {max_positions} positions; save a shorter sequence");
            return unfit(format!("{len} tokens are more than {than}"));
        }
        for (index, layer) in self.layers.iter().enumerate() {
            for (name, rows) in row_names(index).into_iter().zip([&layer.k, &layer.v]) {
                if let Some((head, number)) = not_finite(rows, model) {
                    let position = head / self.layout.n_kv_heads;
                    return unfit(format!(
                        "row {name} of the token at position {position} holds {number}, and a row's numbers are finite; \
                         compute the sequence again"
                    ));
                }
            }
        }
        Ok(())
    }

    fn encode(&self, model: &Model) -> Vec<u8> {
        let len = self.tokens.len();
        let tokens = Tensor { dtype: Dtype::U32, shape: vec![len], numbers: Numbers::Tokens(&self.tokens) };
        let mut tensors = vec![("tokens".into(), tokens)];
        for (index, layer) in self.layers.iter().enumerate() {
            for (name, rows) in row_names(index).into_iter().zip([&layer.k, &layer.v]) {
                let (dtype, shape) = (rows_dtype(model.row_format()), vec![len, self.layout.kv_width()]);
                tensors.push((name, Tensor { dtype, shape, numbers: Numbers::Rows(rows) }));
            }
        }
        sealed(model, tensors)
    }
}

/// What is wrong with rows of a different shape.
fn wrong_layout(found: KvLayout, expected: KvLayout) -> String {
    format!("rows of {found:?}, the model makes rows of {expected:?}; use the model that made them")
}

/// The first number of some rows that is NaN or an infinity, and its place among all heads of the rows.
fn not_finite(rows: &[f32], model: &Model) -> Option<(usize, f32)> {
    let (format, n_numbers, n_words) = (model.row_format(), model.config().head_dim, model.kv_layout().head_dim);
    let mut numbers = vec![0.0; n_numbers];
    for (place, head) in rows.chunks_exact(n_words).enumerate() {
        // Words are no numbers: four bytes may look like NaN, and a half that is NaN like any number.
        match format {
            RowFormat::F32 => numbers.copy_from_slice(head),
            format => decode(format, head, &mut numbers),
        }
        if let Some(number) = numbers.iter().find(|number| !number.is_finite()) {
            return Some((place, *number));
        }
    }
    None
}

/// A file of rows, with its checksum. `model`: the one that made them.
fn sealed(model: &Model, tensors: Vec<(String, Tensor<'_>)>) -> Vec<u8> {
    let KvLayout { n_layers, n_kv_heads, head_dim } = model.config().kv_layout();
    let row_format = model.row_format();
    let is_packed = row_format != RowFormat::F32;
    let version = if is_packed { PACKED_VERSION } else { VERSION };
    let fields = [
        ("format", FORMAT.into()),
        ("version", version.to_string()),
        ("n_layers", n_layers.to_string()),
        ("n_kv_heads", n_kv_heads.to_string()),
        ("head_dim", head_dim.to_string()),
        ("model", digits(model.fingerprint())),
        ("checksum", digits(0)),
    ];
    let fields = fields.into_iter().chain(is_packed.then(|| ("row_format", row_format.to_string())));
    let fields: HashMap<String, String> = fields.map(|(name, value)| (name.into(), value)).collect();
    let mut file = safetensors::serialize(tensors, Some(fields)).expect("shapes that belong to their numbers");
    let checksum = digits(checksum(&file).expect("a header with a checksum"));
    let place = place_of_checksum(&file).expect("a header with a checksum");
    file[place..][..checksum.len()].copy_from_slice(checksum.as_bytes());
    file
}

/// More bytes than a saved cache of a model can have.
fn most_bytes(model: &Model) -> usize {
    // A file in a different format is to be read as far as its header: there it is refused.
    let layout = model.config().kv_layout();
    let row = layout.kv_width().max(model.kv_layout().kv_width());
    // No overflow: a layer's weights, which are in a file, are larger than its rows.
    let token = size_of::<u32>() + 2 * layout.n_layers * row * size_of::<f32>();
    let header = (1 << 20) + layout.n_layers * (1 << 10);
    header.saturating_add(model.config().max_positions.saturating_mul(token))
}

/// How a file stores rows: as numbers, or as words if they are packed.
fn rows_dtype(format: RowFormat) -> Dtype {
    if format == RowFormat::F32 { Dtype::F32 } else { Dtype::U32 }
}

/// The names of a layer's keys and values in a file.
fn row_names(layer: usize) -> [String; 2] {
    ["k", "v"].map(|kind| format!("layers.{layer}.{kind}"))
}

/// A checksum as the header writes it: always as long.
fn digits(checksum: u32) -> String {
    format!("{checksum:08x}")
}

/// Where the digits of the checksum begin in a file.
fn place_of_checksum(file: &[u8]) -> Option<usize> {
    let name = b"\"checksum\":\"";
    Some(file.windows(name.len()).position(|bytes| bytes == name)? + name.len())
}

/// The checksum of a file whose checksum is zeros; `None` if it has no place for one.
fn checksum(file: &[u8]) -> Option<u32> {
    let (before, rest) = file.split_at(place_of_checksum(file)?);
    let zeros = digits(0);
    let mut sum = crc32fast::Hasher::new();
    sum.update(before);
    sum.update(zeros.as_bytes());
    sum.update(rest.get(zeros.len()..)?);
    Some(sum.finalize())
}

/// Numbers of 4 bytes on their way to a file.
struct Tensor<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    numbers: Numbers<'a>,
}

enum Numbers<'a> {
    Tokens(&'a [u32]),
    Rows(&'a [f32]),
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.numbers {
            Numbers::Tokens(tokens) => tokens.iter().flat_map(|token| token.to_le_bytes()).collect(),
            Numbers::Rows(rows) => rows.iter().flat_map(|word| word.to_le_bytes()).collect(),
        }
    }

    fn data_len(&self) -> usize {
        4 * self.shape.iter().product::<usize>()
    }
}

/// What a file says of itself. Its checksum is right.
struct Header {
    /// Of the rows' numbers.
    layout: KvLayout,
    row_format: RowFormat,
    /// The fingerprint of the model that made the rows.
    model: u32,
    tensors: Metadata,
    /// Where the tensors begin in the file.
    data_start: usize,
}

impl Header {
    /// Reads the header of a file of this format.
    fn read(file: &Path, bytes: &[u8]) -> Result<Self, SnapshotError> {
        let path = || PathBuf::from(file);
        let damaged = |problem| SnapshotError::Damaged { path: path(), problem };
        let (header_len, tensors) = SafeTensors::read_metadata(bytes).map_err(|error| {
            // The name of the format comes early: what is left of a saved cache is recognised by it.
            let ours = bytes[..bytes.len().min(1 << 10)].windows(FORMAT.len()).any(|name| name == FORMAT.as_bytes());
            let problem = what_is_damaged(bytes, error);
            if ours { damaged(problem) } else { SnapshotError::NotASnapshot { path: path(), problem } }
        })?;
        let fields = tensors.metadata().clone().unwrap_or_default();
        if fields.get("format").is_none_or(|found| found != FORMAT) {
            let problem = format!("the header does not name the format {FORMAT:?}");
            return Err(SnapshotError::NotASnapshot { path: path(), problem });
        }
        let field = |name: &str| fields.get(name).ok_or_else(|| damaged(format!("the header has no {name}")));
        let wrong = |name: &str, value: &str| damaged(format!("the header says {name} {}", escape::quoted(value)));
        let number = |name: &str| {
            let value = field(name)?;
            value.parse::<usize>().map_err(|_| wrong(name, value))
        };
        let version = field("version")?;
        let is_packed = match version.parse::<u32>() {
            Ok(found) if found == VERSION => false,
            Ok(found) if found == PACKED_VERSION => true,
            Ok(found) if found > PACKED_VERSION => {
                let problem = format!(
                    "a saved cache of version {found}, up to {PACKED_VERSION} can be read; load it with the program that saved it"
                );
                return Err(SnapshotError::Unfit { path: path(), problem });
            }
            _ => return Err(wrong("version", version)),
        };
        let (found, expected) = (field("checksum")?, checksum(bytes).map(digits));
        if expected.as_ref() != Some(found) {
            let expected = expected.unwrap_or_default();
            let found = escape::field(found);
            return Err(damaged(format!("its bytes have the checksum {expected}, the header says {found}")));
        }
        let layout = KvLayout {
            n_layers: number("n_layers")?,
            n_kv_heads: number("n_kv_heads")?,
            head_dim: number("head_dim")?,
        };
        let model = field("model")?;
        let model = u32::from_str_radix(model, 16).map_err(|_| wrong("model", model))?;
        let row_format = if is_packed {
            let name = field("row_format")?;
            name.parse().map_err(|_| wrong("row_format", name))?
        } else {
            RowFormat::F32
        };
        Ok(Header { layout, row_format, model, tensors, data_start: 8 + header_len })
    }

    /// Checks that this model made the rows, in the format that it has now.
    fn check_model(&self, file: &Path, model: &Model) -> Result<(), SnapshotError> {
        let unfit = |problem| Err(SnapshotError::Unfit { path: file.into(), problem });
        if self.layout != model.config().kv_layout() {
            return unfit(wrong_layout(self.layout, model.config().kv_layout()));
        }
        let (found, expected) = (self.row_format, model.row_format());
        if found != expected {
            let problem =
                format!("rows in {found}, and here rows are kept in {expected}; ask for --kv-dtype {found}, or");
            return unfit(format!("{problem} save the file again with --kv-dtype {expected}"));
        }
        let (found, expected) = (self.model, model.fingerprint());
        if found != expected {
            let whose = format!("its fingerprint is {found:08x}, this model's {expected:08x}");
            return unfit(format!("the rows were made by another model: {whose}; use the model that made them"));
        }
        Ok(())
    }

    /// The numbers of a tensor, 4 bytes each. Says what is wrong with it if it is not what it should be.
    fn tensor<'f>(&self, file: &'f [u8], name: &str, dtype: Dtype, shape: &[usize]) -> Result<&'f [[u8; 4]], String> {
        let info = self.tensors.info(name).ok_or_else(|| format!("tensor {name} is missing"))?;
        if (info.dtype, info.shape.as_slice()) != (dtype, shape) {
            let (found, its_shape) = (info.dtype, escape::shape(&info.shape));
            return Err(format!("tensor {name} is {found:?} {its_shape}, expected {dtype:?} {shape:?}"));
        }
        // The parser has checked that the places lie in the file and are as long as the shapes say.
        let (start, end) = info.data_offsets;
        Ok(file[self.data_start + start..self.data_start + end].as_chunks().0)
    }

    /// The words of rows, or the numbers if they are not packed.
    fn rows(&self, file: &[u8], name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        Ok(self
            .tensor(file, name, rows_dtype(self.row_format), shape)?
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect())
    }

    /// Reads the tensors. `layout`: that of the rows, as a model gives them to its caches. Says what is wrong with them if they
    /// do not fit together.
    fn decode(&self, file: &[u8], layout: KvLayout) -> Result<Snapshot, String> {
        let len = self.tensors.info("tokens").and_then(|info| info.shape.first().copied()).unwrap_or_default();
        let tokens = self.tensor(file, "tokens", Dtype::U32, &[len])?;
        let tokens = tokens.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let rows = |name: &str| self.rows(file, name, &[len, layout.kv_width()]);
        let mut layers = Vec::new();
        for index in 0..layout.n_layers {
            let [k, v] = row_names(index);
            layers.push(FrozenLayer { k: rows(&k)?, v: rows(&v)? });
        }
        Ok(Snapshot { layout, tokens, layers })
    }
}
