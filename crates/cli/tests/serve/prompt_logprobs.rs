//! Log probabilities of new tokens and of prompts: those of the model, each token once.

use page_by_page::serving::schedule::StepLimits;
use serde_json::{Value, json};

use crate::program::ok;
use crate::serving::{Alone, GREEDY, Options, PROMPTS, Server, all_pages_come_back, drawn, storyteller};

/// The numbers that `logits --all` prints, as logarithms of probabilities.
struct Rows(Vec<Vec<f64>>);

impl Rows {
    fn of(text: &[u32]) -> Self {
        let list = text.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let printed = ok(&["logits", "--all", "--tokens", &list]).json();
        let rows: Vec<Vec<f64>> = serde_json::from_value(printed["logits"].clone()).unwrap();
        let rows = rows.iter().map(|row| {
            let max = row.iter().copied().fold(f64::MIN, f64::max);
            let sum = row.iter().map(|logit| (logit - max).exp()).sum::<f64>().ln();
            row.iter().map(|logit| logit - max - sum).collect()
        });
        Rows(rows.collect())
    }

    /// Checks the logprobs of an answer, token by token. `text` is the prompt and the new tokens; `from` is its first
    /// token that the answer shows, 0 if the prompt is echoed.
    #[track_caller]
    fn check(&self, alone: &Alone, text: &[u32], from: usize, top: usize, logprobs: &Value) {
        for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(logprobs[key].as_array().unwrap().len(), text.len() - from, "{key} of {} tokens", text.len());
        }
        for (shown, place) in (from..text.len()).enumerate() {
            let token = alone.tokenizer.token(text[place]).unwrap();
            let before = alone.tokenizer.decode(&text[from..place]).unwrap();
            let whole = before.trim_end_matches('\u{FFFD}').chars().count();
            let found = [&logprobs["tokens"][shown], &logprobs["text_offset"][shown]];
            assert_eq!(found, [&json!(token), &json!(whole)], "token {place}: {before:?}");
            let (score, likeliest) = (&logprobs["token_logprobs"][shown], &logprobs["top_logprobs"][shown]);
            // A token is scored by the row before it, so the first of all has no score.
            let Some(row) = place.checked_sub(1).map(|before| &self.0[before]) else {
                assert_eq!([score, likeliest], [&Value::Null; 2]);
                continue;
            };
            let expected = row[text[place] as usize];
            assert!((score.as_f64().unwrap() - expected).abs() < 1e-5, "token {place}: {score}, expected {expected}");
            // Some tokens have the same characters: parts of characters.
            let likeliest = likeliest.as_object().unwrap();
            assert!(likeliest.len() <= top + 1 && likeliest.contains_key(&token), "token {place}: {likeliest:?}");
            let best = row.iter().copied().fold(f64::MIN, f64::max);
            let highest = likeliest.values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
            assert!((highest - if top > 0 { best } else { expected }).abs() < 1e-5, "token {place}");
        }
    }
}

#[test]
fn new_tokens_have_the_log_probabilities_of_the_model() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let prompt = alone.tokenizer.encode(PROMPTS[1]).unwrap();
    for top in [4, 0] {
        let body = json!({
            "prompt": PROMPTS[1], "seed": 9, "temperature": 1.5, "top_p": 1, "max_tokens": 12, "logprobs": top,
            "return_token_ids": true,
        });
        let choice = server.complete(&body)["choices"][0].clone();
        let new: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
        let text = [&prompt[..], &new].concat();
        Rows::of(&text).check(&alone, &text, prompt.len(), top, &choice["logprobs"]);
    }
}

#[test]
fn an_echoed_prompt_is_scored_as_the_model_scores_it() {
    let alone = storyteller();
    let prompts = [
        "Once upon a time there was a king who had three sons, and the youngest of them was called",
        "Once upon a time there was a king who had three sons, and he said: naïve 🐉 你好",
        "The",
    ];
    let tokens = prompts.map(|prompt| alone.tokenizer.encode(prompt).unwrap());
    let outputs = prompts.map(|prompt| alone.complete(prompt, 6, GREEDY));
    let whole: Vec<Vec<u32>> =
        tokens.iter().zip(&outputs).map(|(prompt, output)| [&prompt[..], &output.tokens].concat()).collect();
    let rows: Vec<Rows> = whole.iter().map(|text| Rows::of(text)).collect();
    for limits in [StepLimits { token_budget: 64, max_running: 8 }, StepLimits { token_budget: 5, max_running: 3 }] {
        let server = Server::start(Options { limits, ..Options::default() });
        let ask = |place: usize, as_ids: bool, max_tokens: usize, top: usize| {
            let prompt = if as_ids { json!(tokens[place]) } else { json!(prompts[place]) };
            let body = json!({
                "prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "echo": true, "logprobs": top, "n": 2,
            });
            let answer = server.complete(&body);
            let new = &outputs[place].tokens[..max_tokens];
            assert_eq!(answer["usage"]["completion_tokens"], 2 * max_tokens, "{body}");
            assert_eq!(answer["usage"]["prompt_tokens"], tokens[place].len());
            assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{body}: all was computed");
            for choice in answer["choices"].as_array().unwrap() {
                let shown = prompts[place].to_string() + &alone.tokenizer.decode(new).unwrap();
                assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(shown), &json!("length")), "{body}");
                let text = &whole[place][..tokens[place].len() + max_tokens];
                rows[place].check(&alone, text, 0, top, &choice["logprobs"]);
            }
        };
        // As they come to an empty prefix cache, and again.
        for _ in 0..2 {
            for place in 0..prompts.len() {
                ask(place, place == 1, 0, 1);
                ask(place, place == 0, 6, 3);
            }
        }
        assert_eq!(server.metric("vllm:prefix_cache_queries_total", ""), 0.0, "none of them was looked up");
        let n_prompt: usize = tokens.iter().map(Vec::len).sum();
        assert_eq!(server.metric("vllm:prompt_tokens_total", ""), (2 * 2 * 2 * n_prompt) as f64);
        // What was scored is there for others to find.
        let body = json!({ "prompt": prompts[0], "temperature": 0, "max_tokens": 1 });
        let cached = server.complete(&body)["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
        assert_eq!(cached, (tokens[0].len() - 1) / 8 * 8);
        all_pages_come_back(&server, 600);
    }
}

/// Evaluation programs ask for one new token and drop the last score: there has to be one, even if the token is an end.
#[test]
fn the_end_of_a_scored_prompt_has_its_score() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let mut outputs = (0..100).map(|seed| alone.complete(PROMPTS[0], 400, drawn(seed)));
    let output = outputs.find(|output| output.reason == "stop").expect("one ends by itself");
    let prompt = [&alone.tokenizer.encode(PROMPTS[0]).unwrap()[..], &output.tokens].concat();
    let seed =
        (0..200).find(|seed| alone.generate(&prompt, 1, drawn(*seed)).tokens.is_empty()).expect("it ends at once");
    let end = alone.model.config().eos_token_ids[0];
    let text = [&prompt[..], &[end]].concat();
    let body = json!({
        "prompt": prompt, "max_tokens": 1, "temperature": 1, "top_p": 0.9, "top_k": 0, "seed": seed, "echo": true, "logprobs": 1,
        "return_token_ids": true,
    });
    let answer = server.complete(&body);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &answer["usage"]["completion_tokens"]), (&json!("stop"), &json!(0)));
    assert_eq!((&choice["text"], &choice["token_ids"]), (&json!(alone.tokenizer.decode(&prompt).unwrap()), &json!([])));
    Rows::of(&text).check(&alone, &text, 0, 1, &choice["logprobs"]);
    assert_eq!(server.metric("vllm:prompt_tokens_total", ""), prompt.len() as f64);
}
