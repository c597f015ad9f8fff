//! A server that speaks OpenAI's protocol, so that clients need no change: many texts for many clients, in the pages of one slab.
//!
//! ```text
//!   client ── connections ── guard ── http ── protocol ──┐ texts
//!   client ── connections ── guard ── http ── protocol ──┼───────► engine: Serving of chapter 12, slab, prefix cache
//!   client ◄─ connections ◄─────────── http ◄─ answer ◄──┘ events    one thread, one step after the other
//! ```
//!
//! The engine is alone with its memory: nothing in it is locked, and nobody else can see it half changed. Clients are many and
//! slow; they live on two threads of [tokio](https://tokio.rs) and talk to the engine through channels ([`talk`]). A client that
//! goes away drops its end of a channel, and the engine ends its texts before the next step.
//!
//! Who opens `/` in a browser sees the pages while all this goes on: [`page`], [`watching`].
//!
//! `cargo run --release --features solution,serve -- serve` runs it. It is compiled with the feature `serve` only.

pub mod answer;
pub mod connections;
pub mod engine;
pub mod fields;
pub mod guard;
pub mod http;
pub mod metrics;
pub mod page;
pub mod protocol;
pub mod refusal;
pub mod stops;
pub mod talk;
pub mod template;
pub mod voice;
pub mod watching;

use std::any::Any;
use std::io;
use std::net::TcpListener;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use connections::Patience;
use engine::{Engine, EngineError};
use guard::Guard;
use http::Shared;
use metrics::Metrics;
use talk::Command;
use template::{ChatTemplate, TemplateError};
use watching::{Places, Stage};

use page_by_page::chapters::ch06_paged::SharedSlab;
use page_by_page::disk::tier::Tier;
use page_by_page::escape;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::prefixes::Prefixes;
use page_by_page::serving::Serving;
use page_by_page::serving::schedule::{ScheduleError, StepLimits};

/// Threads that talk with clients. What takes its time, the engine does.
const THREADS: usize = 2;
/// Threads that turn prompts into tokens.
const MOST_READERS: usize = 4;
/// How long the last answers may take to go out when all texts have ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How a server is to be.
pub struct Settings {
    /// The model's name, as clients ask for it.
    pub model: String,
    /// What a step may hold.
    pub limits: StepLimits,
    /// Texts that may wait; the next ones are refused.
    pub queue: usize,
    /// Who may ask.
    pub guard: Guard,
    /// How much they may ask.
    pub patience: Patience,
    /// How long texts may go on when the server is to end.
    pub grace: Duration,
    /// How many may watch the pages, and all texts in them, at the same time.
    pub watchers: usize,
}

/// The memory of a server: pages, and what keeps them when their texts have ended.
pub struct Memory {
    /// The pages.
    pub slab: SharedSlab,
    /// Keeps pages of this slab.
    pub prefixes: Box<dyn Prefixes>,
    /// A file behind these prefixes, which has what was evicted, and what another run has computed.
    pub tier: Option<Tier>,
    /// Slots in all pages together.
    pub slots: usize,
}

/// Ends a server from outside.
#[derive(Clone, Debug)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Default for Stop {
    fn default() -> Self {
        Stop(Arc::new(watch::channel(false).0))
    }
}

impl Stop {
    /// The server takes no more requests, and ends when those that it has are answered or its grace is over.
    pub fn ask(&self) {
        self.0.send_replace(true);
    }
}

/// Why a server has ended, where nobody has asked it to.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The scheduler cannot begin.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The system gives no thread or no connection.
    #[error("the server cannot talk to clients: {0}")]
    System(#[from] io::Error),
    /// The engine cannot go on.
    #[error("the engine has stopped: {0}")]
    Engine(#[from] EngineError),
    /// The engine has panicked.
    #[error("the engine has panicked: {0}")]
    Panic(String),
}

/// Serves `model` to whoever comes by `listener`, until `stop` is asked for. The engine runs on this thread.
///
/// # Errors
/// [`ServerError`]. The requests that were open then are answered with status 500, as are those that follow, and the server ends.
pub fn serve(
    settings: Settings,
    model: &Model,
    memory: Memory,
    tokenizer: Tokenizer,
    template: Option<Result<ChatTemplate, TemplateError>>,
    listener: TcpListener,
    stop: &Stop,
) -> Result<(), ServerError> {
    let Memory { slab, prefixes, tier, slots } = memory;
    let serving = Serving::new(model, &slab, prefixes, settings.limits, &model.config().eos_token_ids)?;
    let (engine, commands) = mpsc::channel();
    let (tokenizer, metrics) = (Arc::new(tokenizer), Arc::new(Metrics::new(&settings.model, tier.is_some())));
    // The newest token is never read, and needs no slot.
    let most_tokens = model.config().max_positions.min(slots.saturating_add(1));
    let most_texts = settings.limits.sequences.saturating_add(settings.queue);
    let places = Places::new(settings.watchers);
    let shared = Shared {
        model: settings.model,
        sampling: model.config().sampling,
        most_tokens,
        most_texts,
        tokenizer: tokenizer.clone(),
        template,
        guard: settings.guard,
        patience: settings.patience,
        metrics: metrics.clone(),
        engine,
        stop: stop.0.subscribe(),
        answers: AtomicU64::new(0),
        places: places.clone(),
    };
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(MOST_READERS)
        .thread_name("clients")
        .enable_all()
        .build()?;
    let (shared, stopped, grace) = (Arc::new(shared), stop.0.subscribe(), settings.grace);
    let clients = thread::Builder::new()
        .name("server".into())
        .spawn(move || talk_to_clients(runtime, listener, shared, stopped, grace))?;

    let page_size = slots / slab.borrow().pool().n_pages();
    let stage = Stage::new(places, page_size);
    let engine = Engine::new(serving, &slab, tier, &tokenizer, &metrics, most_texts, stage);
    // What a panic leaves half done goes with the engine: nobody looks at it again.
    let ended = panic::catch_unwind(AssertUnwindSafe(|| engine.run(&commands)));
    // Whoever still waits for a text hears now that none comes.
    drop(commands);
    stop.ask();
    let said_goodbye = clients.join();
    match ended {
        Err(panic) => Err(ServerError::Panic(panic_text(&*panic))),
        Ok(Err(error)) => Err(error.into()),
        Ok(Ok(())) => match said_goodbye {
            Ok(result) => Ok(result?),
            Err(panic) => Err(ServerError::Panic(panic_text(&*panic))),
        },
    }
}

/// Answers clients until the server is to end, and for a while after that.
fn talk_to_clients(
    runtime: Runtime,
    listener: TcpListener,
    shared: Arc<Shared>,
    stopped: watch::Receiver<bool>,
    grace: Duration,
) -> io::Result<()> {
    let (engine, patience, mut stop) = (shared.engine.clone(), shared.patience, stopped.clone());
    runtime.spawn(async move {
        drop(stop.wait_for(|stop| *stop).await);
        // An engine that has ended does not hear it.
        let _ = engine.send(Command::Stop { until: Instant::now() + grace });
    });
    let served =
        runtime.block_on(connections::serve(listener, http::router(shared), patience, stopped, grace + LAST_WORDS));
    runtime.shutdown_timeout(Duration::from_millis(100));
    served
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    escape::field(text.unwrap_or("no reason given"))
}
