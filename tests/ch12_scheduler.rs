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

/// The world of `src/simulation`, and what each step must do, worked out from outside.
#[cfg(not(unstarted = "ch12_scheduler"))]
mod world {
    use std::collections::{BTreeMap, BTreeSet};

    use page_by_page::cache::{CacheError, PageId};
    use page_by_page::chapters::ch04_page_pool::PagePool;
    use page_by_page::chapters::ch05_page_table::PageTable;
    use page_by_page::chapters::ch12_scheduler::Scheduler;
    use page_by_page::prefixes::Prefixes;
    use page_by_page::serving::schedule::{
        FinishReason, NextToken, ScheduleError, ScheduledChunk, SequenceCounters, SequenceId, StepLimits,
    };
    use page_by_page::simulation::{self, CacheCalls, Make, Planned, Seen, SeenSequence, Violation, alone_until};

    use crate::support::asking::{self, asking};
    use crate::support::limits;
    use crate::support::words::count;

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

    /// Pages of 4, and no prefix cache.
    pub fn setup(n_pages: usize, budget: usize, sequences: usize) -> simulation::Setup {
        let limits = StepLimits { tokens: budget, sequences };
        simulation::Setup { page_size: 4, n_pages, limits, keeps_prefixes: false }
    }

    pub fn with_prefix_cache(setup: simulation::Setup) -> simulation::Setup {
        simulation::Setup { keeps_prefixes: true, ..setup }
    }

    /// `sequence 0 computes 4 +, sequence 1 computes 2`: one with a + has caught up.
    pub fn in_words(plan: &[ScheduledChunk]) -> String {
        let chunk = |chunk: &ScheduledChunk| {
            let caught_up = if chunk.caught_up { " +" } else { "" };
            format!("sequence {} computes {}{caught_up}", chunk.sequence, chunk.tokens)
        };
        match plan {
            [] => "nothing is computed".into(),
            plan => plan.iter().map(chunk).collect::<Vec<_>>().join(", "),
        }
    }

    fn list(ids: &[u64]) -> String {
        let words: Vec<String> = ids.iter().map(u64::to_string).collect();
        if words.is_empty() { "none".into() } else { words.join(", ") }
    }

    /// `sequence 0 was`, `sequences 0, 1 were`
    fn were(ids: &[u64]) -> String {
        let (noun, verb) = if ids.len() == 1 { ("sequence", "was") } else { ("sequences", "were") };
        format!("{noun} {} {verb}", list(ids))
    }

    fn ids(sequences: &[SeenSequence]) -> Vec<u64> {
        sequences.iter().map(|sequence| sequence.id.0).collect()
    }

    fn find(sequences: &[SeenSequence], id: SequenceId) -> Option<&SeenSequence> {
        sequences.iter().find(|sequence| sequence.id == id)
    }

    /// Pages that are free or that only the prefix cache owns: those in no table of a running sequence.
    fn available(seen: &Seen) -> usize {
        let used: BTreeSet<PageId> = seen.running.iter().flat_map(|sequence| sequence.pages.iter().copied()).collect();
        seen.owners.len() - used.len()
    }

    /// What is expected of the running sequences in the next plan: (sequence, tokens), and the victims, newest first.
    fn expected(seen: &Seen, setup: simulation::Setup) -> (Vec<(u64, usize)>, Vec<u64>) {
        let mut running = &seen.running[..];
        let (mut room, mut budget) = (available(seen), setup.limits.tokens);
        let (mut chunks, mut victims) = (Vec::new(), Vec::new());
        while let Some(sequence) = running.get(chunks.len()).filter(|_| budget > 0) {
            let n = (sequence.n_tokens - sequence.held.min(sequence.n_tokens)).min(budget);
            let needed = (sequence.held + n).div_ceil(setup.page_size) - sequence.pages.len();
            while needed > room && chunks.len() < running.len() {
                let Some((newest, others)) = running.split_last() else { break };
                let is_free = |page: &&PageId| others.iter().all(|other| !other.pages.contains(page));
                room += newest.pages.iter().filter(is_free).count();
                victims.push(newest.id.0);
                running = others;
            }
            if chunks.len() < running.len() {
                room -= needed;
                budget -= n;
                chunks.push((sequence.id.0, n));
            }
        }
        (chunks, victims)
    }

    /// A plan and what was before and after it, for its checks.
    struct Step<'a> {
        before: &'a Seen,
        plan: &'a [ScheduledChunk],
        after: &'a Seen,
        calls: &'a CacheCalls,
        victims: &'a [u64],
        /// The plan and the world in words.
        said: &'a str,
    }

    pub struct World {
        world: simulation::World,
        end_of_text: Vec<u32>,
        /// What each sequence must have cost by now.
        counters: BTreeMap<u64, SequenceCounters>,
        /// Prompt and generated tokens in the end.
        tokens: BTreeMap<u64, Vec<u32>>,
        /// In which run: a seed, say.
        run: String,
        pub steps: usize,
        history: Vec<String>,
    }

    /// The value of a call that neither panics nor is refused.
    #[track_caller]
    fn answer<T>(what: &str, call: impl FnOnce() -> Result<T, Violation>) -> T {
        let _asking = asking(what);
        call().unwrap_or_else(|violation| asking::fail_inside(what, violation.words))
    }

    impl World {
        #[track_caller]
        pub fn new(setup: simulation::Setup) -> Self {
            Self::of(String::new(), setup, &[])
        }

        #[track_caller]
        pub fn of(run: String, setup: simulation::Setup, end_of_text: &[u32]) -> Self {
            let make: Box<Make<'_>> =
                Box::new(|slab, prefixes, limits| Ok(Box::new(Scheduler::new(slab, prefixes, limits, end_of_text)?)));
            let world = answer("Scheduler::new", || simulation::World::with_end_of_text(&make, setup, end_of_text));
            let (counters, tokens) = Default::default();
            World { world, end_of_text: end_of_text.to_vec(), counters, tokens, run, steps: 0, history: Vec::new() }
        }

        /// Where we are, for a failure.
        pub fn at(&self) -> String {
            let simulation::Setup { page_size, n_pages, limits, keeps_prefixes } = self.world.setup();
            let StepLimits { tokens, sequences } = limits;
            let run = if self.run.is_empty() { String::new() } else { format!("{}, ", self.run) };
            let cached = if keeps_prefixes { "" } else { ", no prefix cache" };
            let history = self.history[self.history.len().saturating_sub(6)..].join("; ");
            let history = if history.is_empty() { String::new() } else { format!("\n  before: {history}") };
            let (pages, step) = (count(n_pages, "page"), self.steps);
            format!(
                "{run}step {step}: {pages} of {page_size}, budget {tokens}, at most {sequences} run{cached}{history}"
            )
        }

        /// What is seen now.
        #[track_caller]
        pub fn seen(&self) -> Seen {
            answer("running(), waiting() and prefixes()", || self.world.look())
        }

        /// Submits a request that must be accepted.
        #[track_caller]
        pub fn submit(&mut self, prompt: &[u32], max_new_tokens: usize) -> u64 {
            let before = self.seen();
            let expected = self.world.arrived();
            let tokens = count(prompt.len(), "token");
            let what = format!("submit of {tokens}, {max_new_tokens} new, {}", self.at());
            let answered = answer(&what, || self.world.submit(0, prompt.to_vec(), max_new_tokens));
            let id = answered.unwrap_or_else(|error| panic!("{what}\n  expected: no refusal\n  yours:    {error:?}"));
            same!(id, SequenceId(expected), "number of the sequence after {what}");
            self.counters.insert(expected, SequenceCounters::default());
            self.tokens.insert(expected, prompt.to_vec());
            self.history.push(format!("sequence {expected} arrives with {tokens} and wants {max_new_tokens}"));
            if max_new_tokens == 0 {
                self.check_finished(&[(expected, FinishReason::Limit)], &what);
            }
            let waiting: Vec<u64> =
                ids(&before.waiting).into_iter().chain((max_new_tokens > 0).then_some(expected)).collect();
            self.check_lists(&ids(&before.running), &waiting, &what);
            expected
        }

        /// Submits a request that must be refused.
        #[track_caller]
        pub fn submit_refused(&mut self, prompt: &[u32], max_new_tokens: usize, why: ScheduleError) {
            let before = self.seen();
            let what = format!("submit of {}, {max_new_tokens} new, {}", count(prompt.len(), "token"), self.at());
            let found = answer(&what, || self.world.submit(0, prompt.to_vec(), max_new_tokens));
            same!(found, Err(why), "{what}");
            same!(self.seen(), before, "what is there after the refused {what}");
        }

        /// Submits a request that can never fit.
        #[track_caller]
        pub fn submit_too_long(&mut self, prompt: &[u32], max_new_tokens: usize, needed: usize) {
            let n_pages = self.world.setup().n_pages;
            let why = ScheduleError::NeverFits { prompt: prompt.len(), max_new_tokens, needed, n_pages };
            self.submit_refused(prompt, max_new_tokens, why);
        }

        #[track_caller]
        pub fn cancel(&mut self, id: u64) {
            let before = self.seen();
            let what = format!("cancel of sequence {id}, {}", self.at());
            let found = answer(&what, || self.world.call("cancel", |subject| subject.cancel(SequenceId(id))));
            same!(found, Ok(()), "{what}");
            self.history.push(format!("sequence {id} is cancelled"));
            let but = |list: &[SeenSequence]| ids(list).into_iter().filter(|other| *other != id).collect::<Vec<_>>();
            self.check_finished(&[(id, FinishReason::Cancelled)], &what);
            self.check_lists(&but(&before.running), &but(&before.waiting), &what);
        }

        /// A call that is refused, and changes nothing.
        #[track_caller]
        pub fn refused<T: std::fmt::Debug + PartialEq>(
            &mut self,
            what: &str,
            why: ScheduleError,
            call: impl FnOnce(&mut dyn simulation::Subject) -> Result<T, ScheduleError>,
        ) {
            let before = self.seen();
            let found = answer(what, || self.world.call("it", call));
            same!(found, Err(why), "{what}");
            same!(self.seen(), before, "what is there after the refused {what}");
            same!(answer(what, || self.world.collect()), [], "sequences that finish with the refused {what}");
        }

        #[track_caller]
        pub fn running(&self) -> Vec<u64> {
            ids(&self.seen().running)
        }

        #[track_caller]
        pub fn waiting(&self) -> Vec<u64> {
            ids(&self.seen().waiting)
        }

        /// Sequences that have not finished.
        pub fn alive(&self) -> Vec<u64> {
            (0..self.world.arrived()).filter(|id| self.world.request(SequenceId(*id)).is_some()).collect()
        }

        /// The tokens of a sequence, as they must be by now.
        pub fn tokens(&self, id: u64) -> Vec<u32> {
            match self.world.request(SequenceId(id)) {
                Some((prompt, _, received)) => [prompt, received].concat(),
                None => self.tokens[&id].clone(),
            }
        }

        pub fn counters(&self, id: u64) -> SequenceCounters {
            self.counters[&id]
        }

        pub fn cache_calls(&self) -> CacheCalls {
            self.world.cache_calls()
        }

        #[track_caller]
        pub fn n_free(&self) -> usize {
            self.seen().n_free
        }

        #[track_caller]
        pub fn n_cached(&self) -> usize {
            self.seen().cached.len()
        }

        /// Plans a step and checks the plan from all sides.
        #[track_caller]
        pub fn plan(&mut self) -> Vec<ScheduledChunk> {
            limits::alive();
            self.steps += 1;
            let at = self.at();
            let before = self.seen();
            let (expected, victims) = expected(&before, self.world.setup());
            let Planned { chunks: plan, seen: after } = answer(&format!("plan, {at}"), || self.world.plan());
            let said = format!("the plan: {}\n  {at}", in_words(&plan));
            let calls = self.world.cache_calls();
            let step =
                Step { before: &before, plan: &plan, after: &after, calls: &calls, victims: &victims, said: &said };
            self.check_fairness(&step);
            self.check_chunks(&step, expected);
            self.check_admitted(&step);
            self.check_insertions(&step);
            for chunk in &plan {
                self.check_chunk(&step, chunk);
            }
            for id in &victims {
                self.counters.get_mut(id).expect("a known sequence").preemptions += 1;
            }
            let preempted = if victims.is_empty() { String::new() } else { format!(", preempted {}", list(&victims)) };
            self.history.push(format!("step {}: {}{preempted}", self.steps, in_words(&plan)));
            self.check_seen(&after, said.trim_start_matches("the "));
            plan
        }

        /// The parts of the proof that no sequence waits forever, one after the other.
        #[track_caller]
        fn check_fairness(&self, step: &Step<'_>) {
            let Step { before, plan, after, said, .. } = step;
            let (running, waiting) = (ids(&after.running), ids(&after.waiting));
            assert!(running.is_sorted(), "running sequences are not in order of arrival: {}; {said}", list(&running));
            self.check_spared(step);
            assert!(waiting.is_sorted(), "waiting sequences are not in order of arrival: {}; {said}", list(&waiting));
            if let (Some(runs), Some(waits)) = (running.last(), waiting.first()) {
                assert!(runs < waits, "sequence {waits} waits, and sequence {runs}, which came later, runs; {said}");
            }
            if let Some(oldest) = self.alive().first() {
                let ran = before.running.first().is_some_and(|seen| seen.id.0 == *oldest);
                assert!(
                    running.first() == Some(oldest) || !ran,
                    "sequence {oldest} is the oldest, and was preempted: the victim is the newest; {said}"
                );
                let computes = plan.iter().any(|chunk| chunk.sequence.0 == *oldest && chunk.tokens > 0);
                assert!(computes, "sequence {oldest} is the oldest, and computes nothing in this step; {said}");
            }
            for ScheduledChunk { sequence: id, tokens, .. } in *plan {
                assert!(
                    running.contains(&id.0),
                    "sequence {id} is in the plan, and does not run: is it a victim? {said}"
                );
                assert!(*tokens > 0, "sequence {id} is in the plan with no token; {said}");
            }
            let in_order = plan.is_sorted_by(|a, b| a.sequence < b.sequence);
            assert!(in_order, "the chunks are not in order of arrival, one for each sequence; {said}");
        }

        /// No sequence is preempted, and no page evicted, without need.
        #[track_caller]
        fn check_spared(&self, step: &Step<'_>) {
            let Step { before, after, calls, victims, said, .. } = step;
            let (running, waiting) = (ids(&after.running), ids(&after.waiting));
            let gone: Vec<u64> = ids(&before.running).into_iter().filter(|id| !running.contains(id)).rev().collect();
            let evicted: usize = calls.evictions.iter().map(|(_, evicted)| evicted).sum();
            assert!(
                evicted == 0 || after.n_free == 0 || !gone.is_empty(),
                "plan has evicted {}, and {} free after it: no more are to be evicted than are missing; {said}",
                count(evicted, "page"),
                count(after.n_free, "page")
            );
            let again = self.again(after);
            let went: Vec<u64> = gone.iter().chain(&again).copied().collect();
            let too_many: Vec<u64> = went.iter().copied().filter(|id| !victims.contains(id)).collect();
            let wait = gone.iter().all(|id| waiting.contains(id));
            if !wait || too_many.is_empty() || !victims.iter().all(|id| went.contains(id)) {
                return;
            }
            let came_back = if again.is_empty() { "" } else { " and admitted again in the same step" };
            let with =
                if victims.is_empty() { "".into() } else { format!(", with those of sequence {}", list(victims)) };
            panic!(
                "{} preempted{came_back}, though there are pages enough{with}: {} free, and {} could be evicted; {said}",
                were(&too_many),
                count(before.n_free, "page"),
                available(before) - before.n_free
            );
        }

        /// Sequences that run and have been preempted in this step.
        fn again(&self, after: &Seen) -> Vec<u64> {
            let preempted = |seen: &&SeenSequence| {
                self.counters.get(&seen.id.0).is_some_and(|known| seen.counters.preemptions > known.preemptions)
            };
            after.running.iter().filter(preempted).map(|seen| seen.id.0).collect()
        }

        /// Who computes how much of those that ran before.
        #[track_caller]
        fn check_chunks(&self, step: &Step<'_>, expected: Vec<(u64, usize)>) {
            let Step { before, plan, after, victims, said, .. } = step;
            let (sum, budget) = (total(plan), self.world.setup().limits.tokens);
            assert!(sum <= budget, "the plan computes {sum} tokens, and the budget is {budget}; {said}");
            let again = self.again(after);
            assert!(again.is_empty(), "{} preempted and admitted again in the same step; {said}", were(&again));
            let (ran, runs) = (ids(&before.running), ids(&after.running));
            let gone: Vec<u64> = ran.iter().copied().filter(|id| !runs.contains(id)).rev().collect();
            let chunks: Vec<(u64, usize)> =
                plan.iter().map(|chunk| (chunk.sequence.0, chunk.tokens)).filter(|(id, _)| ran.contains(id)).collect();
            let state = |seen: &SeenSequence| {
                let left = count(seen.n_tokens - seen.held.min(seen.n_tokens), "token");
                format!("sequence {} had {left} to compute and {}", seen.id, count(seen.pages.len(), "page"))
            };
            let states: Vec<String> = before.running.iter().map(state).collect();
            let (free, evictable) = (before.n_free, available(before) - before.n_free);
            let states = format!("{}; {free} pages were free and {evictable} evictable", states.join(", "));
            same!(
                (gone, chunks),
                (victims.to_vec(), expected),
                "(victims, newest first; (sequence, tokens it computes) of those that ran before)\n  {states}\n  {said}"
            );
        }

        /// Who was admitted, and who was not.
        #[track_caller]
        fn check_admitted(&self, step: &Step<'_>) {
            let Step { before, plan, after, calls, victims, said } = step;
            let simulation::Setup { page_size, n_pages, limits, .. } = self.world.setup();
            let (ran, running) = (ids(&before.running), after.running.len());
            let came: Vec<&SeenSequence> = after.running.iter().filter(|seen| !ran.contains(&seen.id.0)).collect();
            let names: Vec<u64> = came.iter().map(|seen| seen.id.0).collect();
            let allowed = limits.sequences;
            assert!(
                running <= allowed,
                "{} run, and at most {allowed} are allowed; {said}",
                count(running, "sequence")
            );
            assert!(
                came.is_empty() || victims.is_empty(),
                "{} admitted, in a step in which {} preempted; {said}",
                were(&names),
                were(victims)
            );
            assert!(
                calls.lookups.len() <= came.len() || running < allowed,
                "plan asked the prefix cache about a sequence although {running} of at most {allowed} run: a lookup counts \
                 as a use of the pages that it finds, so look at the limit first; {said}"
            );
            let tokens_of = |id| plan.iter().find(|chunk| chunk.sequence == id).map(|chunk| chunk.tokens);
            let old = plan.iter().filter(|chunk| !names.contains(&chunk.sequence.0));
            let mut left = limits.tokens - old.map(|chunk| chunk.tokens).sum::<usize>();
            for seen in &came {
                let (id, all) = (seen.id, seen.n_tokens);
                let tokens = tokens_of(id);
                let tokens =
                    tokens.unwrap_or_else(|| panic!("sequence {id} was admitted and computes nothing; {said}"));
                let cached = seen.held.wrapping_sub(tokens);
                assert!(
                    cached < all && cached.is_multiple_of(page_size) && calls.lookups.contains(&(all, cached)),
                    "sequence {id} begins with {} of its {all} in the cache; the lookups of this plan, as (tokens, cached), \
                     were {:?}; {said}",
                    count(cached, "token"),
                    calls.lookups
                );
                same!(
                    tokens,
                    left.min(all - cached),
                    "tokens that sequence {id} computes: it was admitted with {}, {cached} of them cached, and {left} of \
                     the budget left; {said}",
                    count(all, "token")
                );
                left -= tokens;
            }
            let room = available(after);
            let (free, evictable) = (after.n_free, room.saturating_sub(after.n_free));
            let needed: usize = after.running.iter().map(|seen| seen.pages_needed(page_size)).sum();
            assert!(
                came.is_empty() || needed <= room,
                "{} admitted, and then the running sequences need {} more for all of their tokens and the next one, and \
                 {room} of {n_pages} are available ({free} free, {evictable} evictable); {said}",
                were(&names),
                count(needed, "page")
            );
            let Some(head) = after.waiting.first() else { return };
            if left == 0 || running == allowed || !victims.is_empty() {
                return;
            }
            let shared = self.shared_pages(head, step);
            let needed = needed + head.pages_needed(page_size).saturating_sub(shared);
            assert!(
                needed > room,
                "sequence {} is the first that waits and is not admitted, although {left} of the budget and places for \
                 {} are left, and it fits: it and the running ones need {} more{}, and {room} are available ({free} free, \
                 {evictable} evictable); {said}",
                head.id,
                count(allowed - running, "sequence"),
                count(needed, "page"),
                if shared > 0 { format!(", beside {shared} that it shares with one that runs") } else { String::new() }
            );
        }

        /// Pages of a waiting sequence that the prefix cache holds and a running one has.
        fn shared_pages(&self, waiting: &SeenSequence, step: &Step<'_>) -> usize {
            let simulation::Setup { page_size, keeps_prefixes, .. } = self.world.setup();
            let tokens = self.tokens(waiting.id.0);
            let alike = |seen: &SeenSequence| {
                // What it held before this step is cached.
                let all = self.tokens(seen.id.0);
                let held = find(&step.before.running, seen.id).map_or(0, |seen| seen.held);
                let alike = tokens.iter().zip(&all[..held.min(all.len())]).take_while(|(a, b)| a == b).count();
                alike.min(tokens.len() - 1) / page_size
            };
            if keeps_prefixes { step.after.running.iter().map(alike).max().unwrap_or(0) } else { 0 }
        }

        /// Pages are cached when their rows are computed, and not before.
        #[track_caller]
        fn check_insertions(&self, step: &Step<'_>) {
            let page_size = self.world.setup().page_size;
            for (tokens, len) in &step.calls.insertions {
                let full = len / page_size * page_size;
                let computed = step.before.running.iter().filter(|seen| self.tokens(seen.id.0) == *tokens);
                assert!(
                    full <= computed.map(|seen| seen.held).max().unwrap_or(0),
                    "plan gave pages with {} to the prefix cache, whose rows are not computed yet; {}",
                    count(full, "token"),
                    step.said
                );
            }
        }

        /// A chunk, and what it costs.
        #[track_caller]
        fn check_chunk(&mut self, step: &Step<'_>, chunk: &ScheduledChunk) {
            let Step { before, after, said, .. } = step;
            let id = chunk.sequence;
            let Some(seen) = find(&after.running, id) else { return };
            let ran = find(&before.running, id);
            let cached = if ran.is_none() { seen.held - chunk.tokens } else { 0 };
            let held = ran.map_or(cached, |ran| ran.held);
            same!(
                seen.held,
                held + chunk.tokens,
                "tokens that the cache of sequence {id} has room for: {held} before and {} in this step; {said}",
                chunk.tokens
            );
            same!(
                chunk.caught_up,
                seen.held == seen.n_tokens,
                "caught_up of sequence {id}, which then holds {} of {}; {said}",
                seen.held,
                count(seen.n_tokens, "token")
            );
            let counters = self.counters.get_mut(&id.0).expect("a known sequence");
            let first = counters.computed == 0;
            *(if first { &mut counters.cached } else { &mut counters.cached_again }) += cached;
            counters.computed += chunk.tokens as u64;
        }

        /// The model's part: computes what the plan says, and returns the tokens that come next.
        #[track_caller]
        pub fn compute(&mut self, plan: &[ScheduledChunk]) -> Vec<NextToken> {
            let at = self.at();
            let what = format!("inputs, {at}");
            let chunks = answer(&what, || {
                self.world
                    .call("inputs", |subject| subject.inputs().iter().map(|input| input.chunk).collect::<Vec<_>>())
            });
            same!(chunks, plan, "chunks of the inputs, {at}");
            let next = answer(&what, || self.world.compute());
            for NextToken { sequence: id, token } in &next {
                let (prompt, _, received) = self.world.request(*id).expect("a known sequence");
                let tokens = [prompt, received].concat();
                let alone = alone_until(&tokens, 1, &[]).0[0];
                same!(
                    *token,
                    alone,
                    "next token of sequence {id}, as it would be alone: its cache must hold the rows of its own {} tokens, \
                     {at}",
                    tokens.len()
                );
            }
            next
        }

        /// Hands the tokens in and looks at what became of them.
        #[track_caller]
        pub fn settle(&mut self, next: &[NextToken]) {
            let before = self.seen();
            let tokens: Vec<String> = next.iter().map(|next| format!("{} for {}", next.token, next.sequence)).collect();
            let tokens =
                if tokens.is_empty() { "no tokens".into() } else { format!("the tokens {}", tokens.join(", ")) };
            let what = format!("settle with {tokens}; {}", self.at());
            let mut finished = Vec::new();
            for NextToken { sequence: id, token } in next {
                let (_, max_new_tokens, received) = self.world.request(*id).expect("a known sequence");
                let reason = match () {
                    () if self.end_of_text.contains(token) => FinishReason::EndOfText,
                    () if received.len() + 1 == max_new_tokens => FinishReason::Limit,
                    () => continue,
                };
                finished.push((id.0, reason));
                self.history.push(format!("sequence {id} finishes: {reason:?}"));
            }
            answer(&what, || self.world.settle(next));
            self.check_finished(&finished, &what);
            let ended = |id: &u64| finished.iter().any(|(other, _)| other == id);
            let running: Vec<u64> = ids(&before.running).into_iter().filter(|id| !ended(id)).collect();
            self.check_lists(&running, &ids(&before.waiting), &what);
        }

        /// A whole step.
        #[track_caller]
        pub fn step(&mut self) -> Vec<ScheduledChunk> {
            let plan = self.plan();
            let next = self.compute(&plan);
            self.settle(&next);
            plan
        }

        /// Steps until all have finished; how many there were.
        #[track_caller]
        pub fn run(&mut self, most_steps: usize) -> usize {
            let begin = self.steps;
            while !self.alive().is_empty() {
                let (left, at) = (self.alive(), self.at());
                assert!(
                    self.steps - begin < most_steps,
                    "after {most_steps} steps these are left: {}; {at}",
                    list(&left)
                );
                self.step();
            }
            self.steps - begin
        }

        /// The sequences that have finished with this call, and no others; each as it would be alone.
        #[track_caller]
        fn check_finished(&mut self, expected: &[(u64, FinishReason)], what: &str) {
            let finished = answer(what, || self.world.collect());
            let found: Vec<(u64, FinishReason)> = finished.iter().map(|ended| (ended.id.0, ended.reason)).collect();
            same!(found, expected, "(sequence, why it finished) after the {what}");
            for ended in finished {
                let tokens = [&ended.prompt[..], &ended.received].concat();
                same!(ended.tokens, tokens, "tokens of sequence {}, after the {what}", ended.id);
                let (alone, reason) = alone_until(&ended.prompt, ended.max_new_tokens, &self.end_of_text);
                if ended.reason != FinishReason::Cancelled {
                    same!(
                        (&ended.received, ended.reason),
                        (&alone, reason),
                        "(output, why it finished) of sequence {}, as it would be alone, after the {what}",
                        ended.id
                    );
                }
                self.tokens.insert(ended.id.0, tokens);
            }
        }

        /// These run and these wait.
        #[track_caller]
        fn check_lists(&mut self, running: &[u64], waiting: &[u64], what: &str) {
            let seen = self.seen();
            same!(ids(&seen.waiting), waiting, "waiting sequences, after the {what}");
            same!(ids(&seen.running), running, "running sequences, after the {what}");
            self.check_seen(&seen, what);
        }

        /// What the sequences hold and have cost, and who owns which page.
        #[track_caller]
        fn check_seen(&mut self, seen: &Seen, what: &str) {
            let simulation::Setup { page_size, n_pages, .. } = self.world.setup();
            for sequence in seen.running.iter().chain(&seen.waiting) {
                let (id, known) = (sequence.id, self.world.request(sequence.id));
                let (prompt, max_new_tokens, received) =
                    known.unwrap_or_else(|| panic!("sequence {id}, after the {what}"));
                same!(
                    (sequence.n_tokens, sequence.n_prompt, sequence.max_new_tokens),
                    (prompt.len() + received.len(), prompt.len(), max_new_tokens),
                    "(tokens, n_prompt, max_new_tokens) of sequence {id}, after the {what}"
                );
                same!(sequence.counters, self.counters[&id.0], "counters of sequence {id}, after the {what}");
                same!(
                    sequence.pages.len(),
                    sequence.held.div_ceil(page_size),
                    "pages of sequence {id}, {} held, after the {what}",
                    count(sequence.held, "token")
                );
            }
            let mut tables = vec![0; n_pages];
            seen.running.iter().flat_map(|running| &running.pages).for_each(|page| tables[page.index()] += 1);
            for (page, (owners, tables)) in seen.owners.iter().zip(&tables).enumerate() {
                let cached = seen.cached.contains(&PageId(page as u32));
                same!(
                    *owners,
                    tables + u32::from(cached),
                    "owners of page {page}: {} of running sequences and {} prefix cache have it, after the {what}; did a \
                     sequence that no longer runs keep some, or give its pages back twice?",
                    count(*tables as usize, "table"),
                    if cached { "the" } else { "no" }
                );
            }
        }

        /// When all have finished, every page is free or the prefix cache's.
        #[track_caller]
        pub fn check_end(&self) {
            let seen = self.seen();
            same!(self.alive(), [0; 0], "sequences that have not finished, {}", self.at());
            let pages = self.world.setup().n_pages;
            same!(seen.n_free + seen.cached.len(), pages, "pages that are free or cached in the end, {}", self.at());
        }
    }

    fn total(plan: &[ScheduledChunk]) -> usize {
        plan.iter().fold(0, |sum, chunk| sum.saturating_add(chunk.tokens))
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
    use page_by_page::prefixes::none::NoPrefixes;
    use page_by_page::serving::schedule::{
        FinishReason, NextToken, ScheduleError, ScheduledChunk, SequenceCounters, SequenceId, StepLimits,
    };
    use page_by_page::simulation::{FIRST_NEW, LAYOUT, Setup, alone_until, watched};
    use page_by_page::workload::serving::TINY_LLM;

    use super::world::{Call, Fails, World, in_words, setup, with_prefix_cache};
    use crate::support::asking::{asking, granted, made};
    use crate::support::limits::{self, often};
    use crate::support::oracle::{Dice, seeds};
    use crate::support::story::{SAMPLING, Storyteller};
    use crate::support::transcript::{Transcript, assert_transcript};
    use crate::support::words::count;

    /// So many tokens that no other sequence begins with.
    fn prompt(name: u32, n: usize) -> Vec<u32> {
        (0..n as u32).map(|token| 1000 * (name + 1) + token).collect()
    }

    /// A plan, short: (sequence, tokens, caught_up).
    fn short(plan: &[ScheduledChunk]) -> Vec<(u64, usize, bool)> {
        plan.iter().map(|chunk| (chunk.sequence.0, chunk.tokens, chunk.caught_up)).collect()
    }

    /// A token that is the sequence's `n`th new one and not before: as an end of text it ends it there.
    fn nth_new(prompt: &[u32], n: usize) -> u32 {
        let (output, _) = alone_until(prompt, n, &[]);
        let (token, before) = output.split_last().expect("n is at least 1");
        assert!(!before.contains(token), "the example is badly chosen: {token} comes twice");
        *token
    }

    /// The token that follows these.
    fn next_token(tokens: &[u32]) -> u32 {
        alone_until(tokens, 1, &[]).0[0]
    }

    /// A prefix cache that keeps nothing.
    fn keeps_nothing(page_size: usize) -> Box<NoPrefixes> {
        Box::new(NoPrefixes::new(page_size).expect("pages have slots"))
    }

    // Task 1

    #[test]
    fn task_1_a_requests_wait_in_order_of_arrival() {
        let mut world = World::new(setup(3, 8, 2));
        for (name, tokens, most) in [(0, 5, 3), (1, 1, 1), (2, 9, 4)] {
            world.submit(&prompt(name, tokens), most);
        }
        let waiting: Vec<(u64, usize, usize, usize)> = world
            .seen()
            .waiting
            .iter()
            .map(|sequence| (sequence.id.0, sequence.n_tokens, sequence.n_prompt, sequence.max_new_tokens))
            .collect();
        same!(
            waiting,
            [(0, 5, 5, 3), (1, 1, 1, 1), (2, 9, 9, 4)],
            "(sequence, tokens, n_prompt, max_new_tokens) of those that wait, after three calls of submit"
        );
        same!(world.running(), [0; 0], "sequences that run before the first plan");
        same!(world.n_free(), 3, "free pages of 3 before the first plan");
    }

    #[test]
    fn task_1_b_a_prompt_without_tokens_is_refused() {
        let mut world = World::new(setup(3, 8, 2));
        world.submit(&prompt(0, 5), 3);
        for most in [0, 1, usize::MAX] {
            world.submit_refused(&[], most, ScheduleError::NoPrompt);
        }
        same!(world.submit(&prompt(1, 5), 3), 1, "number of the next sequence: those that were refused have none");
    }

    #[test]
    fn task_1_c_what_can_never_fit_is_refused_at_once() {
        let mut world = World::new(setup(3, 8, 2));
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
        same!(world.submit(&prompt(1, 5), 3), 4, "number of the next sequence: those that were refused have none");
    }

    #[test]
    fn task_1_d_pages_of_one_slot_are_counted_too() {
        let mut world = World::new(Setup { page_size: 1, ..setup(7, 8, 2) });
        world.submit(&prompt(0, 5), 3);
        world.submit_too_long(&prompt(1, 5), 4, 8);
        world.submit_too_long(&prompt(1, 5), usize::MAX, usize::MAX);
    }

    #[test]
    fn task_1_e_no_new_tokens_finish_at_once() {
        let mut world = World::new(setup(3, 8, 2));
        world.submit(&prompt(0, 5), 0);
        // It takes no page, so it fits whatever its length.
        world.submit(&prompt(1, 500), 0);
        world.submit(&prompt(2, 5), 1);
        same!(world.waiting(), [2], "sequences that wait: one that is to get no new token does not");
    }

    #[test]
    fn task_1_f_more_sequences_than_16_bits_count() {
        let n = if cfg!(miri) { 300 } else { 70_000 };
        let mut scheduler = scheduler(setup(3, 8, 2));
        often("submit, with more and more sequences in the queue", n, |number| {
            let id = scheduler.submit(vec![1, 2, 3], 2);
            if id != Ok(SequenceId(number as u64)) {
                same!(id, Ok(SequenceId(number as u64)), "number of the sequence that is the {number}th to come");
            }
        });
        same!(scheduler.waiting().count(), n, "sequences that wait, after {n} calls of submit");
    }

    /// A scheduler that is not watched.
    #[track_caller]
    fn scheduler(setup: Setup) -> Scheduler {
        let Setup { page_size, n_pages, limits, .. } = setup;
        let slab = made("PageSlab::new of chapter 6", || PageSlab::new(LAYOUT, page_size, n_pages));
        made("Scheduler::new", || Scheduler::new(&slab, keeps_nothing(page_size), limits, &[]))
    }

    #[test]
    fn given_a_step_needs_tokens_and_texts() {
        let slab = made("PageSlab::new of chapter 6", || PageSlab::new(LAYOUT, 4, 3));
        for (tokens, sequences) in [(0, 1), (1, 0), (0, 0)] {
            let limits = StepLimits { tokens, sequences };
            let found = Scheduler::new(&slab, keeps_nothing(4), limits, &[]).err();
            same!(found, Some(ScheduleError::NoStep(limits)), "Scheduler::new with {limits:?}");
        }
    }

    // Task 2

    #[test]
    fn task_2_a_an_empty_plan() {
        let mut world = World::new(setup(3, 8, 2));
        for _ in 0..3 {
            same!(world.plan(), [], "the plan when no sequence is there");
        }
        same!(world.compute(&[]).len(), 0, "tokens that are due when no sequence is there");
    }

    #[test]
    fn task_2_b_a_prompt_is_computed_as_far_as_the_budget_goes() {
        for (budget, n, caught_up) in [(1, 1, false), (4, 4, false), (9, 9, false), (10, 10, true), (11, 10, true)] {
            let mut world = World::new(setup(4, budget, 2));
            world.submit(&prompt(0, 10), 3);
            same!(short(&world.plan()), [(0, n, caught_up)], "the plan for a prompt of 10 tokens, budget {budget}");
            same!(
                world.n_free(),
                4 - n.div_ceil(4),
                "free pages of 4 beside room for {}, page size 4",
                count(n, "token")
            );
            let plan = [ScheduledChunk { sequence: SequenceId(0), tokens: n, caught_up }];
            same!(world.compute(&plan).len(), usize::from(caught_up), "tokens that are asked for, {n} of 10 read");
        }
    }

    #[test]
    fn task_2_c_the_budget_is_shared_oldest_first() {
        let mut world = World::new(setup(10, 12, 4));
        for (name, tokens) in [(0, 4), (1, 5), (2, 6), (3, 1)] {
            world.submit(&prompt(name, tokens), 2);
        }
        let plan = world.plan();
        same!(
            short(&plan),
            [(0, 4, true), (1, 5, true), (2, 3, false)],
            "the plan for prompts of 4, 5, 6 and 1 tokens, budget 12"
        );
        same!(world.waiting(), [3], "sequences that wait when the budget is used up");
        world.compute(&plan);
    }

    #[test]
    fn task_2_d_a_budget_that_just_suffices() {
        let mut world = World::new(setup(10, 9, 4));
        for (name, tokens) in [(0, 4), (1, 5), (2, 6)] {
            world.submit(&prompt(name, tokens), 2);
        }
        same!(short(&world.plan()), [(0, 4, true), (1, 5, true)], "the plan for prompts of 4, 5 and 6, budget 9");
        same!(
            world.waiting(),
            [2],
            "sequences that wait: one that computes nothing in this step has no use for a place yet"
        );
    }

    #[test]
    fn task_2_e_no_more_run_than_allowed() {
        for most in [1, 2, 3] {
            let mut world = World::new(setup(10, 100, most));
            for name in 0..4 {
                world.submit(&prompt(name, 3), 2);
            }
            same!(
                world.plan().len(),
                most,
                "chunks of the plan when {} may run and four want to",
                count(most, "sequence")
            );
        }
    }

    #[test]
    fn task_2_f_a_budget_without_end() {
        let mut world = World::new(setup(10, usize::MAX, usize::MAX));
        for name in 0..3 {
            world.submit(&prompt(name, 5), 2);
        }
        same!(world.plan().len(), 3, "chunks of the plan, budget usize::MAX");
    }

    #[test]
    fn task_2_g_admitted_when_all_of_it_fits() {
        // (pages, tokens and new tokens of sequence 0 and of sequence 1, whether both are admitted at once)
        for (n_pages, first, second, both) in [
            (5, (8, 5), (4, 5), true),  // 9 rows and 5: 3 pages and 2
            (4, (8, 5), (4, 5), false), // one page less
            (4, (8, 1), (8, 1), true),  // 8 rows and 8: no token of theirs is computed
            (3, (8, 1), (8, 1), false),
            (4, (8, 2), (8, 1), false), // 9 rows and 8
            (4, (7, 5), (7, 5), true),  // 8 rows and 8: the next token still has a slot
            (4, (7, 5), (8, 2), false),
            (2, (3, 4), (3, 4), true),
            (2, (1, 8), (4, 1), true),
            (2, (1, 8), (4, 2), false),
        ] {
            let mut world = World::new(setup(n_pages, 100, 4));
            for (name, (tokens, most)) in [(0, first), (1, second)] {
                world.submit(&prompt(name, tokens), most);
            }
            let plan = world.plan();
            same!(
                plan.len(),
                1 + usize::from(both),
                "sequences that are admitted at once, of two with (tokens, new) {first:?} and {second:?}, {} of 4",
                count(n_pages, "page")
            );
        }
    }

    /// A rule that asks for a slot for every token and one more never admits a request that just fits.
    #[test]
    fn task_2_h_admitted_when_it_just_fits() {
        for (tokens, most) in [(8, 1), (7, 2), (1, 8), (5, 4)] {
            let mut world = World::new(setup(2, 100, 4));
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
    fn task_2_i_none_overtakes() {
        let mut world = World::new(setup(4, 100, 4));
        world.submit(&prompt(0, 8), 5);
        world.submit(&prompt(1, 8), 5);
        world.submit(&prompt(2, 2), 1);
        same!(
            short(&world.plan()),
            [(0, 8, true)],
            "the plan: sequence 1 does not fit, and sequence 2, which would, came later"
        );
        same!(world.waiting(), [1, 2], "sequences that wait");
    }

    /// Two pages are free, and the prefix cache alone has two.
    #[test]
    fn task_2_j_pages_that_can_be_evicted_are_room() {
        let slab = made("PageSlab::new of chapter 6", || PageSlab::new(LAYOUT, 4, 4));
        let mut prefixes = made("PrefixCache::new of chapter 11", || PrefixCache::new(4));
        let kept = prompt(9, 8);
        let mut cache = made("ForkCache::new of chapter 10", || ForkCache::new(&slab));
        granted("extend(8) of chapter 10, with 4 pages of 4", || cache.extend(8));
        granted("insert_into of chapter 11, 8 tokens", || cache.insert_into(&mut prefixes, &kept));
        drop(cache);
        let limits = StepLimits { tokens: 8, sequences: 4 };
        let mut scheduler = made("Scheduler::new", || Scheduler::new(&slab, Box::new(prefixes), limits, &[]));
        granted("submit of 12 tokens, 1 new", || scheduler.submit(prompt(0, 12), 1));
        same!(
            short(&granted("plan, 2 pages free and 2 that can be evicted", || scheduler.plan())),
            [(0, 8, false)],
            "the plan, budget 8: sequence 0 needs 3 pages for its 12 tokens, 2 are free, and 2 more can be evicted"
        );
    }

    /// Calls `plan` and `settle` until one refuses, with a prefix cache that fails in one of its calls; who refused, and why.
    fn until_refused(call: Call) -> Option<(&'static str, ScheduleError)> {
        // Each sequence takes one page of two, and wants a second for its fifth row.
        let slab = made("PageSlab::new of chapter 6", || PageSlab::new(LAYOUT, 4, 2));
        let (prefixes, log) = watched(Box::new(Fails { page_size: 4, call }));
        let limits = StepLimits { tokens: 100, sequences: 4 };
        let mut scheduler = made("Scheduler::new", || Scheduler::new(&slab, prefixes, limits, &[]));
        for name in [0, 1] {
            granted("submit of 3 tokens, 5 new", || scheduler.submit(prompt(name, 3), 5));
        }
        for step in 1..5 {
            let _asking = asking(format!("step {step}, with a prefix cache that fails in {call:?}"));
            log.take();
            let plan = match scheduler.plan() {
                Ok(plan) => plan,
                Err(error) => return Some(("plan", error)),
            };
            let last = plan.iter().filter(|chunk| chunk.caught_up);
            let next: Vec<NextToken> = last.map(|chunk| NextToken { sequence: chunk.sequence, token: 5 }).collect();
            if let Err(error) = scheduler.settle(&next) {
                return Some(("settle", error));
            }
        }
        None
    }

    #[test]
    fn task_2_k_when_a_lookup_fails_plan_fails() {
        same!(
            until_refused(Call::Lookup),
            Some(("plan", ScheduleError::Cache(Fails::ERROR))),
            "what refuses, and why, when lookup of the prefix cache fails: its error comes out of plan"
        );
    }

    /// What cannot fit now may fit later; what is refused is what cannot fit alone.
    #[test]
    fn task_2_l_accepted_though_no_page_is_free() {
        let mut world = World::new(setup(3, 100, 4));
        world.submit(&prompt(0, 12), 1);
        world.plan();
        same!(world.n_free(), 0, "free pages of 3 while a sequence of 12 tokens runs");
        same!(world.submit(&prompt(1, 12), 1), 1, "number of a sequence that needs all pages");
        same!(world.waiting(), [1], "sequences that wait");
    }

    #[test]
    fn task_2_m_a_plan_is_settled_before_the_next() {
        let mut world = World::new(setup(10, 12, 4));
        world.submit(&prompt(0, 4), 2);
        world.submit(&prompt(1, 5), 2);
        let plan = world.plan();
        for _ in 0..2 {
            let why = ScheduleError::NotSettled { chunks: 2 };
            world.refused("plan, with a plan of 2 chunks that is not settled", why, |scheduler| scheduler.plan());
        }
        world.compute(&plan);
    }

    // Task 3

    #[test]
    fn task_3_y_sequences_that_just_fit_finish() {
        let mut world = World::new(setup(3, 8, 2));
        for (tokens, most) in [(1, 12), (12, 1), (11, 2), (6, 7), (5, 0), (1, 1)] {
            world.submit(&prompt(9, tokens), most);
        }
        world.run(200);
        world.check_end();
    }

    #[test]
    fn task_3_a_each_sequence_gets_its_token() {
        let mut world = World::new(setup(12, 100, 4));
        for (name, tokens) in [(0, 4), (1, 5), (2, 6)] {
            world.submit(&prompt(name, tokens), 3);
        }
        world.step();
        for (name, tokens) in [(0, 4), (1, 5), (2, 6)] {
            let asked = prompt(name as u32, tokens);
            same!(world.tokens(name)[tokens..], [next_token(&asked)], "new tokens of sequence {name}");
        }
        same!(
            short(&world.step()),
            [(0, 1, true), (1, 1, true), (2, 1, true)],
            "the second plan: each computes the token that it got"
        );
        same!(world.run(10), 1, "steps after the second, for 3 new tokens each");
        world.check_end();
    }

    #[test]
    fn task_3_b_a_prompt_in_chunks_gets_its_token_after_the_last() {
        let mut world = World::new(setup(12, 4, 4));
        world.submit(&prompt(0, 10), 2);
        let plans: Vec<_> = (0..4).map(|_| short(&world.step())).collect();
        let expected = [[(0, 4, false)], [(0, 4, false)], [(0, 2, true)], [(0, 1, true)]];
        same!(plans, expected, "four plans for a prompt of 10 tokens and 2 new ones, budget 4");
        world.check_end();
    }

    #[test]
    fn task_3_d_one_token_for_each_that_generates_the_rest_for_the_prompt() {
        let mut world = World::new(setup(20, 8, 4));
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
            "three plans when two sequences generate and a prompt of 13 tokens arrives, budget 8"
        );
        world.run(20);
        world.check_end();
    }

    #[test]
    fn task_3_c_as_many_tokens_as_requested() {
        for most in [1, 2, 3, 7] {
            let mut world = World::new(setup(12, 100, 4));
            world.submit(&prompt(0, 5), most);
            same!(world.run(20), most, "steps for {most} new tokens of a sequence of 5");
            same!(world.tokens(0).len(), 5 + most, "tokens at the end, 5 of the prompt and {most} new");
            world.check_end();
        }
    }

    #[test]
    fn task_3_f_an_end_of_text_is_not_part_of_the_output() {
        let asked = prompt(0, 5);
        for (n, most, end) in [
            (1, 5, FinishReason::EndOfText),
            (2, 5, FinishReason::EndOfText),
            (3, 3, FinishReason::EndOfText),
            (3, 2, FinishReason::Limit),
        ] {
            let end_of_text = [7, nth_new(&asked, n), 9];
            let mut world = World::of(String::new(), setup(12, 100, 4), &end_of_text);
            world.submit(&asked, most);
            world.run(20);
            let (output, reason) = alone_until(&asked, most, &end_of_text);
            same!(
                (world.tokens(0)[5..].to_vec(), end),
                (output, reason),
                "the output when token number {n} is an end of text, {} requested",
                count(most, "token")
            );
            world.check_end();
        }
        // In a prompt it is a token like any other.
        let end_of_text = [asked[4], asked[0]];
        let mut world = World::of(String::new(), setup(12, 100, 4), &end_of_text);
        world.submit(&asked, 3);
        same!(world.run(20), 3, "steps for 3 new tokens after a prompt with an end of text in it");
    }

    #[test]
    fn task_3_g_several_finish_in_one_step() {
        for ending in [vec![0, 1], vec![1, 2], vec![0, 2], vec![0, 1, 2, 3], vec![3]] {
            let mut world = World::new(setup(20, 100, 4));
            for name in 0..4 {
                world.submit(&prompt(name, 5), if ending.contains(&name) { 2 } else { 4 });
            }
            world.submit(&prompt(4, 5), 2);
            world.run(20);
            world.check_end();
        }
    }

    #[test]
    fn task_3_h_pages_are_free_at_once() {
        let mut world = World::new(setup(6, 100, 4));
        world.submit(&prompt(0, 8), 1);
        world.submit(&prompt(1, 8), 3);
        let plan = world.plan();
        same!(world.n_free(), 2, "free pages of 6 while two sequences with 8 tokens each run");
        let next = world.compute(&plan);
        world.settle(&next);
        same!(world.n_free(), 4, "free pages of 6 after the settle with which sequence 0 ends");
        world.submit(&prompt(2, 8), 1);
        same!(short(&world.plan()), [(1, 1, true), (2, 8, true)], "the next plan: sequence 2 has its place");
    }

    #[test]
    fn task_3_i_full_pages_are_cached() {
        let mut world = World::new(with_prefix_cache(setup(12, 100, 4)));
        world.submit(&prompt(0, 6), 8);
        let mut kept = Vec::new();
        for _ in 0..8 {
            world.step();
            kept.push(world.n_cached());
        }
        // Rows after each step: 6 to 13. The sequence ends with 14 tokens, the newest without a row.
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
            "the plan for the sequence that goes on from it: 12 of 15 tokens are cached"
        );
    }

    #[test]
    fn task_3_j_running_sequences_share_full_pages() {
        let mut world = World::new(with_prefix_cache(setup(12, 8, 4)));
        world.submit(&prompt(0, 8), 5);
        world.step();
        world.submit(&prompt(0, 9), 5);
        same!(
            short(&world.step()),
            [(0, 1, true), (1, 1, true)],
            "the plan: sequence 1 finds 8 of its 9 tokens, sequence 0 has them"
        );
        same!(world.n_free(), 12 - 2 - 2, "free pages of 12: the sequences share 2, and each has one of its own");
        world.run(20);
        world.check_end();
    }

    #[test]
    fn task_3_k_a_sequence_begins_with_its_cached_tokens() {
        // Of 8 tokens all but the last page's can be cached: one token is left to compute.
        for (tokens, found) in [(8, 4), (9, 8), (10, 8), (13, 12)] {
            let mut world = World::new(with_prefix_cache(setup(8, 100, 4)));
            world.submit(&prompt(0, 14), 1);
            world.step();
            world.submit(&prompt(0, tokens), 3);
            same!(
                short(&world.plan()),
                [(1, tokens - found, true)],
                "the plan for a sequence of {} that an earlier one had begun with, page size 4",
                count(tokens, "token")
            );
            same!(world.counters(1).cached, found, "tokens cached, of {tokens}");
            let plan = [ScheduledChunk { sequence: SequenceId(1), tokens: tokens - found, caught_up: true }];
            world.compute(&plan);
        }
    }

    #[test]
    fn task_3_l_cached_pages_are_no_longer_available() {
        let mut world = World::new(with_prefix_cache(setup(5, 100, 4)));
        world.submit(&prompt(0, 9), 1);
        world.step();
        // Text 1 takes one page of the three that are free; two are the prefix cache's.
        world.submit(&prompt(1, 2), 5);
        // Text 2 needs 5 pages; it finds 2.
        world.submit(&prompt(0, 16), 2);
        same!(
            short(&world.plan()),
            [(1, 2, true)],
            "the plan: sequence 2 needs 3 pages beside the 2 that it finds, and 2 are free; those that it finds are not free"
        );
        let owned = world.seen().owners.iter().sum::<u32>();
        same!(
            owned,
            3,
            "owners of all pages together: a sequence that is not admitted keeps nothing of what was cached"
        );
    }

    /// A lookup is a use: pages that are looked up all the time would never be evicted.
    #[test]
    fn task_3_m_nothing_is_looked_up_when_no_more_can_run() {
        let mut world = World::new(with_prefix_cache(setup(8, 100, 1)));
        world.submit(&prompt(0, 5), 3);
        world.submit(&prompt(1, 5), 3);
        world.step();
        world.plan();
        same!(world.cache_calls().lookups, [], "lookups of a plan, (tokens, cached): 1 of at most 1 runs already");
    }

    /// Pages of a running sequence are neither free nor evictable, and need not be.
    #[test]
    fn task_3_n_pages_of_a_running_sequence_are_not_needed_again() {
        let mut world = World::new(with_prefix_cache(setup(5, 100, 4)));
        world.submit(&prompt(0, 8), 3);
        world.step();
        world.submit(&[&prompt(0, 8)[..], &[1]].concat(), 1);
        same!(
            short(&world.plan()),
            [(0, 1, true), (1, 1, true)],
            "the plan: sequence 0 has 3 pages of 5; sequence 1 finds 2 of these and needs 1 page more, and 2 are free"
        );
    }

    #[test]
    fn task_3_o_when_an_insertion_fails_settle_fails() {
        same!(
            until_refused(Call::Insert),
            Some(("settle", ScheduleError::Cache(Fails::ERROR))),
            "what refuses, and why, when insert of the prefix cache fails: its error comes out of settle"
        );
    }

    #[test]
    fn task_3_p_pages_are_cached_after_every_chunk() {
        let mut world = World::new(with_prefix_cache(setup(12, 5, 4)));
        world.submit(&prompt(0, 11), 2);
        let kept: Vec<usize> = (0..3)
            .map(|_| {
                world.step();
                world.n_cached()
            })
            .collect();
        same!(kept, [1, 2, 2], "pages of the prefix cache after chunks of 5, 5 and 1 tokens, page size 4");
    }

    #[test]
    fn task_3_q_wrong_tokens_are_refused_and_change_nothing() {
        let mut world = World::new(with_prefix_cache(setup(20, 20, 4)));
        for (name, tokens) in [(0, 4), (1, 5), (2, 6), (3, 10)] {
            world.submit(&prompt(name, tokens), 2);
        }
        let plan = world.plan();
        let next = world.compute(&plan);
        let pick = |sequence: u64| NextToken { sequence: SequenceId(sequence), token: 100 };
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
            let what = format!("settle with tokens for the sequences {given:?}, where 0, 1 and 2 have read all");
            let tokens: Vec<NextToken> = given.iter().copied().map(pick).collect();
            let given = given.iter().copied().map(SequenceId).collect();
            let why = ScheduleError::WrongTokens { wanted: wanted.clone(), given };
            world.refused(&what, why, |scheduler| scheduler.settle(&tokens));
            same!(world.compute(&plan), next, "the tokens that are due, after the refused {what}");
        }
        world.settle(&next);
        world.run(20);
        world.check_end();
    }

    #[test]
    fn task_3_r_a_step_is_settled_once() {
        let mut world = World::new(setup(20, 20, 4));
        let tokens = [NextToken { sequence: SequenceId(0), token: 100 }];
        let why = ScheduleError::WrongTokens { wanted: vec![], given: vec![SequenceId(0)] };
        let what = "settle with a token when no sequence is there";
        world.refused(what, why.clone(), |scheduler| scheduler.settle(&tokens));
        world.settle(&[]);
        world.submit(&prompt(0, 5), 3);
        world.settle(&[]);
        world.step();
        let what = "settle a second time, with the token of sequence 0";
        world.refused(what, why, |scheduler| scheduler.settle(&tokens));
        world.run(10);
        world.check_end();
    }

    #[test]
    fn task_3_s_requests_come_and_go_at_any_step() {
        let mut world = World::new(setup(30, 9, 3));
        for (tokens, most) in [(12, 5), (3, 9), (7, 1), (1, 4), (20, 2)] {
            let name = world.steps as u32;
            world.submit(&prompt(name, tokens), most);
            world.step();
            // One that arrives in the middle of a step begins in a later one.
            let plan = world.plan();
            world.submit(&prompt(100 + name, 2), 2);
            let next = world.compute(&plan);
            world.settle(&next);
        }
        world.run(100);
        world.check_end();
    }

    #[test]
    fn task_3_t_a_waiting_sequence_is_cancelled() {
        for cancelled in [1, 2, 3] {
            let mut world = World::new(setup(12, 100, 1));
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
    fn task_3_u_a_running_sequence_is_cancelled() {
        for cancelled in [0, 1, 2] {
            let mut world = World::new(setup(16, 12, 3));
            for name in 0..4 {
                world.submit(&prompt(name, 5), 4);
            }
            world.step();
            let free = world.n_free();
            world.cancel(cancelled);
            let pages = if cancelled == 2 { 1 } else { 2 };
            same!(world.n_free(), free + pages, "free pages when sequence {cancelled} is cancelled; it had {pages}");
            world.run(20);
            world.check_end();
        }
    }

    #[test]
    fn task_3_v_an_unknown_sequence_cannot_be_cancelled() {
        let mut world = World::new(setup(16, 20, 3));
        world.submit(&prompt(0, 5), 1);
        world.submit(&prompt(1, 5), 4);
        world.submit(&prompt(2, 5), 4);
        world.step();
        world.cancel(2);
        for id in [0, 2, 3, u64::MAX, 1 << 32 | 1] {
            let what = format!("cancel of sequence {id}, which has finished or never came");
            let why = ScheduleError::UnknownSequence(SequenceId(id));
            world.refused(&what, why, |scheduler| scheduler.cancel(SequenceId(id)));
        }
        world.run(10);
        world.check_end();
    }

    #[test]
    fn task_3_w_none_is_cancelled_in_the_middle_of_a_step() {
        let mut world = World::new(setup(16, 12, 2));
        for name in 0..3 {
            world.submit(&prompt(name, 5), 4);
        }
        let plan = world.plan();
        for id in [0, 1, 2, 7] {
            let what = format!("cancel of sequence {id} between plan and settle");
            let why = ScheduleError::NotSettled { chunks: 2 };
            world.refused(&what, why, |scheduler| scheduler.cancel(SequenceId(id)));
        }
        let next = world.compute(&plan);
        world.settle(&next);
        world.cancel(1);
        world.run(20);
        world.check_end();
    }

    #[test]
    fn task_3_x_a_finished_sequence_is_reported_once() {
        let mut scheduler = scheduler(setup(12, 100, 4));
        let ids: Vec<SequenceId> =
            (0..3).map(|name| granted("submit of 5 tokens, 2 new", || scheduler.submit(prompt(name, 5), 2))).collect();
        granted("cancel of sequence 1, which waits", || scheduler.cancel(ids[1]));
        let reported = |scheduler: &mut Scheduler| {
            let finished = scheduler.take_finished();
            finished.iter().map(|finished| (finished.sequence.id.0, finished.reason)).collect::<Vec<_>>()
        };
        same!(
            reported(&mut scheduler),
            [(1, FinishReason::Cancelled)],
            "sequences that have ended, after sequence 1 was cancelled"
        );
        same!(reported(&mut scheduler), [], "sequences that have ended, asked again");
    }

    // Task 4

    #[test]
    fn task_4_a_the_newest_is_preempted() {
        let mut world = World::new(setup(6, 100, 4));
        for name in 0..3 {
            world.submit(&prompt(name, 7), 9);
        }
        same!(world.step().len(), 3, "sequences that begin: each takes 2 of 6 pages");
        // Each has 8 tokens, and room for as many.
        same!(short(&world.step()), [(0, 1, true), (1, 1, true), (2, 1, true)], "the second plan: 8 rows each");
        same!(
            short(&world.step()),
            [(0, 1, true), (1, 1, true)],
            "the third plan: 9 rows each would take 9 pages of 6, so sequence 2, the newest, gives its 2 back"
        );
        same!((world.running(), world.waiting()), (vec![0, 1], vec![2]), "(sequences that run, sequences that wait)");
        same!(world.counters(2).preemptions, 1, "preemptions of sequence 2");
        world.run(100);
        world.check_end();
    }

    #[test]
    fn task_4_b_the_newest_itself_waits() {
        let mut world = World::new(setup(5, 100, 4));
        world.submit(&prompt(0, 8), 9);
        world.submit(&prompt(1, 4), 9);
        same!(world.step().len(), 2, "sequences that begin: 3 and 2 of 5 pages, with the next token");
        let plans: Vec<_> = (0..5).map(|_| short(&world.step())).collect();
        // Text 0 has 9 to 13 rows; sequence 1 has 5 to 8, and then wants a third page.
        same!(
            plans[4],
            [(0, 1, true)],
            "the sixth plan: sequence 0 wants a fourth page, and sequence 1, the newest, is preempted; the plans before: {:?}",
            &plans[..4]
        );
        world.run(100);
        world.check_end();

        let mut world = World::new(setup(5, 100, 4));
        world.submit(&prompt(0, 9), 4);
        world.submit(&prompt(1, 7), 9);
        world.step();
        same!(short(&world.step()), [(0, 1, true), (1, 1, true)], "the second plan, no page is free");
        same!(
            short(&world.step()),
            [(0, 1, true)],
            "the third plan: sequence 1 is the newest, and finds no page: it waits, and sequence 0 keeps its own"
        );
        same!(world.waiting(), [1], "sequences that wait");
        world.run(100);
        world.check_end();
    }

    #[test]
    fn task_4_m_several_victims_at_once() {
        let mut world = World::new(Setup { page_size: 1, ..setup(24, 8, 5) });
        // A long prompt is computed in chunks, while those that came with it take pages.
        world.submit(&prompt(0, 4), 20);
        for name in 1..5 {
            world.submit(&prompt(name, 1), 20);
        }
        world.run(200);
        world.check_end();
        let preempted: Vec<u64> = (0..5).map(|id| world.counters(id).preemptions).collect();
        same!(preempted[0], 0, "preemptions of the oldest");
        assert!(preempted.iter().sum::<u64>() > 0, "none was preempted, in 24 slots for 5 sequences of up to 23 rows");
    }

    #[test]
    fn task_4_d_victims_resume_first() {
        let mut world = World::new(setup(6, 100, 3));
        for name in 0..5 {
            world.submit(&prompt(name, 7), 9);
        }
        for _ in 0..3 {
            world.step();
        }
        same!(
            world.waiting(),
            [2, 3, 4],
            "sequences that wait, after sequence 2 was preempted: it stands before those that came later"
        );
        world.run(200);
        world.check_end();
    }

    #[test]
    fn task_4_e_evict_before_you_preempt() {
        let mut world = World::new(with_prefix_cache(setup(6, 100, 3)));
        world.submit(&prompt(0, 16), 1);
        world.step();
        same!(world.n_cached(), 4, "pages of the prefix cache, when a sequence of 16 tokens has ended");
        world.submit(&prompt(1, 9), 2);
        same!(short(&world.plan()), [(1, 9, true)], "the plan: 2 pages are free, 4 can be evicted, 3 are needed");
        let evicted: usize = world.cache_calls().evictions.iter().map(|(_, got)| got).sum();
        same!(evicted, 1, "pages that were evicted: 2 were free, and 3 were needed");
        let next = world.compute(&[ScheduledChunk { sequence: SequenceId(1), tokens: 9, caught_up: true }]);
        world.settle(&next);
        world.run(10);
        same!(world.counters(1).preemptions, 0, "preemptions, with pages that only the prefix cache owns");
        world.check_end();
    }

    #[test]
    fn task_4_f_none_is_preempted_for_evictable_pages() {
        let mut world = World::new(with_prefix_cache(setup(7, 100, 3)));
        world.submit(&prompt(0, 13), 1);
        world.step();
        world.submit(&prompt(1, 7), 6);
        world.submit(&prompt(2, 7), 6);
        world.run(20);
        same!(
            [1, 2].map(|id| world.counters(id).preemptions),
            [0, 0],
            "preemptions of two sequences that take 3 pages each, in 7: what an earlier sequence left in the prefix cache can be evicted"
        );
        world.check_end();
    }

    #[test]
    fn task_4_g_a_resumed_sequence_finds_its_pages() {
        let mut world = World::new(with_prefix_cache(setup(7, 100, 3)));
        world.submit(&prompt(0, 8), 12);
        world.submit(&prompt(1, 5), 9);
        let mut most = 0;
        while world.counters(1).preemptions == 0 {
            most += 1;
            assert!(most < 30, "sequence 1 was never preempted in 30 steps; {}", world.at());
            world.step();
        }
        let had = world.tokens(1).len();
        assert!(had > 6, "the example is badly chosen: sequence 1 has {had} tokens");
        world.run(60);
        let counters = world.counters(1);
        assert!(counters.cached_again > 0, "sequence 1 finds nothing of what it had computed; {}", world.at());
        same!(
            counters.computed + counters.cached_again as u64,
            // All but the newest, and once more those that it had read when it was preempted.
            (5 + 9 - 1) + had as u64 - 1,
            "tokens that sequence 1 has computed and found again in the prefix cache: it had {had} when it was preempted, the newest without a row"
        );
        world.check_end();
    }

    #[test]
    fn task_4_h_victims_use_up_no_budget() {
        let mut world = World::new(setup(6, 3, 3));
        world.submit(&prompt(0, 8), 8);
        world.submit(&prompt(1, 7), 8);
        for _ in 0..40 {
            if world.alive().is_empty() {
                break;
            }
            world.step();
        }
        same!(world.alive(), [0; 0], "sequences that have not ended after 40 steps");
        world.check_end();
    }

    #[test]
    fn task_4_i_when_an_eviction_fails_plan_fails() {
        same!(
            until_refused(Call::Evict),
            Some(("plan", ScheduleError::Cache(Fails::ERROR))),
            "what refuses, and why, when evict of the prefix cache fails: its error comes out of plan"
        );
    }

    #[test]
    fn task_4_j_two_that_each_fill_the_pool() {
        for keeps_prefixes in [false, true] {
            let mut world = World::new(Setup { keeps_prefixes, ..setup(4, 5, 4) });
            world.submit(&prompt(0, 6), 11);
            world.submit(&prompt(1, 6), 11);
            world.submit(&prompt(2, 16), 1);
            world.submit(&prompt(3, 1), 16);
            world.run(200);
            world.check_end();
        }
    }

    #[test]
    fn task_4_k_a_victim_can_be_cancelled() {
        let mut world = World::new(with_prefix_cache(setup(6, 100, 4)));
        for name in 0..4 {
            world.submit(&prompt(name, 7), 9);
        }
        for _ in 0..3 {
            world.step();
        }
        same!(world.waiting(), [2, 3], "sequences that wait: sequence 2 was preempted");
        world.cancel(2);
        world.run(100);
        world.check_end();
    }

    #[test]
    fn task_4_l_a_victim_in_the_middle_of_its_prompt() {
        // It is preempted before the end of its prompt.
        let mut world = World::new(with_prefix_cache(Setup { page_size: 2, ..setup(12, 4, 2) }));
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
        same!(useful, 10_661, "tokens to compute, all but the newest of each sequence");
        let setup = Setup { page_size: 16, ..setup(1000, 128, 8) };
        let mut world = World::new(setup);
        for (name, (tokens, most)) in (0..).zip(TINY_LLM) {
            world.submit(&prompt(name, tokens), most);
        }
        same!(world.run(2000), 264, "steps for 16 requests, budget 128, 8 running, pages enough");
        same!(computed(&world), 10_661, "tokens computed, with pages enough");
    }

    /// A scheduler that admits by the next chunk alone computes 34,136 tokens here.
    #[test]
    fn whole_sixteen_requests_in_a_small_pool_compute_nothing_twice() {
        let setup = Setup { page_size: 16, ..setup(150, 128, 8) };
        let mut world = World::new(setup);
        for (name, (tokens, most)) in (0..).zip(TINY_LLM) {
            world.submit(&prompt(name, tokens), most);
        }
        world.run(5000);
        same!(
            (computed(&world), (0..16).map(|id| world.counters(id).preemptions).sum::<u64>()),
            (10_661, 0),
            "(tokens computed, preemptions) for 16 requests in 150 pages of 16: a sequence is admitted when all of it fits"
        );
    }

    #[test]
    fn whole_many_sequences_run_at_once() {
        let mut world = World::new(Setup { page_size: 2, ..setup(1000, 400, 300) });
        for name in 0..310 {
            world.submit(&prompt(name, 1), 3);
        }
        same!(world.step().len(), 300, "chunks of the first plan, when 300 sequences may run");
        world.run(10);
        world.check_end();
    }

    #[test]
    fn whole_a_long_prompt_in_one_step() {
        let n = if cfg!(miri) { 300 } else { 70_000 };
        let mut world = World::new(Setup { page_size: 16, ..setup(5000, 100_000, 2) });
        world.submit(&(0..n as u32).collect::<Vec<_>>(), 2);
        same!(short(&world.step()), [(0, n, true)], "the plan for a prompt of {n} tokens, budget 100,000");
        world.run(3);
        world.check_end();
    }

    /// Tokens of every size.
    #[test]
    fn whole_tokens_are_not_cut() {
        let mut world = World::new(with_prefix_cache(setup(8, 3, 2)));
        world.submit(&[u32::MAX, 0, 1 << 16, (1 << 16) - 1, 255, 256, 1 << 31], 3);
        world.submit(&[u32::MAX, 0, 1 << 16, (1 << 16) - 1, 255, 256, 0], 3);
        world.run(20);
        world.check_end();
    }

    #[test]
    fn whole_a_scheduler_that_is_dropped_lets_go() {
        let slab = made("PageSlab::new of chapter 6", || PageSlab::new(LAYOUT, 4, 12));
        let limits = StepLimits { tokens: 100, sequences: 4 };
        let mut scheduler = made("Scheduler::new", || Scheduler::new(&slab, keeps_nothing(4), limits, &[]));
        for name in 0..3 {
            granted("submit of 7 tokens, 4 new", || scheduler.submit(prompt(name, 7), 4));
        }
        granted("plan", || scheduler.plan());
        drop(scheduler);
        let free = slab.borrow().pool().n_free();
        same!(free, 12, "free pages of 12 when the scheduler was dropped, with three sequences that ran");
    }

    #[test]
    fn whole_transcript() {
        let mut transcript = Transcript::default();
        transcript.line("page size 4, 8 pages, budget 8, at most 3 sequences run; + caught up");
        let slab = made("PageSlab::new of chapter 6", || PageSlab::new(LAYOUT, 4, 8));
        let (prefixes, log) = watched(Box::new(made("PrefixCache::new of chapter 11", || PrefixCache::new(4))));
        let limits = StepLimits { tokens: 8, sequences: 3 };
        let mut scheduler = made("Scheduler::new", || Scheduler::new(&slab, prefixes, limits, &[]));
        let beginning = prompt(0, 8);
        let sequences = [
            (1, beginning.clone(), 12),
            (1, prompt(1, 7), 9),
            (1, prompt(2, 3), 6),
            (4, [&beginning[..], &[7, 8]].concat(), 3),
            (4, prompt(4, 5), 4),
        ];
        let mut finished = Vec::new();
        for step in 1..60 {
            let _asking = asking(format!("step {step} of the transcript"));
            log.take();
            for (_, tokens, most) in sequences.iter().filter(|(comes, ..)| *comes == step) {
                let id = granted("submit, in the transcript", || scheduler.submit(tokens.clone(), *most));
                transcript.line(format!("sequence {id} arrives: {} tokens, wants {most}", tokens.len()));
            }
            if step == 12 && scheduler.cancel(SequenceId(4)).is_ok() {
                transcript.line("sequence 4 is cancelled");
                finished.extend(scheduler.take_finished());
            }
            let running =
                |scheduler: &Scheduler| scheduler.running().map(|(sequence, _)| sequence.id).collect::<Vec<_>>();
            let ran = running(&scheduler);
            let plan = granted("plan, in the transcript", || scheduler.plan());
            if plan.is_empty() {
                break;
            }
            let mut line = format!("{step:>2}: {}", in_words(&plan).replace("sequence ", ""));
            let run_now = running(&scheduler);
            for id in ran.iter().filter(|id| !run_now.contains(id)) {
                line += &format!("; {id} is preempted");
            }
            let last = plan.iter().filter(|chunk| chunk.caught_up);
            let tokens = |id: SequenceId| {
                let sequence = scheduler.running().find(|(sequence, _)| sequence.id == id);
                sequence.map_or(Vec::new(), |(sequence, _)| sequence.tokens.clone())
            };
            let next: Vec<NextToken> = last
                .map(|chunk| NextToken { sequence: chunk.sequence, token: next_token(&tokens(chunk.sequence)) })
                .collect();
            granted("settle, in the transcript", || scheduler.settle(&next));
            let ended = scheduler.take_finished();
            for ended in &ended {
                line += &format!("; {} finishes", ended.sequence.id);
            }
            finished.extend(ended);
            let kept = scheduler.prefixes().n_pages();
            transcript.line(format!("{line:<60}{} free, {kept} cached", slab.borrow().pool().n_free()));
        }
        finished.sort_by_key(|finished| finished.sequence.id);
        for ended in finished {
            let SequenceCounters { cached: found, cached_again, computed, preemptions } = ended.sequence.counters;
            transcript.line(format!(
                "sequence {}: {computed} computed, {found} cached, {cached_again} cached again, preemptions: {preemptions}",
                ended.sequence.id
            ));
        }
        assert_transcript("ch12_schedule", &transcript);
    }

    #[test]
    fn whole_oracle() {
        for seed in seeds(60) {
            let mut dice = Dice::new(seed);
            let (page_size, n_pages) = (dice.roll(1, 5), dice.roll(3, 14));
            let limits = StepLimits { tokens: dice.roll(1, 9), sequences: dice.roll(1, 5) };
            let setup = Setup { page_size, n_pages, limits, keeps_prefixes: dice.roll(0, 3) > 0 };
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
                // The oldest computes a token a step, whatever the others do: none waits for longer than all of them take.
                let most_steps = 60 + left;
                assert!(
                    world.steps < most_steps,
                    "after {most_steps} steps these sequences have not ended: {:?}; {}",
                    world.alive(),
                    world.at()
                );
                world.step();
            }
            world.check_end();
            limits::alive();
        }
    }

    /// Stories generated together, in too few pages: the tokens, and the logits that they come from, are those of each story
    /// alone.
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
        let sampler = |sequence: usize| {
            Sampler::new(page_by_page::decode::sampler::Sampling { seed: sequence as u64, ..SAMPLING })
        };
        // Alone, without any cache: the logits after each token.
        let alone: Vec<(Vec<u32>, Vec<Vec<f32>>)> = asked
            .iter()
            .enumerate()
            .map(|(sequence, (prompt, most))| {
                let (mut tokens, mut said, mut sampler) = (prompt.clone(), Vec::new(), sampler(sequence));
                for _ in 0..*most {
                    let logits = storyteller.model.step(&tokens, None).expect("a short sequence fits");
                    tokens.push(sampler.pick(&logits));
                    said.push(logits);
                }
                (tokens, said)
            })
            .collect();
        let mut preemptions = 0;
        for (page_size, n_pages, budget, sequences) in [(3, 8, 5, 3), (2, 11, 64, 4), (5, 5, 3, 4)] {
            let run = format!("{n_pages} pages of {page_size}, budget {budget}, at most {sequences} running");
            let slab = made("PageSlab::new of chapter 6", || PageSlab::new(layout, page_size, n_pages));
            let prefixes = made("PrefixCache::new of chapter 11", || PrefixCache::new(page_size));
            let (prefixes, log) = watched(Box::new(prefixes));
            let limits = StepLimits { tokens: budget, sequences };
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
                log.take();
                let plan = granted(format!("plan, {run}"), || scheduler.plan());
                let vocab = storyteller.model.config().vocab_size;
                let mut batch = Vec::new();
                for reading in scheduler.inputs() {
                    let rows = LogitRows::Newest(usize::from(reading.chunk.caught_up));
                    let chunk =
                        storyteller.model.chunk_with_room(reading.tokens, CacheRef::Gather(reading.cache), rows);
                    batch.push(granted(format!("the tokens of sequence {}, {run}", reading.chunk.sequence), || chunk));
                }
                let logits = granted(format!("a step of the model, {run}"), || storyteller.model.forward(batch));
                let last = plan.iter().filter(|chunk| chunk.caught_up);
                let mut next = Vec::new();
                for (chunk, row) in last.zip(logits.chunks(vocab)) {
                    let sequence = chunk.sequence.0 as usize;
                    let (prompt, said) = (&asked[sequence].0, &alone[sequence].1);
                    let place = scheduler
                        .running()
                        .find(|(running, _)| running.id == chunk.sequence)
                        .map_or(0, |(running, _)| running.tokens.len() - prompt.len());
                    assert!(
                        said.get(place)
                            .is_some_and(|alone| alone.iter().zip(row).all(|(a, b)| a.to_bits() == b.to_bits())),
                        "story {sequence}, new token {place}: the logits are not, bit for bit, those of the story alone; \
                         step {step}, {run}"
                    );
                    next.push(NextToken { sequence: chunk.sequence, token: samplers[sequence].pick(row) });
                }
                granted(format!("settle, {run}"), || scheduler.settle(&next));
                for ended in scheduler.take_finished() {
                    let sequence = ended.sequence.id.0 as usize;
                    preemptions += ended.sequence.counters.preemptions;
                    let (n_prompt, whole) = (asked[sequence].0.len(), &alone[sequence].0);
                    storyteller.assert_same_story(ended.sequence.new_tokens(), &whole[n_prompt..]);
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
