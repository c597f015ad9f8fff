//! What ends a sequence: token ids, stop strings, and the model's end of text, each after a least number of tokens.
//! What a request asks for is compared with a model that generates alone, and whose logits are changed here.

use page_by_page::generation::sampler::SamplingParams;
use page_by_page::serving::schedule::StepLimits;
use serde_json::{Value, json};

use crate::serving::{Alone, Options, Server, drawn, storyteller};

const PROMPT: &str = "Once upon a time";
const EOS: u32 = 0;

/// The tokens that follow the prompt, up to one of `ends`. The first `min_tokens` of them are none of `never_early`.
fn tokens_alone(
    alone: &Alone,
    sampling: SamplingParams,
    max_tokens: usize,
    ends: &[u32],
    (min_tokens, never_early): (usize, &[u32]),
) -> Vec<u32> {
    let prompt = alone.tokenizer.encode(PROMPT).unwrap();
    let mut generated = 0;
    let change = |logits: &mut [f32]| {
        if generated < min_tokens {
            never_early.iter().for_each(|id| logits[*id as usize] = f32::MIN);
        }
        generated += 1;
    };
    alone.generate_until(&prompt, max_tokens, sampling, ends, change)
}

fn ask(server: &Server, sampling: SamplingParams, max_tokens: usize, more: &Value) -> Value {
    let SamplingParams { temperature, top_p, seed, .. } = sampling;
    let mut body = json!({
        "prompt": PROMPT, "temperature": temperature, "top_p": top_p, "seed": seed, "max_tokens": max_tokens,
        "return_token_ids": true,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.complete(&body)
}

/// Checks the one choice of an answer: its tokens, their text, why it ended, and the usage.
#[track_caller]
fn is_answer(alone: &Alone, answer: &Value, tokens: &[u32], reason: &str) {
    let choice = &answer["choices"][0];
    assert_eq!((&choice["token_ids"], &choice["finish_reason"]), (&json!(tokens), &json!(reason)));
    assert_eq!(choice["text"], alone.tokenizer.decode(tokens).unwrap());
    assert_eq!(choice["prompt_token_ids"], json!(alone.tokenizer.encode(PROMPT).unwrap()));
    assert_eq!(answer["usage"]["completion_tokens"], tokens.len());
}

#[test]
fn a_stop_token_ends_a_sequence_and_is_no_part_of_it() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    for sampling in [SamplingParams::GREEDY, drawn(1), drawn(2)] {
        let plain = tokens_alone(&alone, sampling, 40, &[EOS], (0, &[]));
        // A request that spells out the defaults is the plain one.
        let defaults = json!({ "stop_token_ids": [], "min_tokens": 0, "ignore_eos": false });
        is_answer(&alone, &ask(&server, sampling, 40, &defaults), &plain, "length");
        for stops in [&[plain[25]][..], &[plain[30], 4095, plain[12]], &[plain[0]], &[u32::MAX, plain[39]]] {
            let expected = tokens_alone(&alone, sampling, 40, &[&[EOS], stops].concat(), (0, &[]));
            assert!(expected.len() < 40 && plain.starts_with(&expected));
            let answer = ask(&server, sampling, 40, &json!({ "stop_token_ids": stops }));
            is_answer(&alone, &answer, &expected, "stop");
        }
    }
}

#[test]
fn an_end_of_text_that_is_ignored_is_a_token_like_all_others() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let ended = |seed: &u64| tokens_alone(&alone, drawn(*seed), 400, &[], (0, &[])).contains(&EOS);
    let sampling = drawn((0..100).find(ended).expect("one draws an end of text"));
    let expected = tokens_alone(&alone, sampling, 400, &[], (0, &[]));
    is_answer(&alone, &ask(&server, sampling, 400, &json!({ "ignore_eos": true })), &expected, "length");
    // As a stop token it ends the sequence all the same.
    let place = expected.iter().position(|id| *id == EOS).unwrap();
    let both = json!({ "ignore_eos": true, "stop_token_ids": [EOS] });
    is_answer(&alone, &ask(&server, sampling, 400, &both), &expected[..place], "stop");
    // Where it counts, it is no part of the output.
    is_answer(&alone, &ask(&server, sampling, 400, &json!({})), &expected[..place], "stop");
}

#[test]
fn before_min_tokens_nothing_ends_a_sequence() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    for sampling in [SamplingParams::GREEDY, drawn(1), drawn(2)] {
        let stop = tokens_alone(&alone, sampling, 40, &[EOS], (0, &[]))[5];
        for min_tokens in [5, 6, 20, 40] {
            let expected = tokens_alone(&alone, sampling, 40, &[EOS, stop], (min_tokens, &[EOS, stop]));
            assert!(expected.len() >= min_tokens);
            let answer = ask(&server, sampling, 40, &json!({ "stop_token_ids": [stop], "min_tokens": min_tokens }));
            is_answer(&alone, &answer, &expected, if expected.len() == 40 { "length" } else { "stop" });
        }
    }
    // A stop string counts where it ends after those tokens.
    let plain = tokens_alone(&alone, SamplingParams::GREEDY, 60, &[EOS], (0, &[]));
    let whole = alone.tokenizer.decode(&plain).unwrap();
    let early = alone.tokenizer.decode(&plain[..20]).unwrap();
    let end = early.len() + whole[early.len()..].find("he").expect("a frequent one");
    assert!(early.contains("he"));
    let answer = ask(&server, SamplingParams::GREEDY, 60, &json!({ "stop": "he", "min_tokens": 20 }));
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(whole[..end]), &json!("stop")));
}

#[test]
fn a_preempted_sequence_keeps_its_rules() {
    let limits = StepLimits { token_budget: 32, max_running: 3 };
    let (server, alone) = (Server::start(Options { n_pages: 24, limits, ..Options::default() }), storyteller());
    let the = alone.tokenizer.encode_without_special_tokens(" the").unwrap()[0];
    let more = json!({ "n": 6, "stop_token_ids": [the], "min_tokens": 90, "ignore_eos": true });
    let answer = ask(&server, drawn(4), 120, &more);
    for (choice, seed) in answer["choices"].as_array().unwrap().iter().zip(4..) {
        let expected = tokens_alone(&alone, drawn(seed), 120, &[the], (90, &[EOS, the]));
        assert_eq!(choice["token_ids"], json!(expected), "seed {seed}");
    }
    let preemptions = server.metric("vllm:num_preemptions_total", "");
    assert!(preemptions > 0.0, "three of 90 tokens and more do not fit in 24 pages");
}

#[test]
fn a_stop_ends_the_output_before_it_is_shown() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let plain = tokens_alone(&alone, SamplingParams::GREEDY, 60, &[EOS], (0, &[]));
    let whole = alone.tokenizer.decode(&plain).unwrap();
    let shown = |tokens: &[u32]| alone.tokenizer.decode(tokens).unwrap();
    for (from, len) in [(0, 2), (5, 1), (21, 9), (40, 15), (60, 3)] {
        let stop = &whole[from..from + len];
        for stops in [json!(stop), json!(["never said 1", stop]), json!([stop, "never said 2"])] {
            let choice = ask(&server, SamplingParams::GREEDY, 60, &json!({ "stop": stops }))["choices"][0].clone();
            let (text, ids) = (choice["text"].as_str().unwrap(), choice["token_ids"].as_array().unwrap());
            assert_eq!((text, &choice["finish_reason"]), (&whole[..whole.find(stop).unwrap()], &json!("stop")));
            let (ids, more) = plain.split_at(ids.len());
            assert!(!more.is_empty() && choice["token_ids"] == json!(ids), "{stops}");
            assert!(shown(ids).starts_with(text), "{stops}: all that is sent");
            let before = ids.split_last().map_or(0, |(_, before)| shown(before).len());
            assert!(text.is_empty() || before < text.len(), "{stops}: and no token more");
        }
    }
    // What is echoed ends nothing.
    let echoed = ask(&server, SamplingParams::GREEDY, 9, &json!({ "stop": "upon", "echo": true }));
    assert!(echoed["choices"][0]["text"].as_str().unwrap().starts_with(PROMPT));
}
