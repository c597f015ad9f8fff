//! The cache of one sequence as a file: its rows, and the tokens that they belong to.
//!
//! What a paged cache held, a contiguous one can go on from, with the same bits. The file is one of [pages](super),
//! with a single page that has as many slots as the sequence has tokens:
//!
//! ```text
//!   0     header     model, dtypes, layout, tokens; a checksum
//!   64    a record   checksums, id 1, parent 0; the tokens, the keys of all layers, their values
//! ```
//!
//! The checksums guard against accidents, not against people.

use std::path::Path;

use super::record::{PageRows, decode_header, encode};
use super::{FILE_HEADER_BYTES, PageFileError, PageFormat};
use crate::cache::{CacheError, KvCache, KvLayout};
use crate::chapters::ch14_kv_quantization::decode;
use crate::files::{self, FileError};
use crate::kernels::KvDtype;
use crate::model::Model;

/// The keys and values of a sequence, in every layer, and its tokens.
#[derive(Clone, Debug)]
pub struct SavedCache {
    layout: KvLayout,
    tokens: Vec<u32>,
    /// Keys and values: `[n_layers, tokens, kv_width]`, row-major.
    rows: PageRows,
}

impl SavedCache {
    /// Copies the rows that a cache holds. `tokens`: those that the rows belong to.
    ///
    /// # Panics
    /// If the cache holds a different number of tokens.
    pub fn copy(cache: &dyn KvCache, tokens: &[u32]) -> Self {
        assert_eq!(tokens.len(), cache.len(), "tokens given, and tokens held");
        let layout = cache.layout();
        let mut rows = PageRows { k: Vec::new(), v: Vec::new() };
        for layer in 0..layout.n_layers {
            let (k, v) = cache.gather(layer);
            rows.k.extend_from_slice(&k);
            rows.v.extend_from_slice(&v);
        }
        SavedCache { layout, tokens: tokens.into(), rows }
    }

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
    /// [`CacheError`] if it has no room for them. It is then as it was.
    ///
    /// # Panics
    /// If the cache holds tokens already, or is for rows of a different shape.
    pub fn restore(&self, cache: &mut dyn KvCache) -> Result<(), CacheError> {
        assert!(cache.is_empty(), "a saved cache is restored into an empty cache");
        assert_eq!(self.layout, cache.layout(), "rows of the saved cache, and of the cache");
        cache.extend(self.tokens.len())?;
        let of_layer = self.tokens.len() * self.layout.kv_width();
        for layer in 0..self.layout.n_layers {
            let [k, v] = [&self.rows.k, &self.rows.v].map(|rows| &rows[layer * of_layer..][..of_layer]);
            cache.write(layer, k, v);
        }
        Ok(())
    }

    /// Writes the rows and their tokens to a file, whole or not at all. `model`: made them, in the same format.
    ///
    /// # Errors
    /// [`FileError`] if the file cannot be written, which leaves the old one, or the model cannot have made the rows.
    pub fn save(&self, file: &Path, model: &Model) -> Result<(), FileError> {
        let (format, PageRows { k, v }) = (PageFormat::for_model(model, self.tokens.len()), &self.rows);
        let bytes = format
            .check_same(&PageFormat { layout: self.layout, ..format })
            .map_err(|error| error.to_string())
            .and_then(|()| self.validate(model))
            .map(|()| [&format.file_header()[..], &encode(&format, 1, 0, &self.tokens, k, v)].concat())
            .map_err(|problem| FileError::new(file, problem))?;
        files::write_whole(file, &bytes).map_err(|error| unwritable(file, &error))
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
        let bytes = files::read(file, max_bytes(model))
            .map_err(|error| FileError::new(file, format!("{error}; give a file with a saved cache")))?;
        Self::decode(&bytes, model).map_err(|problem| FileError::new(file, problem))
    }

    fn decode(bytes: &[u8], model: &Model) -> Result<Self, String> {
        let Some((header, record)) = bytes.split_first_chunk::<FILE_HEADER_BYTES>() else {
            let len = bytes.len();
            return Err(format!("not a saved cache: it has {len} bytes, and a header alone has {FILE_HEADER_BYTES}"));
        };
        let found = PageFormat::from_file_header(header).map_err(|error| match error {
            PageFileError::NotAPageFile => "not a saved cache: it does not begin like a file of pages".into(),
            PageFileError::DamagedHeader { stored, computed } => {
                damaged(format!("its header has the checksum {computed:08x}, and says {stored:08x}"))
            }
            error => error.to_string(),
        })?;
        let format = PageFormat::for_model(model, found.page_size);
        format.check_same(&found).map_err(|error| error.to_string())?;
        let (len, max) = (found.page_size, model.config().max_positions);
        if len > max {
            return Err(format!("{len} tokens are more than the model's {max} positions; save a shorter sequence"));
        }
        if record.len() != format.record_bytes() {
            let (tokens, found) = (format.page_size, bytes.len());
            return Err(damaged(format!("{tokens} tokens take {} bytes, and it has {found}", format.offset(1))));
        }
        let header = decode_header(&format, record).map_err(damaged)?;
        let rows = &record[format.record_header_bytes()..];
        if (header.parent, header.rows_checksum) != (0, crc32fast::hash(rows)) {
            return Err(damaged("its rows have changed, or follow those of a different file"));
        }
        let (k, v) = rows.split_at(rows.len() / 2);
        let [k, v] = [k, v].map(|rows| rows.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect());
        let saved = SavedCache { layout: format.layout, tokens: header.tokens.into(), rows: PageRows { k, v } };
        saved.validate(model)?;
        Ok(saved)
    }

    /// Checks what the layout doesn't show: that the model takes these tokens, and that all numbers are finite.
    fn validate(&self, model: &Model) -> Result<(), String> {
        let len = self.tokens.len();
        model.validate(&self.tokens, 0).map_err(|error| error.to_string())?;
        for (kind, rows) in [("k", &self.rows.k), ("v", &self.rows.v)] {
            if let Some((head, number)) = not_finite(rows, model) {
                let row = head / self.layout.n_kv_heads;
                return Err(format!(
                    "row layers.{}.{kind} of the token at position {} holds {number}, and a row's numbers are finite; \
                     compute the sequence again",
                    row / len,
                    row % len
                ));
            }
        }
        Ok(())
    }
}

fn unwritable(file: &Path, error: &std::io::Error) -> FileError {
    let advice = "to save a cache, name a file in a folder that exists and may be written to";
    FileError::new(file, format!("{error}; {advice}"))
}

fn damaged(problem: impl std::fmt::Display) -> String {
    format!("the saved cache is damaged: {problem}; save it again")
}

/// The first number of some rows that is NaN or an infinity, and the index of its head among all of the rows.
fn not_finite(rows: &[f32], model: &Model) -> Option<(usize, f32)> {
    let (dtype, n_numbers, n_words) = (model.kv_dtype, model.config().head_dim, model.cache_layout().head_dim);
    let mut numbers = vec![0.0; n_numbers];
    for (index, head) in rows.chunks_exact(n_words).enumerate() {
        // A word of packed numbers may look like NaN, and one that holds NaN like any number.
        match dtype {
            KvDtype::F32 => numbers.copy_from_slice(head),
            dtype => decode(dtype, head, &mut numbers),
        }
        if let Some(number) = numbers.iter().find(|number| !number.is_finite()) {
            return Some((index, *number));
        }
    }
    None
}

/// A MiB more than the model's longest sequence takes: what is a little too long is read, and refused by its header.
fn max_bytes(model: &Model) -> usize {
    let [layout, other] = [model.cache_layout(), model.config().kv_layout()];
    let layout = if other.kv_width() > layout.kv_width() { other } else { layout };
    let longest = PageFormat {
        fingerprint: 0,
        kv_dtype: model.kv_dtype,
        matmul_dtype: model.matmul_dtype,
        layout,
        page_size: model.config().max_positions,
    };
    usize::try_from(longest.offset(1)).unwrap_or(usize::MAX).saturating_add(1 << 20)
}
