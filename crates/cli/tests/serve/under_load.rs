//! The server under load: many clients, a third of whose requests are cut off, and a pool that is too small for all of
//! them. Every output that is complete is right, no page is lost, and memory does not grow.

use std::io;
use std::thread;
use std::time::Duration;

use page_by_page::experiments::bundled;
use page_by_page::generation::sampler::SamplingParams;
use page_by_page::serving::schedule::StepLimits;
use serde_json::{Value, json};

use crate::serving::{Alone, Options, Server, all_pages_come_back, send, together};

const CLIENTS: usize = 64;
/// How many requests each client sends in each round.
const REQUESTS: usize = 12;
const ROUNDS: usize = 3;
const PAGES: usize = 56;
/// What memory can grow by in the last round: what is kept for each request would be more.
const MAX_GROWTH: usize = 8 << 20;

/// Beginnings that some prompts have in common.
const BEGINNINGS: [&str; 4] = [
    "Once upon a time there was a king who had three sons, and",
    "Once upon a time there was a king who had three sons, but",
    "Once upon a time there lived a poor",
    "The",
];

/// Requests, and what comes back: the text of each sequence, and why it ends.
fn jobs(alone: &Alone) -> Vec<(Value, Vec<Value>)> {
    let job = |place: usize| {
        let (prompt, seed, max_tokens) = (BEGINNINGS[place % 4], place as u64, 8 + place * 7 % 40);
        let (temperature, n) = (if place.is_multiple_of(3) { 0.0 } else { 0.9 }, 1 + place % 2);
        let body = json!({
            "prompt": prompt, "seed": seed, "max_tokens": max_tokens, "temperature": temperature, "top_p": 0.95, "n": n,
        });
        let sampling = SamplingParams { temperature, seed, ..SamplingParams::DEFAULT };
        let samplings = (0..n as u64).map(|sample| sampling.for_sample(sample));
        let outputs = samplings.map(|sampling| alone.complete(prompt, max_tokens, sampling));
        (body, outputs.map(|output| json!([output.text, output.reason])).collect())
    };
    (0..40).map(job).collect()
}

/// Asks until it is let in; reads all of it, or leaves before the end, as every third does.
fn request(server: &Server, (body, expected): &(Value, Vec<Value>), number: usize) -> io::Result<()> {
    let (is_stream, is_cut) = (number.is_multiple_of(2), number.is_multiple_of(3));
    let mut body = body.clone();
    body["stream"] = is_stream.into();
    loop {
        let mut connection = send(server.address, &body);
        if is_cut {
            if !is_stream {
                thread::sleep(Duration::from_micros(300 * (number as u64 % 40)));
            } else if connection.read_head()?.status == 200 {
                for _ in 0..number % 5 {
                    connection.read_chunk()?;
                }
            }
            return Ok(());
        }
        let response = connection.read()?;
        if response.status == 429 {
            thread::sleep(Duration::from_millis(20));
            continue;
        }
        assert_eq!(response.status, 200, "{}", response.body);
        let answer = if is_stream { together(&response.events().0) } else { response.json() };
        let choices = answer["choices"].as_array().expect("choices").iter();
        let found: Vec<Value> = choices.map(|choice| json!([choice["text"], choice["finish_reason"]])).collect();
        assert_eq!(found, *expected, "{body}");
        return Ok(());
    }
}

/// Bytes that this process holds; `None` where the system does not say.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<usize>().ok()? << 10)
}

#[test]
#[ignore = "it watches the memory of its process, so it runs alone: .ci/run asks for it"]
fn thousands_of_requests_a_third_of_them_cut_off() {
    let folder = bundled("storyteller-draft");
    let jobs = jobs(&Alone::open(&folder));
    let limits = StepLimits { token_budget: 96, max_running: 24 };
    let server = Server::start(Options { folder, n_pages: PAGES, limits, queue: 40, ..Options::default() });
    let round = |round: usize| {
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (server, jobs) = (&server, &jobs);
                scope.spawn(move || {
                    for place in 0..REQUESTS {
                        let number = (round * CLIENTS + client) * REQUESTS + place;
                        request(server, &jobs[(number * 17 + client) % jobs.len()], number).unwrap();
                    }
                });
            }
        });
        resident()
    };
    let memory: Vec<usize> = (0..ROUNDS).filter_map(round).collect();
    if let [.., before, after] = memory[..] {
        assert!(after < before + MAX_GROWTH, "memory grows: {memory:?} bytes after each round");
    }
    let metric = |name: &str| server.metric(name, "");
    // Or this load would show little.
    assert!(metric("vllm:num_preemptions_total") > 20.0, "the pool was to be too small");
    assert!(metric("vllm:prefix_cache_hits_total") > 1_000.0, "beginnings were to be found");
    assert!(server.metric("vllm:request_success_total", "\"abort\"") > 20.0, "some were to be cut off while they ran");

    all_pages_come_back(&server, PAGES);
    server.end().unwrap();
}
