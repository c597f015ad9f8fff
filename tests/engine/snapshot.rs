//! A cache as a file: what was saved comes back to the last bit, and nothing else is ever taken for it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;

use crate::checkpoints::{Folder, Tensor};
use crate::support::dense::DenseCache;
use crate::support::oracle::Oracle;
use page_by_page::cache::snapshot::{RestoreError, Snapshot, SnapshotError};
use page_by_page::cache::{CacheError, KvCache, KvLayout, Usage};
use page_by_page::model::Model;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::json;

/// Two layers, rows of 16 numbers, 97 token ids, 128 positions.
const MODEL: &str = "bf16-gqa3";
const TOKENS: [u32; 3] = [5, 96, 0];

fn open(folder: &Folder) -> Model {
    Model::open(folder.path().as_ref()).unwrap()
}

fn model() -> Model {
    open(&Folder::copy_of(MODEL))
}

/// A snapshot with recognisable rows, and the oracle that knows them.
fn frozen(layout: KvLayout, tokens: &[u32]) -> (Snapshot, Oracle) {
    let mut cache = DenseCache::new(layout);
    let mut oracle = Oracle::default();
    oracle.append(&mut cache, &(0..tokens.len()).collect::<Vec<_>>());
    (Snapshot::freeze(&cache, tokens), oracle)
}

/// A place for a file, which goes away with this.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("some.cache")
    }

    /// The names in the folder.
    fn names(&self) -> Vec<String> {
        fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Loads a file with these bytes.
    fn load(&self, bytes: &[u8], model: &Model) -> Result<Snapshot, SnapshotError> {
        fs::write(self.file(), bytes).unwrap();
        Snapshot::load(&self.file(), model)
    }
}

/// The bytes of a saved cache of three tokens.
fn saved(model: &Model) -> Vec<u8> {
    let place = Place::new();
    frozen(model.config().kv_layout(), &TOKENS).0.save(&place.file(), model).unwrap();
    fs::read(place.file()).unwrap()
}

fn restored(snapshot: &Snapshot) -> DenseCache {
    let mut cache = DenseCache::new(snapshot.layout());
    snapshot.restore(&mut cache).unwrap();
    cache
}

/// Whether rows are refused because they don't fit the model, with these words.
fn is_unfit(error: &SnapshotError, words: &str) -> bool {
    matches!(error, SnapshotError::Unfit { problem, .. } if problem.contains(words))
}

fn bits(cache: &dyn KvCache) -> Vec<u32> {
    let layers = (0..cache.layout().n_layers).map(|layer| cache.gather(layer));
    layers.flat_map(|(k, v)| [k, v].concat()).map(f32::to_bits).collect()
}

#[test]
fn what_was_saved_comes_back_to_the_last_bit() {
    let (model, place) = (model(), Place::new());
    let layout = model.config().kv_layout();
    let strange = [-0.0, f32::MIN_POSITIVE / 3.0, f32::MIN, f32::from_bits(0x7f7f_1234), f32::MAX, -1.0 / 3.0];
    let rows: Vec<f32> = strange.into_iter().cycle().take(TOKENS.len() * layout.kv_width()).collect();
    let mut cache = DenseCache::new(layout);
    cache.extend(TOKENS.len()).unwrap();
    for layer in 0..layout.n_layers {
        let reversed: Vec<f32> = rows.iter().rev().map(|number| number / (layer + 1) as f32).collect();
        cache.write(layer, &rows, &reversed);
    }
    Snapshot::freeze(&cache, &TOKENS).save(&place.file(), &model).unwrap();
    let loaded = Snapshot::load(&place.file(), &model).unwrap();
    assert_eq!((loaded.tokens(), loaded.layout()), (&TOKENS[..], layout));
    assert_eq!(bits(&restored(&loaded)), bits(&cache));
}

#[test]
fn every_row_comes_back_to_its_place() {
    let (model, place) = (model(), Place::new());
    let (snapshot, oracle) = frozen(model.config().kv_layout(), &TOKENS);
    snapshot.save(&place.file(), &model).unwrap();
    oracle.check(&restored(&Snapshot::load(&place.file(), &model).unwrap()));
}

#[test]
fn an_empty_cache_is_saved_too() {
    let (model, place) = (model(), Place::new());
    frozen(model.config().kv_layout(), &[]).0.save(&place.file(), &model).unwrap();
    let loaded = Snapshot::load(&place.file(), &model).unwrap();
    assert!(loaded.tokens().is_empty() && restored(&loaded).is_empty());
}

#[test]
fn the_model_goes_on_as_if_nothing_had_been_saved() {
    let (model, place) = (model(), Place::new());
    let mut cache = DenseCache::new(model.config().kv_layout());
    model.step(&TOKENS, Some(&mut cache)).unwrap();
    Snapshot::freeze(&cache, &TOKENS).save(&place.file(), &model).unwrap();
    let mut restored = restored(&Snapshot::load(&place.file(), &model).unwrap());
    let expected = model.step(&[7, 8], Some(&mut cache)).unwrap();
    assert_eq!(model.step(&[7, 8], Some(&mut restored)).unwrap(), expected);
}

#[test]
fn any_reader_of_the_format_finds_the_tensors() {
    let model = model();
    let bytes = saved(&model);
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut names = file.names();
    names.sort_unstable();
    assert_eq!(names, ["layers.0.k", "layers.0.v", "layers.1.k", "layers.1.v", "tokens"]);
    let tokens = file.tensor("tokens").unwrap();
    assert_eq!((tokens.dtype(), tokens.shape()), (Dtype::U32, &[3][..]));
    let ids: Vec<u32> = tokens.data().as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
    assert_eq!(ids, TOKENS);
    let values = file.tensor("layers.1.v").unwrap();
    assert_eq!((values.dtype(), values.shape()), (Dtype::F32, &[3, 16][..]));
    let second: Vec<f32> = values.data().as_chunks().0[16..32].iter().map(|x| f32::from_le_bytes(*x)).collect();
    assert_eq!(second, crate::support::rows::row(model.config().kv_layout(), 1, 1, crate::support::rows::Kind::Values));
}

// Damage

#[test]
fn a_file_that_was_cut_short_anywhere_is_refused() {
    let (model, place) = (model(), Place::new());
    let bytes = saved(&model);
    let header_end = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    for len in 0..bytes.len() {
        let error = place.load(&bytes[..len], &model).expect_err(&format!("the first {len} bytes are refused"));
        let damaged = matches!(error, SnapshotError::Damaged { .. });
        let unknown = matches!(error, SnapshotError::NotASnapshot { .. });
        assert!(damaged || unknown && len < header_end, "the first {len} bytes: {error}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(place.load(&longer, &model), Err(SnapshotError::Damaged { .. })));
    assert!(place.load(&bytes, &model).is_ok());
}

#[test]
fn a_changed_byte_is_found_wherever_it_is() {
    let (model, place) = (model(), Place::new());
    let bytes = saved(&model);
    let header_end = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    for place_of_byte in 0..bytes.len() {
        // The third turns the spaces behind the header into line ends, which mean the same to its parser.
        for change in [0x01, 0x80, b' ' ^ b'\n', 0xff] {
            let mut changed = bytes.clone();
            changed[place_of_byte] ^= change;
            let error = place
                .load(&changed, &model)
                .expect_err(&format!("byte {place_of_byte} with {change:#04x} changed is refused"));
            let in_data = place_of_byte >= header_end;
            assert!(!in_data || matches!(error, SnapshotError::Damaged { .. }), "byte {place_of_byte}: {error}");
        }
    }
}

// Other files

#[test]
fn other_files_are_no_saved_caches() {
    let (folder, place) = (Folder::copy_of(MODEL), Place::new());
    let model = open(&folder);
    for bytes in [&folder.read("model.safetensors")[..], b"Once upon a time there was a cache.", b"", &[0xff; 64]] {
        let error = place.load(bytes, &model).unwrap_err();
        assert!(matches!(error, SnapshotError::NotASnapshot { .. }), "{error}");
    }
    let mut paths = vec![place.0.path().join("nothing"), place.0.path().into()];
    if cfg!(unix) {
        let pipe = place.0.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        paths.extend([pipe, "/dev/zero".into()]);
    }
    for path in paths {
        let error = Snapshot::load(&path, &model).unwrap_err();
        assert!(matches!(error, SnapshotError::Unreadable { .. }), "{error}");
    }
}

#[test]
fn a_file_larger_than_any_cache_of_the_model_is_not_read() {
    let (model, place) = (model(), Place::new());
    fs::write(place.file(), saved(&model)).unwrap();
    // As long as it says, and nearly nothing on the disk.
    fs::File::options().write(true).open(place.file()).unwrap().set_len(1 << 40).unwrap();
    let error = Snapshot::load(&place.file(), &model).unwrap_err();
    // A MiB, one KiB for each of 2 layers, and for each of 128 positions an id and 2 times 2 rows of 16 numbers.
    let most = (1 << 20) + 2 * (1 << 10) + 128 * (4 + 2 * 2 * 16 * 4);
    let says = format!("the file has 1099511627776 bytes, at most {most} are expected here; give a file with a saved");
    assert!(error.to_string().contains(&says), "{error}");
    // The longest text has room.
    let longest: Vec<u32> = (0..128).map(|position| position % 97).collect();
    frozen(model.config().kv_layout(), &longest).0.save(&place.file(), &model).unwrap();
    assert_eq!(Snapshot::load(&place.file(), &model).unwrap().tokens(), longest);
}

#[test]
fn what_a_header_says_is_repeated_briefly_and_harmlessly() {
    let (model, place) = (model(), Place::new());
    let bytes = saved(&model);
    for (field, text) in [
        ("version", "\u{1b}[2J".into()),
        ("version", "x".repeat(1 << 19)),
        ("n_layers", "x".repeat(1 << 19)),
        ("n_layers", "\u{9b}31m\r\n".into()),
        ("model", "\u{1b}]0;owned\u{7}".into()),
        ("checksum", "x".repeat(1 << 19)),
        ("checksum", "\u{1b}[2J".into()),
    ] {
        let lie = |fields: &mut HashMap<String, String>, _: &mut BTreeMap<String, Tensor>| {
            fields.insert(field.into(), text.clone());
        };
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert!(metadata.metadata().as_ref().unwrap().contains_key(field));
        let error = match field {
            // Too short or too long for the place that is sealed.
            "checksum" => place.load(&unsealed(&bytes, lie), &model),
            _ => place.load(&forged(&bytes, lie), &model),
        };
        let error = error.unwrap_err().to_string();
        assert!(error.contains(field) || error.contains("checksum"), "{error:?}");
        assert!(!error.contains(char::is_control) && error.len() < 600, "{error:?}");
    }
}

#[test]
fn a_file_of_a_newer_version_is_left_to_newer_programs() {
    let (model, place) = (model(), Place::new());
    let text: Vec<u8> = replaced(&saved(&model), r#""version":"1""#, r#""version":"3""#);
    let error = place.load(&text, &model).unwrap_err();
    assert!(is_unfit(&error, "a saved cache of version 3, up to 2 can be read"), "{error}");
}

#[test]
fn rows_of_a_model_with_other_weights_are_refused() {
    let (folder, place) = (Folder::copy_of(MODEL), Place::new());
    let bytes = saved(&open(&folder));
    folder.change_tensor("model.layers.1.mlp.down_proj.weight", |tensor| tensor.data[10] ^= 1);
    let error = place.load(&bytes, &open(&folder)).unwrap_err();
    assert!(is_unfit(&error, "the rows were made by another model: its fingerprint is "), "{error}");
}

#[test]
fn rows_of_another_shape_are_refused() {
    let (model, place) = (model(), Place::new());
    let other = open(&Folder::copy_of("sharded"));
    let bytes = saved(&model);
    let error = place.load(&bytes, &other).unwrap_err();
    let [found, expected] = [&model, &other].map(|model| model.config().kv_layout());
    assert!(is_unfit(&error, &format!("rows of {found:?}, the model makes rows of {expected:?}")), "{error}");
    let snapshot = frozen(other.config().kv_layout(), &TOKENS).0;
    let error = snapshot.save(&place.file(), &model).unwrap_err();
    assert!(is_unfit(&error, "the model makes rows of"), "{error}");
    assert_eq!(fs::read(place.file()).unwrap(), bytes, "the file that was there");
}

#[test]
fn a_text_longer_than_the_positions_is_refused() {
    let (folder, place) = (Folder::copy_of(MODEL), Place::new());
    let bytes = saved(&open(&folder));
    folder.set("config.json", "max_position_embeddings", json!(3));
    assert!(place.load(&bytes, &open(&folder)).is_ok(), "the positions change no row");
    folder.set("config.json", "max_position_embeddings", json!(2));
    let short = open(&folder);
    let too_long = |error| is_unfit(&error, "3 tokens are more than the model's 2 positions");
    assert!(too_long(place.load(&bytes, &short).unwrap_err()));
    let snapshot = frozen(short.config().kv_layout(), &TOKENS).0;
    assert!(too_long(snapshot.save(&place.file(), &short).unwrap_err()));
}

#[test]
fn a_token_outside_the_vocabulary_is_refused() {
    let (model, place) = (model(), Place::new());
    let unknown = |error| is_unfit(&error, "token id 97 is outside the vocabulary: ids go from 0 to 96");
    let snapshot = frozen(model.config().kv_layout(), &[1, 97, 2]).0;
    assert!(unknown(snapshot.save(&place.file(), &model).unwrap_err()));
    assert!(place.names().is_empty(), "nothing was written");
    let bytes = forged(&saved(&model), |_, tensors| {
        tensors.get_mut("tokens").unwrap().data[4..8].copy_from_slice(&97u32.to_le_bytes());
    });
    assert!(unknown(place.load(&bytes, &model).unwrap_err()));
}

#[test]
fn rows_that_are_not_finite_are_neither_saved_nor_loaded() {
    let (model, place) = (model(), Place::new());
    for (number, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let spoil = |data: &mut [u8]| data[4 * 37..4 * 38].copy_from_slice(&number.to_le_bytes());
        // Number 37 of rows of 16.
        let says =
            format!("some.cache: row layers.1.v of the token at position 2 holds {text}, and a row's numbers are");
        let bytes = forged(&saved(&model), |_, tensors| spoil(&mut tensors.get_mut("layers.1.v").unwrap().data));
        let error = place.load(&bytes, &model).unwrap_err();
        assert!(error.to_string().contains(&says), "{error}");

        let layout = model.config().kv_layout();
        let mut cache = DenseCache::new(layout);
        cache.extend(3).unwrap();
        for layer in 0..2 {
            let rows = vec![1.0; 3 * layout.kv_width()];
            let mut spoiled = rows.clone();
            spoiled[37] = if layer == 1 { number } else { 1.0 };
            cache.write(layer, &rows, &spoiled);
        }
        let error = Snapshot::freeze(&cache, &TOKENS).save(&place.file(), &model).unwrap_err();
        assert!(error.to_string().contains(&says), "{error}");
        assert_eq!(fs::read(place.file()).unwrap(), bytes, "the file that was there");
    }
}

#[test]
fn a_header_that_lies_is_found_out() {
    let (model, place) = (model(), Place::new());
    let bytes = saved(&model);
    assert!(place.load(&forged(&bytes, |_, _| {}), &model).is_ok(), "the forger's checksum is right");

    type Lie = fn(&mut HashMap<String, String>, &mut BTreeMap<String, Tensor>);
    let lies: [(&str, Lie); 9] = [
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
    ];
    for (says, lie) in lies {
        let error = place.load(&forged(&bytes, lie), &model).unwrap_err();
        assert!(matches!(error, SnapshotError::Damaged { .. }) && error.to_string().contains(says), "{says}: {error}");
    }
    let huge = forged(&bytes, |fields, _| drop(fields.insert("n_layers".into(), usize::MAX.to_string())));
    let error = place.load(&huge, &model).unwrap_err();
    assert!(is_unfit(&error, &format!("rows of KvLayout {{ n_layers: {}", usize::MAX)), "{error}");
    // As long as before, so that only the numbers are wrong.
    for (true_part, lie) in [(r#""shape":[3]"#, r#""shape":[9]"#), (r#""data_offsets":[0,"#, r#""data_offsets":[9,"#)] {
        let error = place.load(&sealed(replaced(&bytes, true_part, lie)), &model).unwrap_err();
        assert!(matches!(error, SnapshotError::Damaged { .. }), "{lie}: {error}");
    }
}

/// The same bytes with one part of the header replaced.
fn replaced(bytes: &[u8], old: &str, new: &str) -> Vec<u8> {
    assert_eq!(old.len(), new.len());
    let place = bytes.windows(old.len()).position(|part| part == old.as_bytes()).expect(old);
    [&bytes[..place], new.as_bytes(), &bytes[place + new.len()..]].concat()
}

/// The file with its checksum made right.
fn sealed(bytes: Vec<u8>) -> Vec<u8> {
    let name = b"\"checksum\":\"";
    let place = bytes.windows(name.len()).position(|part| part == name).unwrap() + name.len();
    let mut sealed = bytes;
    sealed[place..place + 8].copy_from_slice(b"00000000");
    let checksum = crc32fast::hash(&sealed);
    sealed[place..place + 8].copy_from_slice(format!("{checksum:08x}").as_bytes());
    sealed
}

/// The file with other fields or tensors, and the right checksum.
fn forged(bytes: &[u8], lie: impl FnOnce(&mut HashMap<String, String>, &mut BTreeMap<String, Tensor>)) -> Vec<u8> {
    sealed(unsealed(bytes, lie))
}

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

// Fingerprints

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
    let folder = Folder::copy_of("bf16-gqa3");
    // Of two places for it, keep the one that `set` can reach.
    folder.set("config.json", "rope_parameters", json!(null));
    folder.set("config.json", "rope_theta", json!(10000.0));
    let fingerprint = open(&folder).fingerprint();
    let config = folder.read("config.json");
    for (field, value) in [("rope_theta", json!(12345.0)), ("rms_norm_eps", json!(1e-5))] {
        folder.set("config.json", field, value);
        assert_ne!(open(&folder).fingerprint(), fingerprint, "{field} changes rows");
        folder.write("config.json", &config);
    }
    for (field, value) in [("max_position_embeddings", json!(77)), ("eos_token_id", json!([1, 2]))] {
        folder.set("config.json", field, value);
        assert_eq!(open(&folder).fingerprint(), fingerprint, "{field} changes no row");
    }
    folder.change_tensor("model.layers.0.mlp.up_proj.weight", |tensor| tensor.dtype = Dtype::F16);
    assert_ne!(open(&folder).fingerprint(), fingerprint, "the same bytes as numbers of another type");
}

// Files are whole or not there

#[test]
fn saving_replaces_a_file_in_one_move_and_leaves_nothing_else() {
    let (model, place) = (model(), Place::new());
    let layout = model.config().kv_layout();
    frozen(layout, &[1, 2, 3, 4, 5]).0.save(&place.file(), &model).unwrap();
    let mut old = fs::File::open(place.file()).unwrap();
    frozen(layout, &TOKENS).0.save(&place.file(), &model).unwrap();
    assert_eq!(Snapshot::load(&place.file(), &model).unwrap().tokens(), TOKENS);
    assert_eq!(place.names(), ["some.cache"]);
    // Whoever had opened the old file still reads all of it.
    let again = Place::new();
    std::io::copy(&mut old, &mut fs::File::create(again.file()).unwrap()).unwrap();
    assert_eq!(Snapshot::load(&again.file(), &model).unwrap().tokens(), [1, 2, 3, 4, 5]);
}

#[test]
fn a_place_that_cannot_be_written_is_known_before_and_nothing_is_touched() {
    let (model, place) = (model(), Place::new());
    let snapshot = frozen(model.config().kv_layout(), &TOKENS).0;
    Snapshot::check_writable(&place.file()).unwrap();
    assert!(place.names().is_empty());
    fs::write(place.file(), "precious").unwrap();
    Snapshot::check_writable(&place.file()).unwrap();
    assert_eq!(fs::read(place.file()).unwrap(), b"precious");

    let folder = place.0.path();
    for wrong in [folder.join("no/such/folder"), place.file().join("below-a-file"), folder.into(), folder.join("..")] {
        for refused in [Snapshot::check_writable(&wrong), snapshot.save(&wrong, &model)] {
            assert!(matches!(refused, Err(SnapshotError::Unwritable { .. })), "{}: {refused:?}", wrong.display());
        }
    }
    assert_eq!(place.names(), ["some.cache"]);
}

// Refused restores

/// A cache with room for so many tokens.
struct Small(DenseCache, usize);

impl KvCache for Small {
    fn layout(&self) -> KvLayout {
        self.0.layout()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        let free = self.1 - self.len();
        if n > free {
            return Err(CacheError::OutOfSlots { needed: n, free, capacity: self.1 });
        }
        self.0.extend(n)
    }

    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        self.0.write(layer, k, v);
    }

    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
        self.0.gather(layer)
    }

    fn usage(&self) -> Usage {
        self.0.usage()
    }
}

#[test]
fn a_refused_restore_changes_nothing() {
    let layout = KvLayout { n_layers: 2, n_kv_heads: 2, head_dim: 2 };
    let (snapshot, its_rows) = frozen(layout, &TOKENS);

    let mut used = DenseCache::new(layout);
    let mut oracle = Oracle::default();
    oracle.append(&mut used, &[40, 41]);
    assert_eq!(snapshot.restore(&mut used), Err(RestoreError::NotEmpty { len: 2 }));
    oracle.check(&used);

    // The same width, otherwise divided.
    let other = KvLayout { n_kv_heads: 1, head_dim: 4, ..layout };
    let mut wrong = DenseCache::new(other);
    let refused = Err(RestoreError::WrongLayout { found: layout, expected: other });
    assert_eq!(snapshot.restore(&mut wrong), refused);
    assert!(wrong.is_empty() && bits(&wrong).is_empty());

    let mut small = Small(DenseCache::new(layout), 2);
    let refused = CacheError::OutOfSlots { needed: 3, free: 2, capacity: 2 };
    assert_eq!(snapshot.restore(&mut small), Err(RestoreError::Cache(refused)));
    assert!(small.is_empty() && bits(&small).is_empty());
    small.1 = 3;
    snapshot.restore(&mut small).unwrap();
    its_rows.check(&small);
}

/// What needs the code of chapters 2 to 6. A chapter with a todo! in it fails its own checks, not these.
mod with_caches {
    use super::*;
    use page_by_page::chapters::ch02_flat::FlatCache;
    use page_by_page::chapters::ch03_contiguous::ContiguousCache;
    use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};

    const LAYOUT: KvLayout = KvLayout { n_layers: 2, n_kv_heads: 2, head_dim: 2 };

    type NewCache = fn() -> Box<dyn KvCache>;

    #[test]
    fn every_cache_goes_on_from_every_other() {
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
            let snapshot = Snapshot::freeze(cache.as_ref(), &[9, 8, 7, 6, 5, 4]);
            drop(cache);
            for (to, new_cache) in kinds {
                println!("{from} to {to}");
                let mut cache = new_cache();
                let mut oracle = oracle.clone();
                oracle.note(format!("restored from {from} to {to}"));
                snapshot.restore(cache.as_mut()).unwrap();
                oracle.check(cache.as_ref());
                oracle.append(cache.as_mut(), &[6, 7, 8]);
                oracle.check(cache.as_ref());
            }
        }
    }

    #[test]
    fn too_few_pages_refuse_and_none_is_taken() {
        let slab = PageSlab::new(LAYOUT, 2, 2).unwrap();
        let mut cache = PagedCache::new(&slab).unwrap();
        let (snapshot, _) = frozen(LAYOUT, &[1, 2, 3, 4, 5]);
        let refused = CacheError::OutOfPages { needed: 3, free: 2 };
        assert_eq!(snapshot.restore(&mut cache), Err(RestoreError::Cache(refused)));
        assert_eq!((cache.len(), slab.borrow().pool().n_free()), (0, 2));
    }
}
