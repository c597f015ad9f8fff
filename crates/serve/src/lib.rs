//! A server that speaks OpenAI's protocol, so that clients need no change: many sequences for many clients, in one slab
//! of pages.
//!
//! ```text
//!   client ── connections ── access ── http ── protocol ──┐ requests
//!   client ── connections ── access ── http ── protocol ──┼───────► engine: scheduler, slab, prefix cache
//!   client ◄─ connections ◄─────────── http ◄─ answer ◄──┘ events    one thread, one step after the other
//! ```
//!
//! The engine's thread alone touches the memory, so nothing in it is locked and nothing can be seen half changed.
//! Clients are many and slow; they live on two threads of [tokio](https://tokio.rs) and reach the engine through
//! channels (`messages.rs`). A client that goes away drops its end of a channel, and the engine cancels its sequences
//! before the next step.
//!
//! In a browser, `/` shows the pages while all this goes on (`live_page.rs`, `views.rs`).
//!
//! `cargo serve` runs it, which builds the program with its feature `serve`.

pub mod access;
mod answer;
mod api_error;
pub mod connections;
mod engine;
mod fields;
mod http;
mod jinja;
mod live_page;
mod messages;
mod metrics;
mod pace;
mod protocol;
pub mod template;
mod views;

use std::any::Any;
use std::io;
use std::net::TcpListener;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use page_by_page::chapters::ch06_paged::SharedSlab;
use page_by_page::escape;
use page_by_page::files::FileError;
use page_by_page::model::Model;
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::panics;
use page_by_page::prefix_cache::PrefixCache;
use page_by_page::serving::Engine;
use page_by_page::serving::disk_tier::DiskTier;
use page_by_page::serving::schedule::{ScheduleError, StepLimits};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};

use access::Access;
use connections::ClientLimits;
use engine::{EngineFailure, EngineThread};
use http::ServerState;
use messages::Command;
use metrics::Metrics;
use template::ChatTemplate;
use views::Viewers;

/// Threads for clients. Slow work happens elsewhere.
const THREADS: usize = 2;
/// Threads that tokenize prompts, half of them also those of chats.
const MAX_TOKENIZERS: usize = 4;
/// How long the last answers can take to be sent when all sequences are finished.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

pub struct Settings {
    pub model: String,
    pub limits: StepLimits,
    /// Sequences that can wait; the next ones are refused.
    pub queue: usize,
    pub access: Access,
    pub client_limits: ClientLimits,
    /// How long sequences can go on after the server was stopped.
    pub grace: Duration,
    /// How many can watch the pages, and all sequences in them, at the same time.
    pub viewers: usize,
}

impl Settings {
    fn max_open(&self) -> usize {
        self.limits.max_running.saturating_add(self.queue)
    }
}

/// The memory of a server: the pages, and the caches that outlive a sequence.
pub struct Memory {
    pub slab: SharedSlab,
    pub prefix_cache: Box<dyn PrefixCache>,
    /// The page file under the prefix cache: evicted pages, and those of earlier runs.
    pub tier: Option<DiskTier>,
    /// Slots in all pages together.
    pub slots: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Shutdown(Arc<watch::Sender<bool>>);

impl Shutdown {
    /// Accept no more requests; end when those under way are answered, or after the grace period.
    pub fn request(&self) {
        self.0.send_replace(true);
    }
}

/// Why a server ended without having been stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error("the server cannot reach its clients: {0}")]
    System(#[from] io::Error),
    #[error("the engine has stopped: {0}")]
    Engine(#[from] EngineFailure),
    #[error("the engine has panicked: {0}")]
    Panic(String),
}

/// Serves `model` to the clients of `listener` until it is stopped. The engine runs on this thread.
///
/// # Errors
/// [`ServerError`]. The open requests and those that follow are answered with status 500, and the server ends.
pub fn serve(
    settings: Settings,
    model: &Model,
    memory: Memory,
    tokenizer: Tokenizer,
    template: Option<Result<ChatTemplate, FileError>>,
    listener: TcpListener,
    shutdown: &Shutdown,
) -> Result<(), ServerError> {
    let Memory { slab, prefix_cache, tier, slots } = memory;
    let (tokenizer, metrics) = (Arc::new(tokenizer), Arc::new(Metrics::new(&settings.model, model.matmul_dtype)));
    let engine = Engine::new(model, &slab, prefix_cache, settings.limits, &model.config().eos_token_ids)?
        .with_tokenizer(&tokenizer);
    let (to_engine, commands) = mpsc::channel();
    // The last token is never computed, so it needs no slot.
    let max_model_len = model.config().max_positions.min(slots.saturating_add(1));
    let max_open = settings.max_open();
    let state = Arc::new(ServerState {
        viewers: Viewers::new(settings.viewers, settings.client_limits.view_time),
        settings,
        sampling: model.config().sampling,
        max_model_len,
        tokenizer: tokenizer.clone(),
        template,
        renderers: Semaphore::new(MAX_TOKENIZERS / 2),
        logprob_permits: Arc::new(Semaphore::new(http::MAX_OPEN_LOGPROBS)),
        metrics: metrics.clone(),
        commands: to_engine,
        stop: shutdown.0.subscribe(),
    });
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(MAX_TOKENIZERS)
        .thread_name("clients")
        .enable_all()
        .build()?;
    let clients =
        thread::Builder::new().name("server".into()).spawn(move || serve_clients(runtime, listener, state))?;

    let thread = EngineThread::new(engine, tier, &metrics, max_open);
    // What a panic leaves half done is dropped with the engine.
    let ended = panic::catch_unwind(AssertUnwindSafe(|| thread.run(&commands)));
    // Clients that still wait get their error now.
    drop(commands);
    shutdown.request();
    let clients_ended = clients.join();
    let panicked = |payload: Box<dyn Any + Send>| {
        ServerError::Panic(escape::field(panics::message(&*payload).unwrap_or("no reason given")))
    };
    ended.map_err(panicked)??;
    Ok(clients_ended.map_err(panicked)??)
}

/// Answers clients until the server is stopped, and during its grace period.
fn serve_clients(runtime: Runtime, listener: TcpListener, state: Arc<ServerState>) -> io::Result<()> {
    let Settings { client_limits, grace, .. } = state.settings;
    let (engine, stopped) = (state.commands.clone(), state.stop.clone());
    let mut stop = stopped.clone();
    runtime.spawn(async move {
        drop(stop.wait_for(|stop| *stop).await);
        // The engine may have ended already.
        let _ = engine.send(Command::Stop(Instant::now() + grace));
    });
    let (router, grace) = (http::router(state), grace + LAST_ANSWERS);
    let served = runtime.block_on(connections::serve(listener, router, client_limits, stopped, grace));
    runtime.shutdown_timeout(Duration::from_millis(100));
    served
}
