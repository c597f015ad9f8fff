//! The cache of one sequence as a file: its rows as dense tensors, and the tokens that they belong to.
//!
//! What a paged cache held, a contiguous one can go on from, with the same bits. The file is a safetensors file. After three tokens of the model in the [contract's](crate::cache) picture it holds:
//!
//! ```text
//!   header        format "page-by-page cache", version, n_layers, n_kv_heads, head_dim, row_format, model, checksum
//!   tokens        U32 [3]
//!   layers.0.k    F32 [3, 8]         rows that are packed: U32 [3, words of a row]; head_dim counts numbers all the same
//!   layers.0.v    F32 [3, 8]
//!   layers.1.k    …
//! ```
//!
//! `model` is the [fingerprint](Model::fingerprint) of the model that made the rows. `checksum` is the CRC-32 of the whole file
//! with zeros in place of its own eight digits. It guards against accidents, not against people. Files of version 1 have no
//! `row_format`: their rows are numbers.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors, View};

use crate::cache::{CacheError, KvCache, KvLayout};
use crate::chapters::ch14_half_the_bytes::decode;
use crate::files::FileError;
use crate::kernels::RowFormat;
use crate::model::Model;
use crate::model::checkpoint::what_is_damaged;
use crate::{escape, files};

/// What the header calls the format.
const FORMAT: &str = "page-by-page cache";
/// Goes up when the meaning of a file changes, including the arithmetic that makes the rows.
const VERSION: u32 = 2;

/// The keys and values of a sequence, in every layer, and its tokens.
#[derive(Clone, Debug)]
pub struct Snapshot {
    layout: KvLayout,
    tokens: Vec<u32>,
    /// Keys and values of each layer: `[tokens, kv_width]`, row-major.
    layers: Vec<[Vec<f32>; 2]>,
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
    /// The cache holds this many tokens already.
    #[error("the cache holds {0} tokens already; restore into an empty one")]
    NotEmpty(usize),
    /// The cache has no room for the tokens.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl Snapshot {
    /// Copies the rows that a cache holds. `tokens`: those that the rows belong to.
    ///
    /// # Panics
    /// If the cache holds a different number of tokens.
    pub fn freeze(cache: &dyn KvCache, tokens: &[u32]) -> Self {
        assert_eq!(tokens.len(), cache.len(), "tokens given, and tokens held");
        let layout = cache.layout();
        let layers = (0..layout.n_layers).map(|layer| {
            let (k, v) = cache.gather(layer);
            [k.into_owned(), v.into_owned()]
        });
        Snapshot { layout, tokens: tokens.into(), layers: layers.collect() }
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
    pub fn restore(&self, cache: &mut dyn KvCache) -> Result<(), RestoreError> {
        let (found, expected) = (self.layout, cache.layout());
        if found != expected {
            return Err(RestoreError::WrongLayout { found, expected });
        }
        if !cache.is_empty() {
            return Err(RestoreError::NotEmpty(cache.len()));
        }
        cache.extend(self.tokens.len())?;
        for (index, [k, v]) in self.layers.iter().enumerate() {
            cache.write(index, k, v);
        }
        Ok(())
    }

    /// Writes the rows and their tokens to a file, whole or not at all. `model`: the one that made them, in the same format.
    ///
    /// # Errors
    /// [`FileError`] if the file cannot be written, or the model cannot have made the rows. The file that was there stays.
    pub fn save(&self, file: &Path, model: &Model) -> Result<(), FileError> {
        self.check(model).map_err(|problem| FileError::new(file, problem))?;
        files::write_whole(file, &self.encode(model)).map_err(|error| unwritable(file, &error))
    }

    /// Checks that [`save`](Self::save) could write this file now, before a long computation. Nothing changes.
    pub fn check_writable(file: &Path) -> Result<(), FileError> {
        files::check_writable(file).map_err(|error| unwritable(file, &error))
    }

    /// Reads a file that [`save`](Self::save) wrote, for the model that made the rows, in the format that it has now.
    ///
    /// # Errors
    /// [`FileError`] if the file cannot be read, is something else, is damaged, or does not fit the model.
    pub fn load(file: &Path, model: &Model) -> Result<Self, FileError> {
        let bytes = files::read(file, most_bytes(model))
            .map_err(|error| FileError::new(file, format!("{error}; give a file with a saved cache")))?;
        Self::decode(&bytes, model).map_err(|problem| FileError::new(file, problem))
    }

    /// Checks that a model can have made this.
    fn check(&self, model: &Model) -> Result<(), String> {
        let config = model.config();
        let (vocab_size, max_positions) = (config.vocab_size, config.max_positions);
        let len = self.tokens.len();
        same_layout(self.layout, model.kv_layout())?;
        if let Some(token) = self.tokens.iter().find(|token| **token as usize >= vocab_size) {
            let last = vocab_size - 1;
            return Err(format!("token id {token} is outside the vocabulary: ids go from 0 to {last}"));
        }
        if len > max_positions {
            let than = format!("the model's {max_positions} positions; save a shorter sequence");
            return Err(format!("{len} tokens are more than {than}"));
        }
        for (name, rows) in self.rows() {
            if let Some((head, number)) = not_finite(rows, model) {
                let position = head / self.layout.n_kv_heads;
                return Err(format!(
                    "row {name} of the token at position {position} holds {number}, and a row's numbers are finite; \
                     compute the sequence again"
                ));
            }
        }
        Ok(())
    }

    /// The rows, with their names in a file.
    fn rows(&self) -> impl Iterator<Item = (String, &Vec<f32>)> {
        self.layers.iter().enumerate().flat_map(|(layer, rows)| row_names(layer).into_iter().zip(rows))
    }

    /// A file with its checksum.
    fn encode(&self, model: &Model) -> Vec<u8> {
        let len = self.tokens.len();
        let tokens: Vec<f32> = self.tokens.iter().map(|token| f32::from_bits(*token)).collect();
        let mut tensors = vec![("tokens".into(), Tensor { dtype: Dtype::U32, shape: vec![len], words: &tokens })];
        let (dtype, width) = (rows_dtype(model.row_format()), self.layout.kv_width());
        tensors.extend(self.rows().map(|(name, words)| (name, Tensor { dtype, shape: vec![len, width], words })));
        let KvLayout { n_layers, n_kv_heads, head_dim } = model.config().kv_layout();
        let fields = [
            ("format", FORMAT.into()),
            ("version", VERSION.to_string()),
            ("n_layers", n_layers.to_string()),
            ("n_kv_heads", n_kv_heads.to_string()),
            ("head_dim", head_dim.to_string()),
            ("row_format", model.row_format().to_string()),
            ("model", digits(model.fingerprint())),
            ("checksum", digits(0)),
        ];
        let fields = fields.into_iter().map(|(name, value)| (name.into(), value)).collect();
        let mut file = safetensors::serialize(tensors, Some(fields)).expect("shapes that belong to their numbers");
        let checksum = digits(checksum(&file).expect("a header with a checksum"));
        let place = place_of_checksum(&file).expect("a header with a checksum");
        file[place..][..checksum.len()].copy_from_slice(checksum.as_bytes());
        file
    }

    /// Reads the bytes of a file. The error says what is wrong with them.
    fn decode(bytes: &[u8], model: &Model) -> Result<Self, String> {
        let fields = Fields::read(bytes)?;
        fields.check_model(model)?;
        let file = SafeTensors::deserialize(bytes).map_err(|error| damaged(&what_is_damaged(bytes, error)))?;
        let layout = model.kv_layout();
        let len = file.tensor("tokens").ok().and_then(|tokens| tokens.shape().first().copied()).unwrap_or_default();
        let rows = |name: &str| {
            let words = words(&file, name, rows_dtype(model.row_format()), &[len, layout.kv_width()])?;
            Ok::<_, String>(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
        };
        let tokens = words(&file, "tokens", Dtype::U32, &[len])?.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let mut layers = Vec::new();
        for layer in 0..layout.n_layers {
            let [k, v] = row_names(layer);
            layers.push([rows(&k)?, rows(&v)?]);
        }
        let snapshot = Snapshot { layout, tokens, layers };
        snapshot.check(model)?;
        Ok(snapshot)
    }
}

fn unwritable(file: &Path, error: &std::io::Error) -> FileError {
    let advice = "to save a cache, name a file in a folder that exists and may be written to";
    FileError::new(file, format!("{error}; {advice}"))
}

fn damaged(problem: &str) -> String {
    format!("the saved cache is damaged: {problem}; save it again")
}

fn same_layout(found: KvLayout, expected: KvLayout) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("rows of {found:?}, the model makes rows of {expected:?}; use the model that made them"))
}

/// The first number of some rows that is NaN or an infinity, and its place among all heads of the rows.
fn not_finite(rows: &[f32], model: &Model) -> Option<(usize, f32)> {
    let (format, n_numbers, n_words) = (model.row_format(), model.config().head_dim, model.kv_layout().head_dim);
    let mut numbers = vec![0.0; n_numbers];
    for (place, head) in rows.chunks_exact(n_words).enumerate() {
        // A word of packed numbers may look like NaN, and one that holds NaN like any number.
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

/// More bytes than a saved cache of a model can have.
fn most_bytes(model: &Model) -> usize {
    // A file in a different format is read too, to be refused by its header.
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

/// A checksum as the header writes it: always eight digits.
fn digits(checksum: u32) -> String {
    format!("{checksum:08x}")
}

/// Where the digits of the checksum begin in a file.
fn place_of_checksum(file: &[u8]) -> Option<usize> {
    let name = b"\"checksum\":\"";
    Some(file.windows(name.len()).position(|bytes| bytes == name)? + name.len())
}

/// The checksum of a file, taken as if its own digits were zeros; `None` if it has no place for one.
fn checksum(file: &[u8]) -> Option<u32> {
    let (before, rest) = file.split_at(place_of_checksum(file)?);
    let zeros = digits(0);
    let mut sum = crc32fast::Hasher::new();
    sum.update(before);
    sum.update(zeros.as_bytes());
    sum.update(rest.get(zeros.len()..)?);
    Some(sum.finalize())
}

/// Words of 4 bytes on their way to a file.
struct Tensor<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    words: &'a [f32],
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn data_len(&self) -> usize {
        size_of_val(self.words)
    }
}

/// The words of a tensor in a file.
fn words<'f>(file: &SafeTensors<'f>, name: &str, dtype: Dtype, shape: &[usize]) -> Result<&'f [[u8; 4]], String> {
    let tensor = file.tensor(name).map_err(|_| damaged(&format!("tensor {name} is missing")))?;
    if (tensor.dtype(), tensor.shape()) != (dtype, shape) {
        let (found, its_shape) = (tensor.dtype(), escape::shape(tensor.shape()));
        return Err(damaged(&format!("tensor {name} is {found:?} {its_shape}, expected {dtype:?} {shape:?}")));
    }
    Ok(tensor.data().as_chunks().0)
}

/// What a file records about itself.
struct Fields(HashMap<String, String>);

impl Fields {
    /// Reads the header of a file of this format, and checks the checksum.
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| {
            // The name of the format comes early: what is left of a saved cache is recognised by it.
            let ours = bytes[..bytes.len().min(1 << 10)].windows(FORMAT.len()).any(|name| name == FORMAT.as_bytes());
            let problem = what_is_damaged(bytes, error);
            if ours { damaged(&problem) } else { format!("not a saved cache: {problem}") }
        })?;
        let fields = Fields(metadata.metadata().clone().unwrap_or_default());
        if fields.0.get("format").is_none_or(|found| found != FORMAT) {
            return Err(format!("not a saved cache: the header does not name the format {FORMAT:?}"));
        }
        let version: u32 = fields.parse("version", |text| text.parse().ok().filter(|version| *version > 0))?;
        if version > VERSION {
            let advice = "load it with the program that saved it";
            return Err(format!("a saved cache of version {version}, up to {VERSION} can be read; {advice}"));
        }
        let (found, expected) = (fields.get("checksum")?, checksum(bytes).map(digits).unwrap_or_default());
        if *found != expected {
            let found = escape::field(found);
            return Err(damaged(&format!("its bytes have the checksum {expected}, the header says {found}")));
        }
        Ok(fields)
    }

    fn get(&self, name: &str) -> Result<&String, String> {
        self.0.get(name).ok_or_else(|| damaged(&format!("the header has no {name}")))
    }

    fn parse<T>(&self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let text = self.get(name)?;
        parse(text).ok_or_else(|| damaged(&format!("the header says {name} {}", escape::quoted(text))))
    }

    /// Checks that this model made the rows, in the format that it has now.
    fn check_model(&self, model: &Model) -> Result<(), String> {
        let number = |name: &str| self.parse(name, |text| text.parse().ok());
        let layout = KvLayout {
            n_layers: number("n_layers")?,
            n_kv_heads: number("n_kv_heads")?,
            head_dim: number("head_dim")?,
        };
        same_layout(layout, model.config().kv_layout())?;
        let found = match self.0.contains_key("row_format") {
            true => self.parse("row_format", |text| text.parse().ok())?,
            false => RowFormat::F32,
        };
        let expected = model.row_format();
        if found != expected {
            let advice = format!("ask for --kv-dtype {found}, or save the file again with --kv-dtype {expected}");
            return Err(format!("rows in {found}, and here rows are kept in {expected}; {advice}"));
        }
        let found = self.parse("model", |text| u32::from_str_radix(text, 16).ok())?;
        let expected = model.fingerprint();
        if found != expected {
            let whose = format!("its fingerprint is {found:08x}, this model's {expected:08x}");
            return Err(format!("the rows were made by a different model: {whose}; use the model that made them"));
        }
        Ok(())
    }
}
