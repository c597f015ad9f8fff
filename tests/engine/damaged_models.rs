//! Whatever is wrong with a model folder, the error is one short line that names the file and says what to do. Nothing panics,
//! and no length that a file claims is allocated.

use std::fs::{self, File};

use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::checkpoints::{Folder, Tensor};
use crate::support::limits::allocated;

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn folder() -> Folder {
    Folder::copy_of("bf16-gqa3")
}

/// The error of a folder that cannot be opened: short, harmless to a terminal, and with all of these words.
#[track_caller]
fn refused(folder: &Folder, says: &[&str]) {
    let (opened, memory) = allocated(|| Model::open(folder.path().as_ref()).map(drop));
    let error = opened.expect_err("a model folder to be refused").to_string();
    assert!(memory < 256 << 20, "{} bytes were asked for: {error}", memory);
    assert!(error.chars().count() < 1_000 && !error.contains(|c: char| c.is_control() || c == '\u{202e}'), "{error:?}");
    for word in says {
        assert!(error.contains(word), "{word:?} is missing in:\n{error}");
    }
}

/// The same for a folder whose file `name` has these bytes.
#[track_caller]
fn refused_with(golden: &str, name: &str, bytes: &[u8], says: &[&str]) {
    let folder = Folder::copy_of(golden);
    folder.write(name, bytes);
    refused(&folder, &[&[name], says].concat());
}

/// A safetensors file with this header and sixteen bytes of data.
fn with_header(header: &str) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 16]].concat()
}

#[test]
fn a_folder_or_a_file_that_is_not_there() {
    let open = |path: &str| Model::open(path.as_ref()).err().unwrap().to_string();
    let nowhere = open("no/such/folder");
    assert!(nowhere.contains("config.json: "), "{nowhere}");
    assert!(nowhere.contains("a model folder holds config.json, tokenizer.json and model.safetensors"), "{nowhere}");
    let folder = folder();
    assert!(open(folder.file(WEIGHTS).to_str().unwrap()).contains("not a file"));
    fs::remove_file(folder.file(WEIGHTS)).unwrap();
    refused(&folder, &["model.safetensors: ", "no model.safetensors.index.json either"]);
    let folder = Folder::copy_of("sharded");
    fs::remove_file(folder.file("model-00002-of-00003.safetensors")).unwrap();
    refused(&folder, &["model-00002-of-00003.safetensors: ", "the index names it: download this shard too"]);
}

/// The model or the tokenizer is refused, whichever reads this file.
#[track_caller]
fn refused_either(folder: &Folder, name: &str, says: &str) {
    if name != "tokenizer.json" {
        return refused(folder, &[name, says]);
    }
    let error = Tokenizer::open(folder.path().as_ref()).err().unwrap().to_string();
    assert!(error.contains(name) && error.contains(says), "{error}");
}

#[test]
fn a_file_that_is_much_too_large() {
    for (golden, name, most) in [
        ("bf16-gqa3", "config.json", 1 << 20),
        ("long-eos-list", "generation_config.json", 1 << 20),
        ("sharded", INDEX, 16 << 20),
        ("storyteller-draft", "tokenizer.json", 64 << 20),
    ] {
        let folder = Folder::copy_of(golden);
        // As long as it says, and nearly nothing on the disk.
        File::options().write(true).open(folder.file(name)).unwrap().set_len(1 << 40).unwrap();
        let says = format!("the file has 1099511627776 bytes, at most {most} are expected here");
        refused_either(&folder, name, &says);
    }
    let folder = folder();
    let file = File::options().write(true).open(folder.file(WEIGHTS)).unwrap();
    file.set_len(64 << 20).unwrap();
    std::io::Write::write_all(&mut &file, &u64::to_le_bytes(20 << 20)).unwrap();
    refused(&folder, &[WEIGHTS, "its header has 20971520 bytes, at most 16777216 are expected"]);
}

/// A program goes on with the checkpoint that it has opened when a different file is renamed over it.
#[cfg(unix)]
#[test]
fn a_replaced_checkpoint_stays_as_it_was_where_it_is_open() {
    let (folder, other) = (folder(), folder());
    let open = || Model::open(folder.path().as_ref()).unwrap();
    let logits = |model: &Model| model.step(&[1, 2], None).unwrap();
    let before = open();
    let expected = logits(&before);
    other.change_tensor("model.embed_tokens.weight", |tensor| tensor.data.fill(0));
    fs::rename(other.file(WEIGHTS), folder.file(WEIGHTS)).unwrap();
    assert_eq!(logits(&before), expected, "opened before");
    assert_ne!(logits(&open()), expected, "opened after");
}

#[test]
fn a_weights_file_that_is_cut_or_lies_about_its_lengths() {
    let whole = folder().read(WEIGHTS);
    let (len, header) = (whole.len(), u64::from_le_bytes(whole[..8].try_into().unwrap()));
    let announced = |header: u64| [&header.to_le_bytes(), &whole[8..]].concat();
    let cut = |len: usize| whole[..len].to_vec();
    for (bytes, says) in [
        (cut(len - 1), format!("at byte {}: it was cut short", len - 1)),
        (cut(len / 2), format!("at byte {}: it was cut short", len / 2)),
        (cut(100), format!("a header of {header} bytes, but the file has 100 in all")),
        (cut(0), "at least 8 bytes, this one has 0".into()),
        (cut(7), "at least 8 bytes, this one has 7".into()),
        (announced(u64::MAX), format!("a header of {} bytes, but the file has {len} in all", u64::MAX)),
        (announced(1 << 62), format!("a header of {} bytes, but the file has {len} in all", 1u64 << 62)),
        (announced(1 << 40), format!("a header of {} bytes, but the file has {len} in all", 1u64 << 40)),
        ([&whole[..8], b"<htm", &whole[12..]].concat(), "not a safetensors file".into()),
    ] {
        refused_with("bf16-gqa3", WEIGHTS, &bytes, &[&says, "download the file again"]);
    }
    for header in [
        r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,16]}}"#,
        r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}"#,
        r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551615]}}"#,
        r#"{"a":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}}"#,
        r#"{"a":{"dtype":"F31","shape":[4],"data_offsets":[0,16]}}"#,
    ] {
        refused_with("bf16-gqa3", WEIGHTS, &with_header(header), &["download the file again"]);
    }
}

#[test]
fn a_tensor_of_the_wrong_type_or_shape_or_none_at_all() {
    for (dtype, name) in [(Dtype::I32, "I32"), (Dtype::F64, "F64"), (Dtype::F8_E4M3, "F8_E4M3"), (Dtype::U8, "U8")] {
        let folder = folder();
        folder.change_tensor("model.layers.1.mlp.up_proj.weight", |tensor| {
            tensor.data = vec![0; tensor.shape.iter().product::<usize>() * dtype.bitsize() / 8];
            tensor.dtype = dtype;
        });
        refused(&folder, &["model.safetensors: tensor model.layers.1.mlp.up_proj.weight", name, "BF16, F16, F32"]);
    }
    let k_proj = "tensor model.layers.0.self_attn.k_proj.weight is [24, 16], expected [16, 24]; config.json and the";
    type Change = fn(&mut Tensor);
    let cases: [(&str, &str, Change); 2] = [
        ("model.layers.0.self_attn.k_proj.weight", k_proj, |tensor| tensor.shape.reverse()),
        ("model.norm.weight", "tensor model.norm.weight is [24, 1], expected [24]", |tensor| tensor.shape.push(1)),
    ];
    for (name, says, change) in cases {
        let folder = folder();
        folder.change_tensor(name, change);
        refused(&folder, &["model.safetensors: ", says]);
    }
    let folder = folder();
    let mut tensors = folder.tensors();
    tensors.remove("model.layers.1.self_attn.q_norm.weight");
    folder.set_tensors(&tensors);
    refused(&folder, &["model.safetensors: tensor model.layers.1.self_attn.q_norm.weight [8] is missing"]);
}

#[test]
fn json_that_is_not() {
    for text in ["", "{", "hello", "[]", "{\"vocab_size\": \"many\"}", "{\"vocab_size\": -1}", "\u{0}"] {
        refused_with("bf16-gqa3", "config.json", text.as_bytes(), &["not the JSON expected here", "line"]);
    }
    for (text, says) in [
        (r#"{"eos_token_id": "stop"}"#, "not the JSON expected here"),
        (r#"{"temperature": 1e39}"#, "the temperature is inf"),
    ] {
        refused_with("bf16-gqa3", "generation_config.json", text.as_bytes(), &[says]);
    }
    refused_with("sharded", INDEX, b"{}", &["not the JSON expected here", "weight_map"]);
}

#[test]
fn a_config_that_cannot_be_or_is_not_supported() {
    let theta = |theta: f64| json!({ "rope_theta": theta });
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0 });
    let sliding = json!(["full_attention", "sliding_attention"]);
    let cases: [(&str, Value, &str); 19] = [
        ("vocab_size", json!(0), "config.json: vocab_size is 0"),
        ("vocab_size", json!(1 << 24), "tensor model.embed_tokens.weight is [97, 24], expected [16777216, 24]"),
        ("hidden_size", json!(1u64 << 40), "hidden_size is 1099511627776"),
        ("num_hidden_layers", json!(16_000_000), "num_hidden_layers is 16000000"),
        ("num_key_value_heads", json!(4), "num_attention_heads (6) is not a multiple of num_key_value_heads (4)"),
        ("num_key_value_heads", json!(0), "num_key_value_heads is 0"),
        ("head_dim", json!(7), "head_dim is 7, expected an even number"),
        ("rms_norm_eps", json!(-1.0), "rms_norm_eps is -1, expected a finite number, 0 or more"),
        ("rms_norm_eps", json!(1e39), "rms_norm_eps is inf, expected a finite number"),
        ("rope_parameters", theta(1e39), "rope_theta is inf, expected a finite number, 1 or more"),
        ("rope_parameters", theta(1e-45), "rope_theta is 0.000"),
        ("rope_parameters", theta(-1.0), "rope_theta is -1"),
        ("tie_word_embeddings", json!(false), "tensor lm_head.weight [97, 24] is missing"),
        ("model_type", json!("llama"), "the architecture \"llama\" is not supported (supported: \"qwen3\")"),
        ("rope_scaling", yarn, "rope scaling is not supported"),
        ("quantization_config", json!({ "quant_method": "awq" }), "quantized weights are not supported"),
        ("use_sliding_window", json!(true), "sliding-window attention is not supported"),
        ("layer_types", sliding, "sliding-window attention is not supported"),
        ("hidden_act", json!("gelu"), "the activation \"gelu\" is not supported"),
    ];
    for (field, value, says) in cases {
        let folder = folder();
        folder.set("config.json", field, value);
        refused(&folder, &[says]);
    }
}

#[test]
fn a_number_that_is_not_finite_is_named() {
    // A tensor, where in it a number is spoiled, and the place as the error says it. bf16-gqa3 has rows of 24 numbers.
    for (golden, name, at, place) in [
        ("bf16-gqa3", "model.layers.0.self_attn.q_proj.weight", 24 * 7 + 5, "[7, 5]"),
        ("bf16-gqa3", "model.layers.1.self_attn.k_norm.weight", 3, "[3]"),
        ("f32-bias-gqa7", "model.layers.0.self_attn.v_proj.bias", 1, "[1]"),
        ("f16-mha-untied", "lm_head.weight", 1, "[0, 1]"),
    ] {
        let folder = Folder::copy_of(golden);
        folder.change_tensor(name, |tensor| {
            let bytes = match tensor.dtype {
                Dtype::BF16 => half::bf16::NAN.to_le_bytes().to_vec(),
                Dtype::F16 => half::f16::NAN.to_le_bytes().to_vec(),
                _ => f32::NAN.to_le_bytes().to_vec(),
            };
            tensor.data[at * bytes.len()..][..bytes.len()].copy_from_slice(&bytes);
        });
        let says = format!("tensor {name} is NaN at {place}; a weight is a finite number");
        refused(&folder, &["model.safetensors: ", &says, "download the file again"]);
    }
}

#[test]
fn an_index_that_names_what_is_not_there() {
    assert!(Model::open(Folder::copy_of("sharded").path().as_ref()).is_ok());
    for shard in ["../model-00001-of-00003.safetensors", "/etc/passwd", "..", ""] {
        let folder = Folder::copy_of("sharded");
        folder.set(INDEX, "weight_map", json!({ "model.norm.weight": shard }));
        refused(&folder, &[INDEX, &format!("{shard:?}"), "not a plain file name"]);
    }
    let folder = Folder::copy_of("sharded");
    folder.set(INDEX, "weight_map", json!({ "no.such.tensor": "model-00001-of-00003.safetensors" }));
    let says = "places tensor no.such.tensor in model-00001-of-00003.safetensors, which does not hold it";
    refused(&folder, &[INDEX, says]);
}
