//! Model folders with one thing wrong: a file that is missing, cut, too long, or that lies.

use std::fs::{self, File};
use std::path::Path;

use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::spoiled::{model_refused, refused};
use grading::checkpoints::{Folder, Tensor};

const MODEL: &str = "bf16-gqa3";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

#[test]
fn a_folder_or_a_file_that_is_not_there() {
    let open = |path: &Path| Model::open(path).map(drop);
    let holds = "a model folder holds config.json, tokenizer.json and model.safetensors";
    refused(|| open("no/such/folder".as_ref()), &["config.json: ", holds]);
    refused(|| open(&Folder::copy_of(MODEL).file(WEIGHTS)), &["not a file"]);
    let shard = "model-00002-of-00003.safetensors";
    for (golden, file, says) in [
        (MODEL, WEIGHTS, "no model.safetensors.index.json either"),
        ("sharded", shard, "the index names it: download this shard too"),
    ] {
        model_refused(golden, |folder| fs::remove_file(folder.file(file)).unwrap(), &[&format!("{file}: "), says]);
    }
}

/// Makes a file as long as that, which takes nearly nothing on the disk.
fn lengthen(folder: &Folder, name: &str, len: u64) -> File {
    let file = File::options().write(true).open(folder.file(name)).unwrap();
    file.set_len(len).unwrap();
    file
}

#[test]
fn a_file_that_is_much_too_large() {
    let says = |most: u64| format!("the file has 1099511627776 bytes, at most {most} are expected here");
    for (golden, name, most) in [
        (MODEL, "config.json", 1 << 20),
        ("long-eos-list", "generation_config.json", 1 << 20),
        ("sharded", INDEX, 16 << 20),
    ] {
        model_refused(golden, |folder| drop(lengthen(folder, name, 1 << 40)), &[name, &says(most)]);
    }
    let folder = Folder::copy_of("storyteller-draft");
    lengthen(&folder, "tokenizer.json", 1 << 40);
    refused(|| Tokenizer::open(folder.path().as_ref()), &["tokenizer.json", &says(64 << 20)]);
    let header = |folder: &Folder| {
        let file = lengthen(folder, WEIGHTS, 64 << 20);
        std::io::Write::write_all(&mut &file, &u64::to_le_bytes(20 << 20)).unwrap();
    };
    model_refused(MODEL, header, &[WEIGHTS, "its header has 20971520 bytes, at most 16777216 are expected"]);
}

/// A program goes on with the checkpoint that it has opened when a different file is renamed over it.
#[cfg(unix)]
#[test]
fn a_replaced_checkpoint_stays_as_it_was_where_it_is_open() {
    let [folder, other] = [0, 1].map(|_| Folder::copy_of(MODEL));
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
    let whole = Folder::copy_of(MODEL).read(WEIGHTS);
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
        model_refused(MODEL, |folder| folder.write(WEIGHTS, bytes), &[WEIGHTS, &says, "download the file again"]);
    }
    for header in [
        r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,16]}}"#,
        r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}"#,
        r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551615]}}"#,
        r#"{"a":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}}"#,
        r#"{"a":{"dtype":"F31","shape":[4],"data_offsets":[0,16]}}"#,
    ] {
        let (says, len) = ([WEIGHTS, "download the file again"], header.len() as u64);
        let file = [&len.to_le_bytes(), header.as_bytes(), &[0; 16]].concat();
        model_refused(MODEL, |folder| folder.write(WEIGHTS, file), &says);
    }
}

#[test]
fn a_tensor_of_the_wrong_type_or_shape_or_none_at_all() {
    for (dtype, name) in [(Dtype::I32, "I32"), (Dtype::F64, "F64"), (Dtype::F8_E4M3, "F8_E4M3"), (Dtype::U8, "U8")] {
        let up_proj = "model.layers.1.mlp.up_proj.weight";
        let retype = |tensor: &mut Tensor| {
            tensor.data = vec![0; tensor.shape.iter().product::<usize>() * dtype.bitsize() / 8];
            tensor.dtype = dtype;
        };
        let says = [&format!("model.safetensors: tensor {up_proj}"), name, "BF16, F16, F32"];
        model_refused(MODEL, |folder| folder.change_tensor(up_proj, retype), &says);
    }
    let k_proj = "tensor model.layers.0.self_attn.k_proj.weight is [24, 16], expected [16, 24]; config.json and the";
    type Change = fn(&mut Tensor);
    let cases: [(&str, &str, Change); 2] = [
        ("model.layers.0.self_attn.k_proj.weight", k_proj, |tensor| tensor.shape.reverse()),
        ("model.norm.weight", "tensor model.norm.weight is [24, 1], expected [24]", |tensor| tensor.shape.push(1)),
    ];
    for (name, says, change) in cases {
        model_refused(MODEL, |folder| folder.change_tensor(name, change), &["model.safetensors: ", says]);
    }
    let remove = |folder: &Folder| {
        let mut tensors = folder.tensors();
        tensors.remove("model.layers.1.self_attn.q_norm.weight");
        folder.set_tensors(&tensors);
    };
    model_refused(MODEL, remove, &["model.safetensors: tensor model.layers.1.self_attn.q_norm.weight [8] is missing"]);
}

#[test]
fn json_that_is_not() {
    let not_json = "not the JSON expected here";
    let configs = ["", "{", "hello", "[]", "{\"vocab_size\": \"many\"}", "{\"vocab_size\": -1}", "\u{0}"];
    let others = [
        (MODEL, "generation_config.json", r#"{"eos_token_id": "stop"}"#, [not_json, ""]),
        (
            MODEL,
            "generation_config.json",
            r#"{"temperature": 1e39}"#,
            ["1e39 is out of the range of 32-bit floats", ""],
        ),
        (MODEL, "generation_config.json", r#"{"temperature": 1e-320}"#, ["1e-320 is out of the range", ""]),
        ("sharded", INDEX, "{}", [not_json, "weight_map"]),
    ];
    let configs = configs.map(|text| (MODEL, "config.json", text, [not_json, "line"]));
    for (golden, file, text, [says, place]) in configs.into_iter().chain(others) {
        model_refused(golden, |folder| folder.write(file, text), &[file, says, place]);
    }
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
        ("rms_norm_eps", json!(1e39), "config.json: not the JSON expected here: number out of range"),
        ("rope_parameters", theta(1e39), "config.json: not the JSON expected here: number out of range"),
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
        model_refused(MODEL, |folder| folder.set("config.json", field, value), &[says]);
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
        let spoil = |tensor: &mut Tensor| {
            let bytes = match tensor.dtype {
                Dtype::BF16 => half::bf16::NAN.to_le_bytes().to_vec(),
                Dtype::F16 => half::f16::NAN.to_le_bytes().to_vec(),
                _ => f32::NAN.to_le_bytes().to_vec(),
            };
            tensor.data[at * bytes.len()..][..bytes.len()].copy_from_slice(&bytes);
        };
        let says = format!("model.safetensors: tensor {name} is NaN at {place}; a weight is a finite number");
        model_refused(golden, |folder| folder.change_tensor(name, spoil), &[&says, "download the file again"]);
    }
}

#[test]
fn an_index_that_names_what_is_not_there() {
    assert!(Model::open(Folder::copy_of("sharded").path().as_ref()).is_ok());
    let holds_not =
        "places tensor no.such.tensor in model-00001-of-00003.safetensors, which does not hold it".to_string();
    let not_plain = |shard: &str| format!("{shard:?}, which is not a plain file name");
    let outside = ["../model-00001-of-00003.safetensors", "/etc/passwd", "..", ""];
    let outside = outside.map(|shard| ("model.norm.weight", shard, not_plain(shard)));
    let missing = [("no.such.tensor", "model-00001-of-00003.safetensors", holds_not)];
    for (tensor, shard, says) in outside.into_iter().chain(missing) {
        model_refused("sharded", |folder| folder.set(INDEX, "weight_map", json!({ tensor: shard })), &[INDEX, &says]);
    }
}
