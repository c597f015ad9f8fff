//! What other rules than chapter 12's would cost: the same requests under several of them, counted and not computed.
//!
//! The table of the chapter comes from here: `cargo test --features solution --test engine -- --nocapture rules`. No chapter's code
//! is used: a sequence is two numbers, its tokens and its rows. There is no prefix cache, so a preempted sequence
//! starts over.

use std::collections::VecDeque;

use page_by_page::workload::serving::TINY_LLM;

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

/// Which sequence is preempted.
#[derive(Clone, Copy, PartialEq)]
enum Victim {
    Newest,
    Oldest,
}

/// Which sequences compute first.
#[derive(Clone, Copy, PartialEq)]
enum First {
    /// The oldest.
    Oldest,
    /// Prompts, as long as there are any. No sequence generates meanwhile.
    Prompts,
}

#[derive(Clone, Copy)]
struct Rules {
    n_pages: usize,
    budget: usize,
    sequences: usize,
    admission: Admission,
    victim: Victim,
    first: First,
}

/// The rules of the chapter, pages enough.
const OURS: Rules = Rules {
    n_pages: 10_000,
    budget: 128,
    sequences: 8,
    admission: Admission::Whole,
    victim: Victim::Newest,
    first: First::Oldest,
};

#[derive(Clone)]
struct Sequence {
    n_prompt: usize,
    most: usize,
    tokens: usize,
    rows: usize,
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

    fn pages(&self) -> usize {
        self.rows.div_ceil(PAGE_SIZE)
    }

    fn pages_for(&self, rows: usize) -> usize {
        rows.div_ceil(PAGE_SIZE) - self.pages()
    }

    fn pages_needed(&self) -> usize {
        self.pages_for((self.tokens + 1).min(self.n_prompt + self.most - 1))
    }
}

#[derive(Default)]
struct Outcome {
    steps: usize,
    computed: usize,
    preemptions: usize,
    /// Between two tokens of a sequence, in tokens that were computed.
    longest_wait: usize,
}

fn run(requests: &[(usize, usize)], rules: Rules) -> Outcome {
    let new = |(n_prompt, most): &(usize, usize)| Sequence {
        n_prompt: *n_prompt,
        most: *most,
        tokens: *n_prompt,
        rows: 0,
        waited: None,
    };
    let mut waiting: VecDeque<Sequence> = requests.iter().map(new).collect();
    let mut running: Vec<Sequence> = Vec::new();
    let mut outcome = Outcome::default();
    let mut batch_is_full = false;
    while !waiting.is_empty() || !running.is_empty() {
        outcome.steps += 1;
        assert!(outcome.steps < 200_000, "these rules never end");
        batch_is_full &= !running.is_empty();
        let mut budget = rules.budget;
        let mut may_admit = true;
        let mut place = 0;
        // The place of each sequence in this step's plan, and its tokens.
        let mut plan: Vec<(usize, usize)> = Vec::new();
        let prompts = rules.first == First::Prompts
            && (running.iter().any(Sequence::in_its_prompt)
                || (!waiting.is_empty() && running.len() < rules.sequences));
        while budget > 0 {
            let free = rules.n_pages - running.iter().map(Sequence::pages).sum::<usize>();
            if place == running.len() {
                let Some(first) = waiting.front() else { break };
                let to_go: usize = running.iter().map(Sequence::pages_needed).sum();
                let fits = match rules.admission {
                    Admission::Whole => to_go + first.pages_needed() <= free,
                    Admission::NextChunk => first.pages_for(first.uncomputed().min(budget)) <= free,
                    Admission::Together => !batch_is_full && to_go + first.pages_needed() <= free,
                };
                if !may_admit || !fits || running.len() == rules.sequences {
                    break;
                }
                running.extend(waiting.pop_front());
                batch_is_full |= running.len() == rules.sequences;
            }
            if prompts && !running[place].in_its_prompt() {
                place += 1;
                continue;
            }
            let n = running[place].uncomputed().min(budget);
            let needed = running[place].pages_for(running[place].rows + n);
            let free = rules.n_pages - running.iter().map(Sequence::pages).sum::<usize>();
            if needed > free {
                let victim = match rules.victim {
                    Victim::Newest => running.len() - 1,
                    // It does not take its own pages.
                    Victim::Oldest => (0..running.len()).find(|other| *other != place).unwrap_or(place),
                };
                let mut sequence = running.remove(victim);
                sequence.rows = 0;
                outcome.preemptions += 1;
                may_admit = false;
                plan.retain(|(other, _)| *other != victim);
                for (other, _) in &mut plan {
                    *other -= usize::from(*other > victim);
                }
                if victim < place {
                    place -= 1;
                }
                match rules.victim {
                    Victim::Newest => waiting.push_front(sequence),
                    Victim::Oldest => waiting.push_back(sequence),
                }
                if victim == place && place == running.len() {
                    break;
                }
                continue;
            }
            running[place].rows += n;
            plan.push((place, n));
            budget -= n;
            place += 1;
        }
        let computed: usize = plan.iter().map(|(_, n)| n).sum();
        outcome.computed += computed;
        for sequence in running.iter_mut().chain(&mut waiting) {
            sequence.waited = sequence.waited.map(|waited| waited + computed);
        }
        for (place, _) in plan {
            let sequence = &mut running[place];
            if sequence.uncomputed() == 0 {
                sequence.tokens += 1;
                outcome.longest_wait = outcome.longest_wait.max(sequence.waited.unwrap_or(0));
                sequence.waited = Some(0);
            }
        }
        running.retain(|sequence| sequence.tokens < sequence.n_prompt + sequence.most);
    }
    outcome
}

fn useful(requests: &[(usize, usize)]) -> usize {
    requests.iter().map(|(n_prompt, most)| n_prompt + most - 1).sum()
}

#[test]
fn what_the_rules_of_the_chapter_gain() {
    let small = Rules { n_pages: 150, ..OURS };
    let tight = Rules { n_pages: 80, ..OURS };
    let by_chunk = |rules| Rules { admission: Admission::NextChunk, ..rules };
    // Steps, tokens computed, preemptions, longest wait.
    let all = [
        (
            "one after the other, each prompt in one step",
            &TINY_LLM[..],
            Rules { sequences: 1, budget: usize::MAX, ..OURS },
            [1201, 10_661, 0, 1],
        ),
        (
            "8 together, the next 8 when all have ended",
            &TINY_LLM,
            Rules { admission: Admission::Together, ..OURS },
            [302, 10_661, 0, 128],
        ),
        ("the chapter's rules", &TINY_LLM, OURS, [264, 10_661, 0, 128]),
        (
            "prompts first, budget 1,024",
            &TINY_LLM,
            Rules { first: First::Prompts, budget: 1024, ..OURS },
            [246, 10_661, 0, 2946],
        ),
        ("150 pages: the chapter's rules", &TINY_LLM, small, [487, 10_661, 0, 128]),
        ("150 pages: admitted by next chunk", &TINY_LLM, by_chunk(small), [481, 34_136, 56, 128]),
        ("two large, 80 pages: the chapter's rules", &LARGE, tight, [770, 2534, 1, 946]),
        ("two large, 80 pages: admitted by next chunk", &LARGE, by_chunk(tight), [769, 31_998, 76, 30_410]),
        (
            "two large, 80 pages: the oldest is the victim",
            &LARGE,
            Rules { victim: Victim::Oldest, ..by_chunk(tight) },
            [1241, 140_181, 171, 1790],
        ),
    ];
    let line = |name: &str, [steps, computed, preemptions, wait]: [&str; 4]| {
        println!("{name:<46}{steps:>6}{computed:>10}{preemptions:>11}{wait:>14}");
    };
    println!("{} tokens to compute; of the two large ones {}", useful(&TINY_LLM), useful(&LARGE));
    line("", ["steps", "computed", "preempted", "longest wait"]);
    for (name, requests, rules, expected) in all {
        let Outcome { steps, computed, preemptions, longest_wait } = run(requests, rules);
        let found = [steps, computed, preemptions, longest_wait];
        line(name, found.map(|number| number.to_string()).each_ref().map(String::as_str));
        assert_eq!(found, expected, "{name}: steps, tokens computed, preemptions, longest wait");
    }
    assert_eq!((useful(&TINY_LLM), useful(&LARGE)), (10_661, 1898));
}
