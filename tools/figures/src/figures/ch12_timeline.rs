//! Chapter 12: the schedule of `chapters::ch12_scheduler` as a time line. A row for each sequence, a column for each
//! step.

use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::chapters::ch11_prefix_cache::PrefixTrie;
use page_by_page::serving::Engine;
use page_by_page::serving::schedule::{ScheduledChunk, SequenceCounters, SequenceId, StepLimits};
use page_by_page::serving::view::{PoolView, SequenceStatus, SequenceView};

use super::prelude::*;

const PAGE_SIZE: usize = 4;
const PAGES: usize = 7;
const BUDGET: usize = 8;
const RUNNING: usize = 3;
/// The step before which a request comes, tokens of its prompt, new tokens.
const REQUESTS: [(usize, usize, usize); 4] = [(0, 6, 9), (0, 7, 5), (1, 9, 5), (4, 5, 3)];
const NAMES: [char; REQUESTS.len()] = ['a', 'b', 'c', 'd'];

struct Frame {
    /// The cell of each sequence and its height; `None` before it comes and after it has finished.
    sequences: [Option<(Cell, f64)>; REQUESTS.len()],
    /// Tokens computed, pages that are free afterwards, and pages that only the prefix cache has.
    numbers: [usize; 3],
}

fn record() -> Result<(Vec<Frame>, Vec<SequenceCounters>)> {
    let model = model(DRAFT)?;
    let slab = PageSlab::new(model.kv_layout(), PAGE_SIZE, PAGES)?;
    let limits = StepLimits { tokens: BUDGET, sequences: RUNNING };
    let mut engine = Engine::new(&model, &slab, Box::new(PrefixTrie::new(PAGE_SIZE)?), limits, &[])?;
    let (mut frames, mut counters, mut before) = (Vec::new(), Vec::new(), Vec::new());
    // Preempted, and not yet as far as before.
    let mut is_back = [false; REQUESTS.len()];
    for step in 0.. {
        for (place, (_, n_prompt, most)) in REQUESTS.iter().enumerate().filter(|(_, request)| request.0 == step) {
            let prompt = (0..*n_prompt as u32).map(|token| 100 * (place as u32 + 1) + token).collect();
            engine.submit(prompt, *most, sampler(0))?;
        }
        if engine.is_done() {
            break;
        }
        let done = engine.step()?;
        counters.extend(done.finished.iter().map(|finished| finished.sequence.counters));
        let slab = slab.borrow();
        let view = PoolView::new(&engine, &done.chunks);
        let mut sequences = [const { None }; REQUESTS.len()];
        for sequence in view.sequences.iter().filter(|sequence| sequence.state != SequenceStatus::Running) {
            let is_victim =
                before.iter().any(|was: &SequenceView| was.id == sequence.id && was.state == SequenceStatus::Running);
            sequences[sequence.id as usize] = Some(if is_victim { (stale(None, "P"), CELL) } else { (free(""), 4.0) });
            is_back[sequence.id as usize] |= is_victim;
        }
        for ScheduledChunk { sequence: SequenceId(id), tokens, caught_up, .. } in done.chunks {
            let (place, name) = (id as usize, NAMES[id as usize]);
            let has_new = before.iter().any(|was| was.id == id && was.new_tokens > 0);
            sequences[place] = Some(match has_new {
                _ if is_back[place] => (again(name, tokens), CELL),
                true => (held(name, ""), 14.0),
                false => (held(name, tokens), CELL),
            });
            is_back[place] &= !caught_up;
        }
        let cached = engine.scheduler().prefixes().n_evictable(slab.pool());
        frames.push(Frame { sequences, numbers: [view.scheduled_tokens, slab.pool().n_free(), cached] });
        before = view.sequences;
    }
    Ok((frames, counters))
}

pub fn figure() -> Result<Figure> {
    let (frames, counters) = record()?;
    let computed: u64 = counters.iter().map(|counters| counters.computed).sum();
    let once: usize = REQUESTS.iter().map(|(_, n_prompt, most)| n_prompt + most - 1).sum();
    let cached: usize = counters.iter().map(|counters| counters.cached_again).sum();
    let asked = listed(&REQUESTS.map(|(_, n_prompt, most)| format!("{n_prompt} + {most}")));
    let (n, steps) = (REQUESTS.len(), frames.len());
    let (others, recomputed) = (REQUESTS[2].1 - cached, computed - once as u64);
    let figure = Figure {
        label: format!(
            "A time line of {steps} steps with a row for each of {n} sequences: when it computes its prompt, decodes, \
             waits, is preempted and recomputes. Below, the tokens computed, free pages and cached pages."
        ),
        message: "Sequences join and leave between any two steps.".into(),
        setup: format!(
            "{n} requests of {asked} tokens, prompt + output, share {PAGES} pages of {PAGE_SIZE} slots. A step \
             computes at most {BUDGET} tokens, for at most {RUNNING} sequences. After its preemption, c finds {cached} \
             tokens of its prompt cached and computes the other {others}, {recomputed} of them for the second time."
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
    picture.labelled("cached pages");
    let n = frames.len();
    let column = |picture: &Picture, step: usize| picture.grid(n, n).cell(step);
    let numbers = |picture: &mut Picture, name: &str, of: &dyn Fn(usize) -> usize| {
        picture.text(picture.left, picture.y + 14.0, Anchor::Start, name);
        for step in 0..n {
            picture.text(column(picture, step).middle(), picture.y + 14.0, Anchor::Middle, of(step));
        }
        picture.y += 22.0;
    };
    numbers(picture, "step", &|step| step + 1);
    for (place, name) in NAMES.iter().enumerate() {
        picture.bold(picture.left, picture.y + CELL / 2.0 + 4.5, Anchor::Start, name);
        for (step, frame) in frames.iter().enumerate() {
            if let Some((cell, height)) = &frame.sequences[place] {
                let area = column(picture, step);
                picture.cell(Area { y: area.y + (CELL - height) / 2.0, height: *height, ..area }, cell.clone());
            }
        }
        picture.y += LINE;
    }
    picture.path("line", format!("M0 {:.1}H{:.1}", picture.y, picture.right()));
    picture.y += 4.0;
    for (line, name) in ["tokens", "free pages", "cached pages"].into_iter().enumerate() {
        numbers(picture, name, &|step| frames[step].numbers[line]);
    }
}
