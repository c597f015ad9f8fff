//! Questions that many tests ask, and how they read the answers.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use page_by_page::generation::sampler::Sampling;
use serde_json::{Value, json};

use crate::http::Connection;
use crate::serving::{Alone, Server, bundled};

pub const GREEDY: Sampling = Sampling::GREEDY;
pub const PROMPTS: [&str; 4] = ["Once upon a time", "The king had a", "One day the", "Once upon a time there"];

pub fn drawn(seed: u64) -> Sampling {
    Sampling { temperature: 1.0, top_k: 0, top_p: 0.9, seed }
}

pub fn storyteller() -> Alone {
    Alone::open(&bundled("storyteller"))
}

/// The outputs of an answer, by their place.
pub fn texts(answer: &Value) -> Vec<&str> {
    let choices = answer["choices"].as_array().expect("choices");
    choices.iter().map(|choice| choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap()).collect()
}

/// Characters, token ids, and why a sequence ended.
pub type Streamed = (String, Vec<u64>, Option<String>);

/// What the events of a stream say together: for each output its characters, ids, and why it ended.
pub fn together(events: &[Value]) -> BTreeMap<u64, Streamed> {
    let mut texts: BTreeMap<u64, Streamed> = BTreeMap::new();
    for choice in events.iter().flat_map(|event| event["choices"].as_array().expect("choices")) {
        let (text, ids, reason) = texts.entry(choice["index"].as_u64().unwrap()).or_default();
        assert_eq!(*reason, None, "nothing comes after the end");
        *text += choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default();
        ids.extend(choice["token_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64));
        *reason = choice["finish_reason"].as_str().map(String::from);
    }
    texts
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Sends a request for completions, and leaves the answer to be read.
pub fn send(address: SocketAddr, body: &Value) -> Connection {
    let mut connection = Connection::open(address).unwrap();
    connection.send("POST", "/v1/completions", &[], body.to_string().as_bytes()).unwrap();
    connection
}

/// Asks for sequences of which every token is drawn at random: they take seconds, and are always the same.
pub fn long_request(prompt: Value, sequences: usize, max_tokens: usize) -> Value {
    json!({ "prompt": prompt, "n": sequences, "max_tokens": max_tokens, "temperature": 1000, "seed": 1, "stream": true })
}

/// Begins a stream that goes on for seconds, and reads the first piece of output.
pub fn begin_something_long(server: &Server, sequences: usize) -> Connection {
    let mut connection = send(server.address, &long_request(json!(PROMPTS[0]), sequences, 900));
    assert_eq!(connection.read_head().unwrap().status, 200);
    assert!(connection.read_chunk().unwrap().starts_with("data: "));
    connection
}

/// Waits until no sequence runs or waits, and checks that no page is lost.
#[track_caller]
pub fn all_pages_come_back(server: &Server, n_pages: usize) {
    server.wait_for("vllm:num_requests_running", "", |n| n == 0.0);
    server.wait_for("vllm:num_requests_waiting", "", |n| n == 0.0);
    let pages = |state: &str| server.metric("page_by_page:pages", &format!("state=\"{state}\""));
    assert_eq!((pages("used"), pages("free") + pages("cached")), (0.0, n_pages as f64));
    assert_eq!(server.metric("vllm:kv_cache_usage_perc", ""), 0.0);
}
