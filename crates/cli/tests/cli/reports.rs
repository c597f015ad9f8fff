//! What each command prints and counts, as scripts; and how the numbers are related that are measured, and so in no
//! script.

use serde_json::{Value, json};

use crate::program::ok;
use crate::refusals::{changed, overflowing};
use crate::script::Script;
use grading::checkpoints::Folder;

#[test]
fn one_prompt() {
    let nothing = Folder::copy_of("storyteller-draft");
    std::fs::remove_file(nothing.file("generation_config.json")).unwrap();
    let half = Folder::copy_of("storyteller-draft");
    half.write("generation_config.json", r#"{"temperature": 0.5, "top_k": 20, "top_p": 1.0}"#);
    let third = ok(&["generate", "--json"]).json()["tokens"]["new"][2].clone();
    Script::new()
        .model("models/asks-for-nothing", nothing)
        .model("models/asks-for-half", half)
        .model("models/ends-early", changed("storyteller", "generation_config.json", "eos_token_id", json!([0, third])))
        .model("models/16-positions", changed("storyteller", "config.json", "max_position_embeddings", json!(16)))
        .model("models/overflowing", overflowing("storyteller-draft"))
        .check("generate");
}

#[test]
fn scripts_that_need_no_file() {
    for name in ["break", "several", "samples", "drafts", "bench", "workload", "synth"] {
        Script::new().check(name);
    }
}

#[test]
fn saved_caches() {
    let other = Folder::copy_of("storyteller");
    other.change_tensor("model.layers.3.self_attn.k_proj.weight", |tensor| tensor.data[100] ^= 1);
    Script::new().model("models/one-bit-differs", other).check("saved");
}

#[test]
fn batches() {
    let line = |more: &str| format!("{{\"prompt\": \"Once upon a time there was a king who had {more}}}\n");
    let lines = [
        line("three sons\", \"max_new_tokens\": 40"),
        line("three sons\", \"max_new_tokens\": 30, \"seed\": 7"),
        line("a horse\", \"max_new_tokens\": 25"),
    ];
    let script = Script::new().file("lines.jsonl", lines.concat()).file("out.jsonl", "old");
    script.check("batch");
    assert_eq!(script.files(), ["lines.jsonl", "out.jsonl"]);
}

#[test]
fn page_files() {
    let assets = grading::root().join("assets");
    let [key, stories] = ["key.jsonl", "stories.jsonl"].map(|name| (name, std::fs::read(assets.join(name)).unwrap()));
    Script::new().file(key.0, key.1).file(stories.0, stories.1).check("page_file");
}

#[test]
fn stories_typed_line_by_line() {
    let short = changed("storyteller", "config.json", "max_position_embeddings", json!(40));
    Script::new().model("models/40-positions", short).check("story");
}

#[cfg(feature = "serve")]
#[test]
fn chats() {
    const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                            {% if add_generation_prompt %}{{ name | default('teller') }}:{% endif %}";
    let teller = Folder::copy_of("storyteller");
    teller.write("chat_template.jinja", TEMPLATE);
    Script::new().model("models/teller", teller).check("chat");
}

#[test]
fn simulations() {
    let steps = Script::new().check("simulate");
    let (_, buggy) = steps.iter().find(|step| step.0 == "simulate --bug cancel-leaks").expect("the script");
    let again = buggy.stdout.lines().last().and_then(|line| line.split_once("cargo page ")).expect("a command");
    assert_eq!(ok(&again.1.split(' ').collect::<Vec<_>>()).stdout, buggy.stdout, "the seed replays it");
}

/// The numbers that a benchmark leaves in a file, and the table that it prints.
#[track_caller]
fn measured(bench: &[&str]) -> (Value, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let table = ok(&[&["bench"], bench, &["--json", file.path().to_str().unwrap()]].concat()).stdout;
    (serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap(), table)
}

/// What the tables print beside each other belongs together, whatever it is on this machine.
#[test]
fn measured_numbers_belong_together() {
    let (engine, shown) = measured(&["engine", "--model", "storyteller-draft", "--seconds", "0"]);
    assert!(shown.contains("each token reads\n1,179,648 bytes of weights"), "{shown}");
    let rates = engine["rates"].as_array().unwrap();
    let median = |what: &str| rates.iter().find(|rate| rate["what"] == what).unwrap()["median"].as_f64().unwrap();
    let is =
        |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found}, {expected}: {engine}");
    is(median("decode reaches"), median("weights read") / median("the same bytes summed"));
    is(median("weights read"), median("decode") * 1_179_648.0 / 1e9);

    let (append, _) = measured(&["append", "--tokens", "64,256"]);
    for pair in append.as_array().unwrap().chunks(2) {
        let [first, second] = [0, 1].map(|place| pair[place]["µs for each"].as_f64().unwrap());
        assert_eq!(pair[0]["× first"], 1.0);
        is(pair[1]["× first"].as_f64().unwrap(), second / first);
    }
}

/// A model with more than 32 MiB of weights, nearly all of them zero.
fn large() -> Folder {
    let folder = Folder::copy_of("storyteller-draft");
    folder.set("config.json", "intermediate_size", json!(32_768));
    let mut tensors = folder.tensors();
    for (_, tensor) in tensors.iter_mut().filter(|(name, _)| name.contains(".mlp.")) {
        for size in tensor.shape.iter_mut().filter(|size| **size == 256) {
            *size = 32_768;
        }
        tensor.data = vec![0; 2 * tensor.shape.iter().product::<usize>()];
    }
    folder.set_tensors(&tensors);
    folder
}

#[test]
fn weights_lie_where_they_are_asked_to_and_a_large_model_is_copied() {
    let folder = large();
    let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let is_copied_by_itself = huge.is_ok_and(|huge| !huge.contains("[never]"));
    for (model, weights, is_copied) in [
        (folder.path(), "mapped", false),
        (folder.path(), "copied", true),
        (folder.path(), "auto", is_copied_by_itself),
        ("storyteller-draft", "auto", false),
    ] {
        let (engine, shown) = measured(&["engine", "--model", model, "--weights", weights, "--seconds", "0"]);
        let in_files = engine["rates"].as_array().unwrap().iter().any(|rate| rate["what"] == "summed in their files");
        let is_said = shown.contains(" bytes of weights, copied");
        assert_eq!([is_said, in_files], [is_copied; 2], "{weights}: {shown}");
    }
}

#[test]
fn the_share_accepted_is_near_the_expected_acceptance() {
    // Of one prompt: enough to tell the rules apart, and the seed fixes what is counted.
    let bench =
        ["speculation", "--draft-lens=2", "--temperature=0.8", "--prompts=Once upon a time", "--max-new-tokens=100"];
    let [(sampled, table), (matched, other_table)] =
        ["sample", "match"].map(|rule| measured(&[&bench[..], &["--accept", rule]].concat()));
    let run = &sampled["runs"][1];
    let [share, to_expect] = ["share", "to expect"].map(|name| run[name].as_f64().unwrap());
    assert!(share > 0.2 && (share - to_expect).abs() < 0.08, "{share} accepted, {to_expect} to expect");
    let [passes, verify, draft, time] =
        ["passes per token", "verify", "draft", "time"].map(|name| run[name].as_f64().unwrap());
    assert!((passes * (verify + draft) - time).abs() < 1e-9 && draft > 0.0, "{passes} × ({verify} + {draft}) = {time}");
    assert!(table.contains("to expect") && table.contains(&format!("{:.1} %", 100.0 * to_expect)), "{table}");
    assert!(!other_table.contains("to expect") && matched["runs"][1].get("to expect").is_none(), "{other_table}");
    assert!(matched["runs"][1]["share"].as_f64().unwrap() < share, "the sample rule accepts more");
}
