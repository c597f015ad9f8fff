//! The server: OpenAI's protocol word for word, each text the one that is told alone, and a service that neither its clients
//! nor its own faults can bring to hang.
//!
//! `cargo test --features solution,serve --test server`

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::decode::sampler::Sampling;
use page_by_page::model::LogitRows;
use page_by_page::prefixes::Prefixes;
use page_by_page::serving::schedule::StepLimits;
use page_by_page_serve::ServerError;
use page_by_page_serve::access::Access;
use page_by_page_serve::connections::ClientLimits;
use serde_json::{Value, json};

use crate::checkpoints::Folder;
use crate::http::{Connection, Response, ask};
use crate::program::{PROGRAM, ok, run};
use crate::serving::{Alone, Options, Server, Text, bundled};

const GREEDY: Sampling = Sampling::GREEDY;
const PROMPTS: [&str; 4] = ["Once upon a time", "The king had a", "One day the", "Once upon a time there"];

fn storyteller() -> Alone {
    Alone::open(&bundled("storyteller"))
}

/// The texts of an answer, by their place.
fn texts(answer: &Value) -> Vec<&str> {
    let choices = answer["choices"].as_array().expect("choices");
    choices.iter().map(|choice| choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap()).collect()
}

/// What the events of a stream say together: for each text its characters, ids, and why it ended.
fn together(events: &[Value]) -> BTreeMap<u64, (String, Vec<u64>, Option<String>)> {
    let mut texts: BTreeMap<u64, (String, Vec<u64>, Option<String>)> = BTreeMap::new();
    for choice in events.iter().flat_map(|event| event["choices"].as_array().expect("choices")) {
        let (text, ids, reason) = texts.entry(choice["index"].as_u64().unwrap()).or_default();
        assert_eq!(*reason, None, "nothing comes after the end");
        *text += choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default();
        ids.extend(choice["token_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64));
        *reason = choice["finish_reason"].as_str().map(String::from);
    }
    texts
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Asks for something that goes on for seconds, as a stream, and reads until the first piece of text has come.
fn begin_something_long(server: &Server, texts: usize) -> Connection {
    let mut connection = Connection::open(server.address).unwrap();
    let body = json!({
        "prompt": "Once upon a time", "n": texts, "max_tokens": 900, "temperature": 1000, "seed": 1, "stream": true,
    });
    connection.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).unwrap();
    assert_eq!(connection.read_head().unwrap().status, 200);
    assert!(connection.read_chunk().unwrap().starts_with("data: "));
    connection
}

/// Waits until no text runs or waits, and checks that no page is lost.
#[track_caller]
fn all_pages_come_back(server: &Server, n_pages: usize) {
    server.wait_for("vllm:num_requests_running", "", |n| n == 0.0);
    server.wait_for("vllm:num_requests_waiting", "", |n| n == 0.0);
    let pages = |state: &str| server.metric("page_by_page:pages", &format!("state=\"{state}\""));
    assert_eq!((pages("used"), pages("free") + pages("cached")), (0.0, n_pages as f64));
    assert_eq!(server.metric("vllm:kv_cache_usage_perc", ""), 0.0);
}

// ---- the protocol

#[test]
fn the_model_says_what_it_is() {
    let server = Server::start(Options::default());
    let models = server.get("/v1/models").json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("storyteller")));
    assert_eq!(models["data"][0]["max_model_len"], 1024);
    assert_eq!(server.get("/v1/models/storyteller").json(), models["data"][0]);
    let refused = server.get("/v1/models/gpt-4");
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (404, &json!("model_not_found")));
    let health = server.get("/health");
    assert_eq!((health.status, health.body.as_str()), (200, "ok\n"));
    let metrics = server.get("/metrics");
    assert_eq!(metrics.header("content-type"), Some("application/openmetrics-text; version=1.0.0; charset=utf-8"));
    server.end().unwrap();
}

#[test]
fn a_greedy_text_is_the_one_that_generate_tells() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    for prompt in PROMPTS {
        let story = ok(&["generate", prompt, "--temperature", "0", "--max-new-tokens", "60", "--json"]).json();
        let body = json!({ "prompt": prompt, "temperature": 0, "max_tokens": 60, "return_token_ids": true });
        let answer = server.complete(&body);
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], story["text"], "{prompt}");
        assert_eq!(
            (&choice["token_ids"], &choice["prompt_token_ids"]),
            (&story["tokens"]["generated"], &story["tokens"]["prompt"])
        );
        let n_prompt = alone.tokenizer.encode(prompt).unwrap().len();
        let n_new = choice["token_ids"].as_array().unwrap().len();
        assert_eq!(
            (&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]),
            (&json!(n_prompt), &json!(n_new))
        );
        assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!("storyteller")));
        assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
    }
    // A prompt has 16 new tokens, unless it says otherwise.
    assert_eq!(server.complete(&json!({ "prompt": "a", "temperature": 0 }))["usage"]["completion_tokens"], 16);
}

#[test]
fn a_prompt_in_any_form_and_several_at_once() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let told: Vec<Text> = PROMPTS.iter().map(|prompt| alone.tell_text(prompt, 20, GREEDY)).collect();
    let expected: Vec<&str> = told.iter().map(|text| text.text.as_str()).collect();
    let tokens: Vec<Vec<u32>> = PROMPTS.iter().map(|prompt| alone.tokenizer.encode(prompt).unwrap()).collect();
    let ask = |prompt: Value| server.complete(&json!({ "prompt": prompt, "temperature": 0, "max_tokens": 20 }));
    assert_eq!(texts(&ask(json!(PROMPTS))), expected);
    assert_eq!(texts(&ask(json!(tokens))), expected);
    assert_eq!(texts(&ask(json!(tokens[1]))), expected[1..2]);
    let all = ask(json!(PROMPTS));
    assert_eq!(all["usage"]["prompt_tokens"], tokens.iter().map(Vec::len).sum::<usize>());
    assert_eq!(all["choices"][3]["index"], 3);
}

#[test]
fn samples_have_the_seeds_of_generate_alone_and_in_company() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let story =
        ok(&["generate", PROMPTS[1], "--samples", "3", "--seed", "41", "--max-new-tokens", "30", "--json"]).json();
    let samples: Vec<&Value> = story["outputs"].as_array().unwrap().iter().map(|text| &text["text"]).collect();
    let body = json!({ "prompt": PROMPTS[1], "n": 3, "seed": 41, "max_tokens": 30 });
    assert_eq!(texts(&server.complete(&body)), samples, "as the model's folder says: temperature 0.8, top-p 0.95");

    // The same in the company of others, whatever they are.
    thread::scope(|scope| {
        for client in 0..6_u64 {
            let (server, alone) = (&server, &alone);
            scope.spawn(move || {
                for round in 0..4 {
                    let (seed, prompt) = (client * 10 + round, PROMPTS[(client + round) as usize % 4]);
                    let sampling = Sampling { temperature: 1.2, top_k: 50, top_p: 0.9, seed };
                    let body = json!({
                        "prompt": prompt, "max_tokens": 25, "seed": seed, "temperature": 1.2, "top_k": 50, "top_p": 0.9, "n": 2,
                    });
                    let next = Sampling { seed: seed + 1, ..sampling };
                    let expected = [sampling, next].map(|sampling| alone.tell_text(prompt, 25, sampling).text);
                    assert_eq!(texts(&server.complete(&body)), expected, "{prompt}, seed {seed}");
                }
            });
        }
    });
    // Without a seed, another text each time.
    let free = || server.complete(&json!({ "prompt": "The", "max_tokens": 20 }))["choices"][0]["text"].clone();
    assert_ne!([free(), free(), free()], [free(), free(), free()]);
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let server = Server::start(Options::default());
    let cut = server.complete(&json!({ "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 30 }));
    let stop: String = cut["choices"][0]["text"].as_str().unwrap().chars().skip(40).take(7).collect();
    for more in [
        json!({ "temperature": 0 }),
        json!({ "seed": 3, "n": 3 }),
        json!({ "seed": 3, "n": 2, "echo": true, "prompt": PROMPTS }),
        json!({ "temperature": 0, "stop": stop }),
        json!({ "temperature": 0, "logprobs": 3, "stop": [stop, "\n"] }),
        json!({ "temperature": 1000, "seed": 5, "n": 4 }),
        json!({ "temperature": 0, "max_tokens": 0, "echo": true }),
        json!({ "temperature": 0, "max_tokens": 1 }),
        json!({ "temperature": 0, "logprobs": 2, "echo": true, "prompt": "naïve 🐉 你好" }),
        json!({ "temperature": 0, "logprobs": 0, "echo": true, "stop": [stop, "\n"] }),
        json!({ "max_tokens": 0, "logprobs": 1, "echo": true, "seed": 1 }),
    ] {
        let mut body = json!({ "prompt": PROMPTS[0], "max_tokens": 40, "return_token_ids": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let whole = server.complete(&body);
        body["stream"] = true.into();
        for include_usage in [false, true] {
            body["stream_options"] = json!({ "include_usage": include_usage });
            let (mut events, is_done) = server.post("/v1/completions", &body).events();
            assert!(is_done, "{body}");
            let usage = if include_usage { events.pop() } else { None };
            let told = together(&events);
            for (choice, (text, ids, reason)) in whole["choices"].as_array().unwrap().iter().zip(told.values()) {
                assert_eq!(choice["text"], **text, "{body}");
                assert_eq!((&choice["token_ids"], &choice["finish_reason"]), (&json!(ids), &json!(reason)), "{body}");
            }
            assert_eq!(told.len(), whole["choices"].as_array().unwrap().len(), "{body}");
            let logprobs = |key: &str| -> Vec<Value> {
                let parts = events.iter().filter_map(|event| event["choices"][0]["logprobs"][key].as_array());
                parts.flatten().cloned().collect()
            };
            if !body["logprobs"].is_null() {
                for key in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
                    assert_eq!(json!(logprobs(key)), whole["choices"][0]["logprobs"][key], "{body}");
                }
            }
            if let Some(usage) = usage {
                assert_eq!(usage["choices"], json!([]));
                for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
                    assert_eq!(usage["usage"][key], whole["usage"][key], "{body}");
                }
            }
            assert!(events.iter().all(|event| event.get("usage").is_some_and(Value::is_null) == include_usage));
            let same = |key: &str| events.iter().all(|event| event[key] == events[0][key]);
            assert!(same("id") && same("created") && same("model"), "{body}");
        }
    }
}

#[test]
fn characters_of_several_tokens_come_whole() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let mut broken = 0;
    for seed in 0..12 {
        let sampling = Sampling { temperature: 1000.0, top_k: 0, top_p: 1.0, seed };
        let told = alone.tell_text("The dragon 🐉", 60, sampling);
        // Tokens at random: some are bytes that never become a character.
        broken += told.text.matches('\u{FFFD}').count();
        let body = json!({
            "prompt": "The dragon 🐉", "max_tokens": 60, "seed": seed, "temperature": 1000, "top_p": 1, "stream": true,
            "return_token_ids": true,
        });
        let (events, _) = server.post("/v1/completions", &body).events();
        let (text, ids, reason) = &together(&events)[&0];
        assert_eq!((text, reason.as_deref()), (&told.text, Some(told.reason)), "seed {seed}");
        assert_eq!(json!(ids), json!(told.tokens), "seed {seed}");
    }
    assert!(broken > 0, "at least one text should have had a broken character, or this test shows nothing");
    // And whole ones, which the prompt has: echoed they are as they were.
    let body = json!({ "prompt": "naïve 🐉 你好", "echo": true, "max_tokens": 0, "stream": true });
    assert_eq!(together(&server.post("/v1/completions", &body).events().0)[&0].0, "naïve 🐉 你好");
}

#[test]
fn a_stop_ends_a_text_before_it_is_shown() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let told = alone.tell_text(PROMPTS[0], 60, GREEDY);
    let chars: Vec<char> = told.text.chars().collect();
    for (from, len) in [(5, 1), (10, 4), (21, 9), (33, 2), (40, 15), (60, 3), (0, 2)] {
        let stop: String = chars[from..from + len].iter().collect();
        let expected = &told.text[..told.text.find(&stop).unwrap()];
        for stops in [json!(stop), json!(["never said 1", stop]), json!([stop, "never said 2"])] {
            let body = json!({ "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 60, "stop": stops });
            let answer = server.complete(&body);
            let choice = &answer["choices"][0];
            assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(expected), &json!("stop")), "{stops}");
            assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() < 60, "{stops}: and no more was computed");
        }
    }
    let body = json!({ "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 60, "stop": ["never said"] });
    let answer = server.complete(&body);
    assert_eq!((texts(&answer)[0], &answer["choices"][0]["finish_reason"]), (told.text.as_str(), &json!(told.reason)));
    // What is echoed ends nothing.
    let body = json!({ "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 9, "stop": "upon", "echo": true });
    assert!(texts(&server.complete(&body))[0].starts_with(PROMPTS[0]));
}

#[test]
fn the_token_that_ends_a_text_is_not_counted() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let sampling = |seed| Sampling { temperature: 1.0, top_k: 0, top_p: 0.9, seed };
    let told = (0..100).map(|seed| (seed, alone.tell_text(PROMPTS[0], 400, sampling(seed))));
    let (seed, told) = told.into_iter().find(|(_, told)| told.reason == "stop").expect("one ends by itself");
    let body = json!({
        "prompt": PROMPTS[0], "max_tokens": 400, "seed": seed, "temperature": 1, "top_p": 0.9, "top_k": 0, "logprobs": 0,
        "return_token_ids": true,
    });
    let answer = server.complete(&body);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(told.text), &json!("stop")));
    assert_eq!(answer["usage"]["completion_tokens"], told.tokens.len(), "each token of the text, and no other");
    assert_eq!(ids(&choice["token_ids"]), told.tokens);
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), told.tokens.len());
    assert_eq!(server.metric("vllm:generation_tokens_total", ""), told.tokens.len() as f64);
}

#[test]
fn logprobs_are_those_of_the_model() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let body = json!({
        "prompt": PROMPTS[1], "seed": 9, "temperature": 1.5, "top_p": 1, "max_tokens": 12, "logprobs": 4, "return_token_ids": true,
    });
    let choice = server.complete(&body)["choices"][0].clone();
    let (prompt, new) = (alone.tokenizer.encode(PROMPTS[1]).unwrap(), ids(&choice["token_ids"]));
    let text = [&prompt[..], &new].concat();
    let logits = alone.model.forward(vec![alone.model.chunk(&text, None, LogitRows::All).unwrap()]).unwrap();
    let vocab_size = alone.model.config().vocab_size;
    let told = &choice["logprobs"];
    let mut offset = 0;
    for (place, id) in new.iter().enumerate() {
        let row = &logits[(prompt.len() - 1 + place) * vocab_size..][..vocab_size];
        let max = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = row.iter().map(|logit| f64::from(logit - max).exp()).sum();
        let logprob = |id: u32| f64::from(row[id as usize] - max) - sum.ln();
        let found = told["token_logprobs"][place].as_f64().unwrap();
        assert!((found - logprob(*id)).abs() < 1e-5, "token {place}: {found}, expected {}", logprob(*id));
        let token = alone.tokenizer.token(*id).unwrap();
        assert_eq!((&told["tokens"][place], &told["text_offset"][place]), (&json!(token), &json!(offset)));
        offset += token.chars().count();
        let top = told["top_logprobs"][place].as_object().unwrap();
        let argmax = (0..vocab_size as u32).max_by(|a, b| row[*a as usize].total_cmp(&row[*b as usize])).unwrap();
        let likeliest = &top[&alone.tokenizer.token(argmax).unwrap()];
        assert!((likeliest.as_f64().unwrap() - logprob(argmax)).abs() < 1e-5);
        assert!(top.contains_key(&token) && (4..=5).contains(&top.len()), "{top:?}");
    }
    // None of the likeliest, but the token itself.
    let none =
        server.complete(&json!({ "prompt": "a", "max_tokens": 3, "logprobs": 0 }))["choices"][0]["logprobs"].clone();
    assert!(none["top_logprobs"].as_array().unwrap().iter().all(|top| top.as_object().unwrap().len() == 1));
}

/// The numbers that `logits --all` prints, as logarithms of probabilities.
struct Rows {
    rows: Vec<Vec<f64>>,
}

impl Rows {
    fn of(text: &[u32]) -> Self {
        let list = text.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let told = ok(&["logits", "--all", "--tokens", &list]).json();
        let rows = told["logits"].as_array().unwrap().iter().map(|row| {
            let row: Vec<f64> = row.as_array().unwrap().iter().map(|logit| logit.as_f64().unwrap()).collect();
            let max = row.iter().copied().fold(f64::MIN, f64::max);
            let sum = row.iter().map(|logit| (logit - max).exp()).sum::<f64>().ln();
            row.iter().map(|logit| logit - max - sum).collect()
        });
        Rows { rows: rows.collect() }
    }

    /// Checks the logprobs of an answer, token by token. `text`: prompt and new tokens, and what has ended them.
    #[track_caller]
    fn check(&self, alone: &Alone, text: &[u32], top: usize, told: &Value) {
        for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(told[key].as_array().unwrap().len(), text.len(), "{key} of {} tokens", text.len());
        }
        assert_eq!((&told["token_logprobs"][0], &told["top_logprobs"][0]), (&Value::Null, &Value::Null));
        assert_eq!(
            (&told["text_offset"][0], &told["tokens"][0]),
            (&json!(0), &json!(alone.tokenizer.token(text[0]).unwrap()))
        );
        // A token is told by the row before it.
        for (place, (id, row)) in (1..).zip(text[1..].iter().zip(&self.rows)) {
            let (found, expected) = (told["token_logprobs"][place].as_f64().unwrap(), row[*id as usize]);
            assert!((found - expected).abs() < 1e-5, "token {place}: {found}, expected {expected}");
            let token = alone.tokenizer.token(*id).unwrap();
            assert_eq!(told["tokens"][place], token);
            let likeliest = told["top_logprobs"][place].as_object().unwrap();
            // Some tokens are the same text: parts of characters.
            assert!(likeliest.len() <= top + 1 && likeliest.contains_key(&token), "token {place}: {likeliest:?}");
            let mut sorted = row.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            let highest = likeliest.values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
            assert!((highest - if top > 0 { sorted[0] } else { expected }).abs() < 1e-5, "token {place}");
            let before = alone.tokenizer.decode(&text[..place]).unwrap();
            let whole = before.trim_end_matches('\u{FFFD}').chars().count();
            assert_eq!(told["text_offset"][place], whole, "token {place}: {before:?}");
        }
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
    let told = prompts.map(|prompt| alone.tell_text(prompt, 6, GREEDY));
    let whole: Vec<Vec<u32>> =
        tokens.iter().zip(&told).map(|(prompt, told)| [&prompt[..], &told.tokens].concat()).collect();
    let rows: Vec<Rows> = whole.iter().map(|text| Rows::of(text)).collect();
    for limits in [StepLimits { tokens: 64, sequences: 8 }, StepLimits { tokens: 5, sequences: 3 }] {
        let server = Server::start(Options { limits, ..Options::default() });
        let ask = |place: usize, as_ids: bool, max_tokens: usize, top: usize| {
            let prompt = if as_ids { json!(tokens[place]) } else { json!(prompts[place]) };
            let body = json!({
                "prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "echo": true, "logprobs": top, "n": 2,
            });
            let answer = server.complete(&body);
            let new = &told[place].tokens[..max_tokens];
            assert_eq!(answer["usage"]["completion_tokens"], 2 * max_tokens, "{body}");
            assert_eq!(answer["usage"]["prompt_tokens"], tokens[place].len());
            assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{body}: all was computed");
            for choice in answer["choices"].as_array().unwrap() {
                let shown = prompts[place].to_string() + &alone.tokenizer.decode(new).unwrap();
                assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(shown), &json!("length")), "{body}");
                let text = &whole[place][..tokens[place].len() + max_tokens];
                rows[place].check(&alone, text, top, &choice["logprobs"]);
            }
        };
        // As they come to an empty prefix cache, and again; then with others.
        for _ in 0..2 {
            for place in 0..prompts.len() {
                ask(place, place == 1, 0, 1);
                ask(place, place == 0, 6, 3);
            }
        }
        assert_eq!(server.metric("vllm:prefix_cache_queries_total", ""), 0.0, "none of them was looked up");
        let n_prompt: usize = tokens.iter().map(Vec::len).sum();
        assert_eq!(server.metric("vllm:prompt_tokens_total", ""), (2 * 2 * 2 * n_prompt) as f64);
        thread::scope(|scope| {
            for client in 0..4 {
                let (server, ask, told) = (&server, &ask, &told);
                scope.spawn(move || {
                    for round in 0..3 {
                        let place = (client + round) % prompts.len();
                        if client % 2 == 0 {
                            ask(place, round == 1, round % 2, 2);
                        } else {
                            let body =
                                json!({ "prompt": prompts[place], "temperature": 0, "max_tokens": 6, "echo": true });
                            let choice = &server.complete(&body)["choices"][0];
                            assert_eq!(choice["text"], prompts[place].to_string() + &told[place].text);
                            assert_eq!(choice["logprobs"], Value::Null);
                        }
                    }
                });
            }
        });
        // What was scored is there for others to find.
        let body = json!({ "prompt": prompts[0], "temperature": 0, "max_tokens": 1 });
        let cached = server.complete(&body)["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
        assert_eq!(cached, (tokens[0].len() - 1) / 8 * 8);
        all_pages_come_back(&server, 600);
    }
}

#[test]
fn the_longest_prompt_can_be_scored() {
    let server = Server::start(Options { limits: StepLimits { tokens: 256, sequences: 2 }, ..Options::default() });
    let body = json!({ "prompt": vec![500; 1024], "max_tokens": 0, "echo": true, "logprobs": 0 });
    let choice = server.complete(&body)["choices"][0].clone();
    let scores = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!((scores.len(), &scores[0]), (1024, &Value::Null));
    assert!(scores[1..].iter().all(Value::is_number));
}

/// Evaluation programs ask for one new token, and drop the last score: there has to be one, also where that token is an end.
#[test]
fn what_ends_a_scored_text_has_its_score() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let sampling = |seed| Sampling { temperature: 1.0, top_k: 0, top_p: 0.9, seed };
    let mut told = (0..100).map(|seed| alone.tell_text(PROMPTS[0], 400, sampling(seed)));
    let told = told.find(|told| told.reason == "stop").expect("one ends by itself");
    let prompt = [&alone.tokenizer.encode(PROMPTS[0]).unwrap()[..], &told.tokens].concat();
    let seed =
        (0..200).find(|seed| alone.tell(&prompt, 1, sampling(*seed)).tokens.is_empty()).expect("it ends at once");
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
    Rows::of(&text).check(&alone, &text, 1, &choice["logprobs"]);
    assert_eq!(server.metric("vllm:prompt_tokens_total", ""), prompt.len() as f64);
}

#[test]
fn a_chat_is_told_in_the_words_of_the_models_template() {
    const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}\
                            {% if messages | length > 2 %}{{ raise_exception('too many messages') }}{% endif %}\
                            {% if add_generation_prompt %}{{ name | default('teller') }}:{% endif %}";
    let folder = Folder::copy_of("storyteller");
    folder.write("chat_template.jinja", TEMPLATE);
    let alone = Alone::open(folder.path().as_ref());
    let server = Server::start(Options { folder: folder.path().into(), ..Options::default() });
    let messages = json!([{ "role": "user", "content": " Tell me a story. " }]);
    let expected = alone.tell_text("user: Tell me a story.\nteller:", 30, GREEDY);
    let mut body = json!({ "messages": messages, "temperature": 0, "max_completion_tokens": 30, "logprobs": true });
    let answer = server.post("/v1/chat/completions", &body).json();
    assert_eq!(texts(&answer), [expected.text.as_str()]);
    assert_eq!(
        (&answer["object"], &answer["choices"][0]["message"]["role"]),
        (&json!("chat.completion"), &json!("assistant"))
    );
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), expected.tokens.len());

    body["stream"] = true.into();
    let (events, is_done) = server.post("/v1/chat/completions", &body).events();
    assert!(is_done && events.iter().all(|event| event["object"] == "chat.completion.chunk"));
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(together(&events)[&0].0, expected.text);
    assert_eq!(events.last().unwrap()["choices"][0]["delta"], json!({}));

    let named =
        json!({ "messages": messages, "temperature": 0, "max_tokens": 8, "chat_template_kwargs": { "name": "king" } });
    let expected = alone.tell_text("user: Tell me a story.\nking:", 8, GREEDY);
    assert_eq!(texts(&server.post("/v1/chat/completions", &named).json()), [expected.text.as_str()]);
    // All that fits, if nobody says how much.
    let open = json!({ "messages": messages, "temperature": 0, "stop": "." });
    assert_eq!(server.post("/v1/chat/completions", &open).status, 200);

    let three = json!({ "messages": [messages[0], messages[0], messages[0]] });
    let refused = server.post("/v1/chat/completions", &three);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_string();
    assert!(refused.status == 400 && message.contains("too many messages"), "{message}");

    let without = Server::start(Options::default());
    let refused = without.post("/v1/chat/completions", &json!({ "messages": messages }));
    let error = refused.json()["error"].clone();
    assert_eq!((refused.status, &error["code"]), (400, &json!("no_chat_template")));
    assert!(error["message"].as_str().unwrap().contains("/v1/completions"), "{error}");
}

#[test]
fn what_was_read_before_is_found_and_counted() {
    let (server, alone) = (Server::start(Options::default()), storyteller());
    let prompt = "Once upon a time there was a king who had three sons, and the youngest of them was called";
    let n_prompt = alone.tokenizer.encode(prompt).unwrap().len();
    let body = json!({ "prompt": prompt, "temperature": 0, "max_tokens": 5 });
    let first = server.complete(&body);
    let second = server.complete(&body);
    assert_eq!(first["choices"][0]["text"], second["choices"][0]["text"]);
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize;
    // Full pages, and one token is left to compute.
    let found = (n_prompt - 1) / 8 * 8;
    assert_eq!((cached(&first), cached(&second)), (0, found));
    assert_eq!(server.metric("vllm:prefix_cache_queries_total", ""), 2.0 * n_prompt as f64);
    assert_eq!(server.metric("vllm:prefix_cache_hits_total", ""), found as f64);
    assert_eq!(server.metric("vllm:prompt_tokens_total", ""), 2.0 * n_prompt as f64);
    assert_eq!(server.metric("vllm:generation_tokens_total", ""), 10.0);
    assert_eq!(server.metric("vllm:request_success_total", "\"length\""), 2.0);
    assert_eq!(server.metric("vllm:time_to_first_token_seconds_count", ""), 2.0);
    assert_eq!(server.metric("vllm:inter_token_latency_seconds_count", ""), 8.0);
    assert_eq!(server.metric("vllm:e2e_request_latency_seconds_count", ""), 2.0);
    assert_eq!(server.metric("page_by_page:rows_projected_total", ""), (2 * n_prompt - found + 8) as f64);
    all_pages_come_back(&server, 600);
}

// ---- what is refused

#[test]
fn what_cannot_be_answered_is_refused_by_name() {
    let server = Server::start(Options { n_pages: 20, ..Options::default() });
    let post =
        |path: &str, headers: &[(&str, &str)], body: &str| ask(server.address, "POST", path, headers, body.as_bytes());
    let many = json!({ "prompt": vec!["a"; 200_000] }).to_string();
    let one_megabyte = json!({ "prompt": "a".repeat(1_000_000) }).to_string();
    for (body, status, param, code, says) in [
        ("{\"prompt\": ", 400, json!(null), json!("invalid_json"), "the body is not JSON"),
        ("[]", 400, json!(null), json!("invalid_json"), "not an object"),
        ("{}", 400, json!("prompt"), json!(null), "the prompt is missing"),
        ("{\"prompt\": \"a\", \"n\": 0}", 400, json!("n"), json!(null), "n is 0, expected a whole number from 1"),
        (
            "{\"prompt\": \"a\", \"model\": \"gpt-4\"}",
            404,
            json!("model"),
            json!("model_not_found"),
            "no model \"gpt-4\"",
        ),
        ("{\"prompt\": [4096]}", 400, json!("prompt"), json!(null), "ids go from 0 to 4095"),
        // 20 pages of 8: 160 slots, and the newest token needs none.
        (
            "{\"prompt\": [1], \"max_tokens\": 161}",
            400,
            json!("max_tokens"),
            json!("context_length_exceeded"),
            "need 21 pages, and the pool has 20",
        ),
        (
            "{\"prompt\": [1], \"max_tokens\": 1024}",
            400,
            json!("max_tokens"),
            json!("context_length_exceeded"),
            "1025 tokens are more than the model's 1024 positions",
        ),
        (
            "{\"prompt\": [1], \"max_tokens\": 18446744073709551615}",
            400,
            json!("max_tokens"),
            json!("context_length_exceeded"),
            "positions",
        ),
        ("{\"prompt\": [[1], [2]], \"n\": 100}", 400, json!("n"), json!(null), "200 sequences are more than the 72"),
        (
            "{\"prompt\": [1], \"use_beam_search\": true}",
            400,
            json!("use_beam_search"),
            json!(null),
            "use_beam_search is true, which this server does not do",
        ),
        (&one_megabyte, 400, json!("prompt"), json!("context_length_exceeded"), "the prompt has 1000000 bytes"),
        (
            "{\"prompt\": [1], \"n\": 64, \"logprobs\": 20, \"max_tokens\": 1000}",
            400,
            json!("logprobs"),
            json!(null),
            "1344000 log probabilities",
        ),
        (&many, 400, json!("prompt"), json!(null), "200000 sequences are more than the 72"),
        (
            "{\"prompt\": \"a\", \"tools\": 1, \"max_tokens\": \"x\"}",
            400,
            json!("max_tokens"),
            json!(null),
            "max_tokens is \"x\"",
        ),
    ] {
        let refused = post("/v1/completions", &[], body);
        let error = refused.json()["error"].clone();
        assert_eq!((refused.status, &error["param"], &error["code"]), (status, &param, &code), "{body}: {error}");
        assert!(error["message"].as_str().unwrap().contains(says), "{body}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert_eq!(refused.header("content-type"), Some("application/json"));
    }
    // The most that fits: 160 slots and the newest token.
    assert_eq!(
        server.complete(&json!({ "prompt": [1], "max_tokens": 160, "temperature": 0 }))["usage"]["completion_tokens"],
        160
    );
    let long = json!({ "prompt": vec![5; 161] });
    let error = server.post("/v1/completions", &long).json()["error"].clone();
    assert!(
        error["message"].as_str().unwrap().contains("the prompt has 161 tokens, and a sequence holds 161 here"),
        "{error}"
    );

    for (method, path, headers, body, status) in [
        ("GET", "/v1/completions", &[][..], "", 405),
        ("POST", "/v1/models", &[][..], "{}", 405),
        ("GET", "/nothing", &[][..], "", 404),
        ("DELETE", "/sequences/0", &[][..], "", 404),
        ("DELETE", "/sequences/all", &[][..], "", 404),
        ("DELETE", "/sequences/%ff", &[][..], "", 404),
        ("POST", "/sequences/0", &[][..], "{}", 405),
        ("GET", "/", &[("host", "evil.example")][..], "", 403),
        ("GET", "/pages", &[("host", "evil.example")][..], "", 403),
        ("GET", "/pages", &[("sec-fetch-site", "cross-site")][..], "", 403),
        ("DELETE", "/sequences/0", &[("host", "evil.example")][..], "", 403),
        ("GET", "/v1/../etc/passwd", &[][..], "", 404),
        ("GET", "/v1/models/..%2f..%2fetc", &[][..], "", 404),
        ("GET", "/v1/models/%ff", &[][..], "", 404),
        ("PATCH", "/v1/completions", &[][..], "", 405),
        ("POST", "/v1/completions", &[("content-type", "text/plain")][..], "{}", 415),
        ("POST", "/v1/completions", &[("content-type", "application/json; charset=utf-8")][..], "{}", 400),
        ("GET", "/v1/models", &[("host", "evil.example")][..], "", 403),
        ("POST", "/v1/completions", &[("host", "evil.example:80")][..], "{}", 403),
    ] {
        let refused = ask(server.address, method, path, headers, body.as_bytes());
        assert_eq!(refused.status, status, "{method} {path} {headers:?}");
        assert!(refused.json()["error"]["message"].is_string());
    }
    all_pages_come_back(&server, 20);
}

#[test]
fn with_a_key_only_those_who_have_it_are_served() {
    let server = Server::start(Options { access: Access::Key("sesame".into()), ..Options::default() });
    let body = json!({ "prompt": "a", "max_tokens": 1 }).to_string();
    let status = |headers: &[(&str, &str)]| {
        let post = ask(server.address, "POST", "/v1/completions", headers, body.as_bytes());
        let paths = [("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/nothing"), ("DELETE", "/sequences/0")];
        let others = paths.map(|(method, path)| ask(server.address, method, path, headers, b"").status);
        assert!(post.status != 401 || others == [401; 4], "{headers:?}: {others:?}");
        let watching = Views::ask(server.address, headers).map(|_| 200).unwrap_or_else(|refused| refused.status);
        assert_eq!(watching == 401, post.status == 401, "{headers:?}");
        post
    };
    assert_eq!(status(&[("authorization", "Bearer sesame"), ("host", "any.example")]).status, 200);
    let refused = status(&[]);
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(refused.json()["error"]["code"], "invalid_api_key");
    assert_eq!(status(&[("authorization", "Bearer sesam")]).status, 401);
    assert_eq!(status(&[("authorization", "Bearer sesame!")]).status, 401);
    assert_eq!(server.get("/health").status, 200);
    // A browser cannot send it with the first page that it opens.
    assert_eq!(["/", "/page.css", "/page.js"].map(|path| server.get(path).status), [200; 3]);
}

// ---- the pages, alive

/// What somebody sees who watches the pages.
struct Views {
    connection: Connection,
    rest: String,
    /// Whether the pages and the texts of each view belong together is checked for a pool of so many.
    n_pages: usize,
    /// Of the last view.
    version: usize,
}

impl Views {
    /// Asks to watch; the answer, if it is another one.
    fn ask(address: std::net::SocketAddr, headers: &[(&str, &str)]) -> Result<Connection, Response> {
        let mut connection = Connection::open(address).unwrap();
        connection.send("GET", "/pages", headers, b"").unwrap();
        let head = connection.read_head().unwrap();
        if head.status == 200 {
            assert_eq!(head.header("content-type"), Some("text/event-stream"));
            return Ok(connection);
        }
        Err(head)
    }

    fn from(connection: Connection, n_pages: usize) -> Self {
        Views { connection, rest: String::new(), n_pages, version: 0 }
    }

    fn of(server: &Server, n_pages: usize) -> Self {
        let connection = Self::ask(server.address, &[]).expect("a place to watch");
        Views::from(connection, n_pages)
    }

    /// The next view.
    #[track_caller]
    fn next(&mut self) -> Value {
        loop {
            while let Some((event, rest)) = self.rest.split_once("\n\n") {
                let (event, rest) = (event.to_string(), rest.to_string());
                self.rest = rest;
                if let Some(data) = event.strip_prefix("data: ") {
                    let view = serde_json::from_str(data).expect("JSON in an event");
                    belongs_together(&view, self.n_pages);
                    let before = std::mem::replace(&mut self.version, number(&view["version"]));
                    assert!(before < self.version, "nothing is shown twice: {view}");
                    return view;
                }
            }
            let chunk = self.connection.read_chunk().unwrap();
            assert!(!chunk.is_empty(), "the views have ended");
            self.rest += &chunk;
        }
    }

    /// The first view from here on that is as it should be.
    #[track_caller]
    fn wait_for(&mut self, mut is_right: impl FnMut(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let view = self.next();
            if is_right(&view) {
                return view;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "{view}");
        }
    }
}

fn list<'v>(view: &'v Value, name: &str) -> &'v Vec<Value> {
    view[name].as_array().unwrap_or_else(|| panic!("{name} in {view}"))
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number")) as usize
}

/// For each page of a view its owners, and how many texts are among them.
fn pages_of(view: &Value) -> Vec<(usize, usize)> {
    let mut pages: Vec<(usize, usize)> = list(view, "owners").iter().map(|owners| (number(owners), 0)).collect();
    for page in list(view, "sequences").iter().flat_map(|text| list(text, "pages")) {
        pages[number(page)].1 += 1;
    }
    pages
}

/// Free, kept by the prefix cache alone, with texts: together the pool.
fn sums(view: &Value) -> [usize; 3] {
    let pages = pages_of(view);
    let count = |is_so: fn(&(usize, usize)) -> bool| pages.iter().filter(|page| is_so(page)).count();
    [count(|page| page.0 == 0), count(|page| *page == (1, 0)), count(|page| page.1 > 0)]
}

/// A page has the texts whose table names it as owners, and at most the prefix cache besides; a table has a page for each
/// that its rows begin.
#[track_caller]
fn belongs_together(view: &Value, n_pages: usize) {
    let pages = pages_of(view);
    assert_eq!(pages.len(), n_pages);
    assert!(pages.iter().all(|(owners, texts)| owners - texts <= 1), "{view}");
    assert_eq!(sums(view).iter().sum::<usize>(), n_pages, "{view}");
    let page_size = number(&view["page_size"]);
    for text in list(view, "sequences") {
        assert_eq!(list(text, "pages").len(), number(&text["rows"]).div_ceil(page_size), "{text}");
        assert_eq!(text["state"] == "running", number(&text["rows"]) > 0, "{text}");
    }
}

#[test]
fn whoever_watches_sees_the_pages_as_they_are() {
    let server = Server::start(Options { n_pages: 40, ..Options::default() });
    let told = storyteller().tell_text(PROMPTS[0], 200, GREEDY);
    let mut views = Views::of(&server, 40);
    let first = views.next();
    assert_eq!((sums(&first), list(&first, "sequences").len()), ([40, 0, 0], 0));
    assert_eq!((&first["page_size"], &first["budget"], &first["most_running"]), (&json!(8), &json!(64), &json!(8)));

    let body = json!({ "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 200 });
    let answer = thread::scope(|scope| {
        let answer = scope.spawn(|| server.complete(&body));
        let last = views.wait_for(|view| {
            for text in list(view, "sequences") {
                let shown = text["text"].as_str().unwrap();
                assert!(told.text.starts_with(shown), "{shown:?} is not how the text begins");
                assert_eq!(text["prompt"], PROMPTS[0]);
            }
            !list(view, "ended").is_empty()
        });
        let ended = &list(&last, "ended")[0];
        assert_eq!((&ended["text"], &ended["reason"]), (&json!(told.text), &json!(told.reason)));
        assert_eq!((&ended["prompt"], &ended["new_tokens"]), (&json!(PROMPTS[0]), &json!(told.tokens.len())));
        assert_eq!(list(&last, "sequences").len(), 0);
        answer.join().unwrap()
    });
    assert_eq!(texts(&answer), [told.text.as_str()]);

    // Who comes now sees what the numbers say, and no text that ended before.
    let late = Views::of(&server, 40).next();
    let pages = |state: &str| server.metric("page_by_page:pages", &format!("state=\"{state}\"")) as usize;
    assert_eq!(sums(&late), [pages("free"), pages("cached"), pages("used")]);
    assert!(sums(&late)[1] > 10, "the prefix cache keeps the full pages");
    assert_eq!(late["counts"]["new_tokens"], told.tokens.len());
    assert_eq!(number(&late["counts"]["prompt_tokens"]) as f64, server.metric("vllm:prefix_cache_queries_total", ""));
    server.end().unwrap();
}

#[test]
fn texts_that_begin_alike_are_seen_to_share_pages() {
    let server = Server::start(Options { n_pages: 100, ..Options::default() });
    let mut views = Views::of(&server, 100);
    let prompt: Vec<u32> = (1..=20).collect();
    let body = json!({ "prompt": prompt, "n": 3, "max_tokens": 300, "temperature": 1000, "seed": 1, "stream": true });
    let mut connection = Connection::open(server.address).unwrap();
    connection.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).unwrap();
    // Two full pages of the prompt: three texts, and the prefix cache.
    let view = views.wait_for(|view| pages_of(view).iter().filter(|page| **page == (4, 3)).count() == 2);
    let tables: Vec<&Vec<Value>> = list(&view, "sequences").iter().map(|text| list(text, "pages")).collect();
    assert!(tables.iter().all(|table| table[..2] == tables[0][..2]), "they come first in each table: {tables:?}");
    drop(connection);
    let view = views.wait_for(|view| list(view, "sequences").is_empty());
    assert_eq!(sums(&view)[2], 0);
    // A beginning that was seen before is found, and counted.
    let before = number(&view["counts"]["prompt_tokens"]);
    server.complete(&json!({ "prompt": prompt, "max_tokens": 1 }));
    let view = views.wait_for(|view| number(&view["counts"]["prompt_tokens"]) == before + 20);
    assert_eq!(number(&view["counts"]["cached_tokens"]) as f64, server.metric("vllm:prefix_cache_hits_total", ""));
    assert_eq!(number(&view["counts"]["cached_tokens"]) % 16, 0);
}

#[test]
fn texts_that_wait_and_those_that_lost_their_pages_are_seen() {
    let limits = StepLimits { tokens: 32, sequences: 3 };
    let server = Server::start(Options { n_pages: 24, limits, ..Options::default() });
    let mut views = Views::of(&server, 24);
    let body = json!({ "prompt": [1], "n": 6, "max_tokens": 120, "temperature": 1000, "seed": 4, "stream": true });
    let mut connection = Connection::open(server.address).unwrap();
    connection.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).unwrap();
    let states =
        |view: &Value, state: &str| list(view, "sequences").iter().filter(|text| text["state"] == state).count();
    views.wait_for(|view| states(view, "running") == 3 && states(view, "waiting") == 3);
    // Three texts of 120 tokens need 45 pages, and there are 24.
    let view = views.wait_for(|view| states(view, "preempted") > 0);
    let preempted = list(&view, "sequences").iter().find(|text| text["state"] == "preempted").unwrap();
    assert!(number(&preempted["preemptions"]) > 0 && number(&preempted["new_tokens"]) > 0);
    assert!(number(&view["counts"]["preemptions"]) > 0);
    let read: usize = list(&view, "sequences").iter().map(|text| number(&text["scheduled_tokens"])).sum();
    assert!(read <= number(&view["scheduled_tokens"]) && number(&view["scheduled_tokens"]) <= 32, "{view}");
}

#[test]
fn so_many_may_watch_and_whoever_goes_leaves_a_place() {
    let server = Server::start(Options::default());
    let (mut one, two) = (Views::of(&server, 600), Views::of(&server, 600));
    one.next();
    let refused = Views::ask(server.address, &[]).err().expect("two of two places are taken");
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("10")));
    // While nothing happens, too.
    for _ in 0..20 {
        drop(one);
        let began = Instant::now();
        one = loop {
            match Views::ask(server.address, &[]) {
                Ok(connection) => break Views::from(connection, 600),
                Err(_) => assert!(began.elapsed() < Duration::from_secs(20), "the place is still taken"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        one.next();
    }
    drop(two);
    // Watching does not keep a server from its end.
    let began = Instant::now();
    server.end().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());

    let server = Server::start(Options { watchers: 0, ..Options::default() });
    for (method, path) in [("GET", "/"), ("GET", "/page.js"), ("GET", "/pages"), ("DELETE", "/sequences/0")] {
        let refused = ask(server.address, method, path, &[], b"");
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (404, &json!("not_watched")), "{path}");
    }
}

#[test]
fn a_watcher_sees_the_newest_and_holds_nobody_up() {
    let server = Server::start(Options::default());
    // One that never reads, and one that does.
    let _deaf = Views::ask(server.address, &[]).expect("a place");
    let mut views = Views::of(&server, 600);
    views.next();
    let (steps, began) = (|| server.metric("page_by_page:steps_total", ""), Instant::now());
    let body = json!({ "prompt": PROMPTS[0], "n": 8, "max_tokens": 500, "temperature": 1000, "seed": 3 });
    server.complete(&body);
    let (steps, took) = (steps(), began.elapsed());
    let mut seen = 0;
    let last = views.wait_for(|view| {
        seen += 1;
        number(&view["steps"]) as f64 == steps && list(view, "sequences").is_empty()
    });
    assert_eq!(sums(&last)[2], 0);
    let most = took.as_millis() / 50 + 5;
    assert!(seen <= most, "{seen} views in {took:?}: more than one in 50 ms");
}

#[test]
fn who_may_watch_may_end_a_text() {
    let server = Server::start(Options::default());
    let mut views = Views::of(&server, 600);
    let body = json!({
        "prompt": "Once upon a time", "n": 3, "max_tokens": 900, "temperature": 1000, "seed": 1, "stream": true,
    });
    let mut connection = Connection::open(server.address).unwrap();
    connection.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).unwrap();
    assert_eq!(connection.read_head().unwrap().status, 200);
    let view = views.wait_for(|view| list(view, "sequences").len() == 3 && sums(view)[2] > 6);
    let ids: Vec<usize> = list(&view, "sequences").iter().map(|text| number(&text["id"])).collect();
    let end = |id: usize| ask(server.address, "DELETE", &format!("/sequences/{id}"), &[], b"").status;
    assert_eq!((end(ids[1]), end(ids[1]), end(99)), (204, 404, 404), "ended, ended before, never there");
    let view = views.wait_for(|view| list(view, "sequences").len() == 2);
    let left: Vec<usize> = list(&view, "sequences").iter().map(|text| number(&text["id"])).collect();
    assert_eq!(left, [ids[0], ids[2]]);
    let ended = list(&view, "ended").iter().find(|ended| number(&ended["id"]) == ids[1]).expect("it is told");
    assert_eq!(ended["reason"], "abort");
    // Whoever waits for it gets what there is, and the others go on.
    let mut next_end = || loop {
        let chunk = connection.read_chunk().unwrap();
        for data in chunk.split("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
            let choice = serde_json::from_str::<Value>(data).unwrap()["choices"][0].clone();
            if let Some(reason) = choice["finish_reason"].as_str() {
                return (number(&choice["index"]), reason.to_string());
            }
        }
    };
    assert_eq!(next_end(), (1, "abort".to_string()));
    assert_eq!(end(ids[0]), 204);
    assert_eq!(next_end(), (0, "abort".to_string()));
    drop(connection);
    all_pages_come_back(&server, 600);
    assert_eq!(server.metric("vllm:request_success_total", "\"abort\""), 3.0);
}

#[test]
fn the_page_loads_nothing_from_elsewhere_and_runs_nothing_that_it_was_not_given() {
    let server = Server::start(Options::default());
    let [page, css, draw, js] = ["/", "/page.css", "/draw.js", "/page.js"].map(|path| server.get(path));
    let scripts = [(&draw, "text/javascript"), (&js, "text/javascript")];
    for (answer, kind) in [(&page, "text/html"), (&css, "text/css")].into_iter().chain(scripts) {
        assert_eq!(answer.header("content-type"), Some(format!("{kind}; charset=utf-8").as_str()));
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        for elsewhere in ["http:", "https:", "//cdn", "@import", "url("] {
            assert!(!answer.body.contains(elsewhere), "{kind} names {elsewhere}");
        }
    }
    for inline in [" style=", " on", "<style", "javascript:"] {
        let found = page.body.match_indices(inline).find(|(at, _)| {
            let rest = &page.body[at + inline.len()..];
            inline != " on" || rest.chars().take_while(|c| *c != '=').all(|c| c.is_ascii_lowercase())
        });
        assert!(found.is_none(), "{inline} at {found:?}");
    }
    assert_eq!(page.body.matches("<script").count(), page.body.matches("<script src=\"").count());
    for unsafe_way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("] {
        assert!(!(draw.body.clone() + &js.body).contains(unsafe_way), "{unsafe_way}: an output is not HTML");
    }
}

// ---- the service

#[test]
fn a_full_queue_says_so_and_when_to_ask_again() {
    let limits = StepLimits { tokens: 64, sequences: 2 };
    let server = Server::start(Options { limits, queue: 1, ..Options::default() });
    let long = begin_something_long(&server, 3);
    let body = json!({ "prompt": "a", "max_tokens": 1 });
    let refused = server.post("/v1/completions", &body);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{}", refused.body);
    let error = refused.json()["error"].clone();
    assert_eq!((&error["type"], &error["code"]), (&json!("rate_limit_error"), &json!("rate_limit_exceeded")));
    assert!(error["message"].as_str().unwrap().contains("3 of 3 places are taken"), "{error}");
    assert_eq!(server.metric("page_by_page:requests_refused_total", ""), 1.0);
    drop(long);
    server.wait_for("vllm:num_requests_running", "", |n| n == 0.0);
    assert_eq!(server.post("/v1/completions", &body).status, 200);
    all_pages_come_back(&server, 600);
}

#[test]
fn a_client_that_goes_away_leaves_no_page_behind() {
    let server = Server::start(Options::default());
    let aborted = |n: f64| server.wait_for("vllm:request_success_total", "\"abort\"", |found| found == n);
    // In a stream: six run, all are counted as given up.
    drop(begin_something_long(&server, 6));
    aborted(6.0);
    all_pages_come_back(&server, 600);

    // Before any answer, and in the queue: eight run, and four wait.
    let mut whole = Connection::open(server.address).unwrap();
    let body = json!({ "prompt": PROMPTS, "n": 3, "max_tokens": 900, "temperature": 1000, "seed": 2 });
    whole.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).unwrap();
    server.wait_for("vllm:num_requests_running", "", |n| n == 8.0);
    assert_eq!(server.metric("vllm:num_requests_waiting", ""), 4.0);
    assert!(server.metric("vllm:kv_cache_usage_perc", "") > 0.0);
    drop(whole);
    aborted(18.0);
    all_pages_come_back(&server, 600);
    assert_eq!(server.metric("vllm:request_success_total", "\"length\""), 0.0, "none was written to its end");
}

#[test]
fn many_who_leave_in_the_middle_of_their_prompt_are_no_fault_of_the_scheduler() {
    let limits = StepLimits { tokens: 1, sequences: 1 };
    let server = Server::start(Options { limits, queue: 0, ..Options::default() });
    let body = json!({ "prompt": vec![7; 40], "max_tokens": 1 }).to_string();
    for _ in 0..30 {
        let mut connection = Connection::open(server.address).unwrap();
        connection.send("POST", "/v1/completions", &[], body.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(1));
        drop(connection);
    }
    server.wait_for("vllm:num_requests_running", "", |n| n == 0.0);
    assert_eq!(server.complete(&json!({ "prompt": "a", "max_tokens": 2 }))["usage"]["completion_tokens"], 2);
    server.end().unwrap();
}

#[test]
fn a_client_has_its_time_to_ask_and_to_listen() {
    let short = Duration::from_millis(300);
    let client_limits =
        ClientLimits { headers: short, body: short, write: short, body_bytes: 2_000, ..ClientLimits::default() };
    let server = Server::start(Options { client_limits, ..Options::default() });
    // Headers that never end.
    let mut slow = Connection::open(server.address).unwrap();
    slow.send_raw(b"GET /health HTTP/1.1\r\nhost: localhost\r\n").unwrap();
    let began = Instant::now();
    slow.read_to_end().unwrap();
    assert!((short..20 * short).contains(&began.elapsed()), "{:?}", began.elapsed());
    // A body that never ends.
    let mut slow = Connection::open(server.address).unwrap();
    slow.send("POST", "/v1/completions", &[("content-length", "100")], b"{").unwrap();
    assert_eq!(slow.read().unwrap().status, 408);
    // Too many headers, too long ones, too much of a body, declared or not.
    let long = "x".repeat(40 << 10);
    assert_eq!(ask(server.address, "GET", "/health", &[("x-long", &long)], b"").status, 431);
    let body = json!({ "prompt": "a".repeat(2_000) }).to_string();
    assert_eq!(ask(server.address, "POST", "/v1/completions", &[], body.as_bytes()).status, 413);
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let coded = [("transfer-encoding", "chunked")];
    assert_eq!(ask(server.address, "POST", "/v1/completions", &coded, chunked.as_bytes()).status, 413);
    let mut huge = Connection::open(server.address).unwrap();
    huge.send("POST", "/v1/completions", &[("content-length", "99999999999")], b"{").unwrap();
    assert_eq!(huge.read().unwrap().status, 413);
    // One that sends everything before it listens hears why, too.
    let patient = Server::start(Options::default());
    let body = json!({ "prompt": "a".repeat(20 << 20) });
    assert_eq!(patient.post("/v1/completions", &body).status, 413);
    // Nobody reads: megabytes of probabilities.
    let mut deaf = Connection::open(server.address).unwrap();
    let body = json!({ "prompt": [1], "n": 8, "max_tokens": 590, "stream": true, "logprobs": 20, "temperature": 1000, "seed": 1 });
    deaf.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).unwrap();
    server.wait_for("vllm:num_requests_running", "", |n| n == 8.0);
    server.wait_for("vllm:num_requests_running", "", |n| n == 0.0);
    thread::sleep(3 * short);
    let rest = deaf.read_to_end();
    assert!(rest.is_err() || !rest.unwrap().contains("[DONE]"), "it was cut off");
    all_pages_come_back(&server, 600);
    // And the server is as well as before.
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_request_has_its_time_to_be_answered() {
    let client_limits = ClientLimits { request: Duration::from_millis(150), ..ClientLimits::default() };
    let server = Server::start(Options { client_limits, ..Options::default() });
    let mut body = json!({ "prompt": [1], "n": 16, "max_tokens": 1000, "temperature": 1000, "seed": 1 });
    let refused = server.post("/v1/completions", &body);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("time_limit")));
    body["stream"] = true.into();
    let (events, is_done) = server.post("/v1/completions", &body).events();
    assert_eq!((&events.last().unwrap()["error"]["code"], is_done), (&json!("time_limit"), false));
    all_pages_come_back(&server, 600);
}

#[test]
fn a_server_that_is_to_end_finishes_what_it_has_begun() {
    let server = Server::start(Options::default());
    let mut long = begin_something_long(&server, 4);
    let address = server.address;
    server.stop.ask();
    thread::sleep(Duration::from_millis(50));
    assert!(Connection::open(address).is_err(), "nobody else is let in");
    let mut reasons = Vec::new();
    loop {
        let chunk = long.read_chunk().unwrap();
        if chunk.is_empty() {
            break;
        }
        reasons.extend(chunk.matches("\"finish_reason\":\"").chain(chunk.matches("[DONE]")).map(String::from));
    }
    assert_eq!(reasons.len(), 5, "four texts to their end, and the end of all: {reasons:?}");
    server.wait().unwrap();
}

#[test]
fn a_server_that_is_to_end_does_not_wait_for_ever() {
    let server = Server::start(Options { grace: Duration::from_millis(100), ..Options::default() });
    let mut stream = begin_something_long(&server, 4);
    let mut whole = Connection::open(server.address).unwrap();
    let body = json!({ "prompt": PROMPTS[0], "n": 20, "max_tokens": 900, "temperature": 1000, "seed": 2 });
    whole.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).unwrap();
    server.wait_for("vllm:num_requests_running", "", |n| n == 8.0);
    // One that never asks, and one that never reads.
    let _idle = Connection::open(server.address).unwrap();
    let mut deaf = Connection::open(server.address).unwrap();
    deaf.send("POST", "/v1/completions", &[], json!({ "prompt": "a", "stream": true }).to_string().as_bytes()).unwrap();
    let began = Instant::now();
    server.end().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let refused = whole.read().unwrap();
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("server_stopping")));
    let rest = stream.read_to_end().unwrap();
    assert!(rest.contains("server_stopping") && !rest.contains("[DONE]"), "{}", &rest[rest.len() - 300..]);
}

/// A prefix cache with a fault.
struct Faulty {
    sound: PrefixCache,
    lookups: usize,
    fault: fn() -> CacheError,
}

impl Prefixes for Faulty {
    fn lookup(&mut self, text: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError> {
        self.lookups += 1;
        if self.lookups > 4 { Err((self.fault)()) } else { self.sound.lookup(text, pool) }
    }

    fn insert(&mut self, text: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError> {
        self.sound.insert(text, table, pool)
    }

    fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError> {
        self.sound.evict(n, pool)
    }

    fn n_pages(&self) -> usize {
        self.sound.n_pages()
    }

    fn n_evictable(&self, pool: &PagePool) -> usize {
        self.sound.n_evictable(pool)
    }
}

#[test]
fn a_fault_in_the_engine_ends_everything_and_hangs_nothing() {
    let panics: fn(usize) -> Box<dyn Prefixes> = |page_size| {
        let sound = PrefixCache::new(page_size).unwrap();
        Box::new(Faulty { sound, lookups: 0, fault: || panic!("page 7 is gone") })
    };
    let refuses: fn(usize) -> Box<dyn Prefixes> = |page_size| {
        let sound = PrefixCache::new(page_size).unwrap();
        Box::new(Faulty { sound, lookups: 0, fault: || CacheError::DoubleFree(PageId(7)) })
    };
    for (prefixes, says) in [(panics, "the engine has panicked: page 7 is gone"), (refuses, "the engine has stopped: ")]
    {
        let server = Server::start(Options { prefixes, ..Options::default() });
        let mut stream = begin_something_long(&server, 3);
        let mut whole = Connection::open(server.address).unwrap();
        let body = json!({ "prompt": "a", "max_tokens": 900, "temperature": 1000, "seed": 1 }).to_string();
        whole.send("POST", "/v1/completions", &[], body.as_bytes()).unwrap();
        server.wait_for("vllm:num_requests_running", "", |n| n == 4.0);
        let (address, began) = (server.address, Instant::now());
        let last = ask(address, "POST", "/v1/completions", &[], body.as_bytes());
        assert_eq!((last.status, &last.json()["error"]["type"]), (500, &json!("server_error")));
        let refused = whole.read().unwrap();
        assert_eq!((refused.status, &refused.json()["error"]["type"]), (500, &json!("server_error")));
        let rest = stream.read_to_end().unwrap();
        assert!(rest.contains("\"error\"") && !rest.contains("[DONE]"), "the stream says that it has no end");
        let error: ServerError = server.wait().expect_err("it has not ended well");
        assert!(error.to_string().starts_with(says), "{error}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert!(Connection::open(address).is_err());
    }
}

// ---- the command

/// The command, once it listens; and where.
fn serve(arguments: &[&str]) -> (Child, std::net::SocketAddr) {
    let mut child = crate::program::spawn(&[&["serve", "--port", "0"], arguments].concat());
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").and_then(|address| address.parse().ok());
    (child, address.unwrap_or_else(|| panic!("no address in {line:?}")))
}

#[cfg(unix)]
fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[cfg(unix)]
#[test]
fn the_command_serves_until_it_is_asked_to_end() {
    let alone = storyteller();
    for name in ["-INT", "-TERM"] {
        let (mut child, address) = serve(&["--pages", "100", "--kv-dtype", "f32", "--name", "teller"]);
        let body = json!({ "prompt": PROMPTS[2], "temperature": 0, "max_tokens": 20, "model": "teller" }).to_string();
        let answer = ask(address, "POST", "/v1/completions", &[], body.as_bytes()).json();
        assert_eq!(texts(&answer), [alone.tell_text(PROMPTS[2], 20, GREEDY).text]);
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{name}");
        let mut says = String::new();
        child.stderr.take().unwrap().read_to_string(&mut says).unwrap();
        assert!(says.contains("stopping: requests under way have 10 seconds more"), "{says}");
    }
}

/// Whatever ends it: what the pages hold that an answer has shown is in the file.
#[test]
fn a_server_that_starts_again_finds_the_prompts_of_the_one_before() {
    let alone = storyteller();
    let folder = tempfile::tempdir().unwrap();
    let option = format!("--page-file={}", folder.path().join("server.pages").display());
    let prompts = [
        "Once upon a time there lived an old woman at the edge of a great forest, and she had a cat.",
        "Once upon a time there lived an old woman at the edge of a great forest, and she had a key.",
    ];
    let told = prompts.map(|prompt| alone.tell_text(prompt, 20, GREEDY).text);
    let full_pages = |prompt: &str| (alone.tokenizer.encode(prompt).unwrap().len() - 1) / 4;
    let in_pages = 4 * prompts.map(full_pages).iter().sum::<usize>();
    let body = json!({ "prompt": prompts, "temperature": 0, "max_tokens": 20 }).to_string();
    let mut cached = Vec::new();
    for _ in 0..2 {
        let (mut child, address) = serve(&["--page-size=4", &option]);
        let answer = ask(address, "POST", "/v1/completions", &[], body.as_bytes()).json();
        let metrics = ask(address, "GET", "/metrics", &[], b"").body;
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(texts(&answer), told);
        cached.push(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize);
        assert_eq!(crate::serving::metric(&metrics, "page_by_page:page_file_failed", ""), 0.0);
        let read = crate::serving::metric(&metrics, "page_by_page:page_file_pages_total", "what=\"read\"");
        assert_eq!(read > 0.0, cached.len() == 2, "pages read in run {}", cached.len());
    }
    assert_eq!(
        cached,
        [0, in_pages],
        "tokens of the prompts that were not computed, in the first run and in the second"
    );
}

#[test]
fn the_command_lets_nobody_in_by_accident() {
    let refused = run(&["serve", "--host", "0.0.0.0", "--port", "0"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("others could reach 0.0.0.0: give --api-key"), "{}", refused.stderr);
    for key in ["", "two words", "é"] {
        let refused = run(&["serve", "--port", "0", "--api-key", key]);
        assert!(refused.code == Some(1) && refused.stderr.contains("choose another key"), "{}", refused.stderr);
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let refused = run(&["serve", "--port", &port]);
    assert!(refused.code == Some(1) && refused.stderr.contains("choose another with --port"), "{}", refused.stderr);

    // The key may come from outside the arguments.
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--port", "0", "--host", "127.0.0.1"]).env("PAGE_BY_PAGE_API_KEY", "sesame");
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").unwrap().parse().unwrap();
    let status = |headers: &[(&str, &str)]| ask(address, "GET", "/v1/models", headers, b"").status;
    let found = (status(&[]), status(&[("authorization", "Bearer sesame")]));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found, (401, 200));
}
