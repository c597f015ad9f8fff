//! Grader of chapter 12: the scheduler.

#[cfg(unstarted = "ch12_scheduler")]
#[test]
#[ignore = "not started: edit exercises/ch12_scheduler.rs, or run with --features solution"]
fn ch12_scheduler() {}

#[cfg(not(unstarted = "ch12_scheduler"))]
#[macro_use]
mod support;

#[cfg(not(unstarted = "ch12_scheduler"))]
whose_code! {
    ch04_page_pool = "ch04_page_pool",
    ch05_page_table = "ch05_page_table",
    ch06_paged = "ch06_paged",
    ch07_rewind = "ch07_rewind",
    ch10_fork = "ch10_fork",
    ch11_prefix_cache = "ch11_prefix_cache",
    ch12_scheduler = "ch12_scheduler",
}

/// A scheduler under watch: every step is compared with what can be worked out from outside.
#[cfg(not(unstarted = "ch12_scheduler"))]
mod world {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use page_by_page::cache::{CacheError, KvCache, KvLayout, PageId};
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::PageTable;
    use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
    use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
    use page_by_page::chapters::ch12_scheduler::Scheduler;
    use page_by_page::prefixes::Prefixes;
    use page_by_page::prefixes::none::NoPrefixes;
    use page_by_page::serving::schedule::{
        FinishReason, Finished, NextToken, ScheduleError, ScheduledChunk, Sequence, SequenceCounters, SequenceId,
        StepLimits,
    };

    use crate::support::asking::{asking, granted, made};
    use crate::support::limits;
    use crate::support::words::count;

    /// One layer, and rows of two numbers.
    pub const LAYOUT: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 };

    /// Calls to the prefix cache that one call to the scheduler may make. The largest check needs a tenth of it.
    const MOST_CALLS: usize = 20_000;

    /// The row of a token: which it is, in two halves that `f32` holds exactly, and where it stands.
    fn row(token: u32, position: usize) -> [[f32; 2]; 2] {
        let (low, high) = ((token & 0xFFFF) as f32, (token >> 16) as f32);
        [[low, high], [position as f32, low + 0.5]]
    }

    /// The lowest of the tokens that the model says.
    pub const FIRST_NEW: u32 = 3_000_000_000;

    /// What the model says after a text: it depends on every token and on their order.
    pub fn next_token(tokens: &[u32]) -> u32 {
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        for token in tokens {
            hash = (hash ^ u64::from(*token)).wrapping_mul(0x0000_0100_0000_01b3);
            hash ^= hash >> 29;
        }
        FIRST_NEW + (hash % 20) as u32
    }

    /// The text as it is when nobody else is there, and why it ends.
    pub fn alone(prompt: &[u32], max_new_tokens: usize, end_of_text: &[u32]) -> (Vec<u32>, FinishReason) {
        let mut tokens = prompt.to_vec();
        while tokens.len() - prompt.len() < max_new_tokens {
            let token = next_token(&tokens);
            if end_of_text.contains(&token) {
                return (tokens, FinishReason::EndOfText);
            }
            tokens.push(token);
        }
        (tokens, FinishReason::Limit)
    }

    /// What the scheduler asked of the prefix cache in its last call.
    #[derive(Default)]
    pub struct Log {
        calls: usize,
        call: String,
        /// Tokens of the text, and tokens found.
        lookups: Vec<(usize, usize)>,
        /// Pages asked for, and pages let go.
        pub evictions: Vec<(usize, usize)>,
        /// Tokens of the text, and tokens of the table.
        inserted: Vec<(Vec<u32>, usize)>,
    }

    /// A prefix cache that stops whoever asks it without end, and what was asked.
    pub fn watched(inner: Box<dyn Prefixes>) -> (Box<dyn Prefixes>, Rc<RefCell<Log>>) {
        let log = Rc::new(RefCell::new(Log::default()));
        (Box::new(Watched { inner, log: log.clone() }), log)
    }

    /// Forgets what was asked; the next call is this one.
    pub fn begin(log: &RefCell<Log>, call: &str) {
        *log.borrow_mut() = Log { call: call.into(), ..Log::default() };
    }

    /// A prefix cache, and what is asked of it.
    struct Watched {
        inner: Box<dyn Prefixes>,
        log: Rc<RefCell<Log>>,
    }

    impl Watched {
        fn note(&self) {
            let log = &mut *self.log.borrow_mut();
            log.calls += 1;
            assert!(
                log.calls <= MOST_CALLS,
                "one call of {} has asked the prefix cache {MOST_CALLS} times: does a loop of yours never end?",
                log.call
            );
        }
    }

    impl Prefixes for Watched {
        fn lookup(&mut self, text: &[u32], pool: &mut PagePool) -> Result<PageTable, CacheError> {
            self.note();
            let found = self.inner.lookup(text, pool)?;
            self.log.borrow_mut().lookups.push((text.len(), found.len()));
            Ok(found)
        }

        fn insert(&mut self, text: &[u32], table: &mut PageTable, pool: &mut PagePool) -> Result<(), CacheError> {
            self.note();
            self.log.borrow_mut().inserted.push((text.to_vec(), table.len()));
            self.inner.insert(text, table, pool)
        }

        fn evict(&mut self, n: usize, pool: &mut PagePool) -> Result<usize, CacheError> {
            self.note();
            let evicted = self.inner.evict(n, pool)?;
            self.log.borrow_mut().evictions.push((n, evicted));
            Ok(evicted)
        }

        fn n_pages(&self) -> usize {
            self.inner.n_pages()
        }

        fn n_evictable(&self, pool: &PagePool) -> usize {
            self.note();
            self.inner.n_evictable(pool)
        }
    }

    /// A prefix cache that keeps nothing.
    pub fn keeps_nothing(page_size: usize) -> Box<NoPrefixes> {
        Box::new(NoPrefixes::new(page_size).expect("pages have slots"))
    }

    /// A call to a prefix cache that can fail.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Call {
        Lookup,
        Insert,
        Evict,
    }

    /// A prefix cache that keeps nothing, and fails in one of its calls.
    pub struct Fails {
        pub page_size: usize,
        pub call: Call,
    }

    impl Fails {
        /// What it says when it fails.
        pub const ERROR: CacheError = CacheError::ForeignPage { page: PageId(77), n_pages: 2 };

        fn check(&self, call: Call) -> Result<(), CacheError> {
            if self.call == call { Err(Self::ERROR) } else { Ok(()) }
        }
    }

    impl Prefixes for Fails {
        fn lookup(&mut self, _: &[u32], _: &mut PagePool) -> Result<PageTable, CacheError> {
            self.check(Call::Lookup)?;
            PageTable::new(self.page_size)
        }

        fn insert(&mut self, _: &[u32], _: &mut PageTable, _: &mut PagePool) -> Result<(), CacheError> {
            self.check(Call::Insert)
        }

        fn evict(&mut self, _: usize, _: &mut PagePool) -> Result<usize, CacheError> {
            self.check(Call::Evict)?;
            Ok(0)
        }

        fn n_pages(&self) -> usize {
            0
        }

        fn n_evictable(&self, _: &PagePool) -> usize {
            0
        }
    }

    /// What is handed to `Scheduler::new`.
    #[derive(Clone, Copy, Debug)]
    pub struct Setup {
        pub page_size: usize,
        pub n_pages: usize,
        /// Tokens of a step.
        pub budget: usize,
        /// Texts that run at the same time.
        pub texts: usize,
        pub keeps_prefixes: bool,
    }

    impl Setup {
        /// Pages of 4, and no prefix cache.
        pub fn of(n_pages: usize, budget: usize, texts: usize) -> Self {
            Setup { page_size: 4, n_pages, budget, texts, keeps_prefixes: false }
        }

        pub fn with_prefix_cache(self) -> Self {
            Setup { keeps_prefixes: true, ..self }
        }
    }

    /// Where a text is.
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Stage {
        Waiting,
        Running,
        Ended(FinishReason),
    }

    /// What a text must be by now.
    struct Known {
        tokens: Vec<u32>,
        n_prompt: usize,
        max_new_tokens: usize,
        stage: Stage,
        /// Tokens that its cache holds.
        held: usize,
        counters: SequenceCounters,
    }

    impl Known {
        /// Rows when all of its tokens are read, and the next one if that is ever read.
        fn rows_to_come(&self) -> usize {
            let most = self.n_prompt.saturating_add(self.max_new_tokens - 1);
            most.min(self.tokens.len() + 1)
        }
    }

    /// A text that runs, as the scheduler shows it.
    #[derive(Clone)]
    struct Seen {
        id: u64,
        unread: usize,
        held: usize,
        pages: Vec<PageId>,
    }

    pub struct World {
        pub setup: Setup,
        pub slab: SharedSlab,
        pub scheduler: Scheduler,
        pub log: Rc<RefCell<Log>>,
        end_of_text: Vec<u32>,
        texts: BTreeMap<u64, Known>,
        /// In which run: a seed, say.
        run: String,
        pub steps: usize,
        history: Vec<String>,
        /// Whether rows are written and compared. Without them a step is quick.
        pub with_rows: bool,
    }

    fn id_list(ids: &[u64]) -> String {
        let words: Vec<String> = ids.iter().map(u64::to_string).collect();
        if words.is_empty() { "none".into() } else { words.join(", ") }
    }

    /// `text 0 was`, `texts 0, 1 were`
    fn were(ids: &[u64]) -> String {
        let (noun, verb) = if ids.len() == 1 { ("text", "was") } else { ("texts", "were") };
        format!("{noun} {} {verb}", id_list(ids))
    }

    /// `text 0 reads 4, text 1 reads 2 and its last`
    pub fn told(plan: &[ScheduledChunk]) -> String {
        let turn = |turn: &ScheduledChunk| {
            let last = if turn.caught_up { " +" } else { "" };
            format!("text {} reads {}{last}", turn.sequence, turn.tokens)
        };
        match plan {
            [] => "nobody reads".into(),
            plan => plan.iter().map(turn).collect::<Vec<_>>().join(", "),
        }
    }

    impl World {
        #[track_caller]
        pub fn new(setup: Setup) -> Self {
            Self::of(String::new(), setup, &[])
        }

        #[track_caller]
        pub fn of(run: String, setup: Setup, end_of_text: &[u32]) -> Self {
            let Setup { page_size, n_pages, budget, texts, .. } = setup;
            let slab = made("PageSlab::new of chapter 6", || PageSlab::new(LAYOUT, page_size, n_pages));
            let inner: Box<dyn Prefixes> = if setup.keeps_prefixes {
                Box::new(made("PrefixCache::new of chapter 11", || PrefixCache::new(page_size)))
            } else {
                keeps_nothing(page_size)
            };
            let (watched, log) = watched(inner);
            let limits = StepLimits { tokens: budget, sequences: texts };
            let scheduler = made("Scheduler::new", || Scheduler::new(&slab, watched, limits, end_of_text));
            World {
                setup,
                slab,
                scheduler,
                log,
                end_of_text: end_of_text.to_vec(),
                texts: BTreeMap::new(),
                run,
                steps: 0,
                history: Vec::new(),
                with_rows: true,
            }
        }

        /// Where we are, for a failure.
        pub fn at(&self) -> String {
            let Setup { page_size, n_pages, budget, texts, keeps_prefixes } = self.setup;
            let run = if self.run.is_empty() { String::new() } else { format!("{}, ", self.run) };
            let cached = if keeps_prefixes { "" } else { ", nothing is kept in the prefix cache" };
            let first = self.history.len().saturating_sub(6);
            let history = self.history[first..].join("; ");
            let history = if history.is_empty() { String::new() } else { format!("\n  before: {history}") };
            let pages = count(n_pages, "page");
            format!(
                "{run}step {}: {pages} of {page_size}, budget {budget}, at most {texts} running{cached}{history}",
                self.steps
            )
        }

        fn note(&mut self, what: String) {
            self.history.push(what);
            if self.history.len() > 64 {
                self.history.drain(..32);
            }
        }

        /// Forgets what was asked of the prefix cache; the next call is this one.
        fn begin(&self, call: &str) {
            begin(&self.log, call);
        }

        /// Hands a text in that must be taken.
        #[track_caller]
        pub fn submit(&mut self, prompt: &[u32], max_new_tokens: usize) -> u64 {
            let expected = self.texts.last_key_value().map_or(0, |(id, _)| id + 1);
            let call = format!("submit of {}, {max_new_tokens} new", count(prompt.len(), "token"));
            let what = format!("{call}, {}", self.at());
            self.begin(&call);
            let id = granted(what.clone(), || self.scheduler.submit(prompt.to_vec(), max_new_tokens));
            same!(id, SequenceId(expected), "number of the text after {what}");
            let stage = if max_new_tokens == 0 { Stage::Ended(FinishReason::Limit) } else { Stage::Waiting };
            let known = Known {
                tokens: prompt.to_vec(),
                n_prompt: prompt.len(),
                max_new_tokens,
                stage,
                held: 0,
                counters: SequenceCounters::default(),
            };
            self.texts.insert(expected, known);
            let tokens = count(prompt.len(), "token");
            self.note(format!("text {expected} comes with {tokens} and gets {max_new_tokens} new"));
            if max_new_tokens == 0 {
                self.check_finished(&[expected], &what);
            }
            self.check_all(&what);
            expected
        }

        /// Hands in a text that can never fit.
        #[track_caller]
        pub fn submit_too_long(&mut self, prompt: &[u32], max_new_tokens: usize, needed: usize) {
            let n_pages = self.setup.n_pages;
            let what = format!("submit of {}, {max_new_tokens} new, {}", count(prompt.len(), "token"), self.at());
            let question = asking(&what);
            let found = self.scheduler.submit(prompt.to_vec(), max_new_tokens);
            drop(question);
            let expected = ScheduleError::NeverFits { prompt: prompt.len(), max_new_tokens, needed, n_pages };
            same!(found, Err(expected), "{what}: alone in the pool it would need {}", count(needed, "page"));
            self.check_all(&format!("refused {what}"));
        }

        #[track_caller]
        pub fn cancel(&mut self, id: u64) {
            let what = format!("cancel of text {id}, {}", self.at());
            self.begin("cancel");
            granted(what.clone(), || self.scheduler.cancel(SequenceId(id)));
            if let Some(known) = self.texts.get_mut(&id) {
                known.stage = Stage::Ended(FinishReason::Cancelled);
                known.held = 0;
            }
            self.note(format!("text {id} is cancelled"));
            self.check_finished(&[id], &what);
            self.check_all(&what);
        }

        pub fn ids(&self, wanted: impl Fn(bool) -> bool) -> Vec<u64> {
            let of = self.texts.iter().filter(|(_, known)| match known.stage {
                Stage::Running => wanted(true),
                Stage::Waiting => wanted(false),
                Stage::Ended(_) => false,
            });
            of.map(|(id, _)| *id).collect()
        }

        pub fn running(&self) -> Vec<u64> {
            self.ids(|runs| runs)
        }

        pub fn waiting(&self) -> Vec<u64> {
            self.ids(|runs| !runs)
        }

        /// Texts that have not ended.
        pub fn alive(&self) -> Vec<u64> {
            self.ids(|_| true)
        }

        /// The tokens of a text, as they must be by now.
        pub fn tokens(&self, id: u64) -> &[u32] {
            &self.texts[&id].tokens
        }

        pub fn counters(&self, id: u64) -> SequenceCounters {
            self.texts[&id].counters
        }

        pub fn n_free(&self) -> usize {
            self.slab.borrow().pool().n_free()
        }

        fn seen(&self) -> Vec<Seen> {
            let seen = |(text, table): (&Sequence, &PageTable)| Seen {
                id: text.id.0,
                unread: text.tokens.len() - table.len().min(text.tokens.len()),
                held: table.len(),
                pages: table.pages().to_vec(),
            };
            self.scheduler.running().map(seen).collect()
        }

        /// Pages that are free or that only the prefix cache has.
        pub fn room(&self) -> usize {
            let mut tables = vec![0; self.setup.n_pages];
            for (_, table) in self.scheduler.running() {
                table.pages().iter().for_each(|page| tables[page.index()] += 1);
            }
            // A page without a table has no other owner than the prefix cache.
            tables.iter().filter(|tables| **tables == 0).count()
        }

        /// What the texts that run now are to read, by the rules: (text, tokens), and those that have to wait.
        fn expected_turns(&self) -> (Vec<(u64, usize)>, Vec<u64>) {
            let page_size = self.setup.page_size;
            let mut running = self.seen();
            let (mut room, mut budget) = (self.room(), self.setup.budget);
            let (mut turns, mut preempted) = (Vec::new(), Vec::new());
            let mut place = 0;
            while place < running.len() && budget > 0 {
                let n = running[place].unread.min(budget);
                let needed = (running[place].held + n).div_ceil(page_size) - running[place].pages.len();
                while needed > room && place < running.len() {
                    let Some(newest) = running.pop() else { break };
                    let others: Vec<&PageId> = running.iter().flat_map(|other| &other.pages).collect();
                    room += newest.pages.iter().filter(|page| !others.contains(page)).count();
                    preempted.push(newest.id);
                }
                if place == running.len() {
                    break;
                }
                room -= needed;
                budget -= n;
                turns.push((running[place].id, n));
                place += 1;
            }
            (turns, preempted)
        }

        /// Plans a step and looks at the plan from all sides.
        #[track_caller]
        pub fn plan(&mut self) -> Vec<ScheduledChunk> {
            limits::alive();
            self.steps += 1;
            let at = self.at();
            let before = self.seen();
            let (expected, preempted) = self.expected_turns();
            let (room, free) = (self.room(), self.n_free());
            let alive = self.alive();
            self.begin("plan");
            let plan = granted(format!("plan, {at}"), || self.scheduler.plan());
            let _asking = asking(format!("after plan, {at}"));
            let said = format!("the plan: {}\n  {at}", told(&plan));
            let after = self.seen();

            // Of the parts of the proof that nobody starves, one after the other.
            let ids: Vec<u64> = after.iter().map(|seen| seen.id).collect();
            assert!(ids.is_sorted(), "the texts that run are not in the order of arrival: {}; {said}", id_list(&ids));
            let waiting: Vec<u64> = self.scheduler.waiting().map(|text| text.id.0).collect();
            let gone: Vec<u64> = before.iter().map(|seen| seen.id).filter(|id| !ids.contains(id)).rev().collect();
            self.check_spared(&after, &gone, &waiting, &preempted, (room, free), &said);
            assert!(
                waiting.is_sorted(),
                "the texts that wait are not in the order of arrival: {}; {said}",
                id_list(&waiting)
            );
            if let (Some(runs), Some(waits)) = (ids.last(), waiting.first()) {
                assert!(runs < waits, "text {waits} waits, and text {runs}, which came later, runs; {said}");
            }
            if let Some(oldest) = alive.first() {
                let was_running = before.first().is_some_and(|seen| seen.id == *oldest);
                assert!(
                    ids.first() == Some(oldest) || !was_running,
                    "text {oldest} is the oldest, and was preempted: the newest is to go first; {said}"
                );
                let reads = plan.iter().any(|turn| turn.sequence.0 == *oldest && turn.tokens > 0);
                assert!(reads, "text {oldest} is the oldest, and reads nothing in this step; {said}");
            }
            for turn in &plan {
                assert!(
                    ids.contains(&turn.sequence.0),
                    "text {} is in the plan, and has no pages: it was preempted, or has ended; {said}",
                    turn.sequence
                );
                assert!(turn.tokens > 0, "text {} is in the plan with no token; {said}", turn.sequence);
            }
            let order: Vec<u64> = plan.iter().map(|turn| turn.sequence.0).collect();
            assert!(
                order.is_sorted_by(|a, b| a < b),
                "the plan does not go from the oldest text to the newest, each once; {said}"
            );
            let sum = plan.iter().fold(0_usize, |sum, turn| sum.saturating_add(turn.tokens));
            let budget = self.setup.budget;
            assert!(sum <= budget, "the plan reads {sum} tokens, and the budget is {budget}; {said}");
            let again: Vec<u64> = self.again(&after);
            assert!(again.is_empty(), "{} preempted and let in again in the same step; {said}", were(&again));
            let ran: Vec<(u64, usize)> = plan
                .iter()
                .map(|turn| (turn.sequence.0, turn.tokens))
                .filter(|(id, _)| before.iter().any(|seen| seen.id == *id))
                .collect();
            let states: Vec<String> = before
                .iter()
                .map(|seen| {
                    let (unread, pages) = (count(seen.unread, "token"), count(seen.pages.len(), "page"));
                    format!("text {} had {unread} unread, {pages}", seen.id)
                })
                .collect();
            let states = format!(
                "{}; the pool had {} free, and the prefix cache alone had {}",
                states.join(", "),
                count(free, "page"),
                count(room - free, "page")
            );
            same!(
                (gone, ran),
                (preempted.clone(), expected),
                "(texts preempted, newest first; (text, tokens it reads) of those that ran before)\n  {states}\n  {said}"
            );
            let came: Vec<u64> = ids.iter().copied().filter(|id| before.iter().all(|seen| seen.id != *id)).collect();
            self.check_admitted(&came, &preempted, sum, &plan, &after, &said);
            self.check_early_insertions(&said);
            for turn in &plan {
                let seen = after.iter().find(|seen| seen.id == turn.sequence.0);
                let Some(seen) = seen else { continue };
                let known = self.texts.get_mut(&seen.id);
                let known = known.unwrap_or_else(|| panic!("text {} is in the plan and never came; {said}", seen.id));
                let found = if came.contains(&seen.id) { seen.held.wrapping_sub(turn.tokens) } else { 0 };
                let held = if came.contains(&seen.id) { found } else { known.held };
                same!(
                    seen.held,
                    held.wrapping_add(turn.tokens),
                    "tokens that the cache of text {} has room for, {held} held before and {} read in this step; {said}",
                    seen.id,
                    turn.tokens
                );
                let caught_up = seen.held == known.tokens.len();
                same!(
                    turn.caught_up,
                    caught_up,
                    "caught_up of text {}, which has then read {} of {}; {said}",
                    seen.id,
                    seen.held,
                    count(known.tokens.len(), "token")
                );
                if came.contains(&seen.id) {
                    let first_time = known.counters.computed == 0;
                    known.stage = Stage::Running;
                    if first_time {
                        known.counters.cached += found;
                    } else {
                        known.counters.cached_again += found;
                    }
                }
                known.held = seen.held;
                known.counters.computed += turn.tokens as u64;
            }
            for id in &preempted {
                if let Some(known) = self.texts.get_mut(id) {
                    known.stage = Stage::Waiting;
                    known.held = 0;
                    known.counters.preemptions += 1;
                }
            }
            let step = self.steps;
            let out = if preempted.is_empty() { String::new() } else { format!(", preempted {}", id_list(&preempted)) };
            self.note(format!("step {step}: {}{out}", told(&plan)));
            self.check_all(said.trim_start_matches("the "));
            plan
        }

        /// Nobody had to go, and nothing was evicted, that could have stayed.
        #[track_caller]
        fn check_spared(
            &self,
            after: &[Seen],
            gone: &[u64],
            waiting: &[u64],
            preempted: &[u64],
            (room, free): (usize, usize),
            said: &str,
        ) {
            let evicted: usize = self.log.borrow().evictions.iter().map(|(_, got)| got).sum();
            let left = self.n_free();
            assert!(
                evicted == 0 || left == 0 || !gone.is_empty(),
                "plan has evicted {} from the prefix cache, and the pool has {} free after it: no more are to be \
                 evicted than are missing; {said}",
                count(evicted, "page"),
                count(left, "page")
            );
            let again = self.again(after);
            let went: Vec<u64> = gone.iter().chain(&again).copied().collect();
            let too_many: Vec<u64> = went.iter().copied().filter(|id| !preempted.contains(id)).collect();
            let waits = gone.iter().all(|id| waiting.contains(id));
            if !waits || too_many.is_empty() || !preempted.iter().all(|id| went.contains(id)) {
                return;
            }
            let came_back = if again.is_empty() { "" } else { " and let in again in the same step" };
            let with = match preempted {
                [] => String::new(),
                preempted => format!(", with those that text {} had and gives back", id_list(preempted)),
            };
            panic!(
                "{} preempted{came_back}, though the pages suffice{with}: the pool had {} free, and {} could be evicted; \
                 {said}",
                were(&too_many),
                count(free, "page"),
                room - free
            );
        }

        /// Texts that run and have been preempted since the last plan.
        fn again(&self, after: &[Seen]) -> Vec<u64> {
            let runs = |id: &u64| after.iter().any(|seen| seen.id == *id);
            let counted = self.scheduler.running().filter(|(text, _)| {
                self.texts.get(&text.id.0).is_some_and(|known| text.counters.preemptions > known.counters.preemptions)
            });
            counted.map(|(text, _)| text.id.0).filter(runs).collect()
        }

        #[track_caller]
        fn check_admitted(
            &self,
            came: &[u64],
            preempted: &[u64],
            sum: usize,
            plan: &[ScheduledChunk],
            after: &[Seen],
            said: &str,
        ) {
            let Setup { page_size, n_pages, budget, texts, .. } = self.setup;
            let running = after.len();
            assert!(running <= texts, "{} run, and at most {texts} may; {said}", count(running, "text"));
            assert!(
                came.is_empty() || preempted.is_empty(),
                "{} let in, in a step in which {} had to go; {said}",
                were(came),
                id_list(preempted)
            );
            let room = self.room();
            let free = self.n_free();
            let evictable = room.saturating_sub(free);
            let to_go = |id: u64, pages: usize| {
                self.texts.get(&id).map_or(0, |known| known.rows_to_come().div_ceil(page_size).saturating_sub(pages))
            };
            let mut left = budget
                - (sum - plan.iter().filter(|turn| came.contains(&turn.sequence.0)).map(|t| t.tokens).sum::<usize>());
            for id in came {
                let turn = plan.iter().find(|turn| turn.sequence.0 == *id);
                let held = after.iter().find(|seen| seen.id == *id).map_or(0, |seen| seen.held);
                let turn = turn.unwrap_or_else(|| panic!("text {id} was let in and reads nothing; {said}"));
                let (tokens, reads) = (self.texts[id].tokens.len(), turn.tokens);
                let found = held.wrapping_sub(reads);
                assert!(
                    found < tokens && found.is_multiple_of(page_size),
                    "text {id} has {}, and begins with {found} that it need not read; {said}",
                    count(tokens, "token")
                );
                let log = self.log.borrow();
                assert!(
                    log.lookups.contains(&(tokens, found)),
                    "text {id} begins with {} that it need not read, and has {tokens}; the prefix cache was asked about \
                     (tokens, found) {:?}; {said}",
                    count(found, "token"),
                    log.lookups
                );
                same!(
                    reads,
                    left.min(tokens - found),
                    "tokens that text {id} reads: it was let in with {}, {found} of them found, and {left} of the budget \
                     left; {said}",
                    count(tokens, "token")
                );
                left -= reads;
            }
            if !came.is_empty() {
                let needed: usize = after.iter().map(|seen| to_go(seen.id, seen.pages.len())).sum();
                assert!(
                    needed <= room,
                    "{} let in, and then the texts that run need {} more to read all of their tokens and \
                     the next one, and {room} of {n_pages} can be had ({free} free, {evictable} to evict); {said}",
                    were(came),
                    count(needed, "page")
                );
            }
            let Some(head) = self.waiting().into_iter().find(|id| !came.contains(id)) else { return };
            if left == 0 || running == texts || !preempted.is_empty() {
                return;
            }
            let shared = self.shared_pages(head, after);
            let needed = to_go(head, shared) + after.iter().map(|seen| to_go(seen.id, seen.pages.len())).sum::<usize>();
            let beside = match shared {
                0 => String::new(),
                shared => {
                    format!(", beside {} that texts that run have, too, and that it finds", count(shared, "page"))
                }
            };
            assert!(
                needed > room,
                "text {head} is the first that waits and is not let in, although {left} of the budget {} left, \
                 {running} of at most {} {}, and all of its tokens and the next one fit: it and those that run need \
                 {} more{beside}, and {room} can be had ({free} free, {evictable} to evict); {said}",
                if left == 1 { "is" } else { "are" },
                count(texts, "text"),
                if running == 1 { "runs" } else { "run" },
                count(needed, "page")
            );
        }

        /// Pages that a text that waits finds, and that one that runs has as well: they take no room.
        fn shared_pages(&self, id: u64, after: &[Seen]) -> usize {
            if !self.setup.keeps_prefixes {
                return 0;
            }
            let tokens = &self.texts[&id].tokens;
            let alike = |seen: &Seen| {
                // What it held before this step is kept.
                let known = &self.texts[&seen.id];
                let kept = if known.stage == Stage::Running { known.held } else { 0 };
                let alike = tokens.iter().zip(&known.tokens[..kept]).take_while(|(a, b)| a == b).count();
                alike.min(tokens.len() - 1) / self.setup.page_size
            };
            after.iter().map(alike).max().unwrap_or(0)
        }

        /// Pages may be kept when their rows are computed, and not before.
        #[track_caller]
        fn check_early_insertions(&self, said: &str) {
            let page_size = self.setup.page_size;
            for (tokens, len) in &self.log.borrow().inserted {
                let full = len / page_size * page_size;
                let computed =
                    self.texts.values().filter(|known| known.tokens == *tokens).map(|known| known.held).max();
                assert!(
                    full <= computed.unwrap_or(0),
                    "plan gave pages with {} to the prefix cache, whose rows are not computed yet; {said}",
                    count(full, "token")
                );
            }
        }

        /// The model's part: reads what the plan says, and returns the tokens that come next.
        #[track_caller]
        pub fn read(&mut self, plan: &[ScheduledChunk]) -> Vec<NextToken> {
            let at = self.at();
            let question = asking(format!("readings, {at}"));
            let readings = self.scheduler.inputs();
            drop(question);
            let turns: Vec<ScheduledChunk> = readings.iter().map(|reading| reading.chunk).collect();
            same!(turns, plan, "turns of the readings, {at}");
            let mut picks = Vec::new();
            for reading in readings {
                let id = reading.chunk.sequence.0;
                let known = &self.texts[&id];
                let held = reading.cache.len();
                let read = held - reading.chunk.tokens..held;
                same!(
                    reading.tokens,
                    &known.tokens[read.clone()],
                    "tokens that text {id} reads: those from position {} on, {at}",
                    read.start
                );
                if self.with_rows {
                    let rows: Vec<_> =
                        reading.tokens.iter().zip(read.clone()).map(|(token, at)| row(*token, at)).collect();
                    let [k, v] = [0, 1].map(|kind| rows.iter().flat_map(|row| row[kind]).collect::<Vec<f32>>());
                    let question = asking(format!("write of the rows of text {id}, {at}"));
                    reading.cache.write(0, &k, &v);
                    drop(question);
                    let question = asking(format!("gather of text {id}, {at}"));
                    let (k, v) = reading.cache.gather(0);
                    drop(question);
                    same!(
                        k.len(),
                        2 * held,
                        "numbers that the cache of text {id} gathers, {} held, {at}",
                        count(held, "token")
                    );
                    for (position, (k, v)) in k.chunks(2).zip(v.chunks(2)).enumerate() {
                        let [keys, values] = row(known.tokens[position], position);
                        assert!(
                            k == keys && v == values,
                            "text {id}, row {position}: expected that of token {} at position {position}, found that of \
                             token {} at position {}, {at}",
                            known.tokens[position],
                            k[0] as u32 + ((k[1] as u32) << 16),
                            v[0]
                        );
                    }
                }
                if reading.chunk.caught_up {
                    picks.push(NextToken { sequence: reading.chunk.sequence, token: next_token(&known.tokens) });
                }
            }
            picks
        }

        /// Hands the tokens in and looks at what became of them.
        #[track_caller]
        pub fn settle(&mut self, picks: &[NextToken]) {
            let at = self.at();
            let told: Vec<String> =
                picks.iter().map(|pick| format!("{} for text {}", pick.token, pick.sequence)).collect();
            let told = if told.is_empty() { "no tokens".into() } else { format!("the tokens {}", told.join(", ")) };
            let what = format!("settle with {told}; {at}");
            self.begin("settle");
            granted(what.clone(), || self.scheduler.settle(picks));
            let mut ended = Vec::new();
            for pick in picks {
                let id = pick.sequence.0;
                let Some(known) = self.texts.get_mut(&id) else { continue };
                if self.end_of_text.contains(&pick.token) {
                    known.stage = Stage::Ended(FinishReason::EndOfText);
                } else {
                    known.tokens.push(pick.token);
                    if known.tokens.len() == known.n_prompt + known.max_new_tokens {
                        known.stage = Stage::Ended(FinishReason::Limit);
                    }
                }
                if let Stage::Ended(end) = &known.stage {
                    known.held = 0;
                    ended.push(id);
                    let words = format!("text {id} ends: {end:?}");
                    self.note(words);
                }
            }
            self.check_finished(&ended, &what);
            self.check_all(&what);
        }

        /// A whole step.
        #[track_caller]
        pub fn step(&mut self) -> Vec<ScheduledChunk> {
            let plan = self.plan();
            let picks = self.read(&plan);
            self.settle(&picks);
            plan
        }

        /// Steps until all have ended; how many there were.
        #[track_caller]
        pub fn run(&mut self, most_steps: usize) -> usize {
            let begin = self.steps;
            while !self.alive().is_empty() {
                assert!(
                    self.steps - begin < most_steps,
                    "after {most_steps} steps these texts have not ended: {}; {}",
                    id_list(&self.alive()),
                    self.at()
                );
                self.step();
            }
            self.steps - begin
        }

        /// The texts that have ended with this call, and no others.
        #[track_caller]
        fn check_finished(&mut self, ended: &[u64], what: &str) {
            let question = asking(format!("take_finished after {what}"));
            let finished = self.scheduler.take_finished();
            drop(question);
            let ids: Vec<u64> = finished.iter().map(|finished| finished.sequence.id.0).collect();
            same!(ids, ended, "texts that have ended with the {what}");
            for Finished { sequence: text, reason: end } in &finished {
                let known = &self.texts[&text.id.0];
                same!(Stage::Ended(*end), known.stage, "why text {} ended, after the {what}", text.id);
                check_text(text, known, what);
            }
        }

        /// Where the texts are, what they hold and have cost, and who owns which page.
        #[track_caller]
        pub fn check_all(&self, what: &str) {
            let waiting: Vec<u64> = self.scheduler.waiting().map(|text| text.id.0).collect();
            same!(waiting, self.waiting(), "texts that wait, after the {what}");
            let running: Vec<u64> = self.scheduler.running().map(|(text, _)| text.id.0).collect();
            same!(running, self.running(), "texts that run, after the {what}");
            for text in self.scheduler.waiting() {
                check_text(text, &self.texts[&text.id.0], what);
            }
            let page_size = self.setup.page_size;
            let mut owners = vec![0; self.setup.n_pages];
            for (text, table) in self.scheduler.running() {
                let known = &self.texts[&text.id.0];
                check_text(text, known, what);
                same!(table.len(), known.held, "tokens that the cache of text {} holds, after the {what}", text.id);
                let pages = table.pages();
                same!(
                    pages.len(),
                    known.held.div_ceil(page_size),
                    "pages of text {}, {} held, after the {what}",
                    text.id,
                    count(known.held, "token")
                );
                pages.iter().for_each(|page| owners[page.index()] += 1);
            }
            let slab = self.slab.borrow();
            let mut kept = 0;
            for (page, tables) in owners.iter().enumerate() {
                let found = slab.pool().owners(PageId(page as u32)).unwrap_or(0) as usize;
                let one_more = usize::from(self.setup.keeps_prefixes);
                assert!(
                    found == *tables || found == tables + one_more,
                    "page {page} has {}, and is in the {} that run, after the {what}: a text that has no pages any more \
                     has kept some, or one that was not let in, or one has let go of its own twice",
                    count(found, "owner"),
                    if *tables == 1 { "table of 1 text".into() } else { format!("tables of {tables} texts") }
                );
                kept += found - tables;
            }
            same!(
                self.scheduler.prefixes().n_pages(),
                kept,
                "pages of the prefix cache; as many have one owner more than there are tables with them, after the {what}"
            );
        }

        /// When all have ended: every page is free or the prefix cache's, and each text is the one told alone.
        #[track_caller]
        pub fn check_end(&self) {
            let at = self.at();
            same!(
                self.n_free() + self.scheduler.prefixes().n_pages(),
                self.setup.n_pages,
                "pages that are free or the prefix cache's when all texts have ended, {at}"
            );
            for (id, known) in &self.texts {
                if matches!(known.stage, Stage::Ended(FinishReason::EndOfText | FinishReason::Limit)) {
                    let (tokens, end) = alone(&known.tokens[..known.n_prompt], known.max_new_tokens, &self.end_of_text);
                    same!(
                        (&known.tokens, &known.stage),
                        (&tokens, &Stage::Ended(end)),
                        "text {id}, which must be the one told alone, {at}"
                    );
                }
            }
        }
    }

    #[track_caller]
    fn check_text(text: &Sequence, known: &Known, what: &str) {
        let id = text.id;
        if text.tokens != known.tokens {
            same!(text.tokens, known.tokens, "tokens of text {id}, after the {what}");
        }
        same!(
            (text.n_prompt, text.max_new_tokens),
            (known.n_prompt, known.max_new_tokens),
            "(n_prompt, max_new_tokens) of text {id}, after the {what}"
        );
        same!(text.counters, known.counters, "counters of text {id}, after the {what}");
    }
}

#[cfg(not(unstarted = "ch12_scheduler"))]
mod checks {
    use page_by_page::cache::KvCache;
    use page_by_page::cache::in_place::CacheRef;
    use page_by_page::chapters::ch06_paged::PageSlab;
    use page_by_page::chapters::ch10_fork::ForkCache;
    use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
    use page_by_page::chapters::ch12_scheduler::Scheduler;
    use page_by_page::decode::sampler::Sampler;
    use page_by_page::model::LogitRows;
    use page_by_page::serving::schedule::{
        FinishReason, NextToken, ScheduleError, ScheduledChunk, Sequence, SequenceCounters, SequenceId, StepLimits,
    };
    use page_by_page::workload::serving::TINY_LLM;

    use super::world::{
        Call, FIRST_NEW, Fails, LAYOUT, Setup, World, alone, begin, keeps_nothing, next_token, told, watched,
    };
    use crate::support::asking::{asking, granted, made};
    use crate::support::limits::{self, often};
    use crate::support::oracle::{Dice, seeds};
    use crate::support::story::{SAMPLING, Storyteller};
    use crate::support::transcript::{Transcript, assert_transcript};
    use crate::support::words::count;

    /// So many tokens that no other text begins with.
    fn prompt(name: u32, n: usize) -> Vec<u32> {
        (0..n as u32).map(|token| 1000 * (name + 1) + token).collect()
    }

    /// A plan, short: (text, tokens, caught_up).
    fn short(plan: &[ScheduledChunk]) -> Vec<(u64, usize, bool)> {
        plan.iter().map(|turn| (turn.sequence.0, turn.tokens, turn.caught_up)).collect()
    }

    /// A token that the text chooses as its `n`th new one and not before: as an end of text it ends it there.
    fn nth_new(prompt: &[u32], n: usize) -> u32 {
        let (tokens, _) = alone(prompt, n, &[]);
        let token = tokens[tokens.len() - 1];
        let before = &tokens[prompt.len()..tokens.len() - 1];
        assert!(!before.contains(&token), "the example is badly chosen: {token} comes twice");
        token
    }

    // Task 1

    #[test]
    fn task_1_texts_wait_in_the_order_in_which_they_come() {
        let mut world = World::new(Setup::of(3, 8, 2));
        for (name, tokens, most) in [(0, 5, 3), (1, 1, 1), (2, 9, 4)] {
            world.submit(&prompt(name, tokens), most);
        }
        let waiting: Vec<(u64, usize, usize, usize)> = world
            .scheduler
            .waiting()
            .map(|text: &Sequence| (text.id.0, text.tokens.len(), text.n_prompt, text.max_new_tokens))
            .collect();
        same!(
            waiting,
            [(0, 5, 5, 3), (1, 1, 1, 1), (2, 9, 9, 4)],
            "(text, tokens, n_prompt, max_new_tokens) of those that wait, after three calls of submit"
        );
        same!(world.scheduler.running().count(), 0, "texts that run before the first plan");
        same!(world.n_free(), 3, "free pages of 3 before the first plan");
        for text in world.scheduler.waiting() {
            same!(text.counters, SequenceCounters::default(), "counters of text {} before the first plan", text.id);
            same!(text.new_tokens(), [0; 0], "new tokens of text {} before the first plan", text.id);
        }
    }

    #[test]
    fn task_1_a_prompt_without_tokens_is_refused() {
        let mut world = World::new(Setup::of(3, 8, 2));
        world.submit(&prompt(0, 5), 3);
        for most in [0, 1, usize::MAX] {
            let what = format!("submit of no tokens, {most} new");
            let question = asking(&what);
            let found = world.scheduler.submit(Vec::new(), most);
            drop(question);
            same!(found, Err(ScheduleError::NoPrompt), "{what}");
            world.check_all(&what);
        }
        same!(world.submit(&prompt(1, 5), 3), 1, "number of the next text: those that were refused have none");
    }

    #[test]
    fn task_1_what_can_never_fit_is_refused_at_once() {
        let mut world = World::new(Setup::of(3, 8, 2));
        // All tokens but the newest take a slot; there are 12.
        for (tokens, most) in [(1, 12), (12, 1), (11, 2), (6, 7)] {
            world.submit(&prompt(9, tokens), most);
        }
        for (tokens, most, needed) in [
            (1, 13, 4),
            (13, 1, 4),
            (12, 2, 4),
            (6, 8, 4),
            (16, 1, 4),
            (16, 2, 5),
            (100, 100, 50),
            (4, 1 << 32, (1 << 30) + 1),
            (1, usize::MAX, (usize::MAX).div_ceil(4)),
            (2, usize::MAX, (usize::MAX).div_ceil(4)),
            (50, usize::MAX, (usize::MAX).div_ceil(4)),
        ] {
            world.submit_too_long(&prompt(0, tokens), most, needed);
        }
        same!(world.submit(&prompt(1, 5), 3), 4, "number of the next text: those that were refused have none");
    }

    #[test]
    fn task_1_pages_of_one_slot_are_counted_too() {
        let mut world = World::new(Setup { page_size: 1, ..Setup::of(7, 8, 2) });
        world.submit(&prompt(0, 5), 3);
        world.submit_too_long(&prompt(1, 5), 4, 8);
        world.submit_too_long(&prompt(1, 5), usize::MAX, usize::MAX);
    }

    #[test]
    fn task_1_a_text_that_is_to_get_nothing_has_ended_at_once() {
        let mut world = World::new(Setup::of(3, 8, 2));
        world.submit(&prompt(0, 5), 0);
        // It takes no page, so it fits whatever its length.
        world.submit(&prompt(1, 500), 0);
        world.submit(&prompt(2, 5), 1);
        same!(world.waiting(), [2], "texts that wait: one that is to get no new token does not");
    }

    #[test]
    fn task_1_more_texts_than_a_small_number_counts() {
        let n = if cfg!(miri) { 300 } else { 70_000 };
        let mut scheduler = scheduler(Setup::of(3, 8, 2));
        often("submit, with more and more texts in the queue", n, |number| {
            let id = scheduler.submit(vec![1, 2, 3], 2);
            if id != Ok(SequenceId(number as u64)) {
                same!(id, Ok(SequenceId(number as u64)), "number of the text that is the {number}th to come");
            }
        });
        same!(scheduler.waiting().count(), n, "texts that wait, after {n} calls of submit");
    }

    /// A scheduler that is not watched.
    #[track_caller]
    fn scheduler(setup: Setup) -> Scheduler {
        let Setup { page_size, n_pages, budget, texts, .. } = setup;
        let slab = made("PageSlab::new of chapter 6", || PageSlab::new(LAYOUT, page_size, n_pages));
        let limits = StepLimits { tokens: budget, sequences: texts };
        made("Scheduler::new", || Scheduler::new(&slab, keeps_nothing(page_size), limits, &[]))
    }

    #[test]
    fn given_a_step_needs_tokens_and_texts() {
        let slab = made("PageSlab::new of chapter 6", || PageSlab::new(LAYOUT, 4, 3));
        for (tokens, texts) in [(0, 1), (1, 0), (0, 0)] {
            let limits = StepLimits { tokens, sequences: texts };
            let found = Scheduler::new(&slab, keeps_nothing(4), limits, &[]).err();
            same!(found, Some(ScheduleError::NoStep(limits)), "Scheduler::new with {limits:?}");
        }
    }

    // Task 2

    #[test]
    fn task_2_nobody_is_there() {
        let mut world = World::new(Setup::of(3, 8, 2));
        for _ in 0..3 {
            same!(world.plan(), [], "the plan when no text is there");
        }
        same!(world.scheduler.inputs().len(), 0, "readings when no text is there");
    }

    #[test]
    fn task_2_a_prompt_is_read_as_far_as_the_budget_goes() {
        for (budget, n, caught_up) in [(1, 1, false), (4, 4, false), (9, 9, false), (10, 10, true), (11, 10, true)] {
            let mut world = World::new(Setup::of(4, budget, 2));
            world.submit(&prompt(0, 10), 3);
            same!(short(&world.plan()), [(0, n, caught_up)], "the plan for a prompt of 10 tokens, budget {budget}");
            same!(
                world.n_free(),
                4 - n.div_ceil(4),
                "free pages of 4 beside room for {}, page size 4",
                count(n, "token")
            );
            let plan = [ScheduledChunk { sequence: SequenceId(0), tokens: n, caught_up }];
            same!(world.read(&plan).len(), usize::from(caught_up), "tokens that are asked for, {n} of 10 read");
        }
    }

    #[test]
    fn task_2_the_budget_is_shared_oldest_first() {
        let mut world = World::new(Setup::of(10, 12, 4));
        for (name, tokens) in [(0, 4), (1, 5), (2, 6), (3, 1)] {
            world.submit(&prompt(name, tokens), 2);
        }
        let plan = world.plan();
        same!(
            short(&plan),
            [(0, 4, true), (1, 5, true), (2, 3, false)],
            "the plan for prompts of 4, 5, 6 and 1 tokens, budget 12"
        );
        same!(world.waiting(), [3], "texts that wait when the budget is used up");
        world.read(&plan);
    }

    #[test]
    fn task_2_a_budget_that_just_suffices_lets_nobody_else_in() {
        let mut world = World::new(Setup::of(10, 9, 4));
        for (name, tokens) in [(0, 4), (1, 5), (2, 6)] {
            world.submit(&prompt(name, tokens), 2);
        }
        same!(short(&world.plan()), [(0, 4, true), (1, 5, true)], "the plan for prompts of 4, 5 and 6, budget 9");
        same!(world.waiting(), [2], "texts that wait: one that reads nothing in this step has no use for a place yet");
    }

    #[test]
    fn task_2_no_more_texts_run_than_may() {
        for most in [1, 2, 3] {
            let mut world = World::new(Setup::of(10, 100, most));
            for name in 0..4 {
                world.submit(&prompt(name, 3), 2);
            }
            same!(world.plan().len(), most, "turns of the plan when {} may run and four want to", count(most, "text"));
        }
    }

    #[test]
    fn task_2_a_budget_without_end() {
        let mut world = World::new(Setup::of(10, usize::MAX, usize::MAX));
        for name in 0..3 {
            world.submit(&prompt(name, 5), 2);
        }
        same!(world.plan().len(), 3, "turns of the plan, budget usize::MAX");
    }

    #[test]
    fn task_2_a_text_is_let_in_when_all_of_it_fits() {
        // (pages, tokens and new tokens of text 0 and of text 1, whether both are let in at once)
        for (n_pages, first, second, both) in [
            (5, (8, 5), (4, 5), true),  // 9 rows and 5: 3 pages and 2
            (4, (8, 5), (4, 5), false), // one page less
            (4, (8, 1), (8, 1), true),  // 8 rows and 8: no token of theirs is read
            (3, (8, 1), (8, 1), false),
            (4, (8, 2), (8, 1), false), // 9 rows and 8
            (4, (7, 5), (7, 5), true),  // 8 rows and 8: the next token still has a slot
            (4, (7, 5), (8, 2), false),
            (2, (3, 4), (3, 4), true),
            (2, (1, 8), (4, 1), true),
            (2, (1, 8), (4, 2), false),
        ] {
            let mut world = World::new(Setup::of(n_pages, 100, 4));
            for (name, (tokens, most)) in [(0, first), (1, second)] {
                world.submit(&prompt(name, tokens), most);
            }
            let plan = world.plan();
            same!(
                plan.len(),
                1 + usize::from(both),
                "texts that are let in at once, of two with (tokens, new) {first:?} and {second:?}, {} of 4",
                count(n_pages, "page")
            );
        }
    }

    /// One that asks for a slot for every token and one more is never let in if its last token is never read.
    #[test]
    fn task_2_a_text_that_just_fits_is_let_in() {
        for (tokens, most) in [(8, 1), (7, 2), (1, 8), (5, 4)] {
            let mut world = World::new(Setup::of(2, 100, 4));
            world.submit(&prompt(0, tokens), most);
            same!(
                short(&world.plan()),
                [(0, tokens, true)],
                "the plan for {} and {most} new, which take all 8 slots of 2 pages",
                count(tokens, "token")
            );
        }
    }

    #[test]
    fn task_2_nobody_overtakes() {
        let mut world = World::new(Setup::of(4, 100, 4));
        world.submit(&prompt(0, 8), 5);
        world.submit(&prompt(1, 8), 5);
        world.submit(&prompt(2, 2), 1);
        same!(
            short(&world.plan()),
            [(0, 8, true)],
            "the plan: text 1 does not fit, and text 2, which would, came later"
        );
        same!(world.waiting(), [1, 2], "texts that wait");
    }

    /// Two pages are free, and the prefix cache has two that nobody uses.
    #[test]
    fn task_2_pages_that_can_be_evicted_are_room() {
        let slab = made("PageSlab::new of chapter 6", || PageSlab::new(LAYOUT, 4, 4));
        let mut prefixes = made("PrefixCache::new of chapter 11", || PrefixCache::new(4));
        let kept = prompt(9, 8);
        let mut cache = made("ForkCache::new of chapter 10", || ForkCache::new(&slab));
        granted("extend(8) of chapter 10, with 4 pages of 4", || cache.extend(8));
        granted("insert_into of chapter 11, 8 tokens", || cache.insert_into(&mut prefixes, &kept));
        drop(cache);
        let (prefixes, _log) = watched(Box::new(prefixes));
        let limits = StepLimits { tokens: 8, sequences: 4 };
        let mut scheduler = made("Scheduler::new", || Scheduler::new(&slab, prefixes, limits, &[]));
        granted("submit of 12 tokens, 1 new", || scheduler.submit(prompt(0, 12), 1));
        same!(
            short(&granted("plan, 2 pages free and 2 that can be evicted", || scheduler.plan())),
            [(0, 8, false)],
            "the plan, budget 8: text 0 needs 3 pages for its 12 tokens, 2 are free, and 2 more can be evicted"
        );
    }

    /// Calls `plan` and `settle` until one refuses, with a prefix cache that fails in one of its calls; who refused, and why.
    fn until_refused(call: Call) -> Option<(&'static str, ScheduleError)> {
        // Each text takes one page of two, and wants a second for its fifth row.
        let slab = made("PageSlab::new of chapter 6", || PageSlab::new(LAYOUT, 4, 2));
        let (prefixes, log) = watched(Box::new(Fails { page_size: 4, call }));
        let limits = StepLimits { tokens: 100, sequences: 4 };
        let mut scheduler = made("Scheduler::new", || Scheduler::new(&slab, prefixes, limits, &[]));
        for name in [0, 1] {
            granted("submit of 3 tokens, 5 new", || scheduler.submit(prompt(name, 3), 5));
        }
        for step in 1..5 {
            let _asking = asking(format!("step {step}, with a prefix cache that fails in {call:?}"));
            begin(&log, "plan or settle");
            let plan = match scheduler.plan() {
                Ok(plan) => plan,
                Err(error) => return Some(("plan", error)),
            };
            let last = plan.iter().filter(|turn| turn.caught_up);
            let picks: Vec<NextToken> = last.map(|turn| NextToken { sequence: turn.sequence, token: 5 }).collect();
            if let Err(error) = scheduler.settle(&picks) {
                return Some(("settle", error));
            }
        }
        None
    }

    #[test]
    fn task_2_when_a_lookup_fails_plan_tells() {
        same!(
            until_refused(Call::Lookup),
            Some(("plan", ScheduleError::Cache(Fails::ERROR))),
            "what refuses, and why, when lookup of the prefix cache fails: its error comes out of plan"
        );
    }

    /// What cannot fit now may fit later; what is refused is what cannot fit alone.
    #[test]
    fn task_2_a_text_that_fits_alone_is_taken_though_no_page_is_free() {
        let mut world = World::new(Setup::of(3, 100, 4));
        world.submit(&prompt(0, 12), 1);
        world.plan();
        same!(world.n_free(), 0, "free pages of 3 while a text of 12 tokens runs");
        same!(world.submit(&prompt(1, 12), 1), 1, "number of a text that needs all pages");
        same!(world.waiting(), [1], "texts that wait");
    }

    #[test]
    fn task_2_a_plan_is_settled_before_the_next() {
        let mut world = World::new(Setup::of(10, 12, 4));
        world.submit(&prompt(0, 4), 2);
        world.submit(&prompt(1, 5), 2);
        let plan = world.plan();
        for _ in 0..2 {
            let question = asking("plan, with a plan of 2 turns that is not settled");
            let found = world.scheduler.plan();
            drop(question);
            same!(found, Err(ScheduleError::NotSettled { chunks: 2 }), "plan, with one that is not settled");
            world.check_all("refused plan");
        }
        world.read(&plan);
    }

    // Task 3

    #[test]
    fn task_3_texts_that_just_fit_are_told() {
        let mut world = World::new(Setup::of(3, 8, 2));
        for (tokens, most) in [(1, 12), (12, 1), (11, 2), (6, 7), (5, 0), (1, 1)] {
            world.submit(&prompt(9, tokens), most);
        }
        world.run(200);
        world.check_end();
    }

    #[test]
    fn task_3_each_text_gets_its_token() {
        let mut world = World::new(Setup::of(12, 100, 4));
        for (name, tokens) in [(0, 4), (1, 5), (2, 6)] {
            world.submit(&prompt(name, tokens), 3);
        }
        world.step();
        for (name, tokens) in [(0, 4), (1, 5), (2, 6)] {
            let asked = prompt(name as u32, tokens);
            same!(world.tokens(name)[tokens..], [next_token(&asked)], "new tokens of text {name}");
        }
        same!(
            short(&world.step()),
            [(0, 1, true), (1, 1, true), (2, 1, true)],
            "the second plan: each reads the token that it got"
        );
        same!(world.run(10), 1, "steps after the second, for 3 new tokens each");
        world.check_end();
    }

    #[test]
    fn task_3_a_prompt_in_chunks_gets_its_token_after_the_last() {
        let mut world = World::new(Setup::of(12, 4, 4));
        world.submit(&prompt(0, 10), 2);
        let plans: Vec<_> = (0..4).map(|_| short(&world.step())).collect();
        let expected = [[(0, 4, false)], [(0, 4, false)], [(0, 2, true)], [(0, 1, true)]];
        same!(plans, expected, "four plans for a prompt of 10 tokens and 2 new ones, budget 4");
        world.check_end();
    }

    #[test]
    fn task_3_one_token_for_those_that_write_the_rest_for_the_prompt() {
        let mut world = World::new(Setup::of(20, 8, 4));
        world.submit(&prompt(0, 4), 6);
        world.submit(&prompt(1, 4), 6);
        world.step();
        world.submit(&prompt(2, 13), 2);
        let plans: Vec<_> = (0..3).map(|_| short(&world.step())).collect();
        same!(
            plans,
            [
                [(0, 1, true), (1, 1, true), (2, 6, false)],
                [(0, 1, true), (1, 1, true), (2, 6, false)],
                [(0, 1, true), (1, 1, true), (2, 1, true)]
            ],
            "three plans when two texts write and a prompt of 13 tokens comes, budget 8"
        );
        world.run(20);
        world.check_end();
    }

    #[test]
    fn task_3_a_text_gets_as_many_tokens_as_asked_for() {
        for most in [1, 2, 3, 7] {
            let mut world = World::new(Setup::of(12, 100, 4));
            world.submit(&prompt(0, 5), most);
            same!(world.run(20), most, "steps for {most} new tokens of a text of 5");
            same!(world.tokens(0).len(), 5 + most, "tokens at the end, 5 of the prompt and {most} new");
            world.check_end();
        }
    }

    #[test]
    fn task_3_an_end_of_text_ends_it_and_is_no_part_of_it() {
        let asked = prompt(0, 5);
        for (n, most, end) in [
            (1, 5, FinishReason::EndOfText),
            (2, 5, FinishReason::EndOfText),
            (3, 3, FinishReason::EndOfText),
            (3, 2, FinishReason::Limit),
        ] {
            let end_of_text = [7, nth_new(&asked, n), 9];
            let mut world = World::of(String::new(), Setup::of(12, 100, 4), &end_of_text);
            world.submit(&asked, most);
            world.run(20);
            same!(
                alone(&asked, most, &end_of_text),
                (world.tokens(0).to_vec(), end),
                "the text whose token number {n} is an end of text, {} asked for",
                count(most, "token")
            );
            world.check_end();
        }
        // In a prompt it is a token like any other.
        let end_of_text = [asked[4], asked[0]];
        let mut world = World::of(String::new(), Setup::of(12, 100, 4), &end_of_text);
        world.submit(&asked, 3);
        same!(world.run(20), 3, "steps for 3 new tokens after a prompt with an end of text in it");
    }

    #[test]
    fn task_3_several_end_in_one_step() {
        for ending in [vec![0, 1], vec![1, 2], vec![0, 2], vec![0, 1, 2, 3], vec![3]] {
            let mut world = World::new(Setup::of(20, 100, 4));
            for name in 0..4 {
                world.submit(&prompt(name, 5), if ending.contains(&name) { 2 } else { 4 });
            }
            world.submit(&prompt(4, 5), 2);
            world.run(20);
            world.check_end();
        }
    }

    #[test]
    fn task_3_the_pages_of_a_text_that_ends_are_free_at_once() {
        let mut world = World::new(Setup::of(6, 100, 4));
        world.submit(&prompt(0, 8), 1);
        world.submit(&prompt(1, 8), 3);
        let plan = world.plan();
        same!(world.n_free(), 2, "free pages of 6 while two texts with 8 tokens each run");
        let picks = world.read(&plan);
        world.settle(&picks);
        same!(world.n_free(), 4, "free pages of 6 after the settle with which text 0 ends");
        world.submit(&prompt(2, 8), 1);
        same!(short(&world.plan()), [(1, 1, true), (2, 8, true)], "the next plan: another text has its place");
    }

    #[test]
    fn task_3_what_is_full_can_be_found() {
        let mut world = World::new(Setup::of(12, 100, 4).with_prefix_cache());
        world.submit(&prompt(0, 6), 8);
        let mut kept = Vec::new();
        for _ in 0..8 {
            world.step();
            kept.push(world.scheduler.prefixes().n_pages());
        }
        // Rows after each step: 6 to 13. The text ends with 14 tokens, the newest without a row.
        same!(
            kept,
            [1, 1, 2, 2, 2, 2, 3, 3],
            "pages of the prefix cache after each of 8 steps, 6 to 13 rows, page size 4"
        );
        let whole = world.tokens(0).to_vec();
        world.submit(&[&whole[..], &[1]].concat(), 1);
        same!(
            short(&world.plan()),
            [(1, 3, true)],
            "the plan for the text that goes on from it: 12 of 15 tokens are found"
        );
    }

    #[test]
    fn task_3_texts_that_run_together_share_what_is_full() {
        let mut world = World::new(Setup::of(12, 8, 4).with_prefix_cache());
        world.submit(&prompt(0, 8), 5);
        world.step();
        world.submit(&prompt(0, 9), 5);
        same!(
            short(&world.step()),
            [(0, 1, true), (1, 1, true)],
            "the plan: text 1 finds 8 of its 9 tokens, text 0 has them"
        );
        same!(world.n_free(), 12 - 2 - 2, "free pages of 12: the texts share 2, and each has one of its own");
        world.run(20);
        world.check_end();
    }

    #[test]
    fn task_3_a_text_begins_with_what_the_prefix_cache_has() {
        // Of 8 tokens all but the last page's may be found: one token is left to compute.
        for (tokens, found) in [(8, 4), (9, 8), (10, 8), (13, 12)] {
            let mut world = World::new(Setup::of(8, 100, 4).with_prefix_cache());
            world.submit(&prompt(0, 14), 1);
            world.step();
            world.submit(&prompt(0, tokens), 3);
            same!(
                short(&world.plan()),
                [(1, tokens - found, true)],
                "the plan for a text of {} that another one had begun with, page size 4",
                count(tokens, "token")
            );
            same!(world.counters(1).cached, found, "tokens found, of {tokens}");
            let plan = [ScheduledChunk { sequence: SequenceId(1), tokens: tokens - found, caught_up: true }];
            world.read(&plan);
        }
    }

    #[test]
    fn task_3_the_pages_found_are_no_room() {
        let mut world = World::new(Setup::of(5, 100, 4).with_prefix_cache());
        world.submit(&prompt(0, 9), 1);
        world.step();
        // Text 1 takes one page of the three that are free; two are the prefix cache's.
        world.submit(&prompt(1, 2), 5);
        // Text 2 needs 5 pages; it finds 2.
        world.submit(&prompt(0, 16), 2);
        same!(
            short(&world.plan()),
            [(1, 2, true)],
            "the plan: text 2 needs 3 pages beside the 2 that it finds, and 2 are free; those that it finds are not free"
        );
        let owners = |page: u32| world.slab.borrow().pool().owners(page_by_page::cache::PageId(page)).unwrap_or(99);
        let owned = (0..5).map(owners).sum::<u32>();
        same!(owned, 3, "owners of all pages together: a text that is not let in keeps nothing of what it found");
    }

    /// Those that a text that runs has are neither free nor evictable, and need not be.
    #[test]
    fn task_3_pages_found_that_another_text_has_are_not_needed_again() {
        let mut world = World::new(Setup::of(5, 100, 4).with_prefix_cache());
        world.submit(&prompt(0, 8), 3);
        world.step();
        world.submit(&[&prompt(0, 8)[..], &[1]].concat(), 1);
        same!(
            short(&world.plan()),
            [(0, 1, true), (1, 1, true)],
            "the plan: text 0 has 3 pages of 5; text 1 finds 2 of these and needs 1 page more, and 2 are free"
        );
    }

    #[test]
    fn task_3_when_an_insertion_fails_settle_tells() {
        same!(
            until_refused(Call::Insert),
            Some(("settle", ScheduleError::Cache(Fails::ERROR))),
            "what refuses, and why, when insert of the prefix cache fails: its error comes out of settle"
        );
    }

    #[test]
    fn task_3_a_page_is_kept_from_the_first_chunk_on() {
        let mut world = World::new(Setup::of(12, 5, 4).with_prefix_cache());
        world.submit(&prompt(0, 11), 2);
        let kept: Vec<usize> = (0..3)
            .map(|_| {
                world.step();
                world.scheduler.prefixes().n_pages()
            })
            .collect();
        same!(kept, [1, 2, 2], "pages of the prefix cache after chunks of 5, 5 and 1 tokens, page size 4");
    }

    #[test]
    fn task_3_wrong_tokens_are_refused_and_change_nothing() {
        let mut world = World::new(Setup::of(20, 20, 4).with_prefix_cache());
        for (name, tokens) in [(0, 4), (1, 5), (2, 6), (3, 10)] {
            world.submit(&prompt(name, tokens), 2);
        }
        let plan = world.plan();
        let picks = world.read(&plan);
        let pick = |text: u64| NextToken { sequence: SequenceId(text), token: 100 };
        let wanted: Vec<SequenceId> = [0, 1, 2].map(SequenceId).to_vec();
        for given in [
            &[][..],
            &[0],
            &[0, 1],
            &[1, 2],
            &[0, 2, 1],
            &[2, 1, 0],
            &[0, 1, 2, 2],
            &[0, 1, 1],
            &[0, 1, 3],
            &[0, 1, 2, 3],
            &[0, 1, 9],
        ] {
            let what = format!("settle with tokens for the texts {given:?}, where 0, 1 and 2 have read all");
            let question = asking(&what);
            let found = world.scheduler.settle(&given.iter().copied().map(pick).collect::<Vec<_>>());
            drop(question);
            let given = given.iter().copied().map(SequenceId).collect();
            same!(found, Err(ScheduleError::WrongTokens { wanted: wanted.clone(), given }), "{what}");
            world.check_all(&format!("refused {what}"));
            same!(world.scheduler.prefixes().n_pages(), 0, "pages of the prefix cache after the refused {what}");
            same!(world.scheduler.take_finished().len(), 0, "texts that have ended with the refused {what}");
            same!(world.read(&plan), picks, "what the plan asks for, after the refused {what}");
        }
        world.settle(&picks);
        world.run(20);
        world.check_end();
    }

    #[test]
    fn task_3_a_step_is_settled_once() {
        let mut world = World::new(Setup::of(20, 20, 4));
        let pick = NextToken { sequence: SequenceId(0), token: 100 };
        let wrong = |given| Err(ScheduleError::WrongTokens { wanted: vec![], given });
        same!(world.scheduler.settle(&[pick]), wrong(vec![SequenceId(0)]), "settle with a token when no text is there");
        same!(world.scheduler.settle(&[]), Ok(()), "settle with no token when no text is there");
        world.submit(&prompt(0, 5), 3);
        same!(world.scheduler.settle(&[]), Ok(()), "settle with no token before the first plan");
        world.step();
        same!(
            world.scheduler.settle(&[pick]),
            wrong(vec![SequenceId(0)]),
            "settle a second time, with the token of text 0"
        );
        world.check_all("settle that was refused");
        world.run(10);
        world.check_end();
    }

    #[test]
    fn task_3_texts_come_and_go_at_any_step() {
        let mut world = World::new(Setup::of(30, 9, 3));
        for (tokens, most) in [(12, 5), (3, 9), (7, 1), (1, 4), (20, 2)] {
            let name = world.steps as u32;
            world.submit(&prompt(name, tokens), most);
            world.step();
            // One that comes in the middle of a step begins in a later one.
            let plan = world.plan();
            world.submit(&prompt(100 + name, 2), 2);
            let picks = world.read(&plan);
            world.settle(&picks);
        }
        world.run(100);
        world.check_end();
    }

    #[test]
    fn task_3_a_text_that_waits_is_cancelled() {
        for cancelled in [1, 2, 3] {
            let mut world = World::new(Setup::of(12, 100, 1));
            for name in 0..4 {
                world.submit(&prompt(name, 5), 2);
            }
            world.step();
            world.cancel(cancelled);
            world.run(20);
            world.check_end();
        }
    }

    #[test]
    fn task_3_a_text_that_runs_is_cancelled_and_gives_its_pages_back() {
        for cancelled in [0, 1, 2] {
            let mut world = World::new(Setup::of(16, 12, 3));
            for name in 0..4 {
                world.submit(&prompt(name, 5), 4);
            }
            world.step();
            let free = world.n_free();
            world.cancel(cancelled);
            let pages = if cancelled == 2 { 1 } else { 2 };
            same!(world.n_free(), free + pages, "free pages when text {cancelled} is cancelled; it had {pages}");
            world.run(20);
            world.check_end();
        }
    }

    #[test]
    fn task_3_what_is_not_there_cannot_be_cancelled() {
        let mut world = World::new(Setup::of(16, 20, 3));
        world.submit(&prompt(0, 5), 1);
        world.submit(&prompt(1, 5), 4);
        world.submit(&prompt(2, 5), 4);
        world.step();
        world.cancel(2);
        for id in [0, 2, 3, u64::MAX, 1 << 32 | 1] {
            let question = asking(format!("cancel of text {id}, which has ended or never came"));
            let found = world.scheduler.cancel(SequenceId(id));
            drop(question);
            same!(
                found,
                Err(ScheduleError::UnknownSequence(SequenceId(id))),
                "cancel of text {id}, which is not there"
            );
            world.check_all("refused cancel");
        }
        world.run(10);
        world.check_end();
    }

    #[test]
    fn task_3_nobody_is_cancelled_in_the_middle_of_a_step() {
        let mut world = World::new(Setup::of(16, 12, 2));
        for name in 0..3 {
            world.submit(&prompt(name, 5), 4);
        }
        let plan = world.plan();
        for id in [0, 1, 2, 7] {
            let found = world.scheduler.cancel(SequenceId(id));
            same!(found, Err(ScheduleError::NotSettled { chunks: 2 }), "cancel of text {id} between plan and settle");
            world.check_all("cancel that was refused");
        }
        let picks = world.read(&plan);
        world.settle(&picks);
        world.cancel(1);
        world.run(20);
        world.check_end();
    }

    #[test]
    fn task_3_what_has_ended_is_told_once() {
        let mut scheduler = scheduler(Setup::of(12, 100, 4));
        let ids: Vec<SequenceId> =
            (0..3).map(|name| granted("submit of 5 tokens, 2 new", || scheduler.submit(prompt(name, 5), 2))).collect();
        granted("cancel of text 1, which waits", || scheduler.cancel(ids[1]));
        let told = |scheduler: &mut Scheduler| {
            let finished = scheduler.take_finished();
            finished.iter().map(|finished| (finished.sequence.id.0, finished.reason)).collect::<Vec<_>>()
        };
        same!(
            told(&mut scheduler),
            [(1, FinishReason::Cancelled)],
            "texts that have ended, after text 1 was cancelled"
        );
        same!(told(&mut scheduler), [], "texts that have ended, asked again");
    }

    // Task 4

    #[test]
    fn task_4_the_newest_has_to_go() {
        let mut world = World::new(Setup::of(6, 100, 4));
        for name in 0..3 {
            world.submit(&prompt(name, 7), 9);
        }
        same!(world.step().len(), 3, "texts that begin: each takes 2 of 6 pages");
        // Each has 8 tokens, and room for as many.
        same!(short(&world.step()), [(0, 1, true), (1, 1, true), (2, 1, true)], "the second plan: 8 rows each");
        same!(
            short(&world.step()),
            [(0, 1, true), (1, 1, true)],
            "the third plan: 9 rows each would take 9 pages of 6, so text 2, the newest, gives its 2 back"
        );
        same!((world.running(), world.waiting()), (vec![0, 1], vec![2]), "(texts that run, texts that wait)");
        same!(world.counters(2).preemptions, 1, "preemptions of text 2");
        world.run(100);
        world.check_end();
    }

    #[test]
    fn task_4_the_newest_itself_waits_if_there_is_no_other() {
        let mut world = World::new(Setup::of(5, 100, 4));
        world.submit(&prompt(0, 8), 9);
        world.submit(&prompt(1, 4), 9);
        same!(world.step().len(), 2, "texts that begin: 3 and 2 of 5 pages, with the next token");
        let plans: Vec<_> = (0..5).map(|_| short(&world.step())).collect();
        // Text 0 has 9 to 13 rows; text 1 has 5 to 8, and then wants a third page.
        same!(
            plans[4],
            [(0, 1, true)],
            "the sixth plan: text 0 wants a fourth page, and text 1, the newest, has to go; the plans before: {:?}",
            &plans[..4]
        );
        world.run(100);
        world.check_end();

        let mut world = World::new(Setup::of(5, 100, 4));
        world.submit(&prompt(0, 9), 4);
        world.submit(&prompt(1, 7), 9);
        world.step();
        same!(short(&world.step()), [(0, 1, true), (1, 1, true)], "the second plan, no page is free");
        same!(
            short(&world.step()),
            [(0, 1, true)],
            "the third plan: text 1 is the newest, and finds no page: it waits, and text 0 keeps its own"
        );
        same!(world.waiting(), [1], "texts that wait");
        world.run(100);
        world.check_end();
    }

    #[test]
    fn task_4_several_have_to_go_at_once() {
        let mut world = World::new(Setup { page_size: 1, ..Setup::of(24, 8, 5) });
        // A long prompt is read in chunks; those that came with it have taken pages meanwhile.
        world.submit(&prompt(0, 4), 20);
        for name in 1..5 {
            world.submit(&prompt(name, 1), 20);
        }
        world.run(200);
        world.check_end();
        let preempted: Vec<u64> = (0..5).map(|id| world.counters(id).preemptions).collect();
        same!(preempted[0], 0, "preemptions of the oldest");
        assert!(preempted.iter().sum::<u64>() > 0, "nobody had to go, in 24 slots for 5 texts of up to 23 rows");
    }

    #[test]
    fn task_4_those_that_had_to_go_come_back_first() {
        let mut world = World::new(Setup::of(6, 100, 3));
        for name in 0..5 {
            world.submit(&prompt(name, 7), 9);
        }
        for _ in 0..3 {
            world.step();
        }
        same!(
            world.waiting(),
            [2, 3, 4],
            "texts that wait, after text 2 had to go: it stands before those that came later"
        );
        world.run(200);
        world.check_end();
    }

    #[test]
    fn task_4_what_the_prefix_cache_has_goes_first() {
        let mut world = World::new(Setup::of(6, 100, 3).with_prefix_cache());
        world.submit(&prompt(0, 16), 1);
        world.step();
        same!(world.scheduler.prefixes().n_pages(), 4, "pages of the prefix cache, when a text of 16 tokens has ended");
        world.submit(&prompt(1, 9), 2);
        same!(short(&world.plan()), [(1, 9, true)], "the plan: 2 pages are free, 4 can be evicted, 3 are needed");
        let evicted: usize = world.log.borrow().evictions.iter().map(|(_, got)| got).sum();
        same!(evicted, 1, "pages that were evicted: 2 were free, and 3 were needed");
        let picks = world.read(&[ScheduledChunk { sequence: SequenceId(1), tokens: 9, caught_up: true }]);
        world.settle(&picks);
        world.run(10);
        same!(world.counters(1).preemptions, 0, "preemptions, with pages that nobody uses");
        world.check_end();
    }

    #[test]
    fn task_4_nobody_goes_for_pages_that_can_be_evicted() {
        let mut world = World::new(Setup::of(7, 100, 3).with_prefix_cache());
        world.submit(&prompt(0, 13), 1);
        world.step();
        world.submit(&prompt(1, 7), 6);
        world.submit(&prompt(2, 7), 6);
        world.run(20);
        same!(
            [1, 2].map(|id| world.counters(id).preemptions),
            [0, 0],
            "preemptions of two texts that take 3 pages each, in 7: what an earlier text has left behind makes room"
        );
        world.check_end();
    }

    #[test]
    fn task_4_whoever_comes_back_goes_on_where_it_was() {
        let mut world = World::new(Setup::of(7, 100, 3).with_prefix_cache());
        world.submit(&prompt(0, 8), 12);
        world.submit(&prompt(1, 5), 9);
        let mut most = 0;
        while world.counters(1).preemptions == 0 {
            most += 1;
            assert!(most < 30, "text 1 was never preempted in 30 steps; {}", world.at());
            world.step();
        }
        let had = world.tokens(1).len();
        assert!(had > 6, "the example is badly chosen: text 1 has {had} tokens");
        world.run(60);
        let counters = world.counters(1);
        assert!(counters.cached_again > 0, "text 1 finds nothing of what it had computed; {}", world.at());
        same!(
            counters.computed + counters.cached_again as u64,
            // All but the newest, and once more those that it had read when it had to go.
            (5 + 9 - 1) + had as u64 - 1,
            "tokens that text 1 has computed and found again: it had {had} when it had to go, the newest of them not read"
        );
        world.check_end();
    }

    #[test]
    fn task_4_the_budget_is_not_spent_on_those_that_go() {
        let mut world = World::new(Setup::of(6, 3, 3));
        world.submit(&prompt(0, 8), 8);
        world.submit(&prompt(1, 7), 8);
        for _ in 0..40 {
            if world.alive().is_empty() {
                break;
            }
            world.step();
        }
        same!(world.alive(), [0; 0], "texts that have not ended after 40 steps");
        world.check_end();
    }

    #[test]
    fn task_4_when_an_eviction_fails_plan_tells() {
        same!(
            until_refused(Call::Evict),
            Some(("plan", ScheduleError::Cache(Fails::ERROR))),
            "what refuses, and why, when evict of the prefix cache fails: its error comes out of plan"
        );
    }

    #[test]
    fn task_4_two_that_each_fill_the_pool() {
        for keeps_prefixes in [false, true] {
            let mut world = World::new(Setup { keeps_prefixes, ..Setup::of(4, 5, 4) });
            world.submit(&prompt(0, 6), 11);
            world.submit(&prompt(1, 6), 11);
            world.submit(&prompt(2, 16), 1);
            world.submit(&prompt(3, 1), 16);
            world.run(200);
            world.check_end();
        }
    }

    #[test]
    fn task_4_one_that_had_to_go_can_be_cancelled() {
        let mut world = World::new(Setup::of(6, 100, 4).with_prefix_cache());
        for name in 0..4 {
            world.submit(&prompt(name, 7), 9);
        }
        for _ in 0..3 {
            world.step();
        }
        same!(world.waiting(), [2, 3], "texts that wait: text 2 had to go");
        world.cancel(2);
        world.run(100);
        world.check_end();
    }

    #[test]
    fn task_4_one_that_reads_its_prompt_goes_and_comes_back() {
        // The prompt is read in chunks, and has to go before its end.
        let mut world = World::new(Setup { page_size: 2, ..Setup::of(12, 4, 2) }.with_prefix_cache());
        world.submit(&prompt(0, 3), 18);
        world.step();
        world.submit(&prompt(1, 17), 3);
        world.run(100);
        world.check_end();
    }

    // All tasks

    fn computed(world: &World) -> u64 {
        (0..).map_while(|id| (id < TINY_LLM.len() as u64).then(|| world.counters(id).computed)).sum()
    }

    #[test]
    fn whole_sixteen_requests_take_264_steps() {
        let useful: usize = TINY_LLM.iter().map(|(tokens, most)| tokens + most - 1).sum();
        same!(useful, 10_661, "tokens to read, all but the newest of each text");
        let setup = Setup { page_size: 16, ..Setup::of(1000, 128, 8) };
        let mut world = World::new(setup);
        world.with_rows = false;
        for (name, (tokens, most)) in (0..).zip(TINY_LLM) {
            world.submit(&prompt(name, tokens), most);
        }
        same!(world.run(2000), 264, "steps for 16 requests, budget 128, 8 running, pages enough");
        same!(computed(&world), 10_661, "tokens computed, with pages enough");
    }

    /// Whoever lets texts in by their next chunk alone computes 34,136 tokens here.
    #[test]
    fn whole_sixteen_requests_in_a_small_pool_compute_nothing_twice() {
        let setup = Setup { page_size: 16, ..Setup::of(150, 128, 8) };
        let mut world = World::new(setup);
        world.with_rows = false;
        for (name, (tokens, most)) in (0..).zip(TINY_LLM) {
            world.submit(&prompt(name, tokens), most);
        }
        world.run(5000);
        same!(
            (computed(&world), (0..16).map(|id| world.counters(id).preemptions).sum::<u64>()),
            (10_661, 0),
            "(tokens computed, preemptions) for 16 requests in 150 pages of 16: a text is let in when all of it fits"
        );
    }

    #[test]
    fn whole_many_texts_run_at_once() {
        let mut world = World::new(Setup { page_size: 2, ..Setup::of(1000, 400, 300) });
        for name in 0..310 {
            world.submit(&prompt(name, 1), 3);
        }
        same!(world.step().len(), 300, "turns of the first plan, when 300 texts may run");
        world.run(10);
        world.check_end();
    }

    #[test]
    fn whole_a_long_prompt_in_one_step() {
        let n = if cfg!(miri) { 300 } else { 70_000 };
        let mut world = World::new(Setup { page_size: 16, ..Setup::of(5000, 100_000, 2) });
        world.submit(&(0..n as u32).collect::<Vec<_>>(), 2);
        same!(short(&world.step()), [(0, n, true)], "the plan for a prompt of {n} tokens, budget 100,000");
        world.run(3);
        world.check_end();
    }

    /// Tokens of every size.
    #[test]
    fn whole_tokens_are_not_cut() {
        let mut world = World::new(Setup::of(8, 3, 2).with_prefix_cache());
        world.submit(&[u32::MAX, 0, 1 << 16, (1 << 16) - 1, 255, 256, 1 << 31], 3);
        world.submit(&[u32::MAX, 0, 1 << 16, (1 << 16) - 1, 255, 256, 0], 3);
        world.run(20);
        world.check_end();
    }

    #[test]
    fn whole_a_scheduler_that_is_dropped_lets_go() {
        let mut world = World::new(Setup::of(12, 100, 4));
        for name in 0..3 {
            world.submit(&prompt(name, 7), 4);
        }
        world.step();
        let World { slab, scheduler, .. } = world;
        drop(scheduler);
        let free = slab.borrow().pool().n_free();
        same!(free, 12, "free pages of 12 when the scheduler was dropped, with three texts that ran");
    }

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        transcript.line("page size 4, 8 pages, budget 8, at most 3 texts run; + gets its next token");
        let slab = made("PageSlab::new of chapter 6", || PageSlab::new(LAYOUT, 4, 8));
        let (prefixes, log) = watched(Box::new(made("PrefixCache::new of chapter 11", || PrefixCache::new(4))));
        let limits = StepLimits { tokens: 8, sequences: 3 };
        let mut scheduler = made("Scheduler::new", || Scheduler::new(&slab, prefixes, limits, &[]));
        let beginning = prompt(0, 8);
        let texts = [
            (1, beginning.clone(), 12),
            (1, prompt(1, 7), 9),
            (1, prompt(2, 3), 6),
            (4, [&beginning[..], &[7, 8]].concat(), 3),
            (4, prompt(4, 5), 4),
        ];
        let mut finished = Vec::new();
        for step in 1..60 {
            let _asking = asking(format!("step {step} of the transcript"));
            begin(&log, "plan or settle");
            for (_, tokens, most) in texts.iter().filter(|(comes, ..)| *comes == step) {
                let id = granted("submit, in the transcript", || scheduler.submit(tokens.clone(), *most));
                transcript.line(format!("text {id} comes: {} tokens, {most} new", tokens.len()));
            }
            if step == 12 && scheduler.cancel(SequenceId(4)).is_ok() {
                transcript.line("text 4 is cancelled");
                finished.extend(scheduler.take_finished());
            }
            let running = |scheduler: &Scheduler| scheduler.running().map(|(text, _)| text.id).collect::<Vec<_>>();
            let ran = running(&scheduler);
            let plan = granted("plan, in the transcript", || scheduler.plan());
            if plan.is_empty() {
                break;
            }
            let mut line = format!("{step:>2}: {}", told(&plan));
            let run_now = running(&scheduler);
            for id in ran.iter().filter(|id| !run_now.contains(id)) {
                line += &format!("; {id} has to go");
            }
            let last = plan.iter().filter(|turn| turn.caught_up);
            let tokens = |id: SequenceId| {
                let text = scheduler.running().find(|(text, _)| text.id == id);
                text.map_or(Vec::new(), |(text, _)| text.tokens.clone())
            };
            let picks: Vec<NextToken> = last
                .map(|turn| NextToken { sequence: turn.sequence, token: next_token(&tokens(turn.sequence)) })
                .collect();
            granted("settle, in the transcript", || scheduler.settle(&picks));
            let ended = scheduler.take_finished();
            for ended in &ended {
                line += &format!("; {} ends", ended.sequence.id);
            }
            finished.extend(ended);
            let kept = scheduler.prefixes().n_pages();
            transcript.line(format!("{line:<72}{} free, {kept} kept", slab.borrow().pool().n_free()));
        }
        finished.sort_by_key(|finished| finished.sequence.id);
        for ended in finished {
            let SequenceCounters { cached: found, cached_again, computed, preemptions } = ended.sequence.counters;
            transcript.line(format!(
                "text {}: {computed} computed, {found} found, {cached_again} found again, {preemptions} times preempted",
                ended.sequence.id
            ));
        }
        assert_transcript("ch12_schedule", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(60) {
            let mut dice = Dice::new(seed);
            let setup = Setup {
                page_size: dice.roll(1, 5),
                n_pages: dice.roll(3, 14),
                budget: dice.roll(1, 9),
                texts: dice.roll(1, 5),
                keeps_prefixes: dice.roll(0, 3) > 0,
            };
            let end_of_text = [0, 0].map(|_| FIRST_NEW + dice.roll(0, 19) as u32);
            let mut world = World::of(format!("seed {seed}"), setup, &end_of_text);
            let slots = setup.page_size * setup.n_pages;
            let mut to_come = if cfg!(miri) { 3 } else { dice.roll(1, 10) };
            let mut left = 0;
            while to_come > 0 || !world.alive().is_empty() {
                while to_come > 0 && dice.roll(0, 2) == 0 {
                    to_come -= 1;
                    let tokens = dice.roll(1, slots.min(12));
                    // Many begin alike; a part of them goes on alike.
                    let fork = dice.roll(0, tokens);
                    let name = dice.roll(0, 30) as u32;
                    let prompt: Vec<u32> =
                        (0..tokens).map(|at| if at < fork { at as u32 } else { name + at as u32 }).collect();
                    let most = dice.roll(0, (slots + 3 - tokens).min(14));
                    let needed = (tokens + most).saturating_sub(1).div_ceil(setup.page_size);
                    if most > 0 && needed > setup.n_pages {
                        world.submit_too_long(&prompt, most, needed);
                    } else {
                        world.submit(&prompt, most);
                        left += tokens + most;
                    }
                }
                if dice.roll(0, 20) == 0 && !world.alive().is_empty() {
                    let alive = world.alive();
                    world.cancel(alive[dice.roll(0, alive.len() - 1)]);
                }
                // The oldest reads a token a step, whatever the others do: nobody waits for longer than all of them take.
                let most_steps = 60 + left;
                assert!(
                    world.steps < most_steps,
                    "after {most_steps} steps these texts have not ended: {:?}; {}",
                    world.alive(),
                    world.at()
                );
                world.step();
            }
            world.check_end();
            limits::alive();
        }
    }

    /// Stories told together, in pages that do not suffice: the texts, and the logits that they come from, are those of each
    /// story told alone.
    #[test]
    fn whole_story() {
        let storyteller = Storyteller::open();
        let layout = storyteller.model.config().kv_layout();
        let first = storyteller.prompt();
        let asked: Vec<(Vec<u32>, usize)> = vec![
            (first.clone(), 14),
            ([&first[..], &[12, 77, 301]].concat(), 9),
            (vec![first[0], 435, 591, 12, 77, 8, 8, 301], 7),
            ([&first[..], &[12, 77, 44]].concat(), 8),
        ];
        let sampler =
            |text: usize| Sampler::new(page_by_page::decode::sampler::Sampling { seed: text as u64, ..SAMPLING });
        // Told alone, without any cache: the logits after each token.
        let alone: Vec<(Vec<u32>, Vec<Vec<f32>>)> = asked
            .iter()
            .enumerate()
            .map(|(text, (prompt, most))| {
                let (mut tokens, mut said, mut sampler) = (prompt.clone(), Vec::new(), sampler(text));
                for _ in 0..*most {
                    let logits = storyteller.model.step(&tokens, None).expect("a short text fits");
                    tokens.push(sampler.pick(&logits));
                    said.push(logits);
                }
                (tokens, said)
            })
            .collect();
        let mut preemptions = 0;
        for (page_size, n_pages, budget, texts) in [(3, 8, 5, 3), (2, 11, 64, 4), (5, 5, 3, 4)] {
            let run = format!("{n_pages} pages of {page_size}, budget {budget}, at most {texts} running");
            let slab = made("PageSlab::new of chapter 6", || PageSlab::new(layout, page_size, n_pages));
            let prefixes = made("PrefixCache::new of chapter 11", || PrefixCache::new(page_size));
            let limits = StepLimits { tokens: budget, sequences: texts };
            let (prefixes, log) = watched(Box::new(prefixes));
            let mut scheduler = made("Scheduler::new", || Scheduler::new(&slab, prefixes, limits, &[]));
            for (tokens, most) in &asked {
                granted(format!("submit, {run}"), || scheduler.submit(tokens.clone(), *most));
            }
            let mut samplers: Vec<Sampler> = (0..asked.len()).map(sampler).collect();
            let mut finished = 0;
            for step in 1.. {
                assert!(
                    step < 300,
                    "after 300 steps {} of {} stories have not ended; {run}",
                    asked.len() - finished,
                    asked.len()
                );
                let _asking = asking(format!("step {step} of the stories, {run}"));
                begin(&log, "plan or settle");
                let plan = granted(format!("plan, {run}"), || scheduler.plan());
                let vocab = storyteller.model.config().vocab_size;
                let mut batch = Vec::new();
                for reading in scheduler.inputs() {
                    let rows = LogitRows::Newest(usize::from(reading.chunk.caught_up));
                    let chunk =
                        storyteller.model.chunk_with_room(reading.tokens, CacheRef::Gather(reading.cache), rows);
                    batch.push(granted(format!("the tokens of text {}, {run}", reading.chunk.sequence), || chunk));
                }
                let logits = granted(format!("a step of the model, {run}"), || storyteller.model.forward(batch));
                let last = plan.iter().filter(|turn| turn.caught_up);
                let mut picks = Vec::new();
                for (turn, row) in last.zip(logits.chunks(vocab)) {
                    let text = turn.sequence.0 as usize;
                    let (prompt, said) = (&asked[text].0, &alone[text].1);
                    let place = scheduler
                        .running()
                        .find(|(running, _)| running.id == turn.sequence)
                        .map_or(0, |(running, _)| running.tokens.len() - prompt.len());
                    assert!(
                        said.get(place)
                            .is_some_and(|alone| alone.iter().zip(row).all(|(a, b)| a.to_bits() == b.to_bits())),
                        "story {text}, new token {place}: the logits are not, bit for bit, those of the story told alone; \
                         step {step}, {run}"
                    );
                    picks.push(NextToken { sequence: turn.sequence, token: samplers[text].pick(row) });
                }
                granted(format!("settle, {run}"), || scheduler.settle(&picks));
                for ended in scheduler.take_finished() {
                    let text = ended.sequence.id.0 as usize;
                    preemptions += ended.sequence.counters.preemptions;
                    let (n_prompt, told) = (asked[text].0.len(), &alone[text].0);
                    storyteller.assert_same_story(ended.sequence.new_tokens(), &told[n_prompt..]);
                    finished += 1;
                }
                if finished == asked.len() {
                    break;
                }
            }
        }
        assert!(preemptions > 0, "no story had to wait for pages: the example is badly chosen");
    }
}
