//! `serve`: a server that speaks OpenAI's protocol, with one memory for all its clients.

mod chat;

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use page_by_page::cache_kind::CacheKind;
use page_by_page::serving::MIN_LOGIT_BATCH;
use page_by_page_serve::access::Access;
use page_by_page_serve::connections::ClientLimits;
use page_by_page_serve::template::{self, ChatTemplate};
use page_by_page_serve::{Memory, Settings, Shutdown};

pub use chat::Chat;
pub use template::{RENDERER, be_renderer};

use crate::interrupt::Interrupt;
use crate::model_dir;
use crate::options::{KvOptions, ModelOption, PoolOptions};
use crate::output::{plural, print, say};
use crate::page_file::PageFileOptions;
use crate::requirements::{self, SCHEDULER_AND_ARGMAX};

/// Holds the key, where it should not be among the arguments, which others on the computer can see.
const KEY_VARIABLE: &str = "PAGE_BY_PAGE_API_KEY";
const VIEWERS: usize = 8;
/// How long Ctrl-C may go unnoticed.
const BLINK: Duration = Duration::from_millis(20);

/// Serve the model to programs that speak OpenAI's protocol
///
/// Clients ask /v1/completions, /v1/chat/completions and /v1/models; /health says whether the server is well, /metrics
/// what it has done. All requests share one pool of pages, one prefix cache and one scheduler, and the output of each
/// is what `generate` writes.
///
/// In a browser, the address itself shows the pages while the sequences grow: which owns each, and what happens to it.
///
/// Only this computer can reach it, unless --host says otherwise, and then only those with the key. The address goes to
/// standard output. Ctrl-C ends the server when the requests under way are complete, at the latest when --grace is
/// over; a second one ends it at once.
#[derive(Args)]
#[command(after_help = "\
Examples:
  cargo serve
  cargo serve --model path/to/Qwen3-0.6B --kv-dtype bf16 --kv-memory 2GiB
  cargo serve --host 0.0.0.0 --api-key sesame

And then, from another terminal:
  curl http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' -d '{\"prompt\": \"Once upon a time\"}'")]
pub struct Serve {
    #[command(flatten)]
    model: ModelOption,
    /// What clients call the model [default: the name of its folder]
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Port to listen on, 0 for any that is free
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// Address to listen on; one that others can reach asks for a key
    #[arg(long, value_name = "TEXT", default_value = "127.0.0.1")]
    host: String,
    /// Answer only to those who send this key [default: PAGE_BY_PAGE_API_KEY, or none]
    #[arg(long, value_name = "TEXT")]
    api_key: Option<String>,
    #[command(flatten)]
    pool: PoolOptions,
    /// Sequences that run at the same time, at most
    #[arg(long, value_name = "N", default_value_t = 16)]
    max_running: usize,
    #[command(flatten)]
    page_file: PageFileOptions,
    /// Requests that wait for a place, at most; more are refused for the moment
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue: usize,
    #[command(flatten)]
    kv_options: KvOptions,
    /// Windows that may watch the pages, and every output, at the same time [default: 8, or 0 where others can reach
    /// the server]
    #[arg(long, value_name = "N")]
    viewers: Option<usize>,
    /// Seconds that a request may take, from its first byte to its last token
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    /// Seconds that the requests under way may go on when the server is to end
    #[arg(long, value_name = "S", default_value_t = 10)]
    grace: u32,
}

impl Serve {
    pub fn run(self) -> Result<()> {
        let chapters =
            [&SCHEDULER_AND_ARGMAX[..], &self.kv_options.chapters(CacheKind::Paged), self.page_file.chapters()]
                .concat();
        requirements::ensure_started(&chapters)?;
        let pool = &self.pool;
        pool.limits(self.max_running).validate()?;
        let dir = model_dir(&self.model.dir);
        let (model, tokenizer) = self.model.open_with_tokenizer(self.kv_options, CacheKind::Paged)?;
        let template = ChatTemplate::open(&dir, &template::this_program()).transpose();
        if let Some(Err(problem)) = &template {
            say(&format!("note: no chats: {problem}"));
        }
        // Where a prompt is scored, every row has logits.
        let slab = pool.slab(&model, self.max_running.max(MIN_LOGIT_BATCH))?;
        let (prefix_cache, tier) = (pool.prefix_cache()?, self.page_file.open(&model, pool.pages.page_size)?);
        let size = pool.size(&model)?;
        let memory = Memory { slab, prefix_cache, tier, slots: size.n_slots() };
        let (settings, listener) = self.listen(self.model_name(&dir))?;
        let shutdown = Shutdown::default();
        self.stop_on_interrupt(&shutdown)?;
        let chats = if matches!(template, Some(Ok(_))) { "completions and chats" } else { "completions" };
        say(&format!("{}: {chats}; Ctrl-C stops", settings.model));
        let more = if pool.pages.is_given() { "" } else { "; more with --kv-memory" };
        say(&format!("KV cache  {}{more}", size.describe()));
        say(&format!("chapters  {}", requirements::describe(&chapters)));
        if settings.viewers > 0 {
            say("the pages: open this address in a browser");
        }
        let address = format!("http://{}", listener.local_addr()?);
        // Nobody may listen, and it serves all the same.
        if print(&format!("{address}\n")).is_err() {
            say(&address);
        }
        page_by_page_serve::serve(settings, &model, memory, tokenizer, template, listener, &shutdown)?;
        Ok(())
    }

    /// Listens on the address of the options. Without a key, only this computer must be able to reach it.
    fn listen(&self, model: String) -> Result<(Settings, TcpListener)> {
        let key = self.key()?;
        let (addresses, is_here) = self.addresses()?;
        ensure!(
            is_here || key.is_some(),
            "others could reach {}: give --api-key, or set {KEY_VARIABLE}, so that not everybody is served",
            self.host
        );
        let settings = Settings {
            model,
            limits: self.pool.limits(self.max_running),
            queue: self.queue,
            access: key.map_or(Access::Loopback, Access::Key),
            client_limits: ClientLimits {
                request: Duration::from_secs(self.timeout.into()),
                ..ClientLimits::default()
            },
            grace: Duration::from_secs(self.grace.into()),
            // A viewer sees what other clients have asked for.
            viewers: self.viewers.unwrap_or(if is_here { VIEWERS } else { 0 }),
        };
        let listener = TcpListener::bind(&addresses[..]).with_context(|| {
            format!("cannot listen at {} port {}; choose another with --port N, or 0 for any", self.host, self.port)
        })?;
        Ok((settings, listener))
    }

    fn key(&self) -> Result<Option<String>> {
        let (name, key) = match (&self.api_key, std::env::var_os(KEY_VARIABLE)) {
            (Some(key), _) => ("--api-key", key.clone()),
            (None, Some(key)) => (KEY_VARIABLE, key.to_string_lossy().into_owned()),
            (None, None) => return Ok(None),
        };
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!("{name} is empty, or has other characters than letters, digits and signs; choose another key");
        }
        Ok(Some(key))
    }

    fn addresses(&self) -> Result<(Vec<SocketAddr>, bool)> {
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let addresses: Vec<SocketAddr> =
            found.with_context(|| format!("--host {}: name an address of this computer", self.host))?.collect();
        let is_here = addresses.iter().all(|address| address.ip().is_loopback());
        Ok((addresses, is_here))
    }

    fn model_name(&self, dir: &Path) -> String {
        let folder = || dir.canonicalize().ok()?.file_name().map(|name| name.to_string_lossy().into_owned());
        self.name.clone().or_else(folder).unwrap_or_else(|| "model".into())
    }

    /// Ctrl-C, and what a system sends to programs that are to end, end the server.
    fn stop_on_interrupt(&self, shutdown: &Shutdown) -> Result<()> {
        let interrupt = Interrupt::listen()?;
        let (shutdown, grace) = (shutdown.clone(), self.grace);
        let watch = move || {
            while !interrupt.is_pressed() {
                thread::sleep(BLINK);
            }
            let seconds = plural(grace as usize, "second");
            say(&format!("stopping: requests under way have {seconds} more; Ctrl-C again ends at once"));
            shutdown.request();
        };
        thread::Builder::new().name("interrupt".into()).spawn(watch)?;
        Ok(())
    }
}
