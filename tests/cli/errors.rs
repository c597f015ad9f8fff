//! Whatever is wrong with the input: one or two lines that say what, where and what to do; no panic, no huge
//! allocation.

use std::process::Command;

use crate::checkpoints::Folder;
use safetensors::Dtype;
use serde_json::json;

/// Runs the program with at most 1 GiB of address space, where the system can limit it.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let program = crate::program::PROGRAM;
    let mut command = if cfg!(target_os = "linux") {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -v 1048576; exec \"$0\" \"$@\"", program]);
        shell
    } else {
        Command::new(program)
    };
    let output = command.args(arguments).args(["--threads", "1"]).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// The program fails with this exit code and says all of this, briefly.
#[track_caller]
fn fails(arguments: &[&str], code: i32, says: &[&str]) {
    let (found, stderr) = run(arguments);
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(found, Some(code), "exit code of {arguments:?}:\n{stderr}");
    assert!(stderr.starts_with("error: ") && (1..=2).contains(&lines.len()), "one or two lines:\n{stderr}");
    assert!(!stderr.contains("panicked") && !stderr.contains("backtrace"), "no panic:\n{stderr}");
    for word in says {
        assert!(stderr.contains(word), "{word:?} is missing in:\n{stderr}");
    }
}

/// `logits` of this folder fails and says all of this.
#[track_caller]
fn refused(folder: &Folder, says: &[&str]) {
    fails(&["logits", "--tokens", "1,2", "--model", folder.path()], 1, says);
}

fn folder() -> Folder {
    Folder::copy_of("bf16-gqa3")
}

#[test]
fn an_undamaged_copy_is_fine() {
    let (code, stderr) = run(&["logits", "--tokens", "1,2", "--model", folder().path()]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
}

#[test]
fn no_such_folder() {
    let says =
        ["no/such/folder", "config.json: ", "a model folder holds config.json, tokenizer.json and model.safetensors"];
    fails(&["logits", "--tokens", "1", "--model", "no/such/folder"], 1, &says);
}

#[test]
fn a_folder_without_weights() {
    let folder = folder();
    std::fs::remove_file(folder.file("model.safetensors")).unwrap();
    refused(&folder, &["model.safetensors: ", "no model.safetensors.index.json either"]);
}

#[test]
fn a_file_where_a_folder_should_be() {
    let folder = folder();
    let file = folder.file("model.safetensors");
    fails(&["logits", "--tokens", "1", "--model", file.to_str().unwrap()], 1, &["model.safetensors", "not a file"]);
}

/// What is no file, where a file should be: nobody waits for it, and nothing of it is read.
#[cfg(unix)]
#[test]
fn a_pipe_or_a_device_where_a_file_should_be() {
    let bundled = || Folder::copy_of("storyteller-draft");
    for name in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
        let (pipe, device) = (bundled(), bundled());
        for folder in [&pipe, &device] {
            std::fs::remove_file(folder.file(name)).unwrap();
        }
        assert!(Command::new("mkfifo").arg(pipe.file(name)).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", device.file(name)).unwrap();
        for folder in [&pipe, &device] {
            let says = [name, "this is a pipe, a socket or a device, not a file"];
            if name == "tokenizer.json" {
                let error = page_by_page::model::tokenizer::Tokenizer::open(folder.path().as_ref()).err().unwrap();
                assert!(says.iter().all(|word| error.to_string().contains(word)), "{error}");
            } else {
                refused(folder, &says);
            }
        }
    }
    let sharded = Folder::copy_of("sharded");
    let index = "model.safetensors.index.json";
    std::fs::remove_file(sharded.file(index)).unwrap();
    std::os::unix::fs::symlink("/dev/zero", sharded.file(index)).unwrap();
    refused(&sharded, &[index, "this is a pipe, a socket or a device, not a file"]);
}

#[test]
fn a_file_that_is_much_too_large() {
    for (golden, name, most) in [
        ("bf16-gqa3", "config.json", 1 << 20),
        ("long-eos-list", "generation_config.json", 1 << 20),
        ("sharded", "model.safetensors.index.json", 16 << 20),
        ("storyteller-draft", "tokenizer.json", 64 << 20),
    ] {
        let folder = Folder::copy_of(golden);
        // As long as it says, and nearly nothing on the disk.
        std::fs::File::options().write(true).open(folder.file(name)).unwrap().set_len(1 << 40).unwrap();
        let says = [name, &format!("the file has 1099511627776 bytes, at most {most} are expected here")];
        if name == "tokenizer.json" {
            let error = page_by_page::model::tokenizer::Tokenizer::open(folder.path().as_ref()).err().unwrap();
            assert!(says.iter().all(|word| error.to_string().contains(word)), "{error}");
        } else {
            refused(&folder, &says);
        }
    }
    let folder = folder();
    let header = 20 << 20;
    let file = std::fs::File::options().write(true).open(folder.file("model.safetensors")).unwrap();
    file.set_len(64 << 20).unwrap();
    std::io::Write::write_all(&mut &file, &u64::to_le_bytes(header)).unwrap();
    refused(&folder, &["model.safetensors", "its header has 20971520 bytes, at most 16777216 are expected"]);
}

/// A file can say anything; what of it is repeated is short, and no terminal obeys it.
#[test]
fn what_a_file_says_is_repeated_briefly_and_harmlessly() {
    let evil = "\u{1b}[2J\u{1b}]0;owned\u{7}\r\nerror: all is well\u{9b}31m\u{202e}".to_string();
    let long = "x".repeat(1 << 19);
    for text in [evil, long] {
        for (golden, file, field) in [
            ("bf16-gqa3", "config.json", "model_type"),
            ("bf16-gqa3", "config.json", "hidden_act"),
            ("bf16-gqa3", "config.json", "rope_parameters"),
            ("bf16-gqa3", "config.json", "vocab_size"),
            ("bf16-gqa3", "config.json", "eos_token_id"),
            ("sharded", "model.safetensors.index.json", "weight_map"),
        ] {
            let folder = Folder::copy_of(golden);
            let value = match field {
                "rope_parameters" => json!({ "rope_type": text }),
                "weight_map" => json!({ &text: &text }),
                _ => json!(text),
            };
            folder.set(file, field, value);
            refused_harmlessly(&folder, file);
        }
        let index = "model.safetensors.index.json";
        let folder = Folder::copy_of("sharded");
        folder.set(index, "weight_map", json!({ &text: "model-00001-of-00003.safetensors" }));
        refused_harmlessly(&folder, index);
        let folder = Folder::copy_of("bf16-gqa3");
        let header = json!({ "a": { "dtype": &text, "shape": [], "data_offsets": [0, 0] } }).to_string();
        folder.write("model.safetensors", [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat());
        refused_harmlessly(&folder, "model.safetensors");
    }
    let folder = folder();
    folder.change_tensor("model.norm.weight", |tensor| {
        tensor.shape = [&[1; 100_000][..], &tensor.shape].concat();
    });
    refused_harmlessly(&folder, "model.safetensors");
}

/// `logits` of this folder names the file in a short line that any terminal may show.
#[track_caller]
fn refused_harmlessly(folder: &Folder, file: &str) {
    let (code, stderr) = run(&["logits", "--tokens", "1,2", "--model", folder.path()]);
    let line = stderr.strip_suffix('\n').unwrap();
    assert!(code == Some(1) && line.starts_with("error: ") && line.contains(file), "{line:?}");
    assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
    assert!(line.chars().count() < 1_000, "{} characters: {line}", line.chars().count());
}

#[test]
fn an_argument_is_repeated_harmlessly() {
    for arguments in [&["generate", "--kv", "\u{1b}[2J"][..], &["logits", "--tokens", "1", "--model", "\u{1b}[2J"]] {
        let (code, stderr) = run(arguments);
        assert!(code != Some(0) && stderr.contains("\\u{1b}[2J"), "{stderr:?}");
        assert!(!stderr.contains('\u{1b}'), "{stderr:?}");
    }
}

/// A program goes on with the checkpoint that it has opened, as long as nobody changes that file itself.
#[cfg(unix)]
#[test]
fn a_checkpoint_that_is_replaced_stays_as_it_was_for_who_has_it_open() {
    use page_by_page::model::{LogitRows, Model};
    let folder = folder();
    let logits = |model: &Model| model.forward(vec![model.chunk(&[1, 2], None, LogitRows::All).unwrap()]);
    let open = || Model::open(folder.path().as_ref()).unwrap();
    let first = open();
    let expected = logits(&first);
    // What follows writes to the file that it has mapped.
    drop(first);
    let old = folder.read("model.safetensors");
    folder.change_tensor("model.embed_tokens.weight", |tensor| tensor.data.fill(0));
    std::fs::rename(folder.file("model.safetensors"), folder.file("new")).unwrap();
    folder.write("model.safetensors", old);
    let before = open();
    std::fs::rename(folder.file("new"), folder.file("model.safetensors")).unwrap();
    assert_eq!(logits(&before), expected, "opened before");
    assert_ne!(logits(&open()), expected, "opened after");
}

#[test]
fn a_truncated_file() {
    let folder = folder();
    let bytes = folder.read("model.safetensors");
    for len in [bytes.len() - 1, bytes.len() / 2] {
        folder.write("model.safetensors", &bytes[..len]);
        refused(&folder, &["model.safetensors", &format!("{len}"), "cut short", "download the file again"]);
    }
}

#[test]
fn a_file_cut_inside_its_header() {
    let folder = folder();
    let bytes = folder.read("model.safetensors");
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    folder.write("model.safetensors", &bytes[..100]);
    refused(&folder, &["model.safetensors", &format!("a header of {header} bytes"), "100 in all", "download"]);
    for len in [0, 7] {
        folder.write("model.safetensors", &bytes[..len]);
        refused(&folder, &["model.safetensors", "at least 8 bytes", &format!("this one has {len}")]);
    }
}

#[test]
fn an_absurd_header_length() {
    let folder = folder();
    for header in [u64::MAX, u64::MAX - 8, 1 << 62, 1 << 40] {
        let mut bytes = folder.read("model.safetensors");
        bytes[..8].copy_from_slice(&header.to_le_bytes());
        folder.write("model.safetensors", &bytes);
        let len = bytes.len();
        refused(&folder, &["model.safetensors", &format!("a header of {header} bytes"), &format!("{len} in all")]);
    }
}

#[test]
fn a_header_that_is_not_json() {
    let folder = folder();
    let mut bytes = folder.read("model.safetensors");
    bytes[8..12].copy_from_slice(b"<htm");
    folder.write("model.safetensors", &bytes);
    refused(&folder, &["model.safetensors", "not a safetensors file", "JSON"]);
}

#[test]
fn a_header_that_lies_about_its_tensors() {
    let folder = folder();
    let lies = [
        r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,16]}}"#,
        r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}"#,
        r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551615]}}"#,
        r#"{"a":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}}"#,
        r#"{"a":{"dtype":"F31","shape":[4],"data_offsets":[0,16]}}"#,
    ];
    for header in lies {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend([0; 16]);
        folder.write("model.safetensors", bytes);
        refused(&folder, &["model.safetensors", "download the file again"]);
    }
}

#[test]
fn a_tensor_of_another_type() {
    for (dtype, name) in [(Dtype::I32, "I32"), (Dtype::F64, "F64"), (Dtype::F8_E4M3, "F8_E4M3"), (Dtype::U8, "U8")] {
        let folder = folder();
        folder.change_tensor("model.layers.1.mlp.up_proj.weight", |tensor| {
            let numbers: usize = tensor.shape.iter().product();
            tensor.data = vec![0; numbers * dtype.bitsize() / 8];
            tensor.dtype = dtype;
        });
        refused(&folder, &["model.safetensors: tensor model.layers.1.mlp.up_proj.weight", name, "BF16, F16, F32"]);
    }
}

#[test]
fn a_tensor_of_another_shape() {
    let folder = folder();
    folder.change_tensor("model.layers.0.self_attn.k_proj.weight", |tensor| tensor.shape.reverse());
    let expected = "tensor model.layers.0.self_attn.k_proj.weight is [24, 16], expected [16, 24]";
    refused(&folder, &["model.safetensors: ", expected, "config.json"]);

    let folder = self::folder();
    folder.change_tensor("model.norm.weight", |tensor| tensor.shape.push(1));
    refused(&folder, &["tensor model.norm.weight is [24, 1], expected [24]"]);
}

#[test]
fn a_missing_tensor() {
    let folder = folder();
    let mut tensors = folder.tensors();
    tensors.remove("model.layers.1.self_attn.q_norm.weight");
    folder.set_tensors(&tensors);
    refused(&folder, &["model.safetensors: tensor model.layers.1.self_attn.q_norm.weight [8] is missing"]);
}

#[test]
fn an_untied_model_needs_its_output() {
    let folder = folder();
    folder.set("config.json", "tie_word_embeddings", json!(false));
    refused(&folder, &["tensor lm_head.weight [97, 24] is missing"]);
}

#[test]
fn json_that_is_not() {
    let folder = folder();
    for text in ["", "{", "hello", "[]", "{\"vocab_size\": \"many\"}", "{\"vocab_size\": -1}", "\u{0}"] {
        folder.write("config.json", text);
        refused(&folder, &["config.json: not the JSON expected here", "line"]);
    }
    let folder = self::folder();
    folder.write("generation_config.json", "{\"eos_token_id\": \"stop\"}");
    refused(&folder, &["generation_config.json: not the JSON expected here"]);
}

#[test]
fn numbers_that_cannot_be() {
    let cases = [
        ("vocab_size", json!(0), "vocab_size is 0"),
        ("hidden_size", json!(1u64 << 40), "hidden_size is 1099511627776"),
        ("num_hidden_layers", json!(16_000_000), "num_hidden_layers is 16000000"),
        ("num_key_value_heads", json!(4), "num_attention_heads (6) is not a multiple of num_key_value_heads (4)"),
        ("num_key_value_heads", json!(0), "num_key_value_heads is 0"),
        ("head_dim", json!(7), "head_dim is 7, expected an even number"),
        ("rms_norm_eps", json!(-1.0), "rms_norm_eps is -1, expected a finite number, 0 or more"),
        ("rms_norm_eps", json!(1e39), "rms_norm_eps is inf, expected a finite number"),
        ("rope_parameters", json!({ "rope_theta": 1e39 }), "rope_theta is inf, expected a finite number, 1 or more"),
        ("rope_parameters", json!({ "rope_theta": 1e-45 }), "rope_theta is 0.000"),
        ("rope_parameters", json!({ "rope_theta": -1.0 }), "rope_theta is -1"),
    ];
    for (field, value, says) in cases {
        let folder = folder();
        folder.set("config.json", field, value);
        refused(&folder, &["config.json: ", says]);
    }
}

#[test]
fn sampling_that_a_model_cannot_mean() {
    for (field, value, says) in [
        ("temperature", json!(-1.0), "the temperature is -1, expected 0 (greedy) or 0.000001 to 1000"),
        ("temperature", json!(1e39), "the temperature is inf"),
        ("temperature", json!(1e-40), "the temperature is 0.000"),
        ("top_p", json!(1.5), "top-p is 1.5, expected a probability from 0 to 1"),
        ("top_p", json!(1e39), "top-p is inf"),
    ] {
        let folder = folder();
        folder.write("generation_config.json", json!({ field: value }).to_string());
        refused(&folder, &["generation_config.json: ", says]);
    }
    for fine in [json!({ "temperature": 0.000001 }), json!({ "temperature": 0, "top_p": 0, "top_k": u64::MAX })] {
        let folder = folder();
        folder.write("generation_config.json", fine.to_string());
        assert_eq!(run(&["logits", "--tokens", "1,2", "--model", folder.path()]), (Some(0), String::new()), "{fine}");
    }
}

/// A tensor of a golden model, where in it a number is spoiled, and what is then said of the place.
type Spoiled = (&'static str, &'static str, usize, &'static str);

#[test]
fn a_number_that_is_not_finite_is_named() {
    // bf16-gqa3 has rows of 24 numbers, two bytes each; f32-bias-gqa7 has biases, four bytes a number.
    let places: [Spoiled; 7] = [
        ("bf16-gqa3", "model.embed_tokens.weight", 24 * 96 + 23, "[96, 23]"),
        ("bf16-gqa3", "model.layers.1.mlp.down_proj.weight", 0, "[0, 0]"),
        ("bf16-gqa3", "model.layers.0.self_attn.q_proj.weight", 24 * 7 + 5, "[7, 5]"),
        ("bf16-gqa3", "model.layers.1.self_attn.k_norm.weight", 3, "[3]"),
        ("bf16-gqa3", "model.norm.weight", 23, "[23]"),
        ("f32-bias-gqa7", "model.layers.0.self_attn.v_proj.bias", 1, "[1]"),
        ("f16-mha-untied", "lm_head.weight", 1, "[0, 1]"),
    ];
    for (golden, name, at, place) in places {
        let folder = Folder::copy_of(golden);
        for (text, number) in [("NaN", f32::NAN), ("inf", f32::INFINITY), ("-inf", f32::NEG_INFINITY)] {
            folder.change_tensor(name, |tensor| {
                let bytes = match tensor.dtype {
                    Dtype::BF16 => half::bf16::from_f32(number).to_le_bytes().to_vec(),
                    Dtype::F16 => half::f16::from_f32(number).to_le_bytes().to_vec(),
                    _ => number.to_le_bytes().to_vec(),
                };
                tensor.data[at * bytes.len()..][..bytes.len()].copy_from_slice(&bytes);
            });
            let says = format!("tensor {name} is {text} at {place}; a weight is a finite number");
            refused(&folder, &["model.safetensors: ", &says, "download the file again"]);
        }
    }
}

/// A folder whose weights are finite, and so large that nothing computed with them is.
fn overflowing(golden: &str) -> Folder {
    let folder = Folder::copy_of(golden);
    folder.change_tensor("model.norm.weight", |tensor| {
        let numbers = tensor.shape[0];
        tensor.data = match tensor.dtype {
            Dtype::BF16 => half::bf16::MAX.to_le_bytes().repeat(numbers),
            _ => f32::MAX.to_le_bytes().repeat(numbers),
        };
    });
    folder
}

#[test]
fn logits_that_are_not_finite_are_never_printed() {
    let folder = overflowing("bf16-gqa3");
    for (more, position) in [(&[][..], "position 2 (token id 7)"), (&["--all"], "position 0 (token id 1)")] {
        let logits = ["logits", "--tokens", "1,2,7", "--model", folder.path()];
        fails(&[&logits, more].concat(), 1, &[&format!("the logits after {position} are not finite")]);
    }
}

#[test]
fn a_model_larger_than_its_checkpoint() {
    let folder = folder();
    folder.set("config.json", "vocab_size", json!(1 << 24));
    folder.set("config.json", "hidden_size", json!(1 << 24));
    refused(&folder, &["tensor model.embed_tokens.weight is [97, 24], expected [16777216, 16777216]"]);
}

#[test]
fn models_that_are_not_supported() {
    let cases = [
        ("model_type", json!("llama"), "the architecture \"llama\" is not supported (supported: \"qwen3\")"),
        ("rope_scaling", json!({ "rope_type": "yarn", "factor": 4.0 }), "rope scaling is not supported"),
        ("rope_parameters", json!({ "rope_theta": 1e6, "rope_type": "yarn" }), "rope scaling is not supported"),
        ("quantization_config", json!({ "quant_method": "awq" }), "quantized weights are not supported"),
        ("use_sliding_window", json!(true), "sliding-window attention is not supported"),
        ("layer_types", json!(["full_attention", "sliding_attention"]), "sliding-window attention is not supported"),
        ("hidden_act", json!("gelu"), "the activation \"gelu\" is not supported"),
    ];
    for (field, value, says) in cases {
        let folder = folder();
        folder.set("config.json", field, value);
        refused(&folder, &["config.json: ", says]);
    }
}

#[test]
fn an_index_that_names_what_is_not_there() {
    let sharded = || Folder::copy_of("sharded");
    let (code, _) = run(&["logits", "--tokens", "1,2", "--model", sharded().path()]);
    assert_eq!(code, Some(0));

    let folder = sharded();
    std::fs::remove_file(folder.file("model-00002-of-00003.safetensors")).unwrap();
    refused(&folder, &["model-00002-of-00003.safetensors: ", "the index names it: download this shard too"]);

    let index = "model.safetensors.index.json";
    for shard in ["../model-00001-of-00003.safetensors", "/etc/passwd", "..", ""] {
        let folder = sharded();
        folder.set(index, "weight_map", json!({ "model.norm.weight": shard }));
        refused(&folder, &[index, &format!("{shard:?}"), "not a plain file name"]);
    }

    let folder = sharded();
    folder.set(index, "weight_map", json!({ "no.such.tensor": "model-00001-of-00003.safetensors" }));
    refused(
        &folder,
        &[index, "places tensor no.such.tensor in model-00001-of-00003.safetensors, which does not hold it"],
    );

    let folder = sharded();
    folder.write(index, "{}");
    refused(&folder, &[index, "not the JSON expected here", "weight_map"]);
}

#[test]
fn tokens_outside_the_vocabulary_or_beyond_the_positions() {
    let folder = folder();
    let logits = |tokens: &str, code, says: &[&str]| {
        fails(&["logits", "--tokens", tokens, "--model", folder.path()], code, says);
    };
    logits("1,97", 1, &["token id 97 is outside the vocabulary: ids go from 0 to 96"]);
    logits("4294967295", 1, &["token id 4294967295"]);
    let long = vec!["1"; 129].join(",");
    logits(&long, 1, &["129 tokens are more than the model's 128 positions"]);
}

#[test]
fn data_at_an_odd_address_is_read_all_the_same() {
    let logits = |folder: &Folder| {
        let arguments = ["logits", "--tokens", "1,2,3", "--model", folder.path()];
        let output = Command::new(crate::program::PROGRAM).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for golden in ["bf16-gqa3", "f32-bias-gqa7"] {
        let (whole, shifted) = (Folder::copy_of(golden), Folder::copy_of(golden));
        let bytes = whole.read("model.safetensors");
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let parts = [&(header as u64 + 1).to_le_bytes(), &bytes[8..8 + header], b" ", &bytes[8 + header..]];
        shifted.write("model.safetensors", parts.concat());
        assert_eq!(logits(&whole), logits(&shifted));
        assert!(logits(&whole).starts_with("{\"tokens\":[1,2,3],\"logits\":["));
    }
}

#[test]
fn an_unknown_cache_names_the_known_ones() {
    let says = "error: unknown kv cache \"pagd\" (supported: recompute, flat, contiguous, paged)\n";
    assert_eq!(run(&["generate", "--kv", "pagd"]), (Some(2), says.into()));
}

/// What `generate` says once the chapters that it needs are there.
mod generate {
    use super::*;

    #[test]
    fn an_empty_prompt() {
        fails(&["generate", ""], 1, &["the prompt is empty", "Once upon a time"]);
    }

    #[test]
    fn a_prompt_longer_than_the_positions() {
        let folder = Folder::copy_of("storyteller-draft");
        folder.set("config.json", "max_position_embeddings", json!(12));
        let prompt = "the king ".repeat(20);
        fails(&["generate", &prompt, "--model", folder.path()], 1, &["tokens", "12 positions", "shorten the prompt"]);
    }

    #[test]
    fn a_folder_without_a_tokenizer() {
        let says = ["tokenizer.json: ", "came with the model"];
        fails(&["generate", "--model", folder().path()], 1, &says);
    }

    #[test]
    fn a_tokenizer_that_is_none() {
        let folder = Folder::copy_of("storyteller-draft");
        folder.write("tokenizer.json", "{}");
        fails(&["generate", "--model", folder.path()], 1, &["tokenizer.json: "]);
    }

    /// A tokenizer with an escape sequence for a word: a terminal is shown what it is, a file gets it as it is.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_story_gives_no_orders_to_a_terminal() {
        let folder = Folder::copy_of("storyteller-draft");
        let mut tokenizer: serde_json::Value = serde_json::from_slice(&folder.read("tokenizer.json")).unwrap();
        let model = &mut tokenizer["model"];
        model["merges"].as_array_mut().unwrap().retain(|parts| parts[0] != "," && parts[1] != ",");
        let vocab = model["vocab"].as_object_mut().unwrap();
        let comma = vocab.remove(",").unwrap();
        // Tokens are spelt in letters that stand for bytes; this one stands for an escape.
        vocab.insert("ě[31m".into(), comma);
        folder.write("tokenizer.json", tokenizer.to_string());
        let program = crate::program::PROGRAM;
        let story = format!("{program} generate --temperature 0 --max-new-tokens 20 --model {}", folder.path());
        let plain = Command::new("sh").args(["-c", &story]).output().unwrap();
        let plain = String::from_utf8(plain.stdout).unwrap();
        assert!(plain.contains("\u{1b}[31m"), "{plain:?}");
        // `script` gives it a terminal; nearly every Linux has it.
        let Ok(shown) = Command::new("script").args(["-qec", &story, "/dev/null"]).output() else { return };
        let shown = String::from_utf8(shown.stdout).unwrap();
        let text = plain.trim_end().replace('\u{1b}', "\\u{1b}");
        assert!(shown.starts_with(&text) && !shown.contains('\u{1b}'), "{shown:?}");
    }

    #[test]
    fn a_tokenizer_of_another_model() {
        let folder = folder();
        folder.write("tokenizer.json", Folder::copy_of("storyteller").read("tokenizer.json"));
        fails(
            &["generate", "--model", folder.path()],
            1,
            &["token id ", "outside the vocabulary: ids go from 0 to 96"],
        );
    }

    #[test]
    fn a_reservation_larger_than_the_machine() {
        let takes = "a cache of 1,000,000,000,000 slots, 3,072 bytes each, takes 2,929,687,500 MiB";
        let none_holds = "no memory holds 18446744073709551615 slots";
        for (options, says) in [
            (&["--capacity", "1000000000000"][..], takes),
            (&["--capacity", "18446744073709551615"], none_holds),
            (&["--kv", "paged", "--pages", "1", "--page-size", "1000000000000"], takes),
            (&["--kv", "paged", "--pages", "1", "--page-size", "18446744073709551615"], none_holds),
            (
                &["--kv", "paged", "--pages", "4294967296"],
                "4,294,967,296 pages are more than the 4,294,967,295 that a pool",
            ),
        ] {
            fails(&[&["generate"], options].concat(), 1, &[says]);
        }
        let waste = ["bench", "waste", "--capacity", "1000000000000", "--lengths", "1,1,1"];
        fails(&waste, 1, &["a cache of 3,000,000,000,000 slots", "reserve fewer"]);
    }

    #[test]
    fn sampling_that_makes_no_sense() {
        for (option, value) in [("--temperature", "-1"), ("--temperature", "NaN"), ("--temperature", "1e-30")] {
            fails(&["generate", option, value], 1, &["the temperature is", "0 (greedy) or 0.000001 to 1000"]);
        }
        for value in ["-1", "nan", "inf", "1e-40"] {
            let says = format!("the temperature is {}", value.parse::<f32>().unwrap());
            for rule in ["match", "sample"] {
                let bench = ["bench", "speculation", "--temperature", value, "--accept", rule];
                fails(&bench, 1, &[&says, "0 (greedy) or 0.000001 to 1000"]);
            }
        }
        for value in ["1.5", "-0.1", "nan"] {
            fails(&["generate", "--top-p", value], 1, &["top-p is", "a probability from 0 to 1"]);
        }
    }

    #[test]
    fn a_story_that_cannot_be_computed_is_not_told() {
        let folder = overflowing("storyteller-draft");
        for kv in ["recompute", "flat", "contiguous"] {
            let says = ["the logits after position 4 (token id ", "are not finite"];
            fails(&["generate", "--kv", kv, "--model", folder.path()], 1, &says);
        }
        let (code, stderr) = run(&["generate", "--kv", "flat", "The king", "The queen", "--model", folder.path()]);
        assert!(code == Some(1) && stderr.contains("are not finite") && !stderr.contains("panicked"), "{stderr}");
    }

    #[test]
    fn a_text_longer_than_the_reservation() {
        fails(
            &["generate", "--max-new-tokens", "50", "--capacity", "20"],
            1,
            &["no room for 1 more", "0 of its 20 slots are free", "reserve more"],
        );
        fails(&["generate", "--capacity", "3"], 1, &["no room for 5 more tokens: 3 of its 3 slots are free"]);
        fails(&["bench", "waste", "--capacity", "8", "--lengths", "9"], 1, &["a text of 9 tokens", "8 slots"]);
    }
}

/// What the commands say that keep drafts and pages, once those chapters are there.
mod pages_and_drafts {
    use super::*;

    const HUGE: &str = "9223372036854775807";
    const WRAPS: &str = "6148914691236517206";
    const TEBI: &str = "1099511627776";

    #[test]
    fn a_drafts_cache_is_checked_like_the_targets() {
        let draft = |page_size, says: &str| {
            let draft = ["generate", "--draft", "storyteller-draft", "--kv", "paged", "--page-size", page_size];
            fails(&draft, 1, &[says]);
        };
        draft("0", "the page size is 0");
        draft(HUGE, "no memory holds 9223372036854775807 slots");
        draft(WRAPS, "no memory holds 6148914691236517206 slots");
        draft(TEBI, "a cache of 1,099,511,627,776 slots, 512 bytes each, takes 536,870,912 MiB");
    }

    #[test]
    fn guesses_that_no_memory_holds() {
        let folder = Folder::copy_of("storyteller-draft");
        folder.set("config.json", "max_position_embeddings", json!(1 << 24));
        let ahead = ["--max-new-tokens", "1000000", "--capacity", "10", "--draft-len", "1000000"];
        let says = ["guessing 1,000,000 tokens ahead takes 62,500 MiB", "give a shorter --draft-len"];
        fails(&[&["generate", "--draft", "prompt-lookup", "--model", folder.path()], &ahead[..]].concat(), 1, &says);
    }

    #[test]
    fn benches_of_pages_that_no_memory_holds() {
        for (arguments, says) in [
            (["append", "--page-size", TEBI], "2,199,023,255,552 slots of 3,072 bytes are needed at once"),
            (["append", "--page-size", WRAPS], "no memory holds "),
            (["append", "--tokens", HUGE], "no memory holds "),
            (["rewind", "--page-size", TEBI], "slots of 3,072 bytes are needed at once"),
            (["rewind", "--page-size", HUGE], "no memory holds "),
            (["rewind", "--tokens", HUGE], "no memory holds "),
            (["waste", "--page-size", TEBI], "a cache of 4,398,046,511,104 slots"),
            (["waste", "--page-size", WRAPS], "no memory holds "),
            (["waste", "--page-size", "0"], "the page size is 0"),
            (["caches", "--tokens", HUGE], "expected 1 to 1023"),
            (["speculation", "--max-new-tokens", "18446744073709551615"], "more than the model's 1024 positions"),
        ] {
            fails(&[&["bench"], &arguments[..]].concat(), 1, &[says]);
        }
        let lengths = ["bench", "waste", "--page-size", "1", "--lengths", "18446744073709551615,18446744073709551615"];
        fails(
            &lengths,
            1,
            &["18,446,744,073,709,551,615 pages are more than the 4,294,967,295 that a pool can number"],
        );
        let pages = ["bench", "fragmentation", "--page-size", "1", "--capacity", HUGE];
        fails(&pages, 1, &["slots are 9,223,372,036,854,775,807 pages", "at most 10,000,000"]);
        let (code, stderr) = run(&["bench", "engine", "--seconds", "4294967296"]);
        assert!(code == Some(2) && stderr.contains("4294967296 is not in 0..=3600"), "{code:?} {stderr}");
    }
}

#[test]
fn a_tensor_that_no_memory_holds_is_not_written() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("model");
    let synth = ["synth", "--shape", "qwen3-4b", "--dtype", "f32", "--out", out.to_str().unwrap()];
    if cfg!(target_os = "linux") {
        fails(&synth, 1, &["the largest tensor takes 1,484 MiB"]);
    }
    assert!(!out.exists());
}

#[test]
fn logits_that_no_memory_holds() {
    let folder = Folder::copy_of("storyteller-draft");
    folder.set("config.json", "max_position_embeddings", json!(1 << 24));
    let tokens = vec!["1"; 60_000].join(",");
    let all = ["logits", "--all", "--tokens", &tokens, "--model", folder.path()];
    if cfg!(target_os = "linux") {
        fails(&all, 1, &["computing 60,000 tokens takes ", "give fewer tokens"]);
    }
}

/// `--threads`, or the variable that rayon reads: both within reason.
#[test]
fn more_threads_than_the_cores_can_use_are_not_started() {
    let tokens = ["logits", "--tokens", "1", "--model", "storyteller-draft"];
    let cores = std::thread::available_parallelism().unwrap().get();
    let run = |variable: &str, option: &[&str]| {
        let program = crate::program::PROGRAM;
        let output =
            Command::new(program).args(tokens).args(option).env("RAYON_NUM_THREADS", variable).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let note =
        |asked: &str| format!("note: computing with {} threads, not {asked}: this machine has {cores} core", 4 * cores);
    for (variable, asked) in [("99999999999", "99,999,999,999"), ("18446744073709551615", "18,446,744,073,709,551,615")]
    {
        let (code, stderr) = run(variable, &[]);
        assert!(code == Some(0) && stderr.starts_with(&note(asked)), "{variable}: {code:?} {stderr}");
        assert_eq!(run(variable, &["--threads", "1"]), (Some(0), String::new()), "the option counts");
    }
    if 4 * cores < 1024 {
        let (code, stderr) = run("1", &["--threads", "1024"]);
        assert!(code == Some(0) && stderr.starts_with(&note("1,024")), "{code:?} {stderr}");
    }
    for variable in ["", "0", "1", "many", "-1", "99999999999999999999"] {
        assert_eq!(run(variable, &[]), (Some(0), String::new()), "RAYON_NUM_THREADS={variable:?}");
    }
}

#[cfg(unstarted = "ch01_recompute")]
#[test]
fn a_chapter_that_is_not_started() {
    let says =
        ["chapter 1 (Recompute everything) is not started", "exercises/ch01_recompute.rs", "--features solution"];
    fails(&["generate"], 1, &says);
}
