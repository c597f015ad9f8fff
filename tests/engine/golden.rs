//! The engine computes what `transformers` computes in 32 bits, for ten checkpoints, at every position; and with products in
//! 16 bits, nearly.

use std::path::{Path, PathBuf};

use page_by_page::kernels::MatmulDtype;
use page_by_page::model::Model;
use safetensors::SafeTensors;

struct Golden {
    tokens: Vec<u32>,
    ids: Vec<usize>,
    /// `[tokens, ids]`
    logits: Vec<f32>,
    scale: Vec<f32>,
    argmax: Vec<usize>,
}

fn goldens() -> PathBuf {
    grading::root().join("assets/golden")
}

fn read(name: &str) -> Golden {
    let bytes = std::fs::read(goldens().join(name).join("golden.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let integers = |name| -> Vec<usize> {
        let data = file.tensor(name).unwrap().data();
        data.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as usize).collect()
    };
    let floats = |name| -> Vec<f32> {
        file.tensor(name).unwrap().data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    Golden {
        tokens: integers("tokens").into_iter().map(|token| token as u32).collect(),
        ids: integers("ids"),
        logits: floats("logits"),
        scale: floats("scale"),
        argmax: integers("argmax"),
    }
}

/// Compares all positions of one checkpoint; returns the largest difference, in parts of the position's scale, and at how
/// many positions another token is the likeliest.
fn compare(name: &str, checkpoint: &Path, matmul_dtype: MatmulDtype) -> (f32, usize) {
    let golden = read(name);
    let mut model = Model::open(checkpoint).unwrap_or_else(|error| panic!("{name}: {error}"));
    model.matmul_dtype = matmul_dtype;
    let vocab_size = model.config().vocab_size;
    let logits = model.forward(vec![model.prepare_chunk(&golden.tokens, None, golden.tokens.len()).unwrap()]).unwrap();
    let (mut worst, mut others) = (0.0f32, 0);
    for (position, found) in logits.chunks_exact(vocab_size).enumerate() {
        let expected = &golden.logits[position * golden.ids.len()..][..golden.ids.len()];
        for (id, expected) in golden.ids.iter().zip(expected) {
            worst = worst.max((found[*id] - expected).abs() / golden.scale[position]);
        }
        let best = (0..vocab_size).max_by(|a, b| found[*a].total_cmp(&found[*b])).unwrap();
        others += usize::from(best != golden.argmax[position]);
    }
    assert_eq!(logits.len(), golden.tokens.len() * vocab_size, "{name}: one row of logits for each token");
    (worst, others)
}

#[test]
fn logits_agree_with_transformers() {
    let mut cases = 0;
    for entry in std::fs::read_dir(goldens()).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        let checkpoint = if path.join("config.json").exists() { path.clone() } else { goldens().join("..").join(name) };
        let (worst, others) = compare(name, &checkpoint, MatmulDtype::F32);
        let (worst_of_bf16, others_of_bf16) = compare(name, &checkpoint, MatmulDtype::Bf16);
        println!("{name}: {worst:e}; products in bf16: {worst_of_bf16:e}, another token likeliest: {others_of_bf16}");
        assert!(worst < 2e-5, "{name}: a logit is off by {worst:e} of its position's scale");
        assert_eq!(others, 0, "{name}: positions at which another token is the likeliest");
        assert!(worst_of_bf16 < 0.1, "{name}: a logit is off by {worst_of_bf16:e}, with products in bf16");
        cases += 1;
    }
    assert_eq!(cases, 10, "checkpoints compared");
}

#[test]
fn ends_of_text_come_from_the_generation_config_first() {
    let ends = |name: &str| Model::open(&goldens().join(name)).unwrap().config().eos_token_ids.clone();
    assert_eq!(ends("long-eos-list"), [7, 11], "generation_config.json has a list");
    assert_eq!(ends("tied-with-head"), [2, 1], "a single id in config.json, a list in generation_config.json");
}

/// What the readers of Qwen3 configs in candle and mistral.rs insist on: without one of these they refuse a model.
#[test]
fn the_bundled_models_open_elsewhere() {
    for (name, layers) in [("storyteller", 6), ("storyteller-draft", 2)] {
        let path = goldens().join("..").join(name).join("config.json");
        let config: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let fields = "attention_bias head_dim hidden_act hidden_size intermediate_size max_position_embeddings \
                      max_window_layers num_attention_heads num_hidden_layers num_key_value_heads rms_norm_eps rope_theta sliding_window \
                      tie_word_embeddings torch_dtype use_sliding_window vocab_size";
        for field in fields.split(' ') {
            assert!(config.get(field).is_some(), "{name}: config.json says nothing of {field}");
        }
        for field in ["num_hidden_layers", "max_window_layers"] {
            assert_eq!(config[field], layers, "{name}: {field}");
        }
    }
}
