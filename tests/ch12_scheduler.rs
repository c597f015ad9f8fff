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

/// The world of `src/simulation`, where what each call must do is worked out from outside.
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
    use page_by_page::simulation::{
        self, CacheCalls, Make, Planned, Seen, SeenSequence, Setup, Subject, Violation, alone_until,
    };

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

    /// A prefix cache for pages of 4 that keeps nothing, and fails in one of its calls.
    pub struct Fails(pub Call);

    impl Fails {
        /// The error of the call that fails.
        pub const ERROR: CacheError = CacheError::ForeignPage { page: PageId(77), n_pages: 2 };

        fn check(&self, call: Call) -> Result<(), CacheError> {
            if self.0 == call { Err(Self::ERROR) } else { Ok(()) }
        }
    }

    impl Prefixes for Fails {
        fn lookup(&mut self, _: &[u32], _: &mut PagePool) -> Result<PageTable, CacheError> {
            self.check(Call::Lookup)?;
            PageTable::new(4)
        }

        fn insert(&mut self, _: &[u32], _: &mut PageTable, _: &mut PagePool) -> Result<(), CacheError> {
            self.check(Call::Insert)
        }

        fn evict(&mut self, _: usize, _: &mut PagePool) -> Result<usize, CacheError> {
            self.check(Call::Evict).map(|()| 0)
        }

        fn n_pages(&self) -> usize {
            0
        }

        fn n_evictable(&self, _: &PagePool) -> usize {
            0
        }
    }

    /// Pages of 4, and no prefix cache.
    pub fn setup(n_pages: usize, budget: usize, sequences: usize) -> Setup {
        let limits = StepLimits { tokens: budget, sequences };
        Setup { page_size: 4, n_pages, limits, keeps_prefixes: false }
    }

    pub fn with_prefix_cache(setup: Setup) -> Setup {
        Setup { keeps_prefixes: true, ..setup }
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

    pub fn ids(sequences: &[SeenSequence]) -> Vec<u64> {
        sequences.iter().map(|sequence| sequence.id.0).collect()
    }

    fn find(sequences: &[SeenSequence], id: SequenceId) -> Option<&SeenSequence> {
        sequences.iter().find(|sequence| sequence.id == id)
    }

    fn uncomputed(sequence: &SeenSequence) -> usize {
        sequence.n_tokens.saturating_sub(sequence.held)
    }

    /// Pages that are free or that only the prefix cache owns: those in no table of a running sequence.
    fn available(seen: &Seen) -> usize {
        let used: BTreeSet<PageId> = seen.running.iter().flat_map(|sequence| sequence.pages.iter().copied()).collect();
        seen.owners.len() - used.len()
    }

    /// What is expected of the running sequences in the next plan: (sequence, tokens), and the victims, newest first.
    fn expected(seen: &Seen, setup: Setup) -> (Vec<(u64, usize)>, Vec<u64>) {
        let mut running = &seen.running[..];
        let (mut room, mut budget) = (available(seen), setup.limits.tokens);
        let (mut chunks, mut victims) = (Vec::new(), Vec::new());
        while let Some(sequence) = running.get(chunks.len()).filter(|_| budget > 0) {
            let n = uncomputed(sequence).min(budget);
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

    /// A plan, and what was before and after it.
    struct Step {
        before: Seen,
        plan: Vec<ScheduledChunk>,
        after: Seen,
        calls: CacheCalls,
        /// What those that ran before must compute, and which of them must be preempted, newest first.
        chunks: Vec<(u64, usize)>,
        victims: Vec<u64>,
        /// The plan and the world in words.
        said: String,
    }

    impl Step {
        /// The sequences that ran before and do not run any more, newest first.
        fn gone(&self) -> Vec<u64> {
            let runs = ids(&self.after.running);
            ids(&self.before.running).into_iter().filter(|id| !runs.contains(id)).rev().collect()
        }

        /// The sequences that this plan has admitted.
        fn admitted(&self) -> Vec<&SeenSequence> {
            self.after.running.iter().filter(|seen| find(&self.before.running, seen.id).is_none()).collect()
        }
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
    pub fn answer<T>(what: &str, call: impl FnOnce() -> Result<T, Violation>) -> T {
        let _asking = asking(what);
        call().unwrap_or_else(|violation| asking::fail_inside(what, violation.words))
    }

    /// A world of `src/simulation`, around the scheduler of chapter 12.
    #[track_caller]
    pub fn unchecked(setup: Setup, end_of_text: &[u32]) -> simulation::World {
        let make: Box<Make<'_>> =
            Box::new(|slab, prefixes, limits| Ok(Box::new(Scheduler::new(slab, prefixes, limits, end_of_text)?)));
        answer("Scheduler::new", || simulation::World::with_end_of_text(&make, setup, end_of_text))
    }

    impl World {
        #[track_caller]
        pub fn new(setup: Setup) -> Self {
            Self::of(String::new(), setup, &[])
        }

        #[track_caller]
        pub fn of(run: String, setup: Setup, end_of_text: &[u32]) -> Self {
            let (world, end_of_text) = (unchecked(setup, end_of_text), end_of_text.to_vec());
            let (counters, tokens, history) = Default::default();
            World { world, end_of_text, counters, tokens, run, steps: 0, history }
        }

        /// Where we are, for a failure.
        pub fn at(&self) -> String {
            let Setup { page_size, n_pages, limits: StepLimits { tokens, sequences }, keeps_prefixes } =
                self.world.setup();
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

        #[track_caller]
        pub fn running(&self) -> Vec<u64> {
            ids(&self.seen().running)
        }

        #[track_caller]
        pub fn waiting(&self) -> Vec<u64> {
            ids(&self.seen().waiting)
        }

        #[track_caller]
        pub fn n_free(&self) -> usize {
            self.seen().n_free
        }

        #[track_caller]
        pub fn n_cached(&self) -> usize {
            self.seen().cached.len()
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

        fn submit_in_words(&self, prompt: &[u32], max_new_tokens: usize) -> String {
            format!("submit of {}, {max_new_tokens} new, {}", count(prompt.len(), "token"), self.at())
        }

        /// Submits a request that must be accepted.
        #[track_caller]
        pub fn submit(&mut self, prompt: &[u32], max_new_tokens: usize) -> u64 {
            let (before, id) = (self.seen(), self.world.arrived());
            let what = self.submit_in_words(prompt, max_new_tokens);
            let found = answer(&what, || self.world.submit(0, prompt.to_vec(), max_new_tokens));
            same!(found, Ok(SequenceId(id)), "number of the sequence after {what}");
            self.counters.insert(id, SequenceCounters::default());
            self.tokens.insert(id, prompt.to_vec());
            let tokens = count(prompt.len(), "token");
            self.history.push(format!("sequence {id} arrives with {tokens} and wants {max_new_tokens}"));
            let mut waiting = ids(&before.waiting);
            if max_new_tokens == 0 {
                self.check_finished(&[(id, FinishReason::Limit)], &what);
            } else {
                waiting.push(id);
            }
            self.check_lists(&ids(&before.running), &waiting, &what);
            id
        }

        /// Submits a request that must be refused.
        #[track_caller]
        pub fn submit_refused(&mut self, prompt: &[u32], max_new_tokens: usize, why: ScheduleError) {
            let what = self.submit_in_words(prompt, max_new_tokens);
            self.refused(&what, why, |scheduler| scheduler.submit(prompt.to_vec(), max_new_tokens));
        }

        /// Submits a request that can never fit.
        #[track_caller]
        pub fn submit_too_long(&mut self, prompt: &[u32], max_new_tokens: usize, needed: usize) {
            let n_pages = self.world.setup().n_pages;
            let why = ScheduleError::NeverFits { prompt: prompt.len(), max_new_tokens, needed, n_pages };
            self.submit_refused(prompt, max_new_tokens, why);
        }

        /// Makes a call that must be refused, and must change nothing.
        #[track_caller]
        pub fn refused<T: std::fmt::Debug + PartialEq>(
            &mut self,
            what: &str,
            why: ScheduleError,
            call: impl FnOnce(&mut dyn Subject) -> Result<T, ScheduleError>,
        ) {
            let before = self.seen();
            let found = answer(what, || self.world.call("it", call));
            same!(found, Err(why), "{what}");
            same!(self.seen(), before, "what is there after the refused {what}");
            same!(answer(what, || self.world.collect()), [], "sequences that finish with the refused {what}");
        }

        #[track_caller]
        pub fn cancel(&mut self, id: u64) {
            let before = self.seen();
            let what = format!("cancel of sequence {id}, {}", self.at());
            let found = answer(&what, || self.world.call("cancel", |subject| subject.cancel(SequenceId(id))));
            same!(found, Ok(()), "{what}");
            self.history.push(format!("sequence {id} is cancelled"));
            self.check_ended(&before, &[(id, FinishReason::Cancelled)], &what);
        }

        /// Plans a step and checks the plan from all sides.
        #[track_caller]
        pub fn plan(&mut self) -> Vec<ScheduledChunk> {
            limits::alive();
            self.steps += 1;
            let (at, before) = (self.at(), self.seen());
            let (chunks, victims) = expected(&before, self.world.setup());
            let Planned { chunks: plan, seen: after } = answer(&format!("plan, {at}"), || self.world.plan());
            let said = format!("the plan: {}\n  {at}", in_words(&plan));
            let step = Step { before, plan, after, calls: self.world.cache_calls(), chunks, victims, said };
            self.check_order(&step);
            self.check_chunks(&step);
            self.check_admitted(&step);
            self.check_insertions(&step);
            step.plan.iter().for_each(|chunk| self.check_chunk(&step, chunk));
            for id in &step.victims {
                self.counters.get_mut(id).expect("a known sequence").preemptions += 1;
            }
            let Step { plan, after, victims, said, .. } = step;
            let preempted = if victims.is_empty() { String::new() } else { format!(", preempted {}", list(&victims)) };
            self.history.push(format!("step {}: {}{preempted}", self.steps, in_words(&plan)));
            self.check_seen(&after, said.trim_start_matches("the "));
            plan
        }

        /// The parts of the proof that no sequence waits forever, one after the other.
        #[track_caller]
        fn check_order(&self, step: &Step) {
            let Step { plan, after, said, .. } = step;
            let (running, waiting) = (ids(&after.running), ids(&after.waiting));
            assert!(running.is_sorted(), "running sequences are not in order of arrival: {}; {said}", list(&running));
            self.check_spared(step);
            assert!(waiting.is_sorted(), "waiting sequences are not in order of arrival: {}; {said}", list(&waiting));
            if let (Some(runs), Some(waits)) = (running.last(), waiting.first()) {
                assert!(runs < waits, "sequence {waits} waits, and sequence {runs}, which came later, runs; {said}");
            }
            for id in plan.iter().map(|chunk| chunk.sequence.0) {
                assert!(
                    running.contains(&id),
                    "sequence {id} is in the plan, and does not run: is it a victim? {said}"
                );
            }
            if let Some(oldest) = self.alive().first() {
                let computes = plan.iter().any(|chunk| chunk.sequence.0 == *oldest && chunk.tokens > 0);
                assert!(computes, "sequence {oldest} is the oldest, and computes nothing in this step; {said}");
            }
        }

        /// No sequence is preempted, and no page evicted, without need.
        #[track_caller]
        fn check_spared(&self, step: &Step) {
            let Step { before, after, calls, victims, said, .. } = step;
            let gone = step.gone();
            let evicted: usize = calls.evictions.iter().map(|(_, evicted)| evicted).sum();
            assert!(
                evicted == 0 || after.n_free == 0 || !gone.is_empty(),
                "plan evicted {}, which leaves {} free: evict no more pages than are missing; {said}",
                count(evicted, "page"),
                count(after.n_free, "page")
            );
            // Some run again already.
            let was_preempted = |seen: &&SeenSequence| seen.counters.preemptions > self.counters(seen.id.0).preemptions;
            let again: Vec<u64> = after.running.iter().filter(was_preempted).map(|seen| seen.id.0).collect();
            let preempted = [&gone[..], &again].concat();
            let too_many: Vec<u64> = preempted.iter().copied().filter(|id| !victims.contains(id)).collect();
            let with =
                if victims.is_empty() { "".into() } else { format!(", with those of sequence {}", list(victims)) };
            let free = before.n_free;
            assert!(
                too_many.is_empty() || !victims.iter().all(|id| preempted.contains(id)),
                "{} preempted{}, though there are pages enough{with}: {} free, and {} could be evicted; {said}",
                were(&too_many),
                if again.is_empty() { "" } else { " and admitted again in the same step" },
                count(free, "page"),
                available(before) - free
            );
            assert!(again.is_empty(), "{} preempted and admitted again in the same step; {said}", were(&again));
        }

        /// How many tokens each sequence computes, and which sequences are preempted for it.
        #[track_caller]
        fn check_chunks(&self, step: &Step) {
            let Step { before, plan, calls, victims, said, .. } = step;
            let tokens_of = |id| plan.iter().find(|chunk| chunk.sequence == id).map_or(0, |chunk| chunk.tokens);
            let state = |seen: &SeenSequence| {
                let (left, pages) = (count(uncomputed(seen), "token"), count(seen.pages.len(), "page"));
                format!("sequence {} had {left} to compute and {pages}", seen.id)
            };
            let mut states: Vec<String> = before.running.iter().map(state).collect();
            let mut expected = step.chunks.clone();
            let page_size = self.world.setup().page_size;
            let mut left = self.world.setup().limits.tokens - expected.iter().map(|(_, tokens)| tokens).sum::<usize>();
            for seen in step.admitted() {
                let (id, all) = (seen.id, seen.n_tokens);
                let cached = seen.held.wrapping_sub(tokens_of(id));
                assert!(
                    cached < all && cached.is_multiple_of(page_size) && calls.lookups.contains(&(all, cached)),
                    "sequence {id} begins with {} of its {all} in the cache; the lookups of this plan, as (tokens, cached), \
                     were {:?}; {said}",
                    count(cached, "token"),
                    calls.lookups
                );
                states
                    .push(format!("sequence {id} was admitted with {}, {cached} of them cached", count(all, "token")));
                let tokens = left.min(all - cached);
                expected.push((id.0, tokens));
                left -= tokens;
            }
            let chunks: Vec<(u64, usize)> = plan.iter().map(|chunk| (chunk.sequence.0, chunk.tokens)).collect();
            let (free, evictable) = (before.n_free, available(before) - before.n_free);
            let states = format!("{}; {free} pages were free and {evictable} evictable", states.join(", "));
            same!(
                (step.gone(), chunks),
                (victims.to_vec(), expected),
                "(victims, newest first; (sequence, tokens it computes))\n  {states}\n  {said}"
            );
        }

        /// Who was admitted, and who was not.
        #[track_caller]
        fn check_admitted(&self, step: &Step) {
            let Step { plan, after, calls, victims, said, .. } = step;
            let Setup { page_size, n_pages, limits, .. } = self.world.setup();
            let allowed = limits.sequences;
            let (admitted, running) = (step.admitted(), after.running.len());
            assert!(running <= allowed, "{running} sequences run, and at most {allowed} are allowed; {said}");
            assert!(
                calls.lookups.len() <= admitted.len() || running < allowed,
                "plan asked the prefix cache about a sequence although {running} of at most {allowed} run: a lookup counts \
                 as a use of the pages that it finds, so look at the limit first; {said}"
            );
            let room = available(after);
            let available = format!(
                "{room} of {n_pages} are available ({} free, {} evictable)",
                after.n_free,
                room.saturating_sub(after.n_free)
            );
            let needed: usize = after.running.iter().map(|seen| seen.pages_needed(page_size)).sum();
            assert!(
                admitted.is_empty() || needed <= room,
                "sequence {} was admitted, and then the running sequences need {} more for all of their tokens and the \
                 next one, and {available}; {said}",
                list(&admitted.iter().map(|seen| seen.id.0).collect::<Vec<_>>()),
                count(needed, "page")
            );
            let left = limits.tokens - plan.iter().map(|chunk| chunk.tokens).sum::<usize>();
            let Some(head) = after.waiting.first() else { return };
            if left == 0 || running == allowed || !victims.is_empty() {
                return;
            }
            let shared = self.shared_pages(head, step);
            let needed = needed + head.pages_needed(page_size).saturating_sub(shared);
            let shared =
                if shared > 0 { format!(", beside {shared} shared with one that runs") } else { String::new() };
            assert!(
                needed > room,
                "sequence {} is the first that waits and is not admitted, although {left} of the budget and places for \
                 {} are left, and it fits: it and the running ones need {} more{shared}, and {available}; {said}",
                head.id,
                count(allowed - running, "sequence"),
                count(needed, "page")
            );
        }

        /// Pages of a waiting sequence that the prefix cache holds and a running one has.
        fn shared_pages(&self, waiting: &SeenSequence, step: &Step) -> usize {
            let Setup { page_size, keeps_prefixes, .. } = self.world.setup();
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
        fn check_insertions(&self, step: &Step) {
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
        fn check_chunk(&mut self, step: &Step, chunk: &ScheduledChunk) {
            let Step { before, after, said, .. } = step;
            let (id, tokens) = (chunk.sequence, chunk.tokens);
            let Some(seen) = find(&after.running, id) else { return };
            let ran = find(&before.running, id);
            let cached = if ran.is_none() { seen.held - tokens } else { 0 };
            let held = ran.map_or(cached, |ran| ran.held);
            same!(
                seen.held,
                held + tokens,
                "tokens that the cache of sequence {id} has room for: {held} before and {tokens} in this step; {said}"
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
            counters.computed += tokens as u64;
        }

        /// The model's part: computes what the plan says, and returns the tokens that come next.
        #[track_caller]
        pub fn compute(&mut self, plan: &[ScheduledChunk]) -> Vec<NextToken> {
            let at = self.at();
            let what = format!("inputs, {at}");
            let inputs = |subject: &mut dyn Subject| -> Vec<ScheduledChunk> {
                subject.inputs().iter().map(|input| input.chunk).collect()
            };
            let chunks = answer(&what, || self.world.call("inputs", inputs));
            same!(chunks, plan, "chunks of the inputs, {at}");
            let next = answer(&what, || self.world.compute());
            for NextToken { sequence: id, token } in &next {
                let tokens = self.tokens(id.0);
                same!(
                    *token,
                    alone_until(&tokens, 1, &[]).0[0],
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
            self.check_ended(&before, &finished, &what);
        }

        /// A whole step.
        #[track_caller]
        pub fn step(&mut self) -> Vec<ScheduledChunk> {
            let plan = self.plan();
            let next = self.compute(&plan);
            self.settle(&next);
            plan
        }

        /// Steps until all have finished, and every page is free or the prefix cache's; how many steps there were.
        #[track_caller]
        pub fn run(&mut self, most_steps: usize) -> usize {
            let begin = self.steps;
            while !self.alive().is_empty() {
                assert!(
                    self.steps - begin < most_steps,
                    "after {most_steps} steps these are left: {}; {}",
                    list(&self.alive()),
                    self.at()
                );
                self.step();
            }
            let (seen, pages) = (self.seen(), self.world.setup().n_pages);
            same!(seen.n_free + seen.cached.len(), pages, "pages that are free or cached in the end, {}", self.at());
            self.steps - begin
        }

        /// After a call with which these sequences have finished, of those that were there before.
        #[track_caller]
        fn check_ended(&mut self, before: &Seen, finished: &[(u64, FinishReason)], what: &str) {
            self.check_finished(finished, what);
            let left = |list: &[SeenSequence]| -> Vec<u64> {
                ids(list).into_iter().filter(|id| finished.iter().all(|(other, _)| other != id)).collect()
            };
            self.check_lists(&left(&before.running), &left(&before.waiting), what);
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
                if ended.reason != FinishReason::Cancelled {
                    same!(
                        (ended.received, ended.reason),
                        alone_until(&ended.prompt, ended.max_new_tokens, &self.end_of_text),
                        "(output, why it finished) of sequence {}, as it would be alone, after the {what}",
                        ended.id
                    );
                }
                self.tokens.insert(ended.id.0, tokens);
            }
        }

        /// These run and these wait.
        #[track_caller]
        fn check_lists(&self, running: &[u64], waiting: &[u64], what: &str) {
            let seen = self.seen();
            same!(ids(&seen.waiting), waiting, "waiting sequences, after the {what}");
            same!(ids(&seen.running), running, "running sequences, after the {what}");
            self.check_seen(&seen, what);
        }

        /// What the sequences hold and have cost, and who owns which page.
        #[track_caller]
        fn check_seen(&self, seen: &Seen, what: &str) {
            let Setup { page_size, n_pages, .. } = self.world.setup();
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
    }
}

#[cfg(not(unstarted = "ch12_scheduler"))]
mod checks {
    use std::collections::BTreeMap;

    use page_by_page::cache::KvCache;
    use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
    use page_by_page::chapters::ch10_fork::ForkCache;
    use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
    use page_by_page::chapters::ch12_scheduler::Scheduler;
    use page_by_page::decode::sampler::Sampler;
    use page_by_page::prefixes::Prefixes;
    use page_by_page::prefixes::none::NoPrefixes;
    use page_by_page::serving::Serving;
    use page_by_page::serving::schedule::{
        NextToken, ScheduleError, ScheduledChunk, SequenceCounters, SequenceId, StepLimits,
    };
    use page_by_page::simulation::{Event, FIRST_NEW, LAYOUT, Setup, alone_until, watched};
    use page_by_page::workload::arrivals::TINY_LLM;

    use super::world::{Call, Fails, World, answer, ids, in_words, setup, unchecked, with_prefix_cache};
    use crate::support::asking::{asking, granted, made};
    use crate::support::limits::{self, often};
    use crate::support::oracle::{Dice, seeds};
    use crate::support::story::{SAMPLING, Storyteller};
    use crate::support::transcript::{Transcript, assert_transcript};
    use crate::support::words::count;

    /// A prompt of `n` tokens that no other name's begins with.
    fn prompt(name: u32, n: usize) -> Vec<u32> {
        (0..n as u32).map(|token| 1000 * (name + 1) + token).collect()
    }

    /// A world in which these requests have arrived, as (tokens, new tokens). No two begin alike.
    #[track_caller]
    fn arrived(setup: Setup, requests: &[(usize, usize)]) -> World {
        let mut world = World::new(setup);
        for (name, (tokens, most)) in (0..).zip(requests) {
            world.submit(&prompt(name, *tokens), *most);
        }
        world
    }

    /// A chunk, short: (sequence, tokens, caught_up).
    type Short = (u64, usize, bool);

    fn short(plan: &[ScheduledChunk]) -> Vec<Short> {
        plan.iter().map(|chunk| (chunk.sequence.0, chunk.tokens, chunk.caught_up)).collect()
    }

    /// A token that is the sequence's `n`th new one and not before: as an end of text it ends it there.
    fn nth_new(prompt: &[u32], n: usize) -> u32 {
        let (output, _) = alone_until(prompt, n, &[]);
        let (token, before) = output.split_last().expect("n is at least 1");
        assert!(!before.contains(token), "the example is badly chosen: {token} comes twice");
        *token
    }

    #[track_caller]
    fn slab(n_pages: usize) -> SharedSlab {
        made("PageSlab::new of chapter 6", || PageSlab::new(LAYOUT, 4, n_pages))
    }

    /// A scheduler for pages of 4 that no world watches.
    #[track_caller]
    fn scheduler(slab: &SharedSlab, prefixes: Box<dyn Prefixes>, tokens: usize) -> Scheduler {
        let limits = StepLimits { tokens, sequences: 4 };
        made("Scheduler::new", || Scheduler::new(slab, prefixes, limits, &[]))
    }

    fn keeps_nothing() -> Box<dyn Prefixes> {
        Box::new(NoPrefixes::new(4).expect("pages have slots"))
    }

    // Task 1

    #[test]
    fn task_1_a_requests_wait_in_order_of_arrival() {
        let world = arrived(setup(3, 8, 2), &[(5, 3), (1, 1), (9, 4)]);
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
        same!(world.n_free(), 3, "free pages of 3 before the first plan");
    }

    #[test]
    fn task_1_b_a_prompt_without_tokens_is_refused() {
        let mut world = arrived(setup(3, 8, 2), &[(5, 3)]);
        for most in [0, 1, usize::MAX] {
            world.submit_refused(&[], most, ScheduleError::NoPrompt);
        }
        // Those that were refused have no number.
        world.submit(&prompt(1, 5), 3);
    }

    #[test]
    fn task_1_c_what_can_never_fit_is_refused_at_once() {
        // All tokens but the newest take a slot; there are 12.
        let mut world = arrived(setup(3, 8, 2), &[(1, 12), (12, 1), (11, 2), (6, 7)]);
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
        world.submit(&prompt(1, 5), 3);
        let mut world = arrived(Setup { page_size: 1, ..setup(7, 8, 2) }, &[(5, 3)]);
        world.submit_too_long(&prompt(1, 5), 4, 8);
        world.submit_too_long(&prompt(1, 5), usize::MAX, usize::MAX);
    }

    #[test]
    fn task_1_e_no_new_tokens_finish_at_once() {
        // They take no page, so they fit whatever their length.
        let world = arrived(setup(3, 8, 2), &[(5, 0), (500, 0), (5, 1)]);
        same!(world.waiting(), [2], "sequences that wait: one that is to get no new token does not");
    }

    #[test]
    fn task_1_f_more_sequences_than_16_bits_count() {
        let n = if cfg!(miri) { 300 } else { 70_000 };
        let mut scheduler = scheduler(&slab(3), keeps_nothing(), 8);
        often("submit, with more and more sequences in the queue", n, |number| {
            let id = scheduler.submit(vec![1, 2, 3], 2);
            if id != Ok(SequenceId(number as u64)) {
                same!(id, Ok(SequenceId(number as u64)), "number of the sequence that is the {number}th to come");
            }
        });
        same!(scheduler.waiting().count(), n, "sequences that wait, after {n} calls of submit");
    }

    #[test]
    fn given_a_step_needs_tokens_and_sequences() {
        for (tokens, sequences) in [(0, 1), (1, 0), (0, 0)] {
            let limits = StepLimits { tokens, sequences };
            let found = Scheduler::new(&slab(3), keeps_nothing(), limits, &[]).err();
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
            let mut world = arrived(setup(4, budget, 2), &[(10, 3)]);
            let plan = world.plan();
            same!(short(&plan), [(0, n, caught_up)], "the plan for a prompt of 10 tokens, budget {budget}");
            let room = count(n, "token");
            same!(world.n_free(), 4 - n.div_ceil(4), "free pages of 4 beside room for {room}, page size 4");
            same!(world.compute(&plan).len(), usize::from(caught_up), "tokens that are due, {n} of 10 computed");
        }
    }

    #[test]
    fn task_2_c_the_budget_is_shared_oldest_first() {
        // One that computes nothing in this step has no use for a place yet.
        let plan = [(0, 4, true), (1, 5, true), (2, 6, true), (3, 1, true)];
        for (budget, last, n) in [(12, (2, 3, false), 3), (9, plan[1], 2), (15, plan[2], 3), (usize::MAX, plan[3], 4)] {
            let mut world = arrived(setup(10, budget, usize::MAX), &[(4, 2), (5, 2), (6, 2), (1, 2)]);
            let (what, expected) = ("prompts of 4, 5, 6 and 1 tokens", [&plan[..n - 1], &[last]].concat());
            let plan = world.plan();
            same!(short(&plan), expected, "the plan for {what}, budget {budget}");
            same!(world.waiting(), (n as u64..4).collect::<Vec<_>>(), "sequences that wait: {what}, budget {budget}");
            world.compute(&plan);
        }
    }

    #[test]
    fn task_2_e_no_more_run_than_allowed() {
        for most in [1, 2, 3] {
            let mut world = arrived(setup(10, 100, most), &[(3, 2); 4]);
            let allowed = count(most, "sequence");
            same!(world.plan().len(), most, "chunks of the plan when {allowed} may run and four want to");
        }
    }

    #[test]
    fn task_2_g_admitted_when_all_of_it_fits() {
        // (pages, tokens and new tokens of the requests, how many are admitted at once)
        for (n_pages, requests, admitted) in [
            (5, &[(8, 5), (4, 5)][..], 2), // 9 rows and 5: 3 pages and 2
            (4, &[(8, 5), (4, 5)], 1),     // one page less
            (4, &[(8, 1), (8, 1)], 2),     // 8 rows and 8: no token of theirs is computed
            (3, &[(8, 1), (8, 1)], 1),
            (4, &[(8, 2), (8, 1)], 1), // 9 rows and 8
            (4, &[(7, 5), (7, 5)], 2), // 8 rows and 8: the next token still has a slot
            (4, &[(7, 5), (8, 2)], 1),
            (2, &[(3, 4), (3, 4)], 2),
            (2, &[(1, 8), (4, 1)], 2),
            (2, &[(1, 8), (4, 2)], 1),
            // One that does not fit is not overtaken by one that would, and came later.
            (4, &[(8, 5), (8, 5), (2, 1)], 1),
            // Those that just fit: a rule that asks for a slot for every token and one more never admits them.
            (2, &[(8, 1)], 1),
            (2, &[(7, 2)], 1),
            (2, &[(1, 8)], 1),
            (2, &[(5, 4)], 1),
        ] {
            same!(
                arrived(setup(n_pages, 100, 4), requests).plan().len(),
                admitted,
                "sequences that are admitted at once, of requests with (tokens, new) {requests:?}, {} of 4",
                count(n_pages, "page")
            );
        }
    }

    /// Two pages are free, and the prefix cache alone has two.
    #[test]
    fn task_2_j_pages_that_can_be_evicted_are_room() {
        let slab = slab(4);
        let mut prefixes = made("PrefixCache::new of chapter 11", || PrefixCache::new(4));
        let mut cache = made("ForkCache::new of chapter 10", || ForkCache::new(&slab));
        granted("extend(8) of chapter 10, with 4 pages of 4", || cache.extend(8));
        granted("insert_into of chapter 11, 8 tokens", || cache.insert_into(&mut prefixes, &prompt(9, 8)));
        drop(cache);
        let mut scheduler = scheduler(&slab, Box::new(prefixes), 8);
        granted("submit of 12 tokens, 1 new", || scheduler.submit(prompt(0, 12), 1));
        same!(
            short(&granted("plan, 2 pages free and 2 that can be evicted", || scheduler.plan())),
            [(0, 8, false)],
            "the plan, budget 8: sequence 0 needs 3 pages for its 12 tokens, 2 are free, and 2 more can be evicted"
        );
    }

    /// The error of a prefix cache that fails in this call comes out of the first `plan` or `settle` that makes it.
    #[track_caller]
    fn check_that_it_is_refused(call: Call, by: &str) {
        // Each sequence takes one page of two, and wants a second for its fifth row.
        let (prefixes, log) = watched(Box::new(Fails(call)));
        let mut scheduler = scheduler(&slab(2), prefixes, 100);
        for name in [0, 1] {
            granted("submit of 3 tokens, 5 new", || scheduler.submit(prompt(name, 3), 5));
        }
        let mut refused = None;
        for step in 1..5 {
            let _asking = asking(format!("step {step}, with a prefix cache that fails in {call:?}"));
            log.take();
            let plan = scheduler.plan().map_err(|error| ("plan", error)).and_then(|plan| {
                let last = plan.iter().filter(|chunk| chunk.caught_up);
                let next: Vec<NextToken> = last.map(|chunk| NextToken { sequence: chunk.sequence, token: 5 }).collect();
                scheduler.settle(&next).map_err(|error| ("settle", error))
            });
            if let Err(refusal) = plan {
                refused = Some(refusal);
                break;
            }
        }
        let what =
            format!("what refuses, and why, when {call:?} of the prefix cache fails: its error comes out of {by}");
        same!(refused, Some((by, ScheduleError::Cache(Fails::ERROR))), "{what}");
    }

    #[test]
    fn task_2_k_when_a_lookup_fails_plan_fails() {
        check_that_it_is_refused(Call::Lookup, "plan");
    }

    /// A request that does not fit now may fit later; a request is refused when it does not fit alone.
    #[test]
    fn task_2_l_accepted_though_no_page_is_free() {
        let mut world = arrived(setup(3, 100, 4), &[(12, 1)]);
        world.plan();
        same!(world.n_free(), 0, "free pages of 3 while a sequence of 12 tokens runs");
        world.submit(&prompt(1, 12), 1);
    }

    #[test]
    fn task_2_m_a_plan_is_settled_before_the_next() {
        let mut world = arrived(setup(10, 12, 4), &[(4, 2), (5, 2)]);
        let plan = world.plan();
        for _ in 0..2 {
            let why = ScheduleError::NotSettled { chunks: 2 };
            world.refused("plan, with a plan of 2 chunks that is not settled", why, |scheduler| scheduler.plan());
        }
        world.compute(&plan);
    }

    // Task 3

    #[test]
    fn task_3_a_each_sequence_gets_its_token() {
        let mut world = arrived(setup(12, 100, 4), &[(4, 3), (5, 3), (6, 3)]);
        world.step();
        for (id, tokens) in [(0, 4), (1, 5), (2, 6)] {
            let expected = alone_until(&prompt(id as u32, tokens), 1, &[]).0;
            same!(world.tokens(id)[tokens..], expected, "new tokens of sequence {id}");
        }
        let plan = short(&world.step());
        same!(plan, [(0, 1, true), (1, 1, true), (2, 1, true)], "the second plan: each computes the token that it got");
        same!(world.run(10), 1, "steps after the second, for 3 new tokens each");
    }

    #[test]
    fn task_3_b_a_prompt_in_chunks_gets_its_token_after_the_last() {
        let mut world = arrived(setup(12, 4, 4), &[(10, 2)]);
        let plans: Vec<_> = (0..4).map(|_| short(&world.step())).collect();
        let expected = [[(0, 4, false)], [(0, 4, false)], [(0, 2, true)], [(0, 1, true)]];
        same!(plans, expected, "four plans for a prompt of 10 tokens and 2 new ones, budget 4");
        same!(world.alive(), [0; 0], "sequences that have not finished after these");
    }

    #[test]
    fn task_3_c_as_many_tokens_as_requested() {
        for most in [1, 2, 3, 7] {
            let mut world = arrived(setup(12, 100, 4), &[(5, most)]);
            same!(world.run(20), most, "steps for {most} new tokens of a sequence of 5");
        }
    }

    #[test]
    fn task_3_d_one_token_for_each_that_generates_the_rest_for_the_prompt() {
        let mut world = arrived(setup(20, 8, 4), &[(4, 6), (4, 6)]);
        world.step();
        world.submit(&prompt(2, 13), 2);
        let plans: Vec<_> = (0..3).map(|_| short(&world.step())).collect();
        let expected = [6, 6, 1].map(|tokens| [(0, 1, true), (1, 1, true), (2, tokens, tokens == 1)]);
        same!(plans, expected, "three plans when two sequences generate and a prompt of 13 tokens arrives, budget 8");
        world.run(20);
    }

    #[test]
    fn task_3_f_an_end_of_text_is_not_part_of_the_output() {
        let asked = prompt(0, 5);
        for (n, most) in [(1, 5), (2, 5), (3, 3), (3, 2)] {
            let end_of_text = [7, nth_new(&asked, n), 9];
            let mut world = World::of(String::new(), setup(12, 100, 4), &end_of_text);
            world.submit(&asked, most);
            same!(world.run(20), n.min(most), "steps when token number {n} is an end of text, {most} requested");
        }
        // In a prompt it is a token like any other.
        let mut world = World::of(String::new(), setup(12, 100, 4), &[asked[4], asked[0]]);
        world.submit(&asked, 3);
        same!(world.run(20), 3, "steps for 3 new tokens after a prompt with an end of text in it");
    }

    #[test]
    fn task_3_g_several_finish_in_one_step() {
        for ending in [vec![0, 1], vec![1, 2], vec![0, 2], vec![0, 1, 2, 3], vec![3]] {
            let most = |name: usize| if ending.contains(&name) || name == 4 { 2 } else { 4 };
            arrived(setup(20, 100, 4), &[0, 1, 2, 3, 4].map(|name| (5, most(name)))).run(20);
        }
    }

    #[test]
    fn task_3_h_pages_are_free_at_once() {
        let mut world = arrived(setup(6, 100, 4), &[(8, 1), (8, 3)]);
        world.step();
        same!(
            world.n_free(),
            4,
            "free pages of 6 after the settle with which sequence 0 ends; sequence 1 has 8 tokens"
        );
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
        let what = "pages of the prefix cache after each of 8 steps, 6 to 13 rows, page size 4";
        same!(kept, [1, 1, 2, 2, 2, 2, 3, 3], "{what}");
        world.submit(&[&world.tokens(0)[..], &[1]].concat(), 1);
        let plan = short(&world.plan());
        same!(plan, [(1, 3, true)], "the plan for the sequence that goes on from it: 12 of 15 tokens are cached");
    }

    #[test]
    fn task_3_j_running_sequences_share_full_pages() {
        let mut world = World::new(with_prefix_cache(setup(12, 8, 4)));
        world.submit(&prompt(0, 8), 5);
        world.step();
        world.submit(&prompt(0, 9), 5);
        let plan = short(&world.step());
        same!(plan, [(0, 1, true), (1, 1, true)], "the plan: sequence 1 finds 8 of its 9 tokens, sequence 0 has them");
        same!(world.n_free(), 12 - 2 - 2, "free pages of 12: the sequences share 2, and each has one of its own");
        world.run(20);
    }

    #[test]
    fn task_3_k_a_sequence_begins_with_its_cached_tokens() {
        // Of 8 tokens all but the last page's can be cached: one token is left to compute.
        for (tokens, found) in [(8, 4), (9, 8), (10, 8), (13, 12)] {
            let mut world = World::new(with_prefix_cache(setup(8, 100, 4)));
            world.submit(&prompt(0, 14), 1);
            world.step();
            world.submit(&prompt(0, tokens), 3);
            let plan = world.plan();
            let what = format!("a sequence of {tokens} tokens that an earlier one had begun with, page size 4");
            same!(short(&plan), [(1, tokens - found, true)], "the plan for {what}");
            same!(world.counters(1).cached, found, "tokens cached, for {what}");
            world.compute(&plan);
        }
    }

    #[test]
    fn task_3_l_cached_pages_are_no_longer_available() {
        let mut world = World::new(with_prefix_cache(setup(5, 100, 4)));
        world.submit(&prompt(0, 9), 1);
        world.step();
        // Sequence 1 takes one page of the three that are free; two are the prefix cache's.
        world.submit(&prompt(1, 2), 5);
        // Sequence 2 needs 5 pages; it finds 2.
        world.submit(&prompt(0, 16), 2);
        same!(
            short(&world.plan()),
            [(1, 2, true)],
            "the plan: sequence 2 needs 3 pages beside the 2 that it finds, and 2 are free; those that it finds are not free"
        );
        let owners = world.seen().owners.iter().sum::<u32>();
        same!(
            owners,
            3,
            "owners of all pages together: a sequence that is not admitted keeps nothing of what was cached"
        );
    }

    /// A lookup is a use: pages that are looked up all the time would never be evicted.
    #[test]
    fn task_3_m_nothing_is_looked_up_when_no_more_can_run() {
        let mut world = arrived(with_prefix_cache(setup(8, 100, 1)), &[(5, 3), (5, 3)]);
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
        check_that_it_is_refused(Call::Insert, "settle");
    }

    #[test]
    fn task_3_p_pages_are_cached_after_every_chunk() {
        let mut world = arrived(with_prefix_cache(setup(12, 5, 4)), &[(11, 2)]);
        let mut kept = Vec::new();
        for _ in 0..3 {
            world.step();
            kept.push(world.n_cached());
        }
        same!(kept, [1, 2, 2], "pages of the prefix cache after chunks of 5, 5 and 1 tokens, page size 4");
    }

    #[test]
    fn task_3_q_wrong_tokens_are_refused_and_change_nothing() {
        let mut world = arrived(with_prefix_cache(setup(20, 20, 4)), &[(4, 2), (5, 2), (6, 2), (10, 2)]);
        let plan = world.plan();
        let next = world.compute(&plan);
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
            let what = format!("settle with tokens for the sequences {given:?}, where 0, 1 and 2 have caught up");
            let given: Vec<SequenceId> = given.iter().copied().map(SequenceId).collect();
            let tokens: Vec<NextToken> = given.iter().map(|id| NextToken { sequence: *id, token: 100 }).collect();
            let why = ScheduleError::WrongTokens { wanted: [0, 1, 2].map(SequenceId).to_vec(), given };
            world.refused(&what, why, |scheduler| scheduler.settle(&tokens));
            same!(world.compute(&plan), next, "the tokens that are due, after the refused {what}");
        }
        world.settle(&next);
        world.run(20);
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
    }

    #[test]
    fn task_3_s_requests_come_and_go_at_any_step() {
        let mut world = World::new(setup(30, 9, 3));
        for (name, (tokens, most)) in (0..).zip([(12, 5), (3, 9), (7, 1), (1, 4), (20, 2)]) {
            world.submit(&prompt(name, tokens), most);
            world.step();
            // One that arrives in the middle of a step begins in a later one.
            let plan = world.plan();
            world.submit(&prompt(100 + name, 2), 2);
            let next = world.compute(&plan);
            world.settle(&next);
        }
        world.run(100);
    }

    #[test]
    fn task_3_t_a_waiting_or_running_sequence_is_cancelled() {
        for (sequences, cancelled) in [(1, 1), (1, 2), (1, 3), (3, 0), (3, 1), (3, 2)] {
            let mut world = arrived(setup(16, 12, sequences), &[(5, 4); 4]);
            world.step();
            world.cancel(cancelled);
            world.run(20);
        }
    }

    #[test]
    fn task_3_v_an_unknown_sequence_cannot_be_cancelled() {
        let mut world = arrived(setup(16, 20, 3), &[(5, 1), (5, 4), (5, 4)]);
        world.step();
        world.cancel(2);
        for id in [0, 2, 3, u64::MAX, 1 << 32 | 1] {
            let what = format!("cancel of sequence {id}, which has finished or never came");
            let why = ScheduleError::UnknownSequence(SequenceId(id));
            world.refused(&what, why, |scheduler| scheduler.cancel(SequenceId(id)));
        }
        world.run(10);
    }

    #[test]
    fn task_3_w_none_is_cancelled_in_the_middle_of_a_step() {
        let mut world = arrived(setup(16, 12, 2), &[(5, 4); 3]);
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
    }

    // Task 4

    #[test]
    fn task_4_a_the_newest_is_preempted() {
        let mut world = arrived(setup(6, 100, 4), &[(7, 9); 3]);
        let plans: Vec<_> = (0..3).map(|_| short(&world.step())).collect();
        let expected = [
            vec![(0, 7, true), (1, 7, true), (2, 7, true)],
            vec![(0, 1, true), (1, 1, true), (2, 1, true)],
            vec![(0, 1, true), (1, 1, true)],
        ];
        // 8 rows each after the second step; 9 rows each would take 9 pages of 6.
        same!(plans, expected, "three plans: in the third sequence 2, the newest, gives its 2 pages back");
        same!((world.running(), world.waiting()), (vec![0, 1], vec![2]), "(sequences that run, sequences that wait)");
        same!(world.counters(2).preemptions, 1, "preemptions of sequence 2");
        world.run(100);
    }

    #[test]
    fn task_4_b_the_newest_itself_waits() {
        let mut world = arrived(setup(5, 100, 4), &[(9, 4), (7, 9)]);
        let plans: Vec<_> = (0..3).map(|_| short(&world.step())).collect();
        let expected = [vec![(0, 9, true), (1, 7, true)], vec![(0, 1, true), (1, 1, true)], vec![(0, 1, true)]];
        same!(
            plans,
            expected,
            "three plans: in the third sequence 1 is the newest and finds no page, so it waits, and sequence 0 keeps its own"
        );
        same!(world.waiting(), [1], "sequences that wait");
        world.run(100);
    }

    #[test]
    fn task_4_d_victims_resume_first() {
        let mut world = arrived(setup(6, 100, 3), &[(7, 9); 5]);
        for _ in 0..3 {
            world.step();
        }
        same!(
            world.waiting(),
            [2, 3, 4],
            "sequences that wait, after sequence 2 was preempted: it stands before those that came later"
        );
        world.run(200);
    }

    #[test]
    fn task_4_e_evict_before_you_preempt() {
        let mut world = arrived(with_prefix_cache(setup(6, 100, 3)), &[(16, 1)]);
        world.step();
        same!(world.n_cached(), 4, "pages of the prefix cache, when a sequence of 16 tokens has ended");
        world.submit(&prompt(1, 9), 2);
        let plan = world.plan();
        same!(short(&plan), [(1, 9, true)], "the plan: 2 pages are free, 4 can be evicted, 3 are needed");
        let evicted: usize = world.cache_calls().evictions.iter().map(|(_, got)| got).sum();
        same!(evicted, 1, "pages that were evicted: 2 were free, and 3 were needed");
        let next = world.compute(&plan);
        world.settle(&next);
        world.run(10);
        same!(world.counters(1).preemptions, 0, "preemptions, with pages that only the prefix cache owns");
    }

    #[test]
    fn task_4_g_a_resumed_sequence_finds_its_pages() {
        let mut world = arrived(with_prefix_cache(setup(7, 100, 3)), &[(8, 12), (5, 9)]);
        for _ in 0..30 {
            if world.counters(1).preemptions == 0 {
                world.step();
            }
        }
        let had = world.tokens(1).len();
        assert!(had > 6, "the example is badly chosen: sequence 1 has {had} tokens");
        world.run(60);
        let counters = world.counters(1);
        assert!(counters.cached_again > 0, "sequence 1 finds nothing of what it had computed; {}", world.at());
        same!(
            counters.computed + counters.cached_again as u64,
            // All but the newest, and a second time those it had computed when it was preempted.
            (5 + 9 - 1) + had as u64 - 1,
            "tokens that sequence 1 has computed and found again in the prefix cache: it had {had} when it was preempted, the newest without a row"
        );
    }

    #[test]
    fn task_4_i_when_an_eviction_fails_plan_fails() {
        check_that_it_is_refused(Call::Evict, "plan");
    }

    /// Pools that are too small for all that run: every sequence ends, and the oldest is never preempted.
    #[test]
    fn task_4_j_every_sequence_ends_in_too_few_pages() {
        let slots = Setup { page_size: 1, ..setup(24, 8, 5) };
        for (setup, requests) in [
            // Each fills the pool.
            (setup(4, 5, 4), &[(6, 11), (6, 11), (16, 1), (1, 16)][..]),
            // A long prompt is computed in chunks, while those that came with it take pages.
            (slots, &[(4, 20), (1, 20), (1, 20), (1, 20), (1, 20)]),
            // A victim uses up no budget.
            (setup(6, 3, 3), &[(8, 8), (7, 8)]),
            (setup(5, 100, 4), &[(8, 9), (4, 9)]),
        ] {
            for setup in [setup, with_prefix_cache(setup)] {
                let mut world = arrived(setup, requests);
                world.run(200);
                same!(world.counters(0).preemptions, 0, "preemptions of the oldest; {}", world.at());
            }
        }
    }

    #[test]
    fn task_4_k_a_victim_can_be_cancelled() {
        let mut world = arrived(with_prefix_cache(setup(6, 100, 4)), &[(7, 9); 4]);
        for _ in 0..3 {
            world.step();
        }
        same!(world.waiting(), [2, 3], "sequences that wait: sequence 2 was preempted");
        world.cancel(2);
        world.run(100);
    }

    #[test]
    fn task_4_l_a_victim_in_the_middle_of_its_prompt() {
        let mut world = arrived(with_prefix_cache(Setup { page_size: 2, ..setup(12, 4, 2) }), &[(3, 18)]);
        world.step();
        world.submit(&prompt(1, 17), 3);
        world.run(100);
    }

    // All tasks

    /// A scheduler that admits by the next chunk alone computes 34,136 tokens in the small pool.
    #[test]
    fn whole_sixteen_requests_compute_nothing_twice() {
        for (n_pages, most_steps) in [(1000, 264), (150, 5000)] {
            let mut world = arrived(Setup { page_size: 16, ..setup(n_pages, 128, 8) }, &TINY_LLM);
            let steps = world.run(most_steps);
            assert!(n_pages < 1000 || steps == 264, "{steps} steps for 16 requests, and 264 suffice; {}", world.at());
            let all: Vec<SequenceCounters> = (0..16).map(|id| world.counters(id)).collect();
            same!(
                (all.iter().map(|all| all.computed).sum(), all.iter().map(|all| all.preemptions).sum()),
                (10_661_u64, 0_u64),
                "(tokens computed, preemptions) for 16 requests in {n_pages} pages of 16: all tokens but the newest of each"
            );
        }
    }

    #[test]
    fn whole_many_sequences_run_at_once() {
        let mut world = arrived(Setup { page_size: 2, ..setup(1000, 400, 300) }, &[(1, 3); 310]);
        same!(world.step().len(), 300, "chunks of the first plan, when 300 sequences may run");
        world.run(10);
    }

    #[test]
    fn whole_a_long_prompt_in_one_step() {
        let n = if cfg!(miri) { 300 } else { 70_000 };
        let mut world = arrived(Setup { page_size: 16, ..setup(5000, 100_000, 2) }, &[(n, 2)]);
        same!(short(&world.step()), [(0, n, true)], "the plan for a prompt of {n} tokens, budget 100,000");
        world.run(3);
    }

    /// Tokens of every size.
    #[test]
    fn whole_tokens_are_not_cut() {
        let mut world = World::new(with_prefix_cache(setup(8, 3, 2)));
        for last in [1 << 31, 0] {
            world.submit(&[u32::MAX, 0, 1 << 16, (1 << 16) - 1, 255, 256, last], 3);
        }
        world.run(20);
    }

    #[test]
    fn whole_a_scheduler_that_is_dropped_lets_go() {
        let slab = slab(12);
        let mut scheduler = scheduler(&slab, keeps_nothing(), 100);
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
        let mut world = unchecked(with_prefix_cache(setup(8, 8, 3)), &[]);
        let beginning = prompt(0, 8);
        let sequences = [
            (1, beginning.clone(), 12),
            (1, prompt(1, 7), 9),
            (1, prompt(2, 3), 6),
            (4, [&beginning[..], &[7, 8]].concat(), 3),
            (4, prompt(4, 5), 4),
        ];
        let mut counters = BTreeMap::new();
        for step in 1..60 {
            for (id, (_, tokens, most)) in (0..).zip(&sequences).filter(|(_, (comes, ..))| *comes == step) {
                let submitted = answer("submit, in the transcript", || world.submit(id, tokens.clone(), *most));
                let id = granted("submit, in the transcript", || submitted);
                transcript.line(format!("sequence {id} arrives: {} tokens, wants {most}", tokens.len()));
            }
            if step == 12 {
                answer("cancel, in the transcript", || world.apply(Event::Cancel { name: 4 }));
                transcript.line("sequence 4 is cancelled");
            }
            let scene = answer(&format!("step {step} of the transcript"), || world.apply(Event::Step));
            let plan = scene.planned.expect("a step has a plan");
            if plan.chunks.is_empty() {
                break;
            }
            let sequences = plan.seen.running.iter().chain(&plan.seen.waiting);
            counters.extend(sequences.map(|sequence| (sequence.id, sequence.counters)));
            let mut line = format!("{step:>2}: {}", in_words(&plan.chunks).replace("sequence ", ""));
            let run_now = ids(&plan.seen.running);
            for id in ids(&scene.before.running).iter().filter(|id| !run_now.contains(id)) {
                line += &format!("; {id} is preempted");
            }
            for ended in &scene.ended {
                line += &format!("; {} finishes", ended.id);
            }
            let (free, cached) = (scene.after.n_free, scene.after.cached.len());
            transcript.line(format!("{line:<60}{free} free, {cached} cached"));
        }
        for (id, SequenceCounters { cached, cached_again, computed, preemptions }) in counters {
            transcript.line(format!(
                "sequence {id}: {computed} computed, {cached} cached, {cached_again} cached again, preemptions: {preemptions}"
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
                    let (fork, name) = (dice.roll(0, tokens), dice.roll(0, 30));
                    let prompt: Vec<u32> =
                        (0..tokens).map(|at| (if at < fork { at } else { name + at }) as u32).collect();
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
                let (most_steps, alive, at) = (60 + left, world.alive(), world.at());
                let steps = world.steps;
                assert!(steps < most_steps, "after {most_steps} steps these sequences have not ended: {alive:?}; {at}");
                world.step();
            }
            world.run(0);
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
        let alone: Vec<_> = asked.iter().map(|(prompt, most)| storyteller.alone(prompt, *most)).collect();
        let mut preemptions = 0;
        for (page_size, n_pages, tokens, sequences) in [(3, 8, 5, 3), (2, 11, 64, 4), (5, 5, 3, 4)] {
            let run = format!("{n_pages} pages of {page_size}, budget {tokens}, at most {sequences} running");
            let slab = made("PageSlab::new of chapter 6", || PageSlab::new(layout, page_size, n_pages));
            let prefixes = made("PrefixCache::new of chapter 11", || PrefixCache::new(page_size));
            let (prefixes, log) = watched(Box::new(prefixes));
            let limits = StepLimits { tokens, sequences };
            let serving = made("Scheduler::new", || Serving::new(&storyteller.model, &slab, prefixes, limits, &[]));
            let mut serving = serving;
            for (tokens, most) in &asked {
                let submitted = || serving.submit(tokens.clone(), *most, Sampler::new(SAMPLING));
                let id = granted(format!("submit, {run}"), submitted);
                serving.keep_logits(id);
            }
            let mut stories = vec![Vec::new(); asked.len()];
            for number in 1.. {
                assert!(number < 300, "after 300 steps the stories have not ended: {stories:?}; {run}");
                log.take();
                let step = granted(format!("step {number} of the stories, {run}"), || serving.step());
                for NextToken { sequence, token } in step.new_tokens {
                    let (story, alone) = (&mut stories[sequence.0 as usize], &alone[sequence.0 as usize]);
                    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert!(
                        alone.get(story.len()).is_some_and(|(_, row)| bits(row) == bits(&step.logits[&sequence])),
                        "story {sequence}, new token {}: the logits are not, bit for bit, those of the story alone; \
                         step {number}, {run}",
                        story.len()
                    );
                    story.push(token);
                }
                for ended in step.generated {
                    let alone: Vec<u32> = alone[ended.sequence.id.0 as usize].iter().map(|(token, _)| *token).collect();
                    storyteller.assert_same_story(ended.sequence.new_tokens(), &alone);
                    preemptions += ended.sequence.counters.preemptions;
                }
                if serving.is_done() {
                    break;
                }
            }
        }
        assert!(preemptions > 0, "no story had to wait for pages: the example is badly chosen");
    }
}
