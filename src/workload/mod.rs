//! Texts that come and go in a pool of pages, counted without a model: where the pages go does not depend on what is in
//! them.
//!
//! A [trace](Trace) says who asks for what. A [memory](Memory) keeps the pages: [`Pages`] with the pool, the page tables and
//! a prefix cache of the chapters, [`Chain`](crate::prefixes::chain::Chain) as vLLM keeps them. [`run`] lets the texts of
//! the one run in the other, step by step, as a server does:
//!
//! ```text
//!   texts come in while there is room      the prefix that is kept is found, the rest of the prompt takes pages
//!   each text gets a token                 at a page boundary it takes a page; what is not in use is evicted for it
//!   texts that have all of theirs end      their full pages are kept for later texts, the others go back
//! ```
//!
//! A text comes in only if the pages for all of its tokens, and for what the running ones still lack, are free or can be
//! evicted. So no step ever fails; that is the price of not preempting anybody, which chapter 12 does better.
//!
//! All counters are exact and the same on every machine. So they are where the [scheduler serves](serving) requests that
//! come by chance.

mod chained;
mod pages;
pub mod serving;
mod traces;

pub use chained::ChainTable;
pub use pages::Pages;
pub use traces::{Request, Trace};

use serde::Serialize;

use crate::cache::CacheError;

/// Where running texts have their pages, and finished ones leave some.
pub trait Memory {
    /// The pages of one text.
    type Table;

    /// Begins a text with the longest prefix of its prompt that is kept; not with all of it, at least one token is left to
    /// compute. Returns its pages and how many tokens they hold.
    ///
    /// # Errors
    /// [`CacheError`] if the pages that are kept are not the pool's.
    fn begin(&mut self, prompt: &[u32]) -> Result<(Self::Table, usize), CacheError>;

    /// Makes room for `n` more tokens of a text, if need be in place of pages that nobody uses. Returns the pages that it
    /// took.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] if there are too few.
    fn grow(&mut self, table: &mut Self::Table, n: usize) -> Result<usize, CacheError>;

    /// Keeps the full pages of a text for later ones. `tokens`: all that the pages hold.
    ///
    /// # Errors
    /// [`CacheError`] if the pages are not the pool's.
    fn keep(&mut self, tokens: &[u32], table: &mut Self::Table) -> Result<(), CacheError>;

    /// Lets go of the pages of a text.
    ///
    /// # Errors
    /// [`CacheError`] if the pages are not the pool's.
    fn end(&mut self, table: Self::Table) -> Result<(), CacheError>;

    /// Slots in a page.
    fn page_size(&self) -> usize;

    /// Pages in all.
    fn n_pages(&self) -> usize;

    /// Pages that running texts have; one that several share counts once. All others are free, or can be evicted.
    fn n_in_use(&self) -> usize;

    /// Pages that were evicted so far.
    fn n_evicted(&self) -> u64;
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Counters {
    /// Texts told.
    pub requests: u64,
    /// Times that each running text got a token.
    pub steps: u64,
    /// Pages taken from the pool.
    pub pages_allocated: u64,
    /// Pages that the prefix cache gave up for others.
    pub pages_evicted: u64,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Those of them that the prefix cache held.
    pub tokens_found: u64,
    /// The second over the first, 0 to 1.
    pub hit_rate: f64,
    /// Pages that running texts have, of the pool's: the mean over all steps, 0 to 1, each taken when those that were done
    /// had ended. Pages that are only kept do not count.
    pub utilisation: f64,
    /// Empty slots in the pages of running texts, of all their slots: the mean over all steps, 0 to 1.
    pub fragmentation: f64,
}

/// Why a run did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// Nobody may run.
    #[error("with 0 texts running at a time no text is ever told: let at least 1 run")]
    NobodyRuns,
    /// A text that not even the empty pool could hold.
    #[error(
        "text {number} needs {needed} pages for its {tokens} tokens, and the pool has {n_pages}; give the pool at least \
         {needed} pages"
    )]
    NeverFits {
        /// Which text, counted from 1.
        number: u64,
        /// Its tokens in the end.
        tokens: usize,
        /// Pages that they need.
        needed: usize,
        /// Pages of the pool.
        n_pages: usize,
    },
    /// A memory that claims to hold what it cannot.
    #[error("{found} tokens of a prompt of {prompt} were found: at least one must be left to compute")]
    FoundTooMuch {
        /// Tokens found.
        found: usize,
        /// Tokens of the prompt.
        prompt: usize,
    },
    /// The pages went wrong.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// A text that runs.
struct Running<T> {
    request: Request,
    table: T,
    /// Tokens that it holds.
    len: usize,
    /// Pages that these take.
    pages: usize,
}

/// Lets the texts run, at most `most_running` at a time, until all have ended. `on_end` hears of each end.
///
/// # Errors
/// [`WorkloadError`]
pub fn run<M: Memory>(
    requests: impl IntoIterator<Item = Request>,
    most_running: usize,
    memory: &mut M,
    mut on_end: impl FnMut(),
) -> Result<Counters, WorkloadError> {
    if most_running == 0 {
        return Err(WorkloadError::NobodyRuns);
    }
    let (page_size, n_pages) = (memory.page_size(), memory.n_pages());
    let mut requests = requests.into_iter().peekable();
    let mut running: Vec<Running<M::Table>> = Vec::new();
    let mut counters = Counters::default();
    // Over all running texts: tokens held, pages, and pages that they still lack. Each change adds to them, so that no
    // step has to walk through all texts or pages.
    let (mut tokens, mut pages, mut lacking) = (0, 0, 0);
    let (mut in_use, mut fragmentation) = (0, 0.0);
    loop {
        while running.len() < most_running {
            let Some(next) = requests.peek() else { break };
            let needed = next.text.len().div_ceil(page_size);
            if needed > n_pages {
                let (number, tokens) = (counters.requests + running.len() as u64 + 1, next.text.len());
                return Err(WorkloadError::NeverFits { number, tokens, needed, n_pages });
            }
            if needed + lacking > n_pages - memory.n_in_use() {
                break;
            }
            let request = requests.next().expect("there is one to peek at");
            let prompt = request.prompt;
            let (mut table, found) = memory.begin(&request.text[..prompt])?;
            if found >= prompt {
                return Err(WorkloadError::FoundTooMuch { found, prompt });
            }
            counters.pages_allocated += memory.grow(&mut table, prompt - found)? as u64;
            memory.keep(&request.text[..prompt], &mut table)?;
            counters.prompt_tokens += prompt as u64;
            counters.tokens_found += found as u64;
            let has = prompt.div_ceil(page_size);
            (tokens, pages, lacking) = (tokens + prompt, pages + has, lacking + needed - has);
            running.push(Running { request, table, len: prompt, pages: has });
        }
        if running.is_empty() {
            break;
        }
        for text in &mut running {
            counters.pages_allocated += memory.grow(&mut text.table, 1)? as u64;
            if text.len == text.pages * page_size {
                text.pages += 1;
                (pages, lacking) = (pages + 1, lacking - 1);
            }
            text.len += 1;
            tokens += 1;
        }
        counters.steps += 1;
        for mut text in running.extract_if(.., |text| text.len == text.request.text.len()) {
            memory.keep(&text.request.text, &mut text.table)?;
            memory.end(text.table)?;
            (tokens, pages) = (tokens - text.len, pages - text.pages);
            counters.requests += 1;
            on_end();
        }
        in_use += memory.n_in_use() as u64;
        if pages > 0 {
            let slots = (pages * page_size) as f64;
            fragmentation += (slots - tokens as f64) / slots;
        }
    }
    counters.pages_evicted = memory.n_evicted();
    counters.hit_rate = share(counters.tokens_found as f64, counters.prompt_tokens);
    counters.utilisation = share(in_use as f64, counters.steps) / n_pages as f64;
    counters.fragmentation = share(fragmentation, counters.steps);
    Ok(counters)
}

/// A part of `whole`; 0 of nothing.
fn share(part: f64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part / whole as f64 }
}
