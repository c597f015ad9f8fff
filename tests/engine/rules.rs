//! What other rules than chapter 12's would cost: the same requests under several of them, counted and not computed.
//!
//! The table of the chapter comes from here: `cargo test --features solution --test engine -- --nocapture rules`. No chapter's code
//! is used: a sequence is two numbers, its tokens and its rows. There is no prefix cache, so a preempted sequence
//! starts over.

use std::collections::VecDeque;

use page_by_page::workload::arrivals::TINY_LLM;

const PAGE_SIZE: usize = 16;

/// Two that take 60 pages each.
const LARGE: [(usize, usize); 2] = [(500, 450), (500, 450)];

/// When the first that waits is admitted.
#[derive(Clone, Copy, PartialEq)]
enum Admission {
    /// When all of it and its next token fit beside the next tokens of the running ones.
    Whole,
    /// When its next chunk fits.
    NextChunk,
    /// When it fits and the batch is not full yet; then none until all of the batch have finished.
    Together,
}

#[derive(Clone, Copy)]
struct Rules {
    n_pages: usize,
    budget: usize,
    sequences: usize,
    admission: Admission,
    /// The victim is the oldest sequence instead of the newest.
    oldest_victim: bool,
    /// Prompts compute first, as long as there are any, and no sequence generates meanwhile.
    prompts_first: bool,
}

/// The rules of the chapter, pages enough.
const OURS: Rules = Rules {
    n_pages: 10_000,
    budget: 128,
    sequences: 8,
    admission: Admission::Whole,
    oldest_victim: false,
    prompts_first: false,
};

struct Sequence {
    n_prompt: usize,
    most: usize,
    tokens: usize,
    rows: usize,
    /// Rows that are computed in this step.
    planned: usize,
    /// Tokens computed by all sequences since it got its last one.
    waited: Option<usize>,
}

impl Sequence {
    fn uncomputed(&self) -> usize {
        self.tokens - self.rows
    }

    fn in_its_prompt(&self) -> bool {
        self.uncomputed() > 1 || self.tokens == self.n_prompt
    }

    /// Pages that are missing for this many rows.
    fn pages_for(&self, rows: usize) -> usize {
        rows.div_ceil(PAGE_SIZE) - self.rows.div_ceil(PAGE_SIZE)
    }

    /// Pages that are missing for all of its tokens and the next.
    fn pages_needed(&self) -> usize {
        self.pages_for((self.tokens + 1).min(self.n_prompt + self.most - 1))
    }
}

struct Run {
    rules: Rules,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    /// Under [`Admission::Together`]: none is admitted until all have finished.
    batch_is_full: bool,
    steps: usize,
    computed: usize,
    preemptions: usize,
    /// Between two tokens of a sequence, in tokens that were computed.
    longest_wait: usize,
}

impl Run {
    /// All requests to their end.
    fn of(requests: &[(usize, usize)], rules: Rules) -> Self {
        let new = |&(n_prompt, most): &(usize, usize)| {
            let (tokens, rows, planned, waited) = (n_prompt, 0, 0, None);
            Sequence { n_prompt, most, tokens, rows, planned, waited }
        };
        let waiting = requests.iter().map(new).collect();
        let (running, batch_is_full, steps, computed, preemptions, longest_wait) = Default::default();
        let mut run = Run { rules, waiting, running, batch_is_full, steps, computed, preemptions, longest_wait };
        while !run.waiting.is_empty() || !run.running.is_empty() {
            run.steps += 1;
            assert!(run.steps < 200_000, "these rules never end");
            run.plan();
            run.compute();
        }
        run
    }

    fn free(&self) -> usize {
        self.rules.n_pages - self.running.iter().map(|sequence| sequence.rows.div_ceil(PAGE_SIZE)).sum::<usize>()
    }

    /// Lets the first that waits run, if the rules allow it.
    fn admit(&mut self, budget: usize) -> bool {
        let Some(first) = self.waiting.front() else { return false };
        let to_go: usize = self.running.iter().map(Sequence::pages_needed).sum();
        let is_whole = to_go + first.pages_needed() <= self.free();
        let fits = match self.rules.admission {
            Admission::Whole => is_whole,
            Admission::NextChunk => first.pages_for(first.uncomputed().min(budget)) <= self.free(),
            Admission::Together => !self.batch_is_full && is_whole,
        };
        if !fits || self.running.len() == self.rules.sequences {
            return false;
        }
        self.running.extend(self.waiting.pop_front());
        self.batch_is_full |= self.running.len() == self.rules.sequences;
        true
    }

    /// Takes the pages of a victim, for the sequence at `place`; the victim's place.
    fn preempt(&mut self, place: usize) -> usize {
        self.preemptions += 1;
        if self.rules.oldest_victim {
            // It does not take its own pages.
            let victim = (0..self.running.len()).find(|other| *other != place).unwrap_or(place);
            self.waiting.push_back(Sequence { rows: 0, planned: 0, ..self.running.remove(victim) });
            return victim;
        }
        let victim = self.running.len() - 1;
        self.waiting.push_front(Sequence { rows: 0, planned: 0, ..self.running.remove(victim) });
        victim
    }

    /// Who computes how many rows in this step.
    fn plan(&mut self) {
        self.batch_is_full &= !self.running.is_empty();
        let is_waited_for = !self.waiting.is_empty() && self.running.len() < self.rules.sequences;
        let prompts_only =
            self.rules.prompts_first && (is_waited_for || self.running.iter().any(Sequence::in_its_prompt));
        let (mut budget, mut can_admit, mut place) = (self.rules.budget, true, 0);
        while budget > 0 {
            if place == self.running.len() && !(can_admit && self.admit(budget)) {
                break;
            }
            let sequence = &self.running[place];
            let n = sequence.uncomputed().min(budget);
            if prompts_only && !sequence.in_its_prompt() {
                place += 1;
            } else if sequence.pages_for(sequence.rows + n) > self.free() {
                can_admit = false;
                place -= usize::from(self.preempt(place) < place);
            } else {
                let sequence = &mut self.running[place];
                (sequence.rows, sequence.planned) = (sequence.rows + n, n);
                budget -= n;
                place += 1;
            }
        }
    }

    /// Gives a token to each sequence that has caught up.
    fn compute(&mut self) {
        let computed: usize = self.running.iter().map(|sequence| sequence.planned).sum();
        self.computed += computed;
        for sequence in self.running.iter_mut().chain(&mut self.waiting) {
            sequence.waited = sequence.waited.map(|waited| waited + computed);
            if std::mem::take(&mut sequence.planned) > 0 && sequence.uncomputed() == 0 {
                sequence.tokens += 1;
                self.longest_wait = self.longest_wait.max(sequence.waited.unwrap_or(0));
                sequence.waited = Some(0);
            }
        }
        self.running.retain(|sequence| sequence.tokens < sequence.n_prompt + sequence.most);
    }
}

fn useful(requests: &[(usize, usize)]) -> usize {
    requests.iter().map(|(n_prompt, most)| n_prompt + most - 1).sum()
}

#[test]
fn what_the_rules_of_the_chapter_gain() {
    let small = Rules { n_pages: 150, ..OURS };
    let tight = Rules { n_pages: 80, ..OURS };
    let by_chunk = |rules| Rules { admission: Admission::NextChunk, ..rules };
    let together = Rules { admission: Admission::Together, ..OURS };
    let alone = Rules { sequences: 1, budget: usize::MAX, ..OURS };
    let prompts_first = Rules { prompts_first: true, budget: 1024, ..OURS };
    let oldest = Rules { oldest_victim: true, ..by_chunk(tight) };
    // Steps, tokens computed, preemptions, longest wait.
    let all = [
        ("one after the other, each prompt in one step", &TINY_LLM[..], alone, [1201, 10_661, 0, 1]),
        ("8 together, the next 8 when all have ended", &TINY_LLM, together, [302, 10_661, 0, 128]),
        ("the chapter's rules", &TINY_LLM, OURS, [264, 10_661, 0, 128]),
        ("prompts first, budget 1,024", &TINY_LLM, prompts_first, [246, 10_661, 0, 2946]),
        ("150 pages: the chapter's rules", &TINY_LLM, small, [487, 10_661, 0, 128]),
        ("150 pages: admitted by next chunk", &TINY_LLM, by_chunk(small), [481, 34_136, 56, 128]),
        ("two large, 80 pages: the chapter's rules", &LARGE, tight, [770, 2534, 1, 946]),
        ("two large, 80 pages: admitted by next chunk", &LARGE, by_chunk(tight), [769, 31_998, 76, 30_410]),
        ("two large, 80 pages: the oldest is the victim", &LARGE, oldest, [1241, 140_181, 171, 1790]),
    ];
    let line = |name: &str, [steps, computed, preemptions, wait]: [&str; 4]| {
        println!("{name:<46}{steps:>6}{computed:>10}{preemptions:>11}{wait:>14}");
    };
    println!("{} tokens to compute; of the two large ones {}", useful(&TINY_LLM), useful(&LARGE));
    line("", ["steps", "computed", "preempted", "longest wait"]);
    for (name, requests, rules, expected) in all {
        let Run { steps, computed, preemptions, longest_wait, .. } = Run::of(requests, rules);
        let found = [steps, computed, preemptions, longest_wait];
        line(name, found.map(|number| number.to_string()).each_ref().map(String::as_str));
        assert_eq!(found, expected, "{name}: steps, tokens computed, preemptions, longest wait");
    }
    assert_eq!((useful(&TINY_LLM), useful(&LARGE)), (10_661, 1898));
}
