//! Files that are no saved caches of this model: cut short, changed, forged, of different rows, or something else. Each is refused.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use page_by_page::cache::snapshot::Snapshot;
use page_by_page::chapters::ch14_half_the_bytes::encode_rows;
use page_by_page::files::FileError;
use page_by_page::kernels::RowFormat;
use page_by_page::model::Model;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::json;

use crate::checkpoints::{Folder, Tensor};
use crate::hostile::{replaced, sealed};
use crate::snapshot::{MODEL, Place, TOKENS, frozen, model, of_rows, open};

/// The bytes of a saved cache of three tokens.
fn saved(model: &Model) -> Vec<u8> {
    let place = Place::new();
    frozen(model.kv_layout(), &TOKENS).0.save(&place.file(), model).unwrap();
    fs::read(place.file()).unwrap()
}

#[track_caller]
fn assert_says<T>(refused: Result<T, FileError>, words: &str) {
    let error = refused.err().unwrap_or_else(|| panic!("not refused: {words}")).to_string();
    assert!(error.contains(words), "{words:?} is missing in: {error}");
    assert!(!error.contains(char::is_control) && error.len() < 600, "{error:?}");
}

const DAMAGED: &str = "some.cache: the saved cache is damaged: ";
const NO_CACHE: &str = "some.cache: not a saved cache: ";

#[test]
fn a_file_that_was_cut_short_or_changed_anywhere_is_refused() {
    let (model, place) = (model(RowFormat::F32), Place::new());
    let bytes = saved(&model);
    let header_end = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    for len in 0..bytes.len() {
        let error = place.load(&bytes[..len], &model).expect_err("a part of a file").to_string();
        assert!(error.contains(DAMAGED) || error.contains(NO_CACHE) && len < header_end, "{len} bytes: {error}");
    }
    assert_says(place.load(&[&bytes[..], &[0]].concat(), &model), DAMAGED);
    assert!(place.load(&bytes, &model).is_ok());
    for byte in 0..bytes.len() {
        // The third turns the spaces after the header into line ends, which mean the same to its parser.
        for change in [0x01, 0x80, b' ' ^ b'\n', 0xff] {
            let mut changed = bytes.clone();
            changed[byte] ^= change;
            assert!(place.load(&changed, &model).is_err(), "byte {byte} with {change:#04x} changed is refused");
        }
    }
}

type Lie = fn(&mut HashMap<String, String>, &mut BTreeMap<String, Tensor>);

/// The file with other fields or tensors, and the checksum that they say.
fn unsealed(bytes: &[u8], lie: impl FnOnce(&mut HashMap<String, String>, &mut BTreeMap<String, Tensor>)) -> Vec<u8> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).unwrap();
    let mut fields = metadata.metadata().clone().unwrap();
    let file = SafeTensors::deserialize(bytes).unwrap();
    let tensors = file.iter().map(|(name, view)| {
        (name.to_string(), Tensor { dtype: view.dtype(), shape: view.shape().into(), data: view.data().into() })
    });
    let mut tensors: BTreeMap<String, Tensor> = tensors.collect();
    lie(&mut fields, &mut tensors);
    let views = tensors
        .iter()
        .map(|(name, tensor)| (name, TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.data).unwrap()));
    safetensors::serialize(views, Some(fields)).unwrap()
}

#[test]
fn a_header_that_lies_is_found_out() {
    let (model, place) = (model(RowFormat::F32), Place::new());
    let bytes = saved(&model);
    assert!(place.load(&sealed(unsealed(&bytes, |_, _| {})), &model).is_ok(), "the forger's checksum is right");
    let lies: [(&str, Lie); 10] = [
        ("tensor layers.0.k is F32 [3, 16], expected F32 [2, 16]", |_, tensors| {
            let tokens = tensors.get_mut("tokens").unwrap();
            (tokens.shape, tokens.data) = (vec![2], vec![0; 8]);
        }),
        ("tensor layers.1.v is F32 [16, 3], expected F32 [3, 16]", |_, tensors| {
            tensors.get_mut("layers.1.v").unwrap().shape = vec![16, 3];
        }),
        ("tensor layers.1.k is U32 [3, 16], expected F32 [3, 16]", |_, tensors| {
            tensors.get_mut("layers.1.k").unwrap().dtype = Dtype::U32;
        }),
        ("tensor tokens is U32 [3, 1], expected U32 [3]", |_, tensors| {
            tensors.get_mut("tokens").unwrap().shape = vec![3, 1];
        }),
        ("tensor layers.0.v is missing", |_, tensors| drop(tensors.remove("layers.0.v"))),
        ("tensor tokens is missing", |_, tensors| drop(tensors.remove("tokens"))),
        ("the header has no head_dim", |fields, _| drop(fields.remove("head_dim"))),
        ("the header says n_layers \"two\"", |fields, _| drop(fields.insert("n_layers".into(), "two".into()))),
        ("the header says version \"0\"", |fields, _| drop(fields.insert("version".into(), "0".into()))),
        ("the header says model", |fields, _| drop(fields.insert("model".into(), "\u{1b}]0;".repeat(1 << 10)))),
    ];
    for (says, lie) in lies {
        assert_says(place.load(&sealed(unsealed(&bytes, lie)), &model), &format!("{DAMAGED}{says}"));
    }
    let most = usize::MAX.to_string();
    let huge = sealed(unsealed(&bytes, |fields, _| drop(fields.insert("n_layers".into(), most.clone()))));
    assert_says(place.load(&huge, &model), &format!("rows of KvLayout {{ n_layers: {most}"));
    // A checksum that is too long for the place that is sealed.
    let long = unsealed(&bytes, |fields, _| drop(fields.insert("checksum".into(), "\u{1b}x".repeat(1 << 10))));
    assert_says(place.load(&long, &model), DAMAGED);
    // As long as before, so that only the numbers are wrong.
    for (part, lie) in [(r#""shape":[3]"#, r#""shape":[9]"#), (r#""data_offsets":[0,"#, r#""data_offsets":[9,"#)] {
        assert_says(place.load(&sealed(replaced(&bytes, part, lie)), &model), DAMAGED);
    }
}

#[test]
fn a_version_or_a_row_format_that_is_none_is_refused() {
    let place = Place::new();
    let bytes = saved(&model(RowFormat::Int8));
    for (here, part, lie, says) in [
        (RowFormat::Int8, r#""row_format":"int8""#, r#""row_format":"int9""#, "the header says row_format \"int9\""),
        (RowFormat::Int8, r#""row_format":"#, r#""row-format":"#, "rows in f32, and here rows are kept in int8"),
        (RowFormat::Int8, r#""version":"2""#, r#""version":"3""#, "a saved cache of version 3, up to 2 can be read"),
        // Halves taken for bytes: as many words as bf16 has, and int8 has others.
        (RowFormat::Bf16, r#""row_format":"int8""#, r#""row_format":"bf16""#, "is U32 [3, 6], expected U32 [3, 8]"),
    ] {
        assert_says(place.load(&sealed(replaced(&bytes, part, lie)), &model(here)), says);
    }
}

/// Files of version 1 have no row format: their rows are numbers.
#[test]
fn a_file_of_version_1_is_read() {
    let (model, place) = (model(RowFormat::F32), Place::new());
    let old = unsealed(&saved(&model), |fields, _| {
        fields.insert("version".into(), "1".into());
        fields.remove("row_format");
    });
    assert_eq!(place.load(&sealed(old), &model).unwrap().tokens(), TOKENS);
}

#[test]
fn other_files_are_no_saved_caches() {
    let (folder, place) = (Folder::copy_of(MODEL), Place::new());
    let model = open(&folder);
    for bytes in [&folder.read("model.safetensors")[..], b"Once upon a time there was a cache.", b"", &[0xff; 64]] {
        assert_says(place.load(bytes, &model), NO_CACHE);
    }
    let mut paths = vec![place.0.path().join("nothing"), place.0.path().into()];
    if cfg!(unix) {
        paths.push("/dev/zero".into());
    }
    for path in paths {
        assert_says(Snapshot::load(&path, &model), "; give a file with a saved cache");
    }
    // Larger than any cache of the model: as long as it says, and nearly nothing on the disk.
    fs::write(place.file(), saved(&model)).unwrap();
    fs::File::options().write(true).open(place.file()).unwrap().set_len(1 << 40).unwrap();
    // A MiB, one KiB for each of 2 layers, and for each of 128 positions an id and 2 times 2 rows of 16 numbers.
    let most = (1 << 20) + 2 * (1 << 10) + 128 * (4 + 2 * 2 * 16 * 4);
    let says = format!("the file has 1099511627776 bytes, at most {most} are expected here; give a file with a saved");
    assert_says(Snapshot::load(&place.file(), &model), &says);
    // The longest sequence has room.
    let longest: Vec<u32> = (0..128).map(|position| position % 97).collect();
    frozen(model.kv_layout(), &longest).0.save(&place.file(), &model).unwrap();
    assert_eq!(Snapshot::load(&place.file(), &model).unwrap().tokens(), longest);
}

#[test]
fn rows_of_a_model_with_other_weights_are_refused() {
    let (folder, place) = (Folder::copy_of(MODEL), Place::new());
    let bytes = saved(&open(&folder));
    folder.change_tensor("model.layers.1.mlp.down_proj.weight", |tensor| tensor.data[10] ^= 1);
    assert_says(place.load(&bytes, &open(&folder)), "the rows were made by a different model: its fingerprint is ");
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
    let unknown = sealed(unsealed(&saved(&model), |_, tensors| {
        tensors.get_mut("tokens").unwrap().data[4..8].copy_from_slice(&97u32.to_le_bytes());
    }));
    let layouts = [&other, &model].map(|model| model.kv_layout());
    let shapes = format!("rows of {:?}, the model makes rows of {:?}", layouts[0], layouts[1]);
    let id = "token id 97 is outside the vocabulary: ids go from 0 to 96";
    for (model, snapshot, bytes, says) in [
        (&model, frozen(layouts[0], &TOKENS).0, saved(&other), shapes.as_str()),
        (&short, frozen(layouts[1], &TOKENS).0, saved(&model), "3 tokens are more than the model's 2 positions"),
        (&model, frozen(layouts[1], &[1, 97, 2]).0, unknown, id),
    ] {
        assert_says(place.load(&bytes, model), says);
        assert_says(snapshot.save(&place.file(), model), says);
        assert!(
            fs::read(place.file()).unwrap() == bytes && place.names().len() == 1,
            "{says}: the file that was there"
        );
    }
}

/// What is looked at are numbers: words can look like NaN, and a word that is a number can hold a half that is none.
#[test]
fn rows_that_are_not_finite_are_neither_saved_nor_loaded() {
    let place = Place::new();
    for format in RowFormat::ALL {
        let model = model(format);
        // In int8, bytes 0, -1, -1 and 127 make a word that is NaN.
        let fine: Vec<f32> = (0..48).map(|i| [0.0, -1.0, -1.0, 127.0][i % 4]).collect();
        let words = encode_rows(RowFormat::Int8, model.config().kv_layout(), &fine);
        assert!(words.iter().any(|word| word.is_nan()), "the example is badly chosen");
        of_rows(&model, format, &fine, &fine).save(&place.file(), &model).unwrap();
        let bytes = fs::read(place.file()).unwrap();
        assert!(place.load(&bytes, &model).is_ok(), "{format}");
        for (number, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
            // The first of two halves is in the lower bits: the word is a number all the same.
            let mut spoiled = fine.clone();
            spoiled[2 * 16 + 4] = number;
            let says = "row layers.0.v of the token at position 2 holds ";
            assert_says(of_rows(&model, format, &fine, &spoiled).save(&place.file(), &model), says);
            assert_eq!(fs::read(place.file()).unwrap(), bytes, "the file that was there");
            if format == RowFormat::F32 {
                let lie = unsealed(&bytes, |_, tensors| {
                    let data = &mut tensors.get_mut("layers.0.v").unwrap().data;
                    data[4 * 36..4 * 37].copy_from_slice(&number.to_le_bytes());
                });
                let says = format!("some.cache: {says}{text}, and a row's numbers are");
                assert_says(Place::new().load(&sealed(lie), &model), &says);
            }
        }
    }
}
