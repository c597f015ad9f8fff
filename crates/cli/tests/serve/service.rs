//! A service that neither its clients nor its own faults can bring to hang; and the command that starts it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use page_by_page::cache::{CacheError, PageId};
use page_by_page::chapters::ch04_page_pool::PagePool;
use page_by_page::chapters::ch05_page_table::PageTable;
use page_by_page::chapters::ch11_prefix_cache::PrefixTrie;
use page_by_page::experiments::bundled;
use page_by_page::prefix_cache::{CachedPage, PrefixCache};
use page_by_page::serving::schedule::StepLimits;
use page_by_page_serve::ServerError;
use page_by_page_serve::connections::ClientLimits;
use serde_json::json;

use crate::http::{Connection, ask};
use crate::program::{PROGRAM, Run, ended, run, signal};
use crate::serving::{
    GREEDY, Options, PROMPTS, Server, all_pages_come_back, begin_something_long, long_request, metric, send,
    storyteller, texts,
};

#[test]
fn a_full_queue_says_so_and_when_to_ask_again() {
    let limits = StepLimits { token_budget: 64, max_running: 2 };
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
fn a_request_for_many_sequences_lets_others_have_their_turn() {
    let limits = StepLimits { token_budget: 64, max_running: 4 };
    let server = Server::start(Options { limits, ..Options::default() });
    let _many = send(server.address, &long_request(json!([1]), 60, 40));
    server.wait_for("vllm:num_requests_running", "", |n| n == 4.0);
    assert_eq!(server.metric("vllm:num_requests_waiting", ""), 56.0);
    server.complete(&json!({ "prompt": "a", "max_tokens": 1 }));
    let ended = server.metric("vllm:request_success_total", "\"length\"");
    assert!(ended <= 9.0, "one waited for {ended} of 60 others");
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
    let body = json!({ "prompt": PROMPTS, "n": 3, "max_tokens": 900, "temperature": 1000, "seed": 2 });
    let whole = send(server.address, &body);
    server.wait_for("vllm:num_requests_running", "", |n| n == 8.0);
    assert_eq!(server.metric("vllm:num_requests_waiting", ""), 4.0);
    assert!(server.metric("vllm:kv_cache_usage_perc", "") > 0.0);
    drop(whole);
    aborted(18.0);
    all_pages_come_back(&server, 600);
    assert_eq!(server.metric("vllm:request_success_total", "\"length\""), 0.0, "none was written to its end");

    // While the prompt of four samples is computed, a token a step: one runs, and three wait for it.
    let limits = StepLimits { token_budget: 1, max_running: 8 };
    let server = Server::start(Options { limits, ..Options::default() });
    let shared = send(server.address, &long_request(json!(vec![5; 900]), 4, 9));
    server.wait_for("vllm:num_requests_running", "", |n| n == 1.0);
    assert_eq!(server.metric("vllm:num_requests_waiting", ""), 3.0);
    drop(shared);
    server.wait_for("vllm:request_success_total", "\"abort\"", |n| n == 4.0);
    assert_eq!(server.metric("vllm:generation_tokens_total", ""), 0.0);
    all_pages_come_back(&server, 600);
}

#[test]
fn a_client_has_its_time_to_ask_and_to_listen() {
    let short = Duration::from_millis(300);
    let client_limits =
        ClientLimits { headers: short, body: short, write: short, body_bytes: 2_000, ..ClientLimits::default() };
    let folder = bundled("storyteller-draft");
    let server = Server::start(Options { folder, client_limits, ..Options::default() });
    // Headers that never end.
    let mut slow = Connection::open(server.address).unwrap();
    slow.send_raw(b"GET /health HTTP/1.1\r\nhost: localhost\r\n").unwrap();
    let began = Instant::now();
    slow.read_to_end().unwrap();
    assert!((short..20 * short).contains(&began.elapsed()), "{:?}", began.elapsed());
    // A body that never ends.
    assert_eq!(ask(server.address, "POST", "/v1/completions", &[("content-length", "100")], b"{").status, 408);
    // Too long headers, too much of a body, declared or not.
    let long = "x".repeat(40 << 10);
    assert_eq!(ask(server.address, "GET", "/health", &[("x-long", &long)], b"").status, 431);
    let body = json!({ "prompt": "a".repeat(2_000) }).to_string();
    assert_eq!(ask(server.address, "POST", "/v1/completions", &[], body.as_bytes()).status, 413);
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let coded = [("transfer-encoding", "chunked")];
    assert_eq!(ask(server.address, "POST", "/v1/completions", &coded, chunked.as_bytes()).status, 413);
    let huge = [("content-length", "99999999999")];
    assert_eq!(ask(server.address, "POST", "/v1/completions", &huge, b"{").status, 413);
    // One that sends everything before it listens hears why, too.
    let patient = Server::start(Options::default());
    let body = json!({ "prompt": "a".repeat(20 << 20) });
    assert_eq!(patient.post("/v1/completions", &body).status, 413);
    // A client that never reads: more megabytes of probabilities than the system keeps for it.
    let body = json!({ "prompt": [1], "n": 24, "max_tokens": 590, "stream": true, "logprobs": 20, "temperature": 1000, "seed": 1 });
    let mut deaf = send(server.address, &body);
    server.wait_for("vllm:num_requests_running", "", |n| n == 8.0);
    let second = server.post("/v1/completions", &body);
    assert!(second.status == 429 && second.body.contains("297360 log prob"), "{}", second.body);
    server.wait_for("vllm:num_requests_running", "", |n| n == 0.0);
    thread::sleep(3 * short);
    let rest = deaf.read_to_end();
    assert!(rest.is_err() || !rest.unwrap().contains("[DONE]"), "it was cut off");
    assert_eq!(send(server.address, &body).read_head().unwrap().status, 200, "what it held is free again");
    all_pages_come_back(&server, 600);
    // The server answers as before.
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
    server.shutdown.request();
    thread::sleep(Duration::from_millis(50));
    assert!(Connection::open(address).is_err(), "no new client is let in");
    let rest = long.read_to_end().unwrap();
    assert_eq!(rest.matches("\"finish_reason\":\"").count(), 4, "four texts come to their end");
    assert_eq!(rest.matches("[DONE]").count(), 1);
    server.wait().unwrap();
}

#[test]
fn a_server_that_is_to_end_does_not_wait_for_ever() {
    let server = Server::start(Options { grace: Duration::from_millis(100), ..Options::default() });
    let mut stream = begin_something_long(&server, 4);
    let body = json!({ "prompt": PROMPTS[0], "n": 20, "max_tokens": 900, "temperature": 1000, "seed": 2 });
    let mut whole = send(server.address, &body);
    server.wait_for("vllm:num_requests_running", "", |n| n == 8.0);
    // One that never asks, and one that never reads.
    let _idle = Connection::open(server.address).unwrap();
    let _deaf = send(server.address, &json!({ "prompt": "a", "stream": true }));
    let began = Instant::now();
    server.end().unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let refused = whole.read().unwrap();
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("server_stopping")));
    let rest = stream.read_to_end().unwrap();
    assert!(rest.contains("server_stopping") && !rest.contains("[DONE]"), "{}", &rest[rest.len() - 300..]);
}

struct Faulty {
    sound: PrefixTrie,
    lookups: usize,
    fault: fn() -> CacheError,
}

impl PrefixCache for Faulty {
    fn lookup(&mut self, text: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError> {
        self.lookups += 1;
        if self.lookups > 2 { Err((self.fault)()) } else { self.sound.lookup(text, pool) }
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

    fn pages(&self) -> Vec<CachedPage<'_>> {
        self.sound.pages()
    }
}

#[test]
fn a_fault_in_the_engine_ends_everything_and_hangs_nothing() {
    let panics: fn() -> CacheError = || panic!("page 7 is gone");
    for (fault, says) in [(panics, "panicked: page 7 is gone"), (|| CacheError::DoubleFree(PageId(7)), "stopped: ")] {
        let faulty = move |size| Faulty { sound: PrefixTrie::new(size).unwrap(), lookups: 0, fault };
        let server =
            Server::start(Options { prefix_cache: Box::new(move |size| Box::new(faulty(size))), ..Options::default() });
        let mut stream = begin_something_long(&server, 3);
        let body = json!({ "prompt": "a", "max_tokens": 900, "temperature": 1000, "seed": 1 });
        let mut whole = send(server.address, &body);
        server.wait_for("vllm:num_requests_running", "", |n| n == 4.0);
        let (address, began) = (server.address, Instant::now());
        let last = server.post("/v1/completions", &body);
        assert_eq!((last.status, &last.json()["error"]["type"]), (500, &json!("server_error")));
        let refused = whole.read().unwrap();
        assert_eq!((refused.status, &refused.json()["error"]["type"]), (500, &json!("server_error")));
        let rest = stream.read_to_end().unwrap();
        assert!(rest.contains("\"error\"") && !rest.contains("[DONE]"), "the stream says that it has no end");
        let error: ServerError = server.wait().expect_err("it has not ended well");
        assert!(error.to_string().starts_with(&format!("the engine has {says}")), "{error}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert!(Connection::open(address).is_err());
    }
}

// The command

/// The command, once it listens; and where.
fn listening(command: &mut Command) -> (Child, SocketAddr) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").and_then(|address| address.parse().ok());
    (child, address.unwrap_or_else(|| panic!("no address in {line:?}")))
}

fn serve(arguments: &[&str]) -> (Child, SocketAddr) {
    listening(Command::new(PROGRAM).args(["serve", "--port=0"]).args(arguments))
}

#[cfg(unix)]
#[test]
fn the_command_serves_until_it_is_asked_to_end() {
    let alone = storyteller();
    for (name, memory, pool) in [
        ("-INT", &["--pages=100"][..], "100 pages of 16 tokens, 1,600 tokens in all, 4.69 MiB\n"),
        ("-TERM", &["--kv-memory=100MiB"], "2,133 pages of 16 tokens, 34,128 tokens in all, 99.98 MiB\n"),
        ("-INT", &[], "256 pages of 16 tokens, 4,096 tokens in all, 12.00 MiB; more with --kv-memory\n"),
    ] {
        let (child, address) = serve(&[&["--kv-dtype=f32", "--name=teller"], memory].concat());
        let body = json!({ "prompt": PROMPTS[2], "temperature": 0, "max_tokens": 20, "model": "teller" }).to_string();
        let answer = ask(address, "POST", "/v1/completions", &[], body.as_bytes()).json();
        assert_eq!(texts(&answer), [alone.complete(PROMPTS[2], 20, GREEDY).text]);
        signal(&child, name);
        let Run { code, stderr: says, .. } = ended(child);
        assert_eq!(code, Some(0), "{name}");
        assert!(says.contains(&format!("KV cache  {pool}")), "{says}");
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
    let full_pages = |prompt: &str| (alone.tokenizer.encode(prompt).unwrap().len() - 1) / 4;
    let in_pages = 4 * prompts.map(full_pages).iter().sum::<usize>();
    // Two of each prompt, which share what comes from the file.
    let outputs: Vec<String> =
        prompts.iter().flat_map(|prompt| vec![alone.complete(prompt, 20, GREEDY).text; 2]).collect();
    let body = json!({ "prompt": prompts, "n": 2, "temperature": 0, "max_tokens": 20 }).to_string();
    let mut cached = Vec::new();
    for _ in 0..2 {
        let (mut child, address) = serve(&["--page-size=4", &option]);
        let answer = ask(address, "POST", "/v1/completions", &[], body.as_bytes()).json();
        let metrics = ask(address, "GET", "/metrics", &[], b"").body;
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(texts(&answer), outputs);
        cached.push(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() as usize);
        assert_eq!(metric(&metrics, "page_by_page:page_file_failed", ""), 0.0);
        let read = metric(&metrics, "page_by_page:page_file_pages_total", "what=\"read\"");
        assert_eq!(read > 0.0, cached.len() == 2, "pages read in run {}", cached.len());
    }
    assert_eq!(cached, [0, in_pages], "tokens of the prompts that were not computed, in each run");
}

#[test]
fn an_address_that_others_can_reach_needs_a_key() {
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
    let (mut child, address) = listening(command.args(["serve", "--port=0"]).env("PAGE_BY_PAGE_API_KEY", "sesame"));
    let status = |headers: &[(&str, &str)]| ask(address, "GET", "/v1/models", headers, b"").status;
    let found = (status(&[]), status(&[("authorization", "Bearer sesame")]));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found, (401, 200));
}
