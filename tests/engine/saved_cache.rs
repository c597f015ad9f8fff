//! A cache as a file: what was saved comes back to the last bit, into every cache. What is not taken for a saved cache
//! is in `damaged_saved_caches.rs`.

use std::fs;
use std::path::PathBuf;

use page_by_page::cache::{CacheError, KvCache, KvLayout};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};
use page_by_page::chapters::ch14_kv_quantization::encode_rows;
use page_by_page::disk::saved_cache::SavedCache;
use page_by_page::files::FileError;
use page_by_page::kernels::KvDtype;
use page_by_page::model::Model;
use safetensors::Dtype;
use serde_json::json;

use grading::checkpoints::Folder;
use grading::oracle::Oracle;

/// Two layers, rows of 16 numbers, 97 token ids, 128 positions.
pub const MODEL: &str = "bf16-gqa3";
pub const TOKENS: [u32; 3] = [5, 70, 0];

pub fn open(folder: &Folder) -> Model {
    Model::open(folder.path().as_ref()).unwrap()
}

pub fn model(dtype: KvDtype) -> Model {
    let mut model = open(&Folder::copy_of(MODEL));
    model.kv_dtype = dtype;
    model
}

pub fn saved_cache(layout: KvLayout, tokens: &[u32]) -> SavedCache {
    let mut cache = FlatCache::new(layout);
    Oracle::default().append(&mut cache, &(0..tokens.len()).collect::<Vec<_>>());
    SavedCache::copy(&cache, tokens)
}

/// A saved cache of [`TOKENS`] whose layers all have these rows, in numbers.
pub fn of_rows(model: &Model, dtype: KvDtype, k: &[f32], v: &[f32]) -> SavedCache {
    let mut cache = FlatCache::new(model.cache_layout());
    cache.extend(TOKENS.len()).unwrap();
    let rows = [k, v].map(|rows| match dtype {
        KvDtype::F32 => rows.to_vec(),
        dtype => encode_rows(dtype, model.config().kv_layout(), rows),
    });
    (0..2).for_each(|layer| cache.write(layer, &rows[0], &rows[1]));
    SavedCache::copy(&cache, &TOKENS)
}

/// A place for a file, which goes away with this.
pub struct Place(pub tempfile::TempDir);

impl Place {
    pub fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    pub fn file(&self) -> PathBuf {
        self.0.path().join("some.cache")
    }

    pub fn load(&self, bytes: &[u8], model: &Model) -> Result<SavedCache, FileError> {
        fs::write(self.file(), bytes).unwrap();
        SavedCache::load(&self.file(), model)
    }
}

fn restored(saved: &SavedCache) -> FlatCache {
    let mut cache = FlatCache::new(saved.layout());
    saved.restore(&mut cache).unwrap();
    cache
}

fn bits(cache: &dyn KvCache) -> Vec<u32> {
    let layers = (0..cache.layout().n_layers).map(|layer| cache.gather(layer));
    layers.flat_map(|(k, v)| [k, v].concat()).map(f32::to_bits).collect()
}

#[test]
fn a_model_goes_on_in_the_format_that_was_saved_and_in_no_other() {
    let place = Place::new();
    for found in KvDtype::ALL {
        let writer = model(found);
        let mut cache = FlatCache::new(writer.cache_layout());
        writer.step(&TOKENS, Some(&mut cache)).unwrap();
        SavedCache::copy(&cache, &TOKENS).save(&place.file(), &writer).unwrap();
        for expected in KvDtype::ALL {
            let reader = model(expected);
            let loaded = SavedCache::load(&place.file(), &reader);
            if found != expected {
                let says = format!(
                    "some.cache: rows in {found}, and here rows are kept in {expected}; ask for --kv-dtype {found}, or \
                     give a different file"
                );
                let error = loaded.unwrap_err().to_string();
                assert!(error.ends_with(&says), "{error}");
                continue;
            }
            let mut restored = restored(&loaded.unwrap());
            assert_eq!(bits(&restored), bits(&cache), "{found}");
            let next = writer.step(&[7, 8], Some(&mut cache)).unwrap();
            assert_eq!(reader.step(&[7, 8], Some(&mut restored)).unwrap(), next, "{found}");
        }
    }
}

#[test]
fn a_fingerprint_covers_every_weight() {
    for name in ["bf16-gqa3", "f16-mha-untied", "f32-bias-gqa7", "mixed-dtypes"] {
        let folder = Folder::copy_of(name);
        let whole = folder.tensors();
        let fingerprint = open(&folder).fingerprint();
        for tensor in whole.keys() {
            folder.set_tensors(&whole);
            folder.change_tensor(tensor, |tensor| *tensor.data.last_mut().unwrap() ^= 2);
            assert_ne!(open(&folder).fingerprint(), fingerprint, "{name}, with a bit of {tensor} changed");
        }
        folder.set_tensors(&whole);
        assert_eq!(open(&folder).fingerprint(), fingerprint, "{name}, as it was");
    }
}

#[test]
fn a_fingerprint_covers_what_the_bytes_mean() {
    let folder = Folder::copy_of(MODEL);
    // Of two places for it, keep the one that `set` can reach.
    folder.set("config.json", "rope_parameters", json!(null));
    folder.set("config.json", "rope_theta", json!(10000.0));
    let fingerprint = open(&folder).fingerprint();
    let config = folder.read("config.json");
    for (field, value, changes_rows) in [
        ("rope_theta", json!(12345.0), true),
        ("rms_norm_eps", json!(1e-5), true),
        ("max_position_embeddings", json!(77), false),
        ("eos_token_id", json!([1, 2]), false),
    ] {
        folder.set("config.json", field, value);
        assert_eq!(open(&folder).fingerprint() != fingerprint, changes_rows, "{field}");
        folder.write("config.json", &config);
    }
    folder.change_tensor("model.layers.0.mlp.up_proj.weight", |tensor| tensor.dtype = Dtype::F16);
    assert_ne!(open(&folder).fingerprint(), fingerprint, "the same bytes as numbers of another type");
}

const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 2, head_dim: 2 };

#[test]
fn a_refused_restore_changes_nothing() {
    let slab = PageSlab::new(LAYOUT, 2, 1).unwrap();
    let mut cache = PagedCache::new(&slab).unwrap();
    let refused = saved_cache(LAYOUT, &TOKENS).restore(&mut cache);
    assert_eq!(refused, Err(CacheError::OutOfPages { needed: 2, free: 1 }));
    assert_eq!((cache.len(), slab.borrow().pool().n_free()), (0, 1));
}

#[test]
fn every_cache_goes_on_from_every_other() {
    type NewCache = fn() -> Box<dyn KvCache>;
    let kinds: [(&str, NewCache); 3] = [
        ("flat", || Box::new(FlatCache::new(LAYOUT))),
        ("contiguous", || Box::new(ContiguousCache::new(LAYOUT, 16))),
        ("paged", || Box::new(PagedCache::new(&PageSlab::new(LAYOUT, 4, 4).unwrap()).unwrap())),
    ];
    for (from, new_cache) in kinds {
        let mut cache = new_cache();
        let mut oracle = Oracle::default();
        oracle.append(cache.as_mut(), &[0, 1, 2, 3]);
        oracle.append(cache.as_mut(), &[4, 5]);
        let saved = SavedCache::copy(cache.as_ref(), &[9, 8, 7, 6, 5, 4]);
        drop(cache);
        for (to, new_cache) in kinds {
            let mut cache = new_cache();
            let mut oracle = oracle.clone();
            oracle.history.record(format!("restored from {from} to {to}"));
            saved.restore(cache.as_mut()).unwrap();
            oracle.check(cache.as_ref());
            oracle.append(cache.as_mut(), &[6, 7, 8]);
            oracle.check(cache.as_ref());
        }
    }
}
