//! Chapter 8: a few steps in a row, with the first wrong guess in each place.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::ch08_step::{K, PROMPT, joined};
use crate::fragment::Drawing;
use crate::guesses::{DRAFT, Memory, Step, TARGET, steps};
use crate::svg::{Anchor, Area, Kind, Svg};

const STEPS: usize = 4;

#[derive(Serialize)]
pub struct Trace {
    target: &'static str,
    draft: &'static str,
    prompt: &'static str,
    k: usize,
    frames: Vec<Step>,
}

pub fn record() -> Result<Trace> {
    let frames = steps(PROMPT, K, STEPS)?;
    let mut accepted: Vec<usize> = frames.iter().map(Step::accepted).collect();
    accepted.sort_unstable();
    ensure!(accepted == [0, 1, 2, 3], "guesses accepted in the steps: {accepted:?}, expected every number once");
    Ok(Trace { target: TARGET, draft: DRAFT, prompt: PROMPT, k: K, frames })
}

const LEFT: f64 = 52.0;
const PITCH: f64 = 77.0;
const CELL: f64 = 73.0;
const HEIGHT: f64 = 26.0;
const FRAME: f64 = 118.0;

pub fn draw(trace: &Trace) -> Drawing {
    let Trace { k, frames, .. } = trace;
    let bottom = frames.len() as f64 * FRAME;
    let mut svg = Svg::new(bottom + 48.0);
    for (index, step) in frames.iter().enumerate() {
        svg.step(index, |svg| draw_step(svg, index as f64 * FRAME, index + 1, new_tokens(&frames[..=index]), step));
    }
    svg.legend(Kind::New, 0.0, bottom + 2.0, "new token");
    svg.legend(Kind::Reused, 120.0, bottom + 2.0, "guess accepted");
    svg.legend(Kind::Stale, 0.0, bottom + 26.0, "rejected");
    svg.legend(Kind::Wasted, 120.0, bottom + 26.0, "computed, not used");

    let last = &frames[frames.len() - 1];
    let written = joined(&[&last.text[..], &last.new_tokens].concat());
    let told: Vec<String> = (frames.iter())
        .map(|step| {
            format!(
                "guessed {}, {} accepted, new tokens {}",
                quoted(&step.drafted),
                step.accepted(),
                quoted(&step.new_tokens)
            )
        })
        .collect();
    let draft_passes: usize = frames.iter().map(|step| step.draft.passes.len()).sum();
    Drawing {
        svg,
        label: format!(
            "{} steps of speculation after \u{201c}{}\u{201d}, each with a row of {k} guesses over a row of the target\u{2019}s \
             choices: {}.",
            frames.len(),
            trace.prompt,
            told.join("; ")
        ),
        caption: format!(
            "\u{201c}{written}\u{201d}: {} new tokens for {} passes of the target and {draft_passes} of the draft model. Recorded \
             from <code>Speculation::step</code> with <code>{}</code> as target and <code>{}</code> as draft model, greedy, \
             <em>k</em> = {k}.",
            new_tokens(frames),
            frames.len(),
            trace.target,
            trace.draft
        ),
        steps: (0..frames.len()).map(|index| step_text(frames, index)).collect(),
    }
}

fn new_tokens(steps: &[Step]) -> usize {
    steps.iter().map(|step| step.new_tokens.len()).sum()
}

fn quoted(words: &[String]) -> String {
    format!("\u{201c}{}\u{201d}", words.join(" "))
}

fn draw_step(svg: &mut Svg, y: f64, passes: usize, tokens: usize, step: &Step) {
    let area = |column: usize, y: f64| Area { x: LEFT + column as f64 * PITCH, y, width: CELL, height: HEIGHT };
    let tail = &step.text[step.text.len() - 3..];
    svg.bold(0.0, y + 16.0, Anchor::Start, &format!("… {}", joined(tail)));
    let counters =
        format!("{}, {tokens} tokens", if passes == 1 { "1 pass".into() } else { format!("{passes} passes") });
    svg.text(358.0, y + 16.0, Anchor::End, &counters);
    for (line, name) in ["draft", "target"].into_iter().enumerate() {
        svg.text(0.0, y + 42.0 + line as f64 * 31.0, Anchor::Start, name);
    }
    for (index, word) in step.drafted.iter().enumerate() {
        let kind = if index < step.accepted() { Kind::Reused } else { Kind::Stale };
        svg.cell(kind, area(index, y + 24.0), word, word);
    }
    for (index, word) in step.choices.iter().enumerate() {
        let kind = if index < step.new_tokens.len() { Kind::New } else { Kind::Wasted };
        svg.cell(kind, area(index, y + 55.0), word, word);
    }
    svg.text(
        LEFT,
        y + 98.0,
        Anchor::Start,
        &format!("target {}, draft {}", did(step, &step.target), did(step, &step.draft)),
    );
}

/// What a model does with its memory when the step has been judged.
fn did(step: &Step, memory: &Memory) -> String {
    match memory.forgotten.len() {
        0 if is_behind(step, memory) => "reads 1".into(),
        n => format!("forgets {n}"),
    }
}

/// Whether a model had to read one more token: the draft model has never read its own last guess.
fn is_behind(step: &Step, memory: &Memory) -> bool {
    memory.passes.len() > step.drafted.len()
}

fn step_text(frames: &[Step], index: usize) -> String {
    let step = &frames[index];
    let memory = |name: &str, memory: &Memory| match &memory.forgotten[..] {
        [] if is_behind(step, memory) => {
            format!("the {name} reads its last guess, <em>{}</em>", step.drafted[step.drafted.len() - 1])
        }
        [] => format!("the {name} forgets nothing"),
        words => format!("the {name} forgets <em>{}</em>", words.join(" ")),
    };
    format!(
        "Guessed: <em>{}</em>. Accepted: {} of {}. New tokens: <em>{}</em>. Then {}, {}. Passes of the target so far: {}, \
         new tokens: {}.",
        step.drafted.join(" "),
        step.accepted(),
        step.drafted.len(),
        step.new_tokens.join(" "),
        memory("target", &step.target),
        memory("draft model", &step.draft),
        index + 1,
        new_tokens(&frames[..=index])
    )
}
