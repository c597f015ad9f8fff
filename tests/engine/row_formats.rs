//! Rows in fewer bits, around chapter 14: saved caches keep their format, and numbers that are not finite are noticed in every
//! one.

use std::fs;

use page_by_page::cache::KvCache;
use page_by_page::cache::in_place::Attention;
use page_by_page::cache::snapshot::Snapshot;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch14_half_the_bytes::encode_rows;
use page_by_page::kernels::RowFormat;
use page_by_page::model::{Model, StepError};
use safetensors::{Dtype, SafeTensors};

use crate::checkpoints::Folder;

const TOKENS: [u32; 7] = [5, 96, 0, 1, 43, 59, 12];

fn open(folder: &Folder, format: RowFormat) -> Model {
    let mut model = Model::open(folder.path().as_ref()).unwrap();
    model.set_row_format(format);
    model
}

fn filled(model: &Model) -> ContiguousCache {
    let mut cache = ContiguousCache::new(model.kv_layout(), 20);
    model.step(&TOKENS, Some(&mut cache)).unwrap();
    cache
}

fn bits(cache: &dyn KvCache) -> Vec<u32> {
    let layers = (0..cache.layout().n_layers).map(|layer| cache.gather(layer));
    layers.flat_map(|(k, v)| [k, v].concat()).map(f32::to_bits).collect()
}

// Saved caches

#[test]
fn a_saved_cache_comes_back_in_its_format_and_in_no_other() {
    let folder = Folder::copy_of("bf16-gqa3");
    let file = folder.file("some.cache");
    for found in RowFormat::ALL {
        let model = open(&folder, found);
        let mut cache = filled(&model);
        Snapshot::freeze(&cache, &TOKENS).save(&file, &model).unwrap();
        for expected in RowFormat::ALL {
            let model = open(&folder, expected);
            let loaded = Snapshot::load(&file, &model);
            if found != expected {
                let error = loaded.unwrap_err();
                let says = format!(
                    "some.cache: rows in {found}, and here rows are kept in {expected}; ask for --kv-dtype {found}, or save \
                     the file again with --kv-dtype {expected}"
                );
                assert!(error.to_string().ends_with(&says), "{error}");
                continue;
            }
            let loaded = loaded.unwrap();
            assert_eq!((loaded.tokens(), loaded.layout()), (&TOKENS[..], model.kv_layout()));
            let mut restored = ContiguousCache::new(model.kv_layout(), 20);
            loaded.restore(&mut restored).unwrap();
            assert_eq!(bits(&restored), bits(&cache), "{found}");
            let next = model.step(&[7, 8], Some(&mut cache)).unwrap();
            assert_eq!(model.step(&[7, 8], Some(&mut restored)).unwrap(), next, "{found}");
        }
    }
}

#[test]
fn a_file_says_its_format_and_one_of_f32_is_as_it_was() {
    let folder = Folder::copy_of("bf16-gqa3");
    let file = folder.file("some.cache");
    for (format, dtype, width) in [
        (RowFormat::F32, Dtype::F32, 16),
        (RowFormat::F16, Dtype::U32, 8),
        (RowFormat::Bf16, Dtype::U32, 8),
        (RowFormat::Int8, Dtype::U32, 6),
    ] {
        let model = open(&folder, format);
        let layout = model.config().kv_layout();
        Snapshot::freeze(&filled(&model), &TOKENS).save(&file, &model).unwrap();
        let bytes = fs::read(&file).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let fields = metadata.metadata().clone().unwrap();
        let (version, said) = match format {
            RowFormat::F32 => ("1", None),
            _ => ("2", Some(format.to_string())),
        };
        assert_eq!((fields["version"].as_str(), fields.get("row_format").cloned()), (version, said));
        assert_eq!(fields["head_dim"], layout.head_dim.to_string(), "head_dim counts numbers");
        assert_eq!(layout.kv_width(), 16);
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let keys = tensors.tensor("layers.1.k").unwrap();
        assert_eq!((keys.dtype(), keys.shape()), (dtype, &[7, width][..]), "{format}");
    }
}

/// The file with a part of its header replaced by one as long, and its checksum made right.
fn forged(mut bytes: Vec<u8>, old: &str, new: &str) -> Vec<u8> {
    assert_eq!(old.len(), new.len());
    let place = |bytes: &[u8], part: &str| {
        bytes.windows(part.len()).position(|found| found == part.as_bytes()).expect("it is there")
    };
    let at = place(&bytes, old);
    bytes[at..at + new.len()].copy_from_slice(new.as_bytes());
    let at = place(&bytes, "\"checksum\":\"") + "\"checksum\":\"".len();
    bytes[at..at + 8].copy_from_slice(b"00000000");
    let checksum = format!("{:08x}", crc32fast::hash(&bytes));
    bytes[at..at + 8].copy_from_slice(checksum.as_bytes());
    bytes
}

#[test]
fn a_format_that_is_none_is_damage() {
    let folder = Folder::copy_of("bf16-gqa3");
    let file = folder.file("some.cache");
    let model = open(&folder, RowFormat::Int8);
    Snapshot::freeze(&filled(&model), &TOKENS).save(&file, &model).unwrap();
    let bytes = fs::read(&file).unwrap();
    for (old, new, says) in [
        ("\"row_format\":\"int8\"", "\"row_format\":\"int9\"", "the header says row_format \"int9\""),
        ("\"row_format\":\"int8\"", "\"row-format\":\"int8\"", "the header has no row_format"),
        ("\"version\":\"2\"", "\"version\":\"1\"", "rows in f32, and here rows are kept in int8"),
        ("\"version\":\"2\"", "\"version\":\"3\"", "a saved cache of version 3, up to 2 can be read"),
    ] {
        fs::write(&file, forged(bytes.clone(), old, new)).unwrap();
        let error = Snapshot::load(&file, &model).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    // Halves taken for bytes: as many words as bf16 has, and int8 has others.
    let model = open(&folder, RowFormat::Bf16);
    fs::write(&file, forged(bytes, "\"row_format\":\"int8\"", "\"row_format\":\"bf16\"")).unwrap();
    let error = Snapshot::load(&file, &model).unwrap_err();
    assert!(error.to_string().contains("is U32 [7, 6], expected U32 [7, 8]"), "{error}");
}

/// What is looked at are numbers: words may look like NaN, and a word that is a number may hold a half that is none.
#[test]
fn only_numbers_must_be_finite() {
    let folder = Folder::copy_of("bf16-gqa3");
    let file = folder.file("some.cache");
    for format in RowFormat::ALL {
        let model = open(&folder, format);
        let (layout, width) = (model.config().kv_layout(), model.config().kv_layout().kv_width());
        let save = |k: &[f32], v: &[f32]| {
            let mut cache = ContiguousCache::new(model.kv_layout(), 7);
            cache.extend(7).unwrap();
            for layer in 0..layout.n_layers {
                let one = vec![1.0; 7 * width];
                let (k, v) = if layer == 1 { (k, v) } else { (&one[..], &one[..]) };
                let rows = [k, v].map(|rows| match format {
                    RowFormat::F32 => rows.to_vec(),
                    format => encode_rows(format, layout, rows),
                });
                cache.write(layer, &rows[0], &rows[1]);
            }
            Snapshot::freeze(&cache, &TOKENS).save(&file, &model)
        };
        // In int8, bytes 0, -1, -1 and 127 make a word that is NaN.
        let mut rows: Vec<f32> = (0..7 * width).map(|i| [0.0, -1.0, -1.0, 127.0][i % 4]).collect();
        let words = encode_rows(RowFormat::Int8, layout, &rows);
        assert!(words.iter().any(|word| word.is_nan()), "the example is badly chosen");
        save(&rows, &rows).unwrap();
        assert!(Snapshot::load(&file, &model).is_ok(), "{format}");
        // The first of two halves is in the lower bits: the word is a number all the same.
        for number in [f32::NAN, f32::INFINITY] {
            rows[2 * width + 4] = number;
            let error = save(&vec![1.0; 7 * width], &rows).unwrap_err();
            let says = "row layers.1.v of the token at position 2 holds ";
            assert!(error.to_string().contains(says), "{format}: {error}");
        }
    }
}

// Numbers that are worth nothing

/// Values of 100,000: f16 ends before, and says so; the others compute.
#[test]
fn what_a_format_cannot_hold_is_noticed() {
    let folder = Folder::copy_of("f32-bias-gqa7");
    folder.change_tensor("model.layers.0.self_attn.v_proj.bias", |tensor| {
        for number in tensor.data.chunks_exact_mut(4) {
            number.copy_from_slice(&100_000.0_f32.to_le_bytes());
        }
    });
    for format in RowFormat::ALL {
        for attention in [Attention::Gather, Attention::Paged, Attention::Plain] {
            let mut model = open(&folder, format);
            model.set_attention(attention);
            let mut cache = ContiguousCache::new(model.kv_layout(), 9);
            for stepped in [model.step(&[1, 2, 3], None), model.step(&[1, 2, 3], Some(&mut cache))] {
                match format {
                    RowFormat::F16 => {
                        assert!(matches!(stepped, Err(StepError::NotFinite { position: 2, token: 3 })), "{stepped:?}");
                    }
                    _ => assert!(stepped.is_ok(), "{format}, {attention:?}: {stepped:?}"),
                }
            }
        }
    }
}

/// Fresh rows are rounded before they are read: a prefill says what the same tokens say one by one.
#[test]
fn rows_are_rounded_before_they_are_first_read() {
    let folder = Folder::copy_of("f32-bias-gqa7");
    for format in RowFormat::ALL {
        let model = open(&folder, format);
        let mut cache = ContiguousCache::new(model.kv_layout(), 9);
        let one_by_one = TOKENS[..5].iter().map(|token| model.step(&[token % 50], Some(&mut cache)).unwrap()).last();
        let tokens: Vec<u32> = TOKENS[..5].iter().map(|token| token % 50).collect();
        assert_eq!(model.step(&tokens, None).unwrap(), one_by_one.unwrap(), "{format}");
    }
}
