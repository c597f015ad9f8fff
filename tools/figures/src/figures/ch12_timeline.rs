//! Chapter 12: the schedule as a time line. A row for each sequence, a column for each step.

use page_by_page::cache::{KvCache, KvLayout};
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::chapters::ch12_scheduler::Scheduler;
use page_by_page::serving::schedule::{NextToken, ScheduledChunk, SequenceCounters, SequenceId, StepLimits};

use super::prelude::*;

const LAYOUT: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 };
const PAGE_SIZE: usize = 4;
const PAGES: usize = 7;
const BUDGET: usize = 8;
const RUNNING: usize = 3;
/// The step before which a request comes, tokens of its prompt, new tokens.
const REQUESTS: [(usize, usize, usize); 4] = [(0, 6, 9), (0, 7, 5), (1, 9, 5), (4, 5, 3)];

struct Frame {
    /// The cell of each sequence and its height; `None` before it comes and after it has finished.
    sequences: [Option<(Cell, f64)>; REQUESTS.len()],
    /// Tokens computed, pages that are free afterwards, and pages that only the prefix cache has.
    numbers: [usize; 3],
}

/// The scheduler, and what the figure knows of its sequences.
struct Run {
    slab: SharedSlab,
    scheduler: Scheduler,
    counters: [SequenceCounters; REQUESTS.len()],
    /// Preempted, and not yet as far as before.
    is_back: [bool; REQUESTS.len()],
}

impl Run {
    fn submit(&mut self, step: usize) -> Result<()> {
        for (place, (_, n_prompt, most)) in REQUESTS.iter().enumerate().filter(|(_, request)| request.0 == step) {
            let prompt = (0..*n_prompt as u32).map(|token| 100 * (place as u32 + 1) + token).collect();
            ensure!(self.scheduler.submit(prompt, *most)? == SequenceId(place as u64), "requests come in their order");
        }
        Ok(())
    }

    /// `None` if there is nothing left to do.
    fn step(&mut self, step: usize) -> Result<Option<Frame>> {
        let ran: Vec<SequenceId> = self.scheduler.running().map(|(sequence, _)| sequence.id).collect();
        let plan = self.scheduler.plan()?;
        if plan.is_empty() {
            return Ok(None);
        }
        let sequences = self.doing(&ran, &plan);
        let mut picks = Vec::new();
        for input in self.scheduler.inputs() {
            let rows = vec![0.0; input.tokens.len() * LAYOUT.kv_width()];
            input.cache.write(0, &rows, &rows);
            if input.chunk.caught_up {
                picks.push(NextToken { sequence: input.chunk.sequence, token: 1000 + step as u32 });
            }
        }
        self.scheduler.settle(&picks)?;
        for done in self.scheduler.take_finished() {
            self.counters[done.sequence.id.0 as usize] = done.sequence.counters;
        }
        let slab = self.slab.borrow();
        let (free, evictable) = (slab.pool().n_free(), self.scheduler.prefixes().n_evictable(slab.pool()));
        let computed = plan.iter().map(|chunk| chunk.tokens).sum();
        Ok(Some(Frame { sequences, numbers: [computed, free, evictable] }))
    }

    fn doing(&mut self, ran: &[SequenceId], plan: &[ScheduledChunk]) -> [Option<(Cell, f64)>; REQUESTS.len()] {
        let mut sequences = [const { None }; REQUESTS.len()];
        for sequence in self.scheduler.waiting() {
            let (place, is_victim) = (sequence.id.0 as usize, ran.contains(&sequence.id));
            sequences[place] = Some(if is_victim { (stale(None, "P"), CELL) } else { (free(""), 4.0) });
            self.is_back[place] |= is_victim;
        }
        for ScheduledChunk { sequence, tokens, caught_up, .. } in plan {
            let place = sequence.0 as usize;
            let mut running = self.scheduler.running().map(|(sequence, _)| sequence);
            let has_new = running.any(|one| one.id == *sequence && !one.new_tokens().is_empty());
            let name = letter(place);
            sequences[place] = Some(match has_new {
                _ if self.is_back[place] => (again(name, tokens), CELL),
                true => (held(name, ""), 14.0),
                false => (held(name, tokens), CELL),
            });
            self.is_back[place] &= !caught_up;
        }
        sequences
    }
}

fn letter(place: usize) -> char {
    char::from(b'a' + place as u8)
}

fn record() -> Result<(Vec<Frame>, [SequenceCounters; REQUESTS.len()])> {
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, PAGES)?;
    let limits = StepLimits { tokens: BUDGET, sequences: RUNNING };
    let scheduler = Scheduler::new(&slab, Box::new(PrefixCache::new(PAGE_SIZE)?), limits, &[])?;
    let mut run = Run { slab, scheduler, counters: Default::default(), is_back: Default::default() };
    let mut frames: Vec<Frame> = Vec::new();
    for step in 0.. {
        run.submit(step)?;
        match run.step(step)? {
            Some(frame) => frames.push(frame),
            None => break,
        }
    }
    Ok((frames, run.counters))
}

pub fn figure() -> Result<Figure> {
    let (frames, counters) = record()?;
    let computed: u64 = counters.iter().map(|counters| counters.computed).sum();
    let once: usize = REQUESTS.iter().map(|(_, n_prompt, most)| n_prompt + most - 1).sum();
    let cached: usize = counters.iter().map(|counters| counters.cached_again).sum();
    let asked: Vec<String> = REQUESTS.iter().map(|(_, n_prompt, most)| format!("{n_prompt} + {most}")).collect();
    let figure = Figure {
        label: format!(
            "A time line of {} steps with a row for each of {} sequences: when it computes its prompt, decodes, waits, is \
             preempted and recomputes. Below, the tokens computed, free pages and cached pages.",
            frames.len(),
            REQUESTS.len()
        ),
        message: "Sequences join and leave between any two steps.".into(),
        setup: format!(
            "{} requests of {} tokens, prompt + output, share {PAGES} pages of {PAGE_SIZE} slots. A step computes at most {BUDGET} \
             tokens, for at most {RUNNING} sequences. After its preemption, c finds {cached} tokens of its prompt cached and \
             computes the other {}, {} of them for the second time.",
            REQUESTS.len(),
            listed(&asked),
            REQUESTS[2].1 - cached,
            computed - once as u64,
        ),
        legend: vec![
            (held('a', "5"), "computes 5 tokens of its prompt"),
            (held('a', ""), "decodes"),
            (again('c', ""), "recomputes"),
            (stale(None, "P"), "is preempted"),
            (free(""), "waits"),
        ],
        ..Figure::default()
    };
    Ok(figure.still(|picture| draw(picture, &frames)))
}

fn draw(picture: &mut Picture, frames: &[Frame]) {
    const LINE: f64 = 36.0;
    picture.labelled(&["cached pages"]);
    let n = frames.len();
    let column = |picture: &Picture, step: usize| picture.grid(n, n).cell(step);
    let numbers = |picture: &mut Picture, name: &str, of: &dyn Fn(usize) -> usize| {
        picture.text(picture.left, picture.y + 14.0, Anchor::Start, name);
        for step in 0..n {
            picture.text(column(picture, step).middle(), picture.y + 14.0, Anchor::Middle, of(step));
        }
        picture.space(22.0);
    };
    numbers(picture, "step", &|step| step + 1);
    for place in 0..REQUESTS.len() {
        let name = format!("{}", letter(place));
        picture.bold(picture.left, picture.y + CELL / 2.0 + 4.5, Anchor::Start, name);
        for (step, frame) in frames.iter().enumerate() {
            if let Some((cell, height)) = &frame.sequences[place] {
                let area = column(picture, step);
                picture.cell(Area { y: area.y + (CELL - height) / 2.0, height: *height, ..area }, cell.clone());
            }
        }
        picture.space(LINE);
    }
    picture.line(format!("M0 {:.1}H{:.1}", picture.y, picture.right()));
    picture.space(4.0);
    for (line, name) in ["tokens", "free pages", "cached pages"].into_iter().enumerate() {
        numbers(picture, name, &|step| frames[step].numbers[line]);
    }
}
