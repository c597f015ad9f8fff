//! Files that are no saved caches of this model: cut short, changed, forged, of other rows, or something else. All are refused.

use std::fs;

use page_by_page::chapters::ch14_kv_quantization::encode_rows;
use page_by_page::disk::FILE_HEADER_BYTES;
use page_by_page::disk::saved_cache::SavedCache;
use page_by_page::kernels::KvDtype;
use page_by_page::model::Model;
use serde_json::json;

use crate::saved_cache::{MODEL, Place, TOKENS, model, of_rows, open, saved_cache};
use crate::spoiled::refused;
use grading::checkpoints::Folder;
use grading::hostile::sealed;

/// The bytes of a saved cache of three tokens.
fn saved(model: &Model) -> Vec<u8> {
    let place = Place::new();
    saved_cache(model.cache_layout(), &TOKENS).save(&place.file(), model).unwrap();
    fs::read(place.file()).unwrap()
}

const DAMAGED: &str = "some.cache: the saved cache is damaged: ";
const NO_CACHE: &str = "some.cache: not a saved cache: ";

#[test]
fn a_file_that_was_cut_short_or_changed_anywhere_is_refused() {
    let (model, place) = (model(KvDtype::F32), Place::new());
    let bytes = saved(&model);
    for len in 0..bytes.len() {
        let error = place.load(&bytes[..len], &model).expect_err("a part of a file").to_string();
        assert!(error.contains(DAMAGED) || error.contains(NO_CACHE) && len < FILE_HEADER_BYTES, "{len} bytes: {error}");
    }
    refused(|| place.load(&[&bytes[..], &[0]].concat(), &model), &[DAMAGED]);
    assert!(place.load(&bytes, &model).is_ok());
    for byte in 0..bytes.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[byte] ^= change;
            assert!(place.load(&changed, &model).is_err(), "byte {byte} with {change:#04x} changed is refused");
        }
    }
}

/// Where a record's own bytes begin, and its tokens, and of three tokens their rows.
const RECORD: usize = FILE_HEADER_BYTES;
const IDS: usize = RECORD + 24;
const ROWS: usize = IDS + 4 * TOKENS.len();

/// The file with other bytes at one place, and checksums that are right.
fn forged(bytes: &[u8], place: usize, other: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[place..place + other.len()].copy_from_slice(other);
    sealed(bytes)
}

#[test]
fn a_header_that_lies_is_found_out() {
    let (model, place) = (model(KvDtype::F32), Place::new());
    let bytes = saved(&model);
    assert!(place.load(&sealed(bytes.clone()), &model).is_ok(), "the forger's checksums are right");
    let number = |number: u64| number.to_le_bytes();
    for (at, other, says) in [
        (20, number(2), "the saved cache is damaged: 2 tokens take 608 bytes, and it has 868; save it again"),
        (20, number(u64::MAX), "18446744073709551615 tokens are more than the model's 128 positions"),
        (28, number(u64::MAX), "rows of KvLayout { n_layers: 18446744073709551615"),
        (RECORD + 8, number(0), "damaged: record 0 follows record 0, and should follow an earlier one"),
        (RECORD + 16, number(1), "damaged: record 1 follows record 1, and should follow an earlier one"),
    ] {
        refused(|| place.load(&forged(&bytes, at, &other), &model), &[says]);
    }
    let of_another = forged(&forged(&bytes, RECORD + 8, &number(2)), RECORD + 16, &number(1));
    refused(
        || place.load(&of_another, &model),
        &["damaged: its rows have changed, or follow those of a different file"],
    );
    for (at, other, says) in [
        (0, [0; 4], "not a saved cache: it does not begin like a file of pages"),
        (8, [2, 0, 0, 0], "a file of pages of version 2, and this program reads version 1"),
        (16, [9, 0, 0, 0], NO_CACHE),
    ] {
        refused(|| place.load(&forged(&bytes, at, &other), &model), &[says]);
    }
    // Halves taken for bytes: as many words as bf16 has, and int8 has others.
    let bytes = saved(&self::model(KvDtype::Int8));
    let says = "head_dim: 3 }, the model makes rows of KvLayout { n_layers: 2, n_kv_heads: 2, head_dim: 4 }";
    refused(|| place.load(&forged(&bytes, 16, &[2, 0, 0, 0]), &self::model(KvDtype::Bf16)), &[says]);
}

#[test]
fn other_files_are_no_saved_caches() {
    let (folder, place) = (Folder::copy_of(MODEL), Place::new());
    let model = open(&folder);
    for bytes in [&folder.read("model.safetensors")[..], b"Once upon a time there was a cache.", b"", &[0xff; 64]] {
        refused(|| place.load(bytes, &model), &[NO_CACHE]);
    }
    let mut paths = vec![place.0.path().join("nothing"), place.0.path().into()];
    if cfg!(unix) {
        paths.push("/dev/zero".into());
    }
    for path in paths {
        refused(|| SavedCache::load(&path, &model), &["; give a file with a saved cache"]);
    }
    // Larger than any cache of the model: as long as it says, and nearly nothing on the disk.
    fs::write(place.file(), saved(&model)).unwrap();
    fs::File::options().write(true).open(place.file()).unwrap().set_len(1 << 40).unwrap();
    // A MiB, a header, and the longest record: for each of 128 positions an id and 2 times 2 rows of 16 numbers.
    let most = (1 << 20) + FILE_HEADER_BYTES + 24 + 128 * (4 + 2 * 2 * 16 * 4);
    let says = format!("the file has 1099511627776 bytes, at most {most} are expected here; give a file with a saved");
    refused(|| SavedCache::load(&place.file(), &model), &[&says]);
    // The longest sequence has room.
    let longest: Vec<u32> = (0..128).map(|position| position % 97).collect();
    saved_cache(model.cache_layout(), &longest).save(&place.file(), &model).unwrap();
    assert_eq!(SavedCache::load(&place.file(), &model).unwrap().tokens(), longest);
}

#[test]
fn rows_of_a_model_with_other_weights_are_refused() {
    let (folder, place) = (Folder::copy_of(MODEL), Place::new());
    let bytes = saved(&open(&folder));
    folder.change_tensor("model.layers.1.mlp.down_proj.weight", |tensor| tensor.data[10] ^= 1);
    refused(|| place.load(&bytes, &open(&folder)), &["the rows were made by a different model: its fingerprint is "]);
}

/// Each of these is refused when it is saved, which leaves the file that was there, and when it is loaded.
#[test]
fn a_sequence_that_the_model_cannot_hold_is_neither_saved_nor_loaded() {
    let (folder, place) = (Folder::copy_of(MODEL), Place::new());
    let (model, other) = (open(&folder), open(&Folder::copy_of("sharded")));
    folder.set("config.json", "max_position_embeddings", json!(3));
    assert!(place.load(&saved(&model), &open(&folder)).is_ok(), "the positions change no row");
    folder.set("config.json", "max_position_embeddings", json!(2));
    let short = open(&folder);
    let unknown = forged(&saved(&model), IDS + 4, &97u32.to_le_bytes());
    let layouts = [&other, &model].map(|model| model.cache_layout());
    let shapes = format!("rows of {:?}, the model makes rows of {:?}", layouts[0], layouts[1]);
    let id = "token id 97 is outside the vocabulary: ids go from 0 to 96";
    for (model, saved, bytes, says) in [
        (&model, saved_cache(layouts[0], &TOKENS), saved(&other), shapes.as_str()),
        (&short, saved_cache(layouts[1], &TOKENS), saved(&model), "3 tokens are more than the model's 2 positions"),
        (&model, saved_cache(layouts[1], &[1, 97, 2]), unknown, id),
    ] {
        refused(|| place.load(&bytes, model), &[says]);
        refused(|| saved.save(&place.file(), model), &[says]);
        let n_files = fs::read_dir(place.0.path()).unwrap().count();
        assert!(fs::read(place.file()).unwrap() == bytes && n_files == 1, "{says}: the file that was there");
    }
}

/// What is looked at are numbers: words can look like NaN, and a word that is a number can hold a half that is none.
#[test]
fn rows_that_are_not_finite_are_neither_saved_nor_loaded() {
    let place = Place::new();
    for dtype in KvDtype::ALL {
        let model = model(dtype);
        // In int8, bytes 0, -1, -1 and 127 make a word that is NaN.
        let fine: Vec<f32> = (0..48).map(|i| [0.0, -1.0, -1.0, 127.0][i % 4]).collect();
        let words = encode_rows(KvDtype::Int8, model.config().kv_layout(), &fine);
        assert!(words.iter().any(|word| word.is_nan()), "the example is badly chosen");
        of_rows(&model, dtype, &fine, &fine).save(&place.file(), &model).unwrap();
        let bytes = fs::read(place.file()).unwrap();
        assert!(place.load(&bytes, &model).is_ok(), "{dtype}");
        for (number, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
            // The first of two halves is in the lower bits: the word is a number all the same.
            let mut spoiled = fine.clone();
            spoiled[2 * 16 + 4] = number;
            let says = "row layers.0.v of the token at position 2 holds ";
            refused(|| of_rows(&model, dtype, &fine, &spoiled).save(&place.file(), &model), &[says]);
            assert_eq!(fs::read(place.file()).unwrap(), bytes, "the file that was there");
            if dtype == KvDtype::F32 {
                // After the keys of 2 layers, the values of layer 0.
                let lie = forged(&bytes, ROWS + 4 * (2 * 48 + 36), &number.to_le_bytes());
                let says = format!("some.cache: {says}{text}, and a row's numbers are");
                refused(|| Place::new().load(&lie, &model), &[&says]);
            }
        }
    }
}
