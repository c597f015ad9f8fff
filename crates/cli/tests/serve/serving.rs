//! A server in this process, on a port of its own; questions that many tests ask it, and how they read the answers; and
//! what its sequences are when they are generated alone.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use page_by_page::chapters::ch01_recompute::generate;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::chapters::ch11_prefix_cache::PrefixTrie;
use page_by_page::experiments::bundled;
use page_by_page::generation::sampler::{Sampler, SamplingParams};
use page_by_page::generation::{CachedModel, StopConditions};
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::prefix_cache::PrefixCache;
use page_by_page::serving::schedule::StepLimits;
use page_by_page_serve::access::Access;
use page_by_page_serve::connections::ClientLimits;
use page_by_page_serve::template::ChatTemplate;
use page_by_page_serve::{self as server, Memory, ServerError, Settings, Shutdown};
use serde_json::{Value, json};

use crate::http::{Connection, Response, ask};
use crate::program::{PROGRAM, eventually};

pub struct Options {
    pub folder: PathBuf,
    pub n_pages: usize,
    pub limits: StepLimits,
    pub queue: usize,
    pub access: Access,
    pub client_limits: ClientLimits,
    pub grace: Duration,
    pub viewers: usize,
    pub prefix_cache: Box<dyn FnOnce(usize) -> Box<dyn PrefixCache> + Send>,
}

const PAGE_SIZE: usize = 8;

impl Default for Options {
    fn default() -> Self {
        Options {
            folder: bundled("storyteller"),
            n_pages: 600,
            limits: StepLimits { token_budget: 64, max_running: 8 },
            queue: 64,
            access: Access::Loopback,
            client_limits: ClientLimits::default(),
            grace: Duration::from_secs(180),
            viewers: 2,
            prefix_cache: Box::new(|page_size| Box::new(PrefixTrie::new(page_size).unwrap())),
        }
    }
}

/// A server that runs until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    pub shutdown: Shutdown,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Server {
    pub fn start(options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), Shutdown::default());
        let to_stop = shutdown.clone();
        let thread = thread::spawn(move || {
            let Options { folder, n_pages, limits, queue, access, client_limits, grace, viewers, prefix_cache } =
                options;
            let Alone { model, tokenizer } = Alone::open(&folder);
            let slab = PageSlab::new(model.cache_layout(), PAGE_SIZE, n_pages).unwrap();
            let memory = Memory { slab, prefix_cache: prefix_cache(PAGE_SIZE), tier: None, slots: n_pages * PAGE_SIZE };
            let settings =
                Settings { model: "storyteller".into(), limits, queue, access, client_limits, grace, viewers };
            let template = ChatTemplate::open(&folder, PROGRAM.as_ref()).transpose();
            server::serve(settings, &model, memory, tokenizer, template, listener, &to_stop)
        });
        Server { address, shutdown, thread: Some(thread) }
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Response {
        ask(self.address, "GET", path, &[], b"")
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Response {
        ask(self.address, "POST", path, &[], body.to_string().as_bytes())
    }

    /// A request for completions that must be answered.
    #[track_caller]
    pub fn complete(&self, body: &Value) -> Value {
        let response = self.post("/v1/completions", body);
        assert_eq!(response.status, 200, "{body}: {}", response.body);
        response.json()
    }

    /// A number of `/metrics`. `labels`: what is in the line beside the name.
    #[track_caller]
    pub fn metric(&self, name: &str, labels: &str) -> f64 {
        metric(&self.get("/metrics").body, name, labels)
    }

    #[track_caller]
    pub fn wait_for(&self, name: &str, labels: &str, is_right: impl Fn(f64) -> bool) {
        let mut found = 0.0;
        let seen = eventually(Duration::from_secs(180), || {
            found = self.metric(name, labels);
            is_right(found).then_some(())
        });
        assert!(seen.is_some(), "{name} {labels} is still {found}");
    }

    pub fn end(self) -> Result<(), ServerError> {
        self.shutdown.request();
        self.wait()
    }

    pub fn wait(mut self) -> Result<(), ServerError> {
        self.thread.take().expect("it runs").join().expect("a server does not panic")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.request();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[track_caller]
pub fn metric(page: &str, name: &str, labels: &str) -> f64 {
    let mut lines = page.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(labels));
    let line = lines.next().unwrap_or_else(|| panic!("{name} {labels} is not in\n{page}"));
    assert!(lines.next().is_none(), "{name} {labels} is there twice");
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

/// The outputs of an answer, by their place.
pub fn texts<'a>(answer: &'a Value) -> Vec<&'a str> {
    let choices = answer["choices"].as_array().expect("choices");
    let message = |choice: &'a Value| choice["message"].get("content").or(choice["delta"].get("content"));
    choices.iter().map(|choice| choice.get("text").or(message(choice)).and_then(Value::as_str).unwrap()).collect()
}

/// What the events of a stream say together: the choices of a whole answer.
pub fn together(events: &[Value]) -> Value {
    let mut choices: BTreeMap<u64, Value> = BTreeMap::new();
    for part in events.iter().flat_map(|event| event["choices"].as_array().expect("choices")) {
        let choice = choices.entry(part["index"].as_u64().unwrap()).or_default();
        assert!(choice["finish_reason"].is_null(), "nothing comes after the end");
        add(choice, part);
    }
    json!({ "choices": choices.into_values().collect::<Vec<_>>() })
}

/// Texts and lists grow; null adds nothing.
fn add(whole: &mut Value, part: &Value) {
    match (whole, part) {
        (whole, Value::Object(part)) => part.iter().for_each(|(key, part)| add(&mut whole[key], part)),
        (Value::Array(whole), Value::Array(part)) => whole.extend(part.iter().cloned()),
        (Value::String(whole), Value::String(part)) => *whole += part,
        (_, Value::Null) => {}
        (whole, part) => *whole = part.clone(),
    }
}

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
    // In this order: one that waits can run later.
    server.wait_for("vllm:num_requests_waiting", "", |n| n == 0.0);
    server.wait_for("vllm:num_requests_running", "", |n| n == 0.0);
    let pages = |state: &str| server.metric("page_by_page:pages", &format!("state=\"{state}\""));
    assert_eq!((pages("used"), pages("free") + pages("cached")), (0.0, n_pages as f64));
    assert_eq!(server.metric("vllm:kv_cache_usage_perc", ""), 0.0);
}

pub const GREEDY: SamplingParams = SamplingParams::GREEDY;
pub const PROMPTS: [&str; 4] = ["Once upon a time", "The king had a", "One day the", "Once upon a time there"];

pub fn drawn(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.0, top_p: 0.9, seed, ..SamplingParams::GREEDY }
}

pub fn storyteller() -> Alone {
    Alone::open(&bundled("storyteller"))
}

pub struct Alone {
    pub model: Model,
    pub tokenizer: Tokenizer,
}

pub struct Output {
    pub tokens: Vec<u32>,
    pub text: String,
    /// `length` or `stop`, as in the protocol.
    pub reason: &'static str,
}

impl Alone {
    pub fn open(folder: &Path) -> Self {
        Alone { model: Model::open(folder).unwrap(), tokenizer: Tokenizer::open(folder).unwrap() }
    }

    /// The tokens up to one of `ends`, with the contiguous cache. `change` gets the logits of each first.
    pub fn generate_until(
        &self,
        prompt: &[u32],
        max_new_tokens: usize,
        sampling: SamplingParams,
        ends: &[u32],
        mut change: impl FnMut(&mut [f32]),
    ) -> Vec<u32> {
        let mut cache = ContiguousCache::new(self.model.cache_layout(), prompt.len() + max_new_tokens);
        let mut cached = CachedModel::new(&self.model, &mut cache);
        let mut sampler = Sampler::new(sampling);
        let stop = StopConditions { max_new_tokens, end_of_text: ends };
        let mut pick = |logits: &[f32]| {
            let mut logits = logits.to_vec();
            change(&mut logits);
            sampler.sample(&logits)
        };
        generate(&mut cached, prompt, stop, &mut pick, &mut |_| {}).unwrap()
    }

    /// What `generate` prints.
    pub fn generate(&self, prompt: &[u32], max_new_tokens: usize, sampling: SamplingParams) -> Output {
        let ends = &self.model.config().eos_token_ids;
        let tokens = self.generate_until(prompt, max_new_tokens, sampling, ends, |_| {});
        let reason = if tokens.len() == max_new_tokens { "length" } else { "stop" };
        Output { text: self.tokenizer.decode(&tokens).unwrap(), tokens, reason }
    }

    pub fn complete(&self, prompt: &str, max_new_tokens: usize, sampling: SamplingParams) -> Output {
        self.generate(&self.tokenizer.encode(prompt).unwrap(), max_new_tokens, sampling)
    }
}
