//! Chapter 12: the schedule as a time line. A row for each sequence, a column for each step.

use anyhow::{Result, ensure};
use page_by_page::cache::{KvCache, KvLayout};
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::chapters::ch12_scheduler::Scheduler;
use page_by_page::serving::schedule::{NextToken, ScheduledChunk, SequenceCounters, SequenceId, StepLimits};

use super::Figure;
use crate::layout::{CELL, Grid};
use crate::svg::{Anchor, Area, Cell, Kind, cell};
use crate::words::{joined, listed};

const LAYOUT: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 };
const PAGE_SIZE: usize = 4;
const PAGES: usize = 7;
const BUDGET: usize = 8;
const RUNNING: usize = 3;
/// The step before which a request comes, tokens of its prompt, new tokens.
const REQUESTS: [(usize, usize, usize); 4] = [(0, 6, 9), (0, 7, 5), (1, 9, 5), (4, 5, 3)];

struct Frame {
    /// What each sequence does; `None` before it comes and after it has finished.
    sequences: [Option<Doing>; REQUESTS.len()],
    /// Tokens computed, pages that are free afterwards, and pages that only the prefix cache has.
    numbers: [usize; 3],
    says: String,
}

/// What a sequence does in a step.
struct Doing {
    /// After its name.
    says: String,
    cell: Cell,
    height: f64,
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
        let mut finished = String::new();
        for done in self.scheduler.take_finished() {
            let place = done.sequence.id.0;
            self.counters[place as usize] = done.sequence.counters;
            finished.push_str(&format!("Sequence {place} has finished. "));
        }
        let slab = self.slab.borrow();
        let (free, evictable) = (slab.pool().n_free(), self.scheduler.prefixes().n_evictable(slab.pool()));
        let computed = plan.iter().map(|chunk| chunk.tokens).sum();
        let doing = (0..).zip(&sequences).filter_map(|(place, doing)| Some((place, doing.as_ref()?)));
        let doing: Vec<String> =
            doing.map(|(place, doing): (usize, _)| format!("sequence {place} {}", doing.says)).collect();
        let says = format!(
            "Step {}: {}. {finished}{computed} of {BUDGET} tokens computed; pages free: {free}, in the prefix cache only: \
             {evictable}.",
            step + 1,
            joined(&doing, ", "),
        );
        Ok(Some(Frame { sequences, numbers: [computed, free, evictable], says }))
    }

    fn doing(&mut self, ran: &[SequenceId], plan: &[ScheduledChunk]) -> [Option<Doing>; REQUESTS.len()] {
        let mut sequences = [const { None }; REQUESTS.len()];
        for sequence in self.scheduler.waiting() {
            let (place, is_victim) = (sequence.id.0 as usize, ran.contains(&sequence.id));
            let (says, cell, height) = match is_victim {
                true => ("is preempted", cell(Kind::Wasted, "P"), CELL),
                false => ("waits", cell(Kind::Free, ""), 4.0),
            };
            sequences[place] = Some(Doing { says: says.into(), cell, height });
            self.is_back[place] |= is_victim;
        }
        for ScheduledChunk { sequence, tokens, caught_up, .. } in plan {
            let place = sequence.0 as usize;
            let mut running = self.scheduler.running().map(|(sequence, _)| sequence);
            let has_new = running.any(|one| one.id == *sequence && !one.new_tokens().is_empty());
            let (says, cell, height) = match has_new {
                _ if self.is_back[place] => {
                    (format!("resumes and recomputes {tokens}"), cell(Kind::Shared, tokens), CELL)
                }
                true => ("decodes".into(), cell(Kind::Reused, ""), 16.0),
                false => (format!("computes {tokens} of its prompt"), cell(Kind::New, tokens), CELL),
            };
            sequences[place] = Some(Doing { says, cell, height });
            self.is_back[place] &= !caught_up;
        }
        sequences
    }
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

const TOP: f64 = 24.0;
const LINE: f64 = 34.0;
const UNDER: f64 = TOP + REQUESTS.len() as f64 * LINE;
const NUMBERS: f64 = 22.0;

pub fn figure() -> Result<Figure> {
    let (frames, counters) = record()?;
    let mut figure = Figure::default();
    let svg = &mut figure.svg;
    svg.without_bands();
    svg.text(0.0, 15.0, Anchor::Start, "step");
    for place in 0..REQUESTS.len() {
        svg.text(0.0, TOP + place as f64 * LINE + 19.0, Anchor::Start, &format!("seq. {place}"));
    }
    for (line, name) in ["budget", "free", "cached"].into_iter().enumerate() {
        svg.text(0.0, UNDER + NUMBERS * line as f64 + 20.0, Anchor::Start, name);
    }
    svg.line(&format!("M0 {}H360", UNDER + 2.0));
    let grid = Grid::across(56.0, frames.len(), frames.len());
    let n_steps = frames.len();
    for (step, Frame { sequences, numbers, says }) in frames.into_iter().enumerate() {
        figure.step(says, |svg| {
            let middle = grid.middle(step);
            svg.text(middle, 15.0, Anchor::Middle, &(step + 1).to_string());
            for (place, doing) in sequences.into_iter().enumerate() {
                if let Some(Doing { cell, height, .. }) = doing {
                    let area = grid.cell(step, TOP + place as f64 * LINE);
                    svg.cell(Area { y: area.y + (CELL - height) / 2.0, height, ..area }, &cell);
                }
            }
            for (line, number) in numbers.into_iter().enumerate() {
                let y = UNDER + NUMBERS * line as f64 + 20.0;
                svg.text(middle, y, Anchor::Middle, &number.to_string());
            }
        });
    }
    figure.svg.y = UNDER + 3.0 * NUMBERS + 8.0;
    figure.svg.legend_of(&[
        (cell(Kind::New, "5"), "computes 5 of its prompt"),
        (cell(Kind::Reused, ""), "decodes"),
        (cell(Kind::Free, ""), "waits"),
        (cell(Kind::Wasted, "P"), "preempted"),
        (cell(Kind::Shared, "5"), "recomputes 5"),
    ]);
    figure.label = format!(
        "A time line of {n_steps} steps with a row for each of {} sequences: when it computes its prompt, decodes, waits, is \
         preempted and recomputes. Below, the budget used, free pages and cached pages.",
        REQUESTS.len()
    );
    figure.caption = caption(&counters);
    Ok(figure)
}

fn caption(counters: &[SequenceCounters]) -> String {
    let computed: u64 = counters.iter().map(|counters| counters.computed).sum();
    let once: usize = REQUESTS.iter().map(|(_, n_prompt, most)| n_prompt + most - 1).sum();
    let asked: Vec<String> = REQUESTS.iter().map(|(_, n_prompt, most)| format!("{n_prompt} + {most}")).collect();
    format!(
        "<strong>Sequences join and leave between any two steps.</strong> {} requests in {PAGES} pages of {PAGE_SIZE}, budget \
         {BUDGET}, at most {RUNNING} running; prompts + new tokens: {}. Below the line: tokens computed in the step, free \
         pages after it, and pages that only the prefix cache has. {} tokens are recomputed, and {} were still cached. \
         Recorded from <code>Scheduler</code>.",
        REQUESTS.len(),
        listed(&asked),
        computed - once as u64,
        counters.iter().map(|counters| counters.cached_again).sum::<usize>()
    )
}
