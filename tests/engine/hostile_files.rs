//! Hostile files, made by thousands from good ones: whatever is in them, there is an answer or an error that names the
//! file. Never a panic, never much more memory than the file is long.
//!
//! Each seed changes one file of each kind. More: `PAGE_BY_PAGE_SEEDS=100000 cargo test --test engine hostile_files`.

use std::fs;

use crate::spoiled::assert_is_harmless;
use grading::checkpoints::Folder;
use grading::hostile::{hostile_bytes, hostile_json, hostile_tensors, sealed};
use grading::limits::allocated;
use grading::oracle::{TestRng, seeds};
use page_by_page::chapters::ch02_flat::FlatCache;
use page_by_page::disk::saved_cache::SavedCache;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use serde_json::Value;

/// Files of each kind, unless `PAGE_BY_PAGE_SEEDS` says otherwise.
const FEW: u64 = 400;

/// Opens a hostile file for every seed: `change` writes it, `open` opens and uses it. The errors must name it, or one
/// of the folder's other files where the two do not belong together.
fn endure<T, E: std::fmt::Display>(
    folder: &Folder,
    file: &str,
    memory: usize,
    change: impl Fn(&mut TestRng) -> Vec<u8>,
    open: impl Fn() -> Result<T, E>,
) {
    let (mut refused, mut most) = (0, 0);
    let seeds = seeds(FEW);
    for seed in seeds.clone() {
        let bytes = change(&mut TestRng::new(seed));
        // A new file, because the last one can still be mapped.
        let _ = fs::remove_file(folder.file(file));
        folder.write(file, &bytes);
        // Shown if this one fails.
        println!("{file}, seed {seed}");
        let (opened, memory_used) = allocated(&open);
        most = most.max(memory_used);
        assert!(memory_used <= memory, "{} bytes of at most {memory} were asked for", memory_used);
        if let Err(error) = opened {
            refused += 1;
            let error = error.to_string();
            assert!(error.starts_with(folder.path()), "names no file: {error:?}");
            assert_is_harmless(&error);
        }
    }
    println!("{file}: {refused} of {} refused, at most {most} bytes", seeds.end);
    assert!(refused > 0 && refused < seeds.end || seeds.end < 100, "{refused} of {} were refused", seeds.end);
}

fn answer(folder: &Folder) -> Result<(), String> {
    let model = Model::open(folder.path().as_ref()).map_err(|error| error.to_string())?;
    // The config may have fewer ids, or positions, than these ask for.
    if let Ok(chunk) = model.prepare_chunk(&[1, 2], None, 2) {
        // Changed weights may give logits that are not finite: that is refused, and in order.
        let _ = model.forward(vec![chunk]);
    }
    Ok(())
}

type Change = fn(&[u8], &mut TestRng) -> Vec<u8>;

#[test]
fn any_file_of_a_model() {
    let files: [(&str, &str, Change); 5] = [
        ("bf16-gqa3", "config.json", hostile_json),
        ("long-eos-list", "generation_config.json", hostile_json),
        ("sharded", "model.safetensors.index.json", hostile_json),
        ("bf16-gqa3", "model.safetensors", hostile_tensors),
        ("sharded", "model-00002-of-00003.safetensors", hostile_tensors),
    ];
    std::thread::scope(|scope| {
        for (golden, file, change) in files {
            scope.spawn(move || {
                let folder = Folder::copy_of(golden);
                let content = folder.read(file);
                endure(&folder, file, 4 << 20, |rng| change(&content, rng), || answer(&folder));
            });
        }
    });
}

/// Files that take the most memory for the fewest bytes: a value takes 32 bytes, and two in the file; a header has a
/// third of the tensors that it may hold at most.
#[test]
fn files_full_of_small_things_take_little_memory() {
    let folder = Folder::copy_of("bf16-gqa3");
    let config = String::from_utf8(folder.read("config.json")).unwrap();
    let values = format!("{{\"quantization_config\": [{}0],", "0,".repeat(500_000));
    let many_values = config.replacen('{', &values, 1).into_bytes();
    let tensor = |number| format!("\"{number:x}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}");
    let header = format!("{{{}}}", (0..100_000).map(tensor).collect::<Vec<_>>().join(","));
    let many_tensors = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    for (file, bytes, says, most) in [
        ("model.safetensors", many_tensors, "tensor model.embed_tokens.weight [97, 24] is missing", 192 << 20),
        ("config.json", many_values, "quantized weights are not supported", 128 << 20),
    ] {
        folder.write(file, bytes);
        let (opened, memory) = allocated(|| answer(&folder));
        assert!(opened.unwrap_err().contains(says));
        assert!(memory < most, "{file}: {memory} bytes were asked for");
    }
}

#[test]
fn any_saved_cache() {
    let folder = Folder::copy_of("bf16-gqa3");
    let model = Model::open(folder.path().as_ref()).unwrap();
    let tokens = [5, 96, 0];
    let mut cache = FlatCache::new(model.config().kv_layout());
    model.step(&tokens, Some(&mut cache)).unwrap();
    SavedCache::copy(&cache, &tokens).save(&folder.file("some.cache"), &model).unwrap();
    let saved = folder.read("some.cache");
    let change = |rng: &mut TestRng| {
        let bytes = hostile_bytes(&saved, rng);
        // With its checksums made right, there is more that it can lie about.
        if rng.roll(0, 2) == 0 { bytes } else { sealed(bytes) }
    };
    endure(&folder, "some.cache", 2 << 20, change, || {
        let saved = SavedCache::load(&folder.file("some.cache"), &model)?;
        let mut cache = FlatCache::new(saved.layout());
        saved.restore(&mut cache).expect("room for it");
        Ok::<_, page_by_page::files::FileError>(())
    });
}

/// The bundled tokenizer with its first 400 ids only, quick to read: the end of text, 256 bytes, a merge each.
fn small_tokenizer(folder: &Folder) -> Value {
    let mut json: Value = serde_json::from_slice(&folder.read("tokenizer.json")).unwrap();
    json["model"]["vocab"].as_object_mut().unwrap().retain(|_, id| id.as_u64().unwrap() < 400);
    json["model"]["merges"].as_array_mut().unwrap().truncate(400 - 257);
    json
}

#[test]
fn any_tokenizer() {
    let folder = Folder::copy_of("storyteller-draft");
    let ours = small_tokenizer(&folder);
    // Parts that a tokenizer.json can have, and that the bundled one has not.
    let parts: Vec<(String, Value)> = serde_json::from_str(include_str!("tokenizer_parts.json")).unwrap();
    let change = |rng: &mut TestRng| {
        let mut json = ours.clone();
        for _ in 0..rng.roll(0, 2) {
            let (name, part) = &parts[rng.roll(0, parts.len() - 1)];
            json[name] = part.clone();
        }
        if rng.roll(0, 2) == 0 { json.to_string().into_bytes() } else { hostile_json(json.to_string().as_bytes(), rng) }
    };
    endure(&folder, "tokenizer.json", 64 << 20, change, || {
        let tokenizer = Tokenizer::open(folder.path().as_ref())?;
        let mut tokens = tokenizer.encode("The king's 3 dragons 🐉 said:\n<|endoftext|> naïve, 你好  the ab")?;
        tokens.extend([0, 1, 3, 96, 399, u32::MAX]);
        let mut stream = tokenizer.stream();
        for token in tokens {
            stream.push(token)?;
        }
        stream.finish()
    });
}
