//! The world: lets events happen to a scheduler, and says what is seen.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::{CacheError, KvCache};
use crate::chapters::ch04_page_pool::PagePool;
use crate::chapters::ch05_page_table::PageTable;
use crate::chapters::ch06_paged::{PageSlab, SharedSlab};
use crate::chapters::ch10_fork::ForkCache;
use crate::chapters::ch11_prefix_cache::PrefixCache;
use crate::prefixes::none::NoPrefixes;
use crate::prefixes::{HeldPage, Prefixes};
use crate::schedule::{Pick, ScheduleError, TextId, Turn};

use super::model::{LAYOUT, Read, prompt, rows};
use super::{END_OF_TEXT, Ended, Event, Make, Planned, Rule, Scene, Seen, Setup, Subject, Violation};

/// Texts that are there at the same time, waiting or running, at most.
pub const MOST_TEXTS: usize = 8;

/// Calls to the prefix cache that one event may make. A scheduler that goes on for ever makes more.
const MOST_CALLS: usize = 10_000;

/// Events of all worlds so far.
static PULSE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside a scheduler that a world has asked: a panic there is a violation, and told as one.
pub fn is_inside() -> bool {
    INSIDE.get()
}

/// A number that changes with every event, in whatever world: so that somebody may notice when nothing happens any more.
pub fn pulse() -> u64 {
    PULSE.load(Ordering::Relaxed)
}

/// What the world knows of a text that has not ended.
struct Told {
    name: u32,
    prompt: Vec<u32>,
    max_new_tokens: usize,
    told: Vec<u32>,
}

/// A pool, a prefix cache, strangers, and a scheduler in the middle of it.
pub struct World {
    setup: Setup,
    slab: SharedSlab,
    /// `None` when it is gone.
    subject: Option<Box<dyn Subject>>,
    /// Each has a page.
    strangers: Vec<ForkCache>,
    /// The texts that the scheduler has taken in and not reported as ended.
    texts: BTreeMap<TextId, Told>,
    calls: Rc<Cell<usize>>,
    seen: Seen,
    steps: u64,
    came: u64,
}

impl World {
    /// An empty world.
    ///
    /// # Errors
    /// [`Rule::Stopped`] if pool, prefix cache or scheduler cannot be made.
    pub fn new(make: &Make<'_>, setup: Setup) -> Result<Self, Violation> {
        let calls = Rc::new(Cell::new(0));
        let made = inside("making it", || {
            let slab = PageSlab::new(LAYOUT, setup.page_size, setup.n_pages)?;
            let inner: Box<dyn Prefixes> = match setup.keeps_prefixes {
                true => Box::new(PrefixCache::new(setup.page_size)?),
                false => Box::new(NoPrefixes::new(setup.page_size)?),
            };
            let prefixes = Box::new(Bounded { inner, calls: calls.clone() });
            let subject = make(&slab, prefixes, setup.limits)?;
            Ok::<_, ScheduleError>((slab, subject))
        });
        let (slab, subject) = made?.map_err(|error| Rule::Stopped.broken(error.to_string()))?;
        let mut world = World {
            setup,
            slab,
            subject: Some(subject),
            strangers: Vec::new(),
            texts: BTreeMap::new(),
            calls,
            seen: Seen::default(),
            steps: 0,
            came: 0,
        };
        world.seen = world.look()?;
        Ok(world)
    }

    /// How large it is.
    pub fn setup(&self) -> Setup {
        self.setup
    }

    /// All that is seen now.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Steps that were made.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Texts that were taken in.
    pub fn texts(&self) -> u64 {
        self.came
    }

    /// The number of the text of this name, if it is there.
    pub fn id(&self, name: u32) -> Option<TextId> {
        self.texts.iter().find(|(_, text)| text.name == name).map(|(id, _)| *id)
    }

    /// Lets something happen.
    ///
    /// # Errors
    /// [`Rule::Stopped`] if the scheduler panics, or refuses what there is no reason to refuse. The world is of no use then.
    pub fn apply(&mut self, event: Event) -> Result<Scene, Violation> {
        self.calls.set(0);
        PULSE.fetch_add(1, Ordering::Relaxed);
        let planned = match event {
            Event::Arrive { name, alike, prompt: n, max_new_tokens } => {
                self.arrive(name, prompt(alike, n), max_new_tokens)?;
                None
            }
            Event::Cancel { name } => {
                if let Some(id) = self.id(name) {
                    self.ask("cancel", |subject| subject.cancel(id))?;
                }
                None
            }
            Event::Take { pages } => {
                self.take(pages)?;
                None
            }
            Event::GiveBack { pages } => {
                let left = self.strangers.len().saturating_sub(pages);
                let leaving = self.strangers.split_off(left);
                inside("giving a page back", || drop(leaving))?;
                None
            }
            Event::Step => Some(self.step()?),
        };
        let ended = self.collect()?;
        let after = self.look()?;
        let before = std::mem::replace(&mut self.seen, after.clone());
        Ok(Scene { before, planned, after, ended })
    }

    fn arrive(&mut self, name: u32, prompt: Vec<u32>, max_new_tokens: usize) -> Result<(), Violation> {
        if self.texts.len() >= MOST_TEXTS {
            return Ok(());
        }
        let Setup { page_size, n_pages, .. } = self.setup;
        let rows = if max_new_tokens == 0 { 0 } else { prompt.len() + max_new_tokens - 1 };
        let fits = rows.div_ceil(page_size) <= n_pages;
        let asked = prompt.clone();
        let subject = self.subject.as_mut().expect("a world has a scheduler");
        match inside("submit", || subject.submit(asked, max_new_tokens))? {
            Ok(id) => {
                let known = Told { name, prompt, max_new_tokens, told: Vec::new() };
                if self.texts.insert(id, known).is_some() {
                    return Err(Rule::Stopped.broken(format!("two texts have the number {id}")));
                }
                self.came += 1;
                Ok(())
            }
            Err(ScheduleError::NeverFits { .. }) if !fits => Ok(()),
            Err(error) => Err(Rule::Stopped.broken(format!("submit refuses a text that fits: {error}"))),
        }
    }

    fn take(&mut self, pages: usize) -> Result<(), Violation> {
        let (slab, strangers, page_size) = (&self.slab, &mut self.strangers, self.setup.page_size);
        let free = slab.borrow().pool().n_free();
        inside("taking a page", || {
            for _ in 0..pages.min(free) {
                let mut stranger = ForkCache::new(slab)?;
                stranger.extend(page_size)?;
                strangers.push(stranger);
            }
            Ok::<_, CacheError>(())
        })?
        .map_err(|error| Rule::Stopped.broken(format!("a stranger finds no page, though one is free: {error}")))
    }

    /// Plans, reads, settles.
    fn step(&mut self) -> Result<Planned, Violation> {
        self.steps += 1;
        let turns = self.ask("plan", |subject| subject.plan())?;
        let seen = self.look()?;
        let picks = self.read()?;
        for Pick { text, token } in &picks {
            if let Some(known) = self.texts.get_mut(text).filter(|_| *token != END_OF_TEXT) {
                known.told.push(*token);
            }
        }
        self.ask("settle", |subject| subject.settle(&picks))?;
        Ok(Planned { turns, seen })
    }

    /// The texts of the plan read. As in a pass of a model nobody waits for another: all that is read has been there before.
    fn read(&mut self) -> Result<Vec<Pick>, Violation> {
        let subject = self.subject.as_mut().expect("a world has a scheduler");
        inside("readings", || {
            let mut readings = subject.readings();
            let mut picks = Vec::new();
            for reading in &readings {
                let (k, v) = reading.cache.gather(0);
                let first_new = reading.cache.len() - reading.tokens.len();
                let width = LAYOUT.kv_width();
                let held = k.chunks_exact(width).zip(v.chunks_exact(width)).take(first_new);
                let read = held.fold(Read::nothing(), |read, (k, v)| read.row(k, v));
                let new = reading.tokens.iter().zip(first_new..);
                let read = new.fold(read, |read, (token, position)| read.token(*token, position));
                let Turn { text, is_last, .. } = reading.turn;
                picks.extend(is_last.then(|| Pick { text, token: read.next() }));
            }
            for reading in &mut readings {
                let first_new = reading.cache.len() - reading.tokens.len();
                let new: Vec<_> = reading.tokens.iter().zip(first_new..).map(|(token, at)| rows(*token, at)).collect();
                let [k, v] = [0, 1].map(|half| new.iter().flat_map(|row| row[half]).collect::<Vec<f32>>());
                reading.cache.write(0, &k, &v);
            }
            picks
        })
    }

    /// Takes note of the texts that have ended.
    fn collect(&mut self) -> Result<Vec<Ended>, Violation> {
        let subject = self.subject.as_mut().expect("a world has a scheduler");
        let mut ended = Vec::new();
        for finished in inside("take_finished", || subject.take_finished())? {
            let (id, end) = (finished.text.id, finished.end);
            let Some(Told { prompt, max_new_tokens, told, .. }) = self.texts.remove(&id) else {
                return Err(Rule::Stopped.broken(format!("text {id} ends, and is not there")));
            };
            ended.push(Ended { id, prompt, max_new_tokens, told, tokens: finished.text.tokens, end });
        }
        Ok(ended)
    }

    /// Looks at everything.
    fn look(&self) -> Result<Seen, Violation> {
        let subject = self.subject.as_ref().expect("a world has a scheduler");
        let (slab, strangers, texts) = (&self.slab, &self.strangers, &self.texts);
        inside("looking at it", || {
            let slab = slab.borrow();
            let pool = slab.pool();
            let page_ids = (0..pool.n_pages() as u32).map(crate::cache::PageId);
            let mut kept: Vec<_> = subject.prefixes().pages().iter().map(|held| held.page).collect();
            kept.sort_unstable();
            Seen {
                owners: page_ids.map(|page| pool.owners(page).unwrap_or(0)).collect(),
                n_free: pool.n_free(),
                kept,
                strangers: strangers.iter().flat_map(|stranger| stranger.table().pages().to_vec()).collect(),
                running: subject.running(),
                waiting: subject.waiting(),
                alive: texts.keys().copied().collect(),
            }
        })
    }

    /// Asks the scheduler what it has no reason to refuse.
    fn ask<T>(
        &mut self,
        what: &str,
        call: impl FnOnce(&mut dyn Subject) -> Result<T, ScheduleError>,
    ) -> Result<T, Violation> {
        let subject = self.subject.as_mut().expect("a world has a scheduler");
        inside(what, || call(&mut **subject))?.map_err(|error| Rule::Stopped.broken(format!("{what} refuses: {error}")))
    }
}

impl Drop for World {
    /// A scheduler that has panicked may do so again when it goes.
    fn drop(&mut self) {
        let (subject, strangers) = (self.subject.take(), std::mem::take(&mut self.strangers));
        let _ = inside("dropping it", || drop((subject, strangers)));
    }
}

/// Makes a call; a panic in it is a violation.
fn inside<T>(what: &str, call: impl FnOnce() -> T) -> Result<T, Violation> {
    let was = INSIDE.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(call));
    INSIDE.set(was);
    outcome.map_err(|payload| {
        let words = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
        Rule::Stopped.broken(format!("{what} panics: {}", words.unwrap_or("without a word")))
    })
}

/// A prefix cache that stops whoever asks it without end.
struct Bounded {
    inner: Box<dyn Prefixes>,
    calls: Rc<Cell<usize>>,
}

impl Bounded {
    fn note(&self) {
        self.calls.set(self.calls.get() + 1);
        assert!(
            self.calls.get() <= MOST_CALLS,
            "the prefix cache is asked {MOST_CALLS} times for one event: a loop without end"
        );
    }
}

impl Prefixes for Bounded {
    fn lookup(&mut self, text: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError> {
        self.note();
        self.inner.lookup(text, pool)
    }

    fn insert(&mut self, text: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError> {
        self.note();
        self.inner.insert(text, table, pool)
    }

    fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError> {
        self.note();
        self.inner.evict(n, pool)
    }

    fn n_pages(&self) -> usize {
        self.inner.n_pages()
    }

    fn n_evictable(&self, pool: &PagePool) -> usize {
        self.note();
        self.inner.n_evictable(pool)
    }

    fn pages(&self) -> Vec<HeldPage<'_>> {
        self.inner.pages()
    }
}
