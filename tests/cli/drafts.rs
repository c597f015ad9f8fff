//! `generate --draft` and `bench speculation`: the output is the same, and what drafts cost is counted.

use serde_json::{Value, json};

use crate::checkpoints::Folder;
use crate::commands::{json_of, whose};
use crate::program::{ok, run};

const SHORT: [&str; 4] = ["generate", "--max-new-tokens", "40", "--json"];
const DRAFT: [&str; 2] = ["--draft", "storyteller-draft"];

#[test]
fn guesses_are_counted() {
    let story = json_of(&[&SHORT[..], &DRAFT, &["--temperature", "0"]].concat());
    let draft = &story["draft"];
    let number = |name: &str| draft[name].as_u64().unwrap();
    assert_eq!(draft["model"], "storyteller-draft");
    assert_eq!((number("draft_len"), number("generated")), (4, 40));
    assert_eq!(number("accepted") + number("target_passes"), 40, "each pass adds the accepted tokens and one more");
    assert!(number("accepted") > 0 && number("accepted") < number("drafted"), "{draft}");
    let rate = number("accepted") as f64 / number("drafted") as f64;
    assert_eq!(draft["acceptance_rate"].as_f64(), Some(rate));
    assert_eq!(draft["target_passes_per_token"].as_f64(), Some(number("target_passes") as f64 / 40.0));
    // A pass over the prompt, and then over the newest token, and with each the guesses.
    let prompt = story["tokens"]["prompt"].as_array().unwrap().len() as u64;
    let projected = prompt + number("target_passes") - 1 + number("drafted");
    assert_eq!(story["counters"]["rows_projected"].as_u64(), Some(projected));

    let told = ok(&[&["generate", "--max-new-tokens", "40", "--temperature", "0"], &DRAFT[..]].concat()).stderr;
    let line = told.lines().find(|line| line.starts_with("draft ")).expect("a line about guesses");
    let start = format!("{} of {} draft tokens accepted", number("accepted"), number("drafted"));
    assert!(line.contains(&start) && line.contains("passes of the target for 40 tokens"), "{line}");
}

#[test]
fn a_draft_model_that_cannot_draft_is_refused_before_anything_is_written() {
    let other_words = Folder::copy_of("storyteller-draft");
    let tokenizer = String::from_utf8(other_words.read("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&tokenizer).unwrap();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let words: Vec<String> = vocab.keys().cloned().collect();
    let two = words.iter().filter(|word| word.len() > 3).take(2).cloned().collect::<Vec<_>>();
    let (a, b) = (vocab[&two[0]].clone(), vocab[&two[1]].clone());
    (vocab[&two[0]], vocab[&two[1]]) = (b, a);
    other_words.write("tokenizer.json", tokenizer.to_string());
    let few_positions = Folder::copy_of("storyteller-draft");
    few_positions.set("config.json", "max_position_embeddings", json!(30));
    let golden = crate::support::root().join("tests/golden/bf16-gqa3");
    for (draft, says) in [
        (other_words.path(), "'s vocabulary differs from the model's: token id "),
        (few_positions.path(), "more than the draft model's 30 positions"),
        (golden.to_str().unwrap(), "has a vocabulary of "),
        ("no/such/model", "no/such/model"),
    ] {
        let run = run(&["generate", "--max-new-tokens", "40", "--draft", draft]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{draft}");
        assert!(run.stderr.contains(says), "{}", run.stderr);
    }
    for alone in [["--draft-len", "3"], ["--accept", "sample"]] {
        assert_eq!(run(&[&["generate"], &alone[..]].concat()).code, Some(2), "{alone:?} without --draft");
    }
}

#[test]
fn a_saved_cache_and_a_draft_go_together() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("story.cache").to_str().unwrap().to_string();
    let alone = json_of(&SHORT);
    let saved = json_of(&[&SHORT[..], &DRAFT, &["--save-cache", &file]].concat());
    assert_eq!(saved["saved"]["tokens"], alone["counters"]["tokens"], "no guess is saved");
    let loaded = json_of(&[&SHORT[..], &DRAFT, &["--load-cache", &file, "--kv", "paged"]].concat());
    assert_eq!(loaded["text"], alone["text"]);
}

#[test]
fn guessing_ahead_is_compared_with_not_guessing() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("numbers.json");
    let arguments = ["bench", "speculation", "--max-new-tokens", "12", "--draft-lens", "1,3", "--prompts", "The king"];
    let table = ok(&[&arguments[..], &["--json", file.to_str().unwrap()]].concat()).stdout;
    let numbers: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let runs = numbers["runs"].as_array().unwrap();
    let column = |name: &str| runs.iter().map(|run| run[name].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(column("draft_len"), [0, 1, 3]);
    assert_eq!(column("generated"), [12; 3]);
    assert_eq!((column("target_passes")[0], column("drafted")[0]), (12, 0));
    for (passes, accepted) in column("target_passes").iter().zip(column("accepted")) {
        assert_eq!(passes + accepted, 12);
    }
    assert_eq!(runs[0]["share_of_time"], 1.0);
    assert_eq!(numbers["passes"][0], json!([1, 1.0]));
    assert!(table.contains("passes per token") && table.contains("1 token, draft model"), "{table}");
}

#[test]
fn sampled_guesses_are_accepted_by_chance() {
    let run = |seed: &str| json_of(&[&SHORT[..], &DRAFT, &["--accept", "sample", "--seed", seed]].concat());
    assert_eq!(run("5")["text"], run("5")["text"], "the same seed draws the same");
    assert_ne!(run("5")["text"], run("6")["text"]);
    assert_eq!(run("5")["draft"]["accept"], "sample");
    let greedy = [&SHORT[..], &["--temperature", "0"]].concat();
    let sampled = json_of(&[&greedy[..], &DRAFT, &["--accept", "sample"]].concat());
    assert_eq!(sampled["text"], json_of(&greedy)["text"], "greedy leaves nothing to chance");
}

#[test]
fn guesses_of_the_text_itself_are_accepted_by_chance_too() {
    let lookup = ["--draft", "prompt-lookup", "--accept", "sample", "--kv", "paged"];
    let run = |more: &[&str]| json_of(&[&SHORT[..], &lookup, more].concat());
    assert_eq!(run(&["--seed", "5"])["text"], run(&["--seed", "5"])["text"], "the same seed draws the same");
    let greedy = ["--temperature", "0"];
    assert_eq!(run(&greedy)["text"], json_of(&[&SHORT[..], &greedy].concat())["text"]);
}

#[test]
fn the_share_accepted_stands_beside_the_share_to_expect() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("numbers.json");
    // Of one text: enough to tell the rules apart, and the seed fixes what is counted.
    let text = ["--prompts", "Once upon a time", "--max-new-tokens", "100"];
    let bench = [&["bench", "speculation", "--draft-lens", "2", "--temperature", "0.8"], &text[..]].concat();
    let numbers = |rule: &str| -> (String, Value) {
        let more = ["--accept", rule, "--json", file.to_str().unwrap()];
        let table = ok(&[&bench[..], &more].concat()).stdout;
        (table, serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap())
    };
    let (table, sampled) = numbers("sample");
    let run = &sampled["runs"][1];
    let [share, to_expect] = ["acceptance_rate", "rate_to_expect"].map(|name| run[name].as_f64().unwrap());
    assert!(share > 0.2 && (share - to_expect).abs() < 0.08, "{share} accepted, {to_expect} to expect");
    assert!(table.contains("to expect") && table.contains(&format!("{:.1} %", 100.0 * to_expect)), "{table}");
    let (table, matched) = numbers("match");
    assert!(!table.contains("to expect") && matched["runs"][1].get("rate_to_expect").is_none(), "{table}");
    assert!(matched["runs"][1]["acceptance_rate"].as_f64().unwrap() < share, "the sample rule accepts more");
}

#[test]
fn chapter_9_is_needed_for_the_sample_rule_only() {
    for (rule, needed) in [("match", false), ("sample", true)] {
        let told = ok(&[&["generate", "--max-new-tokens", "3", "--accept", rule], &DRAFT[..]].concat()).stderr;
        let line = told.lines().find(|line| line.starts_with("chapters ")).expect("a line about chapters");
        let says = |number: usize| line.contains(&format!("{number} {}", whose(number)));
        assert!(says(8) && says(9) == needed, "{line}");
    }
}
