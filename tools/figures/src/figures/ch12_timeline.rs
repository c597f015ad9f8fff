//! Chapter 12: the schedule as a time line. A row for each text, a column for each step.

use anyhow::{Result, ensure};
use page_by_page::cache::{KvCache, KvLayout};
use page_by_page::chapters::ch06_paged::{PageSlab, SharedSlab};
use page_by_page::chapters::ch11_prefix_cache::PrefixCache;
use page_by_page::chapters::ch12_scheduler::Scheduler;
use page_by_page::serving::schedule::{NextToken, SequenceCounters, SequenceId, StepLimits};
use serde::Serialize;

use crate::fragment::Drawing;
use crate::svg::{Anchor, Area, Kind, Svg, listed};

const LAYOUT: KvLayout = KvLayout { n_layers: 1, n_kv_heads: 1, head_dim: 2 };
const PAGE_SIZE: usize = 4;
const PAGES: usize = 7;
const BUDGET: usize = 8;
const RUNNING: usize = 3;
/// Step before which a text comes, tokens of its prompt, new tokens.
const TEXTS: [(usize, usize, usize); 4] = [(0, 6, 9), (0, 7, 5), (1, 9, 5), (4, 5, 3)];
const MOST_STEPS: usize = 14;

#[derive(Serialize)]
pub struct Trace {
    page_size: usize,
    n_pages: usize,
    budget: usize,
    /// Tokens of each prompt, and new tokens.
    texts: Vec<(usize, usize)>,
    /// What each text has cost in the end.
    computed: Vec<u64>,
    found_again: Vec<usize>,
    frames: Vec<Frame>,
}

/// A step.
#[derive(Serialize)]
struct Frame {
    /// What each text does; `null` before it comes and after it has ended.
    texts: Vec<Option<Doing>>,
    /// Tokens read.
    budget_used: usize,
    free: usize,
    /// Pages that only the prefix cache has.
    evictable: usize,
    ended: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "does", content = "tokens")]
enum Doing {
    /// Reads so many tokens of its prompt.
    Prefill(usize),
    /// Reads the token that it got.
    Decode,
    Waits,
    /// Gives its pages back in this step.
    Preempted,
    /// Begins again: reads so many tokens that it had read before.
    Resumes(usize),
}

pub fn record() -> Result<Trace> {
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, PAGES)?;
    let limits = StepLimits { tokens: BUDGET, sequences: RUNNING };
    let mut scheduler = Scheduler::new(&slab, Box::new(PrefixCache::new(PAGE_SIZE)?), limits, &[])?;
    let mut counters = vec![SequenceCounters::default(); TEXTS.len()];
    let mut has_read = [false; TEXTS.len()];
    let mut is_back = [false; TEXTS.len()];
    let mut frames: Vec<Frame> = Vec::new();
    for step in 0.. {
        ensure!(step <= MOST_STEPS, "the figure has room for {MOST_STEPS} steps");
        for (text, (_, n_prompt, most)) in TEXTS.iter().enumerate().filter(|(_, (comes, ..))| *comes == step) {
            let prompt = (0..*n_prompt as u32).map(|token| 100 * (text as u32 + 1) + token).collect();
            ensure!(scheduler.submit(prompt, *most)? == SequenceId(text as u64), "texts come in their order");
        }
        let ran: Vec<u64> = scheduler.running().map(|(text, _)| text.id.0).collect();
        let plan = scheduler.plan()?;
        if plan.is_empty() {
            break;
        }
        let mut texts = vec![None; TEXTS.len()];
        for text in scheduler.waiting() {
            let doing = if ran.contains(&text.id.0) { Doing::Preempted } else { Doing::Waits };
            texts[text.id.0 as usize] = Some(doing);
            is_back[text.id.0 as usize] |= doing == Doing::Preempted;
        }
        for turn in &plan {
            let place = turn.sequence.0 as usize;
            let new =
                scheduler.running().find(|(text, _)| text.id == turn.sequence).map(|(text, _)| text.new_tokens().len());
            texts[place] = Some(match new {
                _ if is_back[place] => Doing::Resumes(turn.tokens),
                Some(new) if new > 0 => Doing::Decode,
                _ => Doing::Prefill(turn.tokens),
            });
            is_back[place] &= !turn.caught_up;
            has_read[place] = true;
        }
        let mut picks = Vec::new();
        for reading in scheduler.inputs() {
            let rows = vec![0.0; reading.tokens.len() * LAYOUT.kv_width()];
            reading.cache.write(0, &rows, &rows);
            if reading.chunk.caught_up {
                picks.push(NextToken { sequence: reading.chunk.sequence, token: 1000 + step as u32 });
            }
        }
        scheduler.settle(&picks)?;
        let mut ended = Vec::new();
        for finished in scheduler.take_finished() {
            let text = finished.sequence;
            counters[text.id.0 as usize] = text.counters;
            ended.push(text.id.0);
        }
        let (free, evictable) = pages(&slab, &scheduler);
        frames.push(Frame { texts, budget_used: plan.iter().map(|turn| turn.tokens).sum(), free, evictable, ended });
    }
    let seen = |wanted: fn(&Doing) -> bool| frames.iter().flat_map(|frame| frame.texts.iter().flatten()).any(wanted);
    ensure!(has_read.iter().all(|read| *read), "all have their turn");
    ensure!(
        seen(|doing| *doing == Doing::Waits) && seen(|doing| *doing == Doing::Preempted),
        "one waits, one is preempted"
    );
    ensure!(counters.iter().any(|counters| counters.cached_again > 0), "one finds again what it had read");
    Ok(Trace {
        page_size: PAGE_SIZE,
        n_pages: PAGES,
        budget: BUDGET,
        texts: TEXTS.iter().map(|(_, n_prompt, most)| (*n_prompt, *most)).collect(),
        computed: counters.iter().map(|counters| counters.computed).collect(),
        found_again: counters.iter().map(|counters| counters.cached_again).collect(),
        frames,
    })
}

/// Pages that are free, and those that only the prefix cache has.
fn pages(slab: &SharedSlab, scheduler: &Scheduler) -> (usize, usize) {
    let slab = slab.borrow();
    (slab.pool().n_free(), scheduler.prefixes().n_evictable(slab.pool()))
}

const LEFT: f64 = 58.0;
const CELL: f64 = 19.0;
const TOP: f64 = 24.0;
const LINE: f64 = 34.0;
const HEIGHT: f64 = 28.0;

pub fn draw(trace: &Trace) -> Drawing {
    let Trace { page_size, n_pages, budget, texts, frames, .. } = trace;
    let under = TOP + texts.len() as f64 * LINE;
    let bottom = under + 3.0 * 22.0 + 12.0;
    let mut svg = Svg::new(bottom + 72.0);
    svg.without_bands();
    svg.text(0.0, 15.0, Anchor::Start, "step");
    for text in 0..texts.len() {
        svg.text(0.0, TOP + text as f64 * LINE + 19.0, Anchor::Start, &format!("text {text}"));
    }
    for (line, name) in ["budget", "free", "kept"].into_iter().enumerate() {
        svg.text(0.0, under + 22.0 * line as f64 + 20.0, Anchor::Start, name);
    }
    svg.line(&format!("M0 {}H360", under + 2.0));
    let pitch = (360.0 - LEFT) / frames.len() as f64;
    for (step, frame) in frames.iter().enumerate() {
        let x = LEFT + step as f64 * pitch;
        svg.step(step, |svg| {
            let middle = x + pitch / 2.0;
            svg.text(middle, 15.0, Anchor::Middle, &(step + 1).to_string());
            for (text, doing) in frame.texts.iter().enumerate() {
                let Some(doing) = doing else { continue };
                draw_doing(svg, x + (pitch - CELL) / 2.0, TOP + text as f64 * LINE, *doing);
            }
            for (line, number) in [frame.budget_used, frame.free, frame.evictable].into_iter().enumerate() {
                svg.text(middle, under + 22.0 * line as f64 + 20.0, Anchor::Middle, &number.to_string());
            }
        });
    }
    let cell = |x: f64, y: f64, height: f64| Area { x: x + 2.0, y: y + (18.0 - height) / 2.0, width: 18.0, height };
    svg.cell(Kind::New, cell(0.0, bottom, 20.0), "", "5");
    svg.text(27.0, bottom + 14.0, Anchor::Start, "reads 5 of its prompt");
    svg.cell(Kind::Reused, cell(190.0, bottom, 16.0), "", "");
    svg.text(217.0, bottom + 14.0, Anchor::Start, "writes: reads 1");
    svg.free(cell(0.0, bottom + 26.0, 4.0), "", "");
    svg.text(27.0, bottom + 40.0, Anchor::Start, "waits");
    svg.cell(Kind::Wasted, cell(85.0, bottom + 26.0, 20.0), "", "P");
    svg.text(112.0, bottom + 40.0, Anchor::Start, "preempted");
    svg.cell(Kind::Shared, Area { width: 23.0, ..cell(194.0, bottom + 26.0, 20.0) }, "", "R5");
    svg.text(224.0, bottom + 40.0, Anchor::Start, "comes back, reads 5");

    let rows: Vec<String> = (0..texts.len()).map(|text| told(frames, text)).collect();
    Drawing {
        svg,
        label: format!(
            "A time line of {} steps, {n_pages} pages of {page_size}, budget {budget}. {}. The budget used, from step to step: {}. \
             Free pages: {}. Pages that only the prefix cache has: {}.",
            frames.len(),
            rows.join(". "),
            numbers(frames, |frame| frame.budget_used),
            numbers(frames, |frame| frame.free),
            numbers(frames, |frame| frame.evictable)
        ),
        caption: caption(trace),
        steps: (0..frames.len()).map(|step| step_text(trace, step)).collect(),
    }
}

fn draw_doing(svg: &mut Svg, x: f64, y: f64, doing: Doing) {
    let tall = Area { x, y, width: CELL, height: HEIGHT };
    match doing {
        Doing::Prefill(n) => svg.cell(Kind::New, tall, "", &n.to_string()),
        Doing::Decode => svg.cell(Kind::Reused, Area { y: y + 6.0, height: 16.0, ..tall }, "", ""),
        Doing::Waits => svg.free(Area { y: y + 12.0, height: 4.0, ..tall }, "", ""),
        Doing::Preempted => svg.cell(Kind::Wasted, tall, "", "P"),
        Doing::Resumes(n) => {
            svg.cell(Kind::Shared, Area { x: x - 2.0, width: CELL + 4.0, ..tall }, "", &format!("R{n}"))
        }
    }
}

fn numbers(frames: &[Frame], of: fn(&Frame) -> usize) -> String {
    frames.iter().map(|frame| of(frame).to_string()).collect::<Vec<_>>().join(", ")
}

/// `Text 1: step 1 reads 2, steps 3 to 6 writes, step 7 preempted`
fn told(frames: &[Frame], text: usize) -> String {
    let mut runs: Vec<(usize, usize, Doing)> = Vec::new();
    for (step, frame) in frames.iter().enumerate() {
        let Some(doing) = frame.texts[text] else { continue };
        match runs.last_mut() {
            Some((_, last, before)) if *before == doing && *last + 1 == step => *last = step,
            _ => runs.push((step, step, doing)),
        }
    }
    let run = |(first, last, doing): &(usize, usize, Doing)| {
        let steps =
            if first == last { format!("step {}", first + 1) } else { format!("steps {} to {}", first + 1, last + 1) };
        format!("{steps} {}", words(*doing))
    };
    format!("Text {text}: {}", runs.iter().map(run).collect::<Vec<_>>().join(", "))
}

fn words(doing: Doing) -> String {
    match doing {
        Doing::Prefill(n) => format!("reads {n} of its prompt"),
        Doing::Decode => "writes".into(),
        Doing::Waits => "waits".into(),
        Doing::Preempted => "is preempted".into(),
        Doing::Resumes(n) => format!("comes back and reads {n}"),
    }
}

fn caption(trace: &Trace) -> String {
    let Trace { page_size, n_pages, budget, texts, computed, found_again, .. } = trace;
    let asked: Vec<String> = texts.iter().map(|(n_prompt, most)| format!("{n_prompt} + {most}")).collect();
    let again: u64 =
        texts.iter().zip(computed).map(|((n_prompt, most), computed)| computed - (n_prompt + most - 1) as u64).sum();
    let found: usize = found_again.iter().sum();
    format!(
        "{} texts in {n_pages} pages of {page_size}, budget {budget}, at most {RUNNING} running; prompts + new tokens: {}. Below the \
         line: tokens read in the step, free pages after it, and pages that only the prefix cache has. {again} tokens \
         are computed twice; {found} were found again in the prefix cache. Recorded from <code>Scheduler</code>.",
        texts.len(),
        listed(&asked)
    )
}

fn step_text(trace: &Trace, step: usize) -> String {
    let frame = &trace.frames[step];
    let doing = |(text, doing): (usize, &Option<Doing>)| doing.map(|doing| format!("text {text} {}", words(doing)));
    let told: Vec<String> = frame.texts.iter().enumerate().filter_map(doing).collect();
    let ended: Vec<String> = frame.ended.iter().map(|text| format!("Text {text} ends. ")).collect();
    format!(
        "Step {}: {}. {}{} of {} tokens read; pages free: {}, in the prefix cache only: {}.",
        step + 1,
        told.join(", "),
        ended.concat(),
        frame.budget_used,
        trace.budget,
        frame.free,
        frame.evictable
    )
}
