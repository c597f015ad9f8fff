//! The world: lets events happen to a scheduler, and shows its state.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::{CacheError, KvCache};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::{PageSlab, SharedSlab};
use crate::chapters::ch10_fork::ForkCache;
use crate::panics;
use crate::prefix_cache::{CachedPage, PrefixCache, PrefixCacheKind};
use crate::serving::schedule::{Finished, NextToken, ScheduleError, Sequence, SequenceId, max_rows};
use crate::serving::view::owners;

use super::scheduler_under_test::without_pages;
use super::stand_in_model::{LAYOUT, Rows, prompt, rows};
use super::{
    END_OF_TEXT, Event, FinishedRequest, PlannedStep, Rule, SchedulerFactory, SchedulerUnderTest, Setup, Transition,
    Violation, WorldState,
};

/// Sequences that are there at the same time, waiting or running, at most.
pub const MAX_SEQUENCES: usize = 8;

/// Calls to the prefix cache that one event may make. A scheduler that never comes to an end makes more.
const MAX_CALLS: usize = 20_000;

static HEARTBEAT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IN_SCHEDULER_CALL: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside a scheduler's call, where a panic is a violation, and reported as one.
pub fn in_scheduler_call() -> bool {
    IN_SCHEDULER_CALL.get()
}

/// A number that changes with every event, in whatever world, so that a watchdog notices when nothing happens any more.
pub fn heartbeat() -> u64 {
    HEARTBEAT.load(Ordering::Relaxed)
}

/// What the world knows of a sequence that has not finished.
struct Known {
    name: u32,
    prompt: Vec<u32>,
    max_new_tokens: usize,
    received: Vec<u32>,
}

/// What a scheduler asked of the prefix cache.
#[derive(Clone, Debug, Default)]
pub struct CacheCalls {
    n: usize,
    /// For each lookup the tokens of the sequence, and how many of them were cached.
    pub lookups: Vec<(usize, usize)>,
    /// For each eviction the pages wanted, and the pages evicted.
    pub evictions: Vec<(usize, usize)>,
    /// For each insertion the tokens of the sequence, and how many of them its table holds.
    pub insertions: Vec<(Vec<u32>, usize)>,
}

/// A pool, a prefix cache, owners outside the scheduler (strangers), and a scheduler in the middle of it. Its calls
/// return [`Rule::Stopped`] if the scheduler panics, or refuses without a reason; the world is of no use then.
pub struct World {
    setup: Setup,
    slab: SharedSlab,
    end_of_text: Vec<u32>,
    /// `None` when it is gone.
    scheduler: Option<Box<dyn SchedulerUnderTest>>,
    /// The owners outside the scheduler, each with a page.
    strangers: Vec<ForkCache>,
    /// The sequences that the scheduler has accepted and not reported as finished.
    known: BTreeMap<SequenceId, Known>,
    calls: Rc<RefCell<CacheCalls>>,
    state: WorldState,
    steps: u64,
    arrived: u64,
}

impl World {
    pub fn new(factory: &SchedulerFactory<'_>, setup: Setup) -> Result<Self, Violation> {
        Self::with_end_of_text(factory, setup, &[END_OF_TEXT])
    }

    /// An empty world in which these tokens end a text.
    pub fn with_end_of_text(
        factory: &SchedulerFactory<'_>,
        setup: Setup,
        end_of_text: &[u32],
    ) -> Result<Self, Violation> {
        let made = catch_panic("making it", || {
            let slab = PageSlab::new(LAYOUT, setup.page_size, setup.n_pages)?;
            let kind = if setup.keeps_prefixes { PrefixCacheKind::Trie } else { PrefixCacheKind::None };
            let (prefix_cache, calls) = record_calls(kind.new_cache(setup.page_size)?);
            let scheduler = factory(&slab, prefix_cache, setup.limits)?;
            Ok::<_, ScheduleError>((slab, calls, scheduler))
        });
        let (slab, calls, scheduler) = made?.map_err(|error| Rule::Stopped.broken(error.to_string()))?;
        let mut world = World {
            setup,
            slab,
            end_of_text: end_of_text.to_vec(),
            scheduler: Some(scheduler),
            strangers: Vec::new(),
            known: BTreeMap::new(),
            calls,
            state: WorldState::default(),
            steps: 0,
            arrived: 0,
        };
        world.state = world.look()?;
        Ok(world)
    }

    pub fn setup(&self) -> Setup {
        self.setup
    }

    pub fn state(&self) -> &WorldState {
        &self.state
    }

    pub fn steps(&self) -> u64 {
        self.steps
    }

    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// What the scheduler has asked of the prefix cache in its last call.
    pub fn cache_calls(&self) -> CacheCalls {
        self.calls.borrow().clone()
    }

    /// The number of the sequence of this name, if it is there.
    pub fn id(&self, name: u32) -> Option<SequenceId> {
        self.known.iter().find(|(_, known)| known.name == name).map(|(id, _)| *id)
    }

    pub fn apply(&mut self, event: Event) -> Result<Transition, Violation> {
        HEARTBEAT.fetch_add(1, Ordering::Relaxed);
        let mut planned = None;
        match event {
            Event::Arrive { .. } if self.known.len() >= MAX_SEQUENCES => {}
            Event::Arrive { name, prefix_id, prompt: n, max_new_tokens } => {
                self.arrive(name, prompt(prefix_id, n), max_new_tokens)?;
            }
            Event::Cancel { name } => {
                if let Some(id) = self.id(name) {
                    self.expect("cancel", |scheduler| scheduler.cancel(id))?;
                }
            }
            Event::Take { pages } => self.take(pages)?,
            Event::GiveBack { pages } => {
                let left = self.strangers.len().saturating_sub(pages);
                let leaving = self.strangers.split_off(left);
                catch_panic("giving a page back", || drop(leaving))?;
            }
            Event::Step => {
                planned = Some(self.plan()?);
                let next = self.compute()?;
                self.settle(&next)?;
            }
        }
        let finished = self.collect()?;
        let after = self.look()?;
        let before = std::mem::replace(&mut self.state, after.clone());
        Ok(Transition { before, planned, after, finished })
    }

    fn arrive(&mut self, name: u32, prompt: Vec<u32>, max_new_tokens: usize) -> Result<(), Violation> {
        let Setup { page_size, n_pages, .. } = self.setup;
        let fits = max_rows(prompt.len(), max_new_tokens).div_ceil(page_size) <= n_pages;
        match self.submit(name, prompt, max_new_tokens)? {
            Ok(_) => Ok(()),
            Err(ScheduleError::NeverFits { .. }) if !fits => Ok(()),
            Err(error) => Err(Rule::Stopped.broken(format!("submit refuses a request that fits: {error}"))),
        }
    }

    /// Submits a request, whatever its prompt: what the scheduler answers.
    pub fn submit(
        &mut self,
        name: u32,
        prompt: Vec<u32>,
        max_new_tokens: usize,
    ) -> Result<Result<SequenceId, ScheduleError>, Violation> {
        let asked = prompt.clone();
        let answer = self.call("submit", |scheduler| scheduler.submit(asked, max_new_tokens))?;
        if let Ok(id) = answer {
            let known = Known { name, prompt, max_new_tokens, received: Vec::new() };
            if self.known.insert(id, known).is_some() {
                return Err(Rule::Stopped.broken(format!("two sequences have the number {id}")));
            }
            self.arrived += 1;
        }
        Ok(answer)
    }

    /// Prompt, new tokens requested and the tokens received by now of a sequence that has not finished.
    pub fn request(&self, id: SequenceId) -> Option<(&[u32], usize, &[u32])> {
        self.known.get(&id).map(|known| (&known.prompt[..], known.max_new_tokens, &known.received[..]))
    }

    fn take(&mut self, pages: usize) -> Result<(), Violation> {
        let (slab, strangers, page_size) = (&self.slab, &mut self.strangers, self.setup.page_size);
        let free = slab.borrow().pool().n_free();
        catch_panic("taking a page", || {
            for _ in 0..pages.min(free) {
                let mut stranger = ForkCache::new(slab)?;
                stranger.extend(page_size)?;
                strangers.push(stranger);
            }
            Ok::<_, CacheError>(())
        })?
        .map_err(|error| Rule::Stopped.broken(format!("a stranger finds no page, though one is free: {error}")))
    }

    /// The first part of [`Event::Step`].
    pub fn plan(&mut self) -> Result<PlannedStep, Violation> {
        self.steps += 1;
        let chunks = self.expect("plan", |scheduler| scheduler.plan())?;
        Ok(PlannedStep { chunks, state: self.look()? })
    }

    /// The second part: the chunks are computed in one pass, so what a sequence attends to was there before the pass.
    pub fn compute(&mut self) -> Result<Vec<NextToken>, Violation> {
        let scheduler = self.scheduler.as_mut().expect("a world has a scheduler");
        catch_panic("inputs", || {
            let mut inputs = scheduler.as_scheduler_mut().inputs();
            let mut next = Vec::new();
            for input in &inputs {
                let (k, v) = input.cache.gather(0);
                let first_new = input.cache.len() - input.tokens.len();
                let width = LAYOUT.kv_width();
                let held = k.chunks_exact(width).zip(v.chunks_exact(width)).take(first_new);
                let held = held.fold(Rows::none(), |rows, (k, v)| rows.row(k, v));
                let new = input.tokens.iter().zip(first_new..);
                let all = new.fold(held, |rows, (token, position)| rows.token(*token, position));
                let sequence = input.chunk.sequence_id;
                next.extend(input.chunk.caught_up.then(|| NextToken { sequence_id: sequence, token: all.next() }));
            }
            for input in &mut inputs {
                let first_new = input.cache.len() - input.tokens.len();
                let new: Vec<_> = input.tokens.iter().zip(first_new..).map(|(token, at)| rows(*token, at)).collect();
                let [k, v] = [0, 1].map(|half| new.iter().flat_map(|row| row[half]).collect::<Vec<f32>>());
                input.cache.write(0, &k, &v);
            }
            next
        })
    }

    /// The last part: the tokens are handed to the scheduler, and received by the clients.
    pub fn settle(&mut self, next: &[NextToken]) -> Result<(), Violation> {
        for NextToken { sequence_id: sequence, token } in next {
            if let Some(known) = self.known.get_mut(sequence).filter(|_| !self.end_of_text.contains(token)) {
                known.received.push(*token);
            }
        }
        self.expect("settle", |scheduler| scheduler.settle(next))
    }

    /// Takes note of the sequences that have finished.
    pub fn collect(&mut self) -> Result<Vec<FinishedRequest>, Violation> {
        let scheduler = self.scheduler.as_mut().expect("a world has a scheduler");
        let mut collected = Vec::new();
        for finished in catch_panic("take_finished", || scheduler.as_scheduler_mut().take_finished())? {
            let Finished { sequence: Sequence { id, tokens, .. }, reason } = finished;
            let Some(Known { prompt, max_new_tokens, received, .. }) = self.known.remove(&id) else {
                return Err(Rule::Stopped.broken(format!("sequence {id} finishes, and is not there")));
            };
            collected.push(FinishedRequest { id, prompt, max_new_tokens, received, tokens, reason });
        }
        Ok(collected)
    }

    pub fn look(&self) -> Result<WorldState, Violation> {
        let scheduler = self.scheduler.as_ref().expect("a world has a scheduler");
        let (slab, strangers, known) = (&self.slab, &self.strangers, &self.known);
        catch_panic("looking at it", || {
            let slab = slab.borrow();
            let pool = slab.pool();
            let mut cached: Vec<_> =
                scheduler.as_scheduler().prefix_cache().pages().iter().map(|held| held.page).collect();
            cached.sort_unstable();
            WorldState {
                owners: owners(pool),
                n_free: pool.n_free(),
                cached,
                strangers: strangers.iter().flat_map(|stranger| stranger.table().pages().to_vec()).collect(),
                running: scheduler.running(),
                waiting: scheduler.as_scheduler().waiting().map(without_pages).collect(),
                alive: known.keys().copied().collect(),
            }
        })
    }

    /// Calls the scheduler, and returns what it answers.
    pub fn call<T>(&mut self, what: &str, call: impl FnOnce(&mut dyn SchedulerUnderTest) -> T) -> Result<T, Violation> {
        self.calls.take();
        let scheduler = self.scheduler.as_mut().expect("a world has a scheduler");
        catch_panic(what, || call(&mut **scheduler))
    }

    /// Calls the scheduler, which has no reason to refuse.
    fn expect<T>(
        &mut self,
        what: &str,
        call: impl FnOnce(&mut dyn SchedulerUnderTest) -> Result<T, ScheduleError>,
    ) -> Result<T, Violation> {
        self.call(what, call)?.map_err(|error| Rule::Stopped.broken(format!("{what} refuses: {error}")))
    }
}

impl Drop for World {
    /// A scheduler that has panicked may do so again when it goes.
    fn drop(&mut self) {
        let (scheduler, strangers) = (self.scheduler.take(), std::mem::take(&mut self.strangers));
        let _ = catch_panic("dropping it", || drop((scheduler, strangers)));
    }
}

/// Makes a call; a panic in it is a violation.
fn catch_panic<T>(what: &str, call: impl FnOnce() -> T) -> Result<T, Violation> {
    let was = IN_SCHEDULER_CALL.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    IN_SCHEDULER_CALL.set(was);
    outcome.map_err(|payload| {
        let message = panics::message(&*payload).unwrap_or("without a message");
        Rule::Stopped.broken(format!("{what} panics: {message}"))
    })
}

/// A prefix cache that notes what is asked, and stops a scheduler that never stops asking.
pub fn record_calls(inner: Box<dyn PrefixCache>) -> (Box<dyn PrefixCache>, Rc<RefCell<CacheCalls>>) {
    let calls = Rc::new(RefCell::new(CacheCalls::default()));
    (Box::new(RecordingCache { inner, calls: calls.clone() }), calls)
}

struct RecordingCache {
    inner: Box<dyn PrefixCache>,
    calls: Rc<RefCell<CacheCalls>>,
}

impl RecordingCache {
    fn note(&self) {
        let mut calls = self.calls.borrow_mut();
        calls.n += 1;
        assert!(
            calls.n <= MAX_CALLS,
            "one call of the scheduler has asked the prefix cache {MAX_CALLS} times: does a loop of yours never end?"
        );
    }
}

impl PrefixCache for RecordingCache {
    fn lookup(&mut self, tokens: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError> {
        self.note();
        let cached = self.inner.lookup(tokens, pool)?;
        self.calls.borrow_mut().lookups.push((tokens.len(), cached.len()));
        Ok(cached)
    }

    fn insert(&mut self, tokens: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError> {
        self.note();
        self.calls.borrow_mut().insertions.push((tokens.to_vec(), table.len()));
        self.inner.insert(tokens, table, pool)
    }

    fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError> {
        self.note();
        let evicted = self.inner.evict(n, pool)?;
        self.calls.borrow_mut().evictions.push((n, evicted));
        Ok(evicted)
    }

    fn n_pages(&self) -> usize {
        self.inner.n_pages()
    }

    fn n_evictable(&self, pool: &PagePool) -> usize {
        self.note();
        self.inner.n_evictable(pool)
    }

    fn pages(&self) -> Vec<CachedPage<'_>> {
        self.inner.pages()
    }
}
