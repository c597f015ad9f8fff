//! A checkpoint folder: safetensors files, mapped and checked.
//!
//! A safetensors file is eight bytes with the length of a JSON header, the header (name, dtype, shape and place of each
//! tensor), then the numbers. Mapping it lets the operating system read pages of it when they are first used, so a
//! checkpoint of gigabytes opens in milliseconds. Large models are split into *shards*, with an index that says which
//! file holds which tensor.
//!
//! A mapped file is memory that other programs can change: see [`Checkpoint::open`]. Where there are no files, as in a
//! browser, a checkpoint is opened [from bytes](Checkpoint::from_bytes).

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use safetensors::SafeTensors;

use crate::files::FileError;
use crate::kernels::{Dtype, Matrix};
use crate::{escape, files};

fn unreadable(path: &Path, error: &std::io::Error) -> FileError {
    FileError::new(path, format!("{error}{}", missing_file_hint(path, error)))
}

fn missing_file_hint(path: &Path, error: &std::io::Error) -> &'static str {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match error.kind() {
        std::io::ErrorKind::NotADirectory => "; a model is a folder, not a file",
        std::io::ErrorKind::NotFound if name == "config.json" => {
            "; a model folder holds config.json, tokenizer.json and model.safetensors (or its shards and their index)"
        }
        std::io::ErrorKind::NotFound if name == "model.safetensors" => {
            "; there is no model.safetensors.index.json either, so the folder holds no weights"
        }
        std::io::ErrorKind::NotFound if name.ends_with(".safetensors") => {
            "; the index names it: download this shard too"
        }
        _ => "",
    }
}

/// Bytes of a safetensors header, or of an index of shards: a hundred times what Qwen3's largest have.
const MAX_HEADER_BYTES: usize = 16 << 20;

pub(crate) fn read(path: &Path, at_most: usize) -> Result<Vec<u8>, FileError> {
    files::read(path, at_most).map_err(|error| unreadable(path, &error))
}

pub(crate) fn parse_json<T: serde::de::DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, FileError> {
    serde_json::from_slice(bytes).map_err(|error| {
        FileError::new(path, format!("not the JSON expected here: {}", escape::field(&error.to_string())))
    })
}

fn damaged(path: &Path, problem: &str) -> FileError {
    FileError::new(path, format!("{problem}; download the file again"))
}

/// The tensors of a folder, by name.
pub struct Checkpoint {
    /// `model.safetensors`, or the index of the shards: the file that errors speak of.
    source: PathBuf,
    tensors: HashMap<String, Stored>,
    pub(super) mapped: MappedFiles,
}

/// The files of a checkpoint that are mapped, each as it was found.
#[derive(Clone, Default)]
pub struct MappedFiles(Vec<Arc<(File, Metadata)>>);

impl MappedFiles {
    /// Whether any of them was written to since, by its length and the time of its last change.
    pub fn have_changed(&self) -> bool {
        let state = |found: &Metadata| (found.len(), found.modified().ok());
        self.0.iter().any(|mapped| mapped.0.metadata().ok().as_ref().map(state) != Some(state(&mapped.1)))
    }
}

/// A tensor as it lies in its file.
#[derive(Clone)]
struct Stored {
    path: Arc<Path>,
    part: Part,
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
}

/// Memory that tensors lie in: a mapped file, the bytes of one, or large pages.
pub(super) type Memory = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A part of a memory that others share.
#[derive(Clone)]
pub(super) struct Part {
    pub(super) memory: Memory,
    pub(super) range: Range<usize>,
}

impl Part {
    fn bytes(&self) -> &[u8] {
        &(*self.memory).as_ref()[self.range.clone()]
    }
}

#[derive(serde::Deserialize)]
struct ShardIndex {
    weight_map: HashMap<String, String>,
}

impl Checkpoint {
    /// Maps the checkpoint of a folder: `model.safetensors`, or the shards of `model.safetensors.index.json`.
    ///
    /// **The files must stay as they are while the checkpoint is open.** If a different program cuts a file short, the
    /// operating system stops this one with a bus error (SIGBUS). If it writes over the bytes, the weights change under
    /// the `&[u8]` of [`Weight::bytes`], which Rust takes for constant: the results are then undefined. To replace a
    /// checkpoint, write the new one beside it and rename, as downloads do; what is open goes on with the old one.
    ///
    /// # Errors
    /// [`FileError`] for a file that cannot be read, or is not a whole safetensors file or index.
    pub fn open(dir: &Path) -> Result<Self, FileError> {
        let index = dir.join("model.safetensors.index.json");
        let single = dir.join("model.safetensors");
        let mut mapped = MappedFiles::default();
        if single.exists() || !index.exists() {
            let tensors = map_file(&single, &mut mapped)?;
            return Ok(Checkpoint { source: single, tensors, mapped });
        }
        let weight_map = parse_json::<ShardIndex>(&index, &read(&index, MAX_HEADER_BYTES)?)?.weight_map;
        let mut shards: HashMap<&String, HashMap<String, Stored>> = HashMap::new();
        let mut tensors = HashMap::new();
        for (name, shard) in &weight_map {
            if !shards.contains_key(shard) {
                if !is_plain_file_name(shard) {
                    let shard = escape::quoted(shard);
                    let problem = format!("the index names the shard {shard}, which is not a plain file name");
                    return Err(damaged(&index, &problem));
                }
                shards.insert(shard, map_file(&dir.join(shard), &mut mapped)?);
            }
            let Some(stored) = shards[shard].get(name) else {
                let (name, shard) = (escape::field(name), escape::field(shard));
                let problem = format!("the index places tensor {name} in {shard}, which does not hold it");
                return Err(damaged(&index, &problem));
            };
            tensors.insert(name.clone(), stored.clone());
        }
        Ok(Checkpoint { source: index, tensors, mapped })
    }

    /// A checkpoint from the bytes of a `model.safetensors`.
    ///
    /// # Errors
    /// [`FileError`] if they are not a whole safetensors file.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, FileError> {
        let source = PathBuf::from("model.safetensors");
        let tensors = tensors_of(&source, Arc::new(bytes))?;
        Ok(Checkpoint { source, tensors, mapped: MappedFiles::default() })
    }

    /// A weight matrix, used where it lies. It is read once, to see that all of its numbers are finite.
    ///
    /// # Errors
    /// [`FileError`] if it is missing, has a different shape or an unknown type, or holds a number that is not finite.
    pub fn weight(&self, name: &str, rows: usize, cols: usize) -> Result<Weight, FileError> {
        let (stored, dtype) = self.find(name, &[rows, cols])?;
        let matrix = Matrix::new(stored.part.bytes(), dtype, rows, cols);
        if let Some((row, col)) = matrix.first_not_finite() {
            let mut numbers = vec![0.0; cols];
            matrix.read_row(row, &mut numbers);
            return Err(stored.not_finite(name, &[row, col], numbers[col]));
        }
        Ok(Weight { part: stored.part, is_copied: false, dtype, rows, cols })
    }

    /// A vector (a norm, a bias), converted to `f32`. It is refused as a [weight](Self::weight) is.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, FileError> {
        let (stored, dtype) = self.find(name, &[len])?;
        let mut vector = vec![0.0; len];
        Matrix::new(stored.part.bytes(), dtype, 1, len).read_row(0, &mut vector);
        match vector.iter().position(|number| !number.is_finite()) {
            Some(place) => Err(stored.not_finite(name, &[place], vector[place])),
            None => Ok(vector),
        }
    }

    fn find(&self, name: &str, shape: &[usize]) -> Result<(Stored, Dtype), FileError> {
        let advice = "config.json and the checkpoint do not belong together";
        let Some(stored) = self.tensors.get(name) else {
            return Err(FileError::new(&self.source, format!("tensor {name} {shape:?} is missing; {advice}")));
        };
        let refused = |problem: String| Err(FileError::new(&stored.path, format!("tensor {name} is {problem}")));
        if stored.shape != shape {
            return refused(format!("{}, expected {shape:?}; {advice}", escape::shape(&stored.shape)));
        }
        let dtype = match stored.dtype {
            safetensors::Dtype::F32 => Dtype::F32,
            safetensors::Dtype::F16 => Dtype::F16,
            safetensors::Dtype::BF16 => Dtype::Bf16,
            other => {
                let advice = "quantized checkpoints are not supported";
                return refused(format!("stored as {other:?}, supported: BF16, F16, F32; {advice}"));
            }
        };
        Ok((stored.clone(), dtype))
    }
}

impl Stored {
    fn not_finite(&self, name: &str, place: &[usize], number: f32) -> FileError {
        let problem =
            format!("tensor {name} is {number} at {place:?}; a weight is a finite number: download the file again");
        FileError::new(&self.path, problem)
    }
}

/// A weight matrix, in its file or copied.
pub struct Weight {
    part: Part,
    is_copied: bool,
    dtype: Dtype,
    rows: usize,
    cols: usize,
}

impl Weight {
    pub fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.bytes(), self.dtype, self.rows, self.cols)
    }

    pub fn n_numbers(&self) -> usize {
        self.rows * self.cols
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The bytes as they lie in the file.
    pub fn bytes(&self) -> &[u8] {
        self.part.bytes()
    }

    /// Whether it lies in memory of its own, and no longer in its file.
    pub fn is_copied(&self) -> bool {
        self.is_copied
    }

    /// Goes on with a copy of the same bytes.
    pub(super) fn move_to(&mut self, copy: Part) {
        (self.part, self.is_copied) = (copy, true);
    }
}

fn map_file(path: &Path, mapped: &mut MappedFiles) -> Result<HashMap<String, Stored>, FileError> {
    let file = files::open(path).map_err(|error| unreadable(path, &error))?;
    let found = file.metadata().map_err(|error| unreadable(path, &error))?;
    // SAFETY: the map is read-only, and nothing here writes to the file. What other programs may do to it while it is
    // mapped no check can rule out: the documentation of `Checkpoint::open` asks that they do nothing.
    let map = unsafe { Mmap::map(&file) }.map_err(|error| unreadable(path, &error))?;
    mapped.0.push(Arc::new((file, found)));
    tensors_of(path, Arc::new(map))
}

fn tensors_of(path: &Path, memory: Memory) -> Result<HashMap<String, Stored>, FileError> {
    let bytes = (*memory).as_ref();
    if let Some(header_len) =
        header_len(bytes).filter(|len| (MAX_HEADER_BYTES as u64..bytes.len() as u64).contains(len))
    {
        let problem = format!("its header has {header_len} bytes, at most {MAX_HEADER_BYTES} are expected");
        return Err(damaged(path, &problem));
    }
    let (header_len, metadata) =
        SafeTensors::read_metadata(bytes).map_err(|error| damaged(path, &what_is_damaged(bytes, error)))?;
    let data_start = 8 + header_len;
    let path: Arc<Path> = path.into();
    Ok(metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| {
            let (start, end) = info.data_offsets;
            let part = Part { memory: memory.clone(), range: data_start + start..data_start + end };
            (name, Stored { path: path.clone(), part, dtype: info.dtype, shape: info.shape.clone() })
        })
        .collect())
}

/// True for a name that means a file in this folder, and that messages show as it is.
fn is_plain_file_name(name: &str) -> bool {
    Path::new(name).file_name() == Some(name.as_ref()) && escape::field(name) == name
}

/// Says in numbers what the parser has refused.
fn what_is_damaged(bytes: &[u8], error: safetensors::SafeTensorError) -> String {
    use safetensors::SafeTensorError::{HeaderTooLarge, InvalidHeaderLength, MetadataIncompleteBuffer};
    let file_len = bytes.len();
    let Some(header_len) = header_len(bytes) else {
        return format!("a safetensors file has at least 8 bytes, this one has {file_len}");
    };
    match error {
        HeaderTooLarge | InvalidHeaderLength => {
            format!("its first 8 bytes announce a header of {header_len} bytes, but the file has {file_len} in all")
        }
        MetadataIncompleteBuffer => format!(
            "its header describes tensors that do not end where the file ends, at byte {file_len}: it was cut short, \
             or something was added"
        ),
        error => format!("not a safetensors file ({})", escape::field(&error.to_string())),
    }
}

/// What the first eight bytes of a safetensors file announce.
fn header_len(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|len| u64::from_le_bytes(*len))
}
