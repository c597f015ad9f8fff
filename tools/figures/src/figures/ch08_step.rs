//! Chapter 8: one step, as four acts: draft, verify, accept, rewind.

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::fragment::Drawing;
use crate::guesses::{DRAFT, Step, TARGET, steps};
use crate::svg::{Anchor, Area, Kind, Svg, listed};

/// Which step of `ch08_speculation`, counted from 0: some guesses hold and some do not.
pub const STEP: usize = 1;
pub const PROMPT: &str = "The king lived in a great castle";
pub const K: usize = 3;

#[derive(Serialize)]
pub struct Trace {
    target: &'static str,
    draft: &'static str,
    step: Step,
    frames: Vec<Frame>,
}

/// An act.
#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Frame {
    Draft,
    Verify,
    Accept,
    Rewind,
}

pub fn record() -> Result<Trace> {
    let step = steps(PROMPT, K, STEP + 1)?.swap_remove(STEP);
    ensure!(step.accepted() > 0 && step.accepted() < K, "some guesses hold");
    ensure!(step.target.passes == [K + 1] && step.draft.passes == [1; K], "no pass reads more of the text");
    let frames = vec![Frame::Draft, Frame::Verify, Frame::Accept, Frame::Rewind];
    Ok(Trace { target: TARGET, draft: DRAFT, step, frames })
}

const LEFT: f64 = 58.0;
const PITCH: f64 = 60.4;
const CELL: f64 = 56.0;
const HEIGHT: f64 = 28.0;
const TITLE: f64 = 24.0;
const ROW: f64 = 34.0;
/// Between what the target reads and what it says, for the arrows.
const FALL: f64 = 48.0;
const GAP: f64 = 14.0;

/// The upper edge of each act, and of what follows.
const TOPS: [f64; 5] = [
    0.0,
    TITLE + ROW + GAP,
    2.0 * (TITLE + ROW + GAP) + FALL,
    3.0 * (TITLE + ROW + GAP) + FALL + ROW,
    4.0 * (TITLE + ROW + GAP) + FALL + 2.0 * ROW,
];

pub fn draw(trace: &Trace) -> Drawing {
    let Step { text, drafted, choices, new_tokens, target, draft } = &trace.step;
    let newest = &text[text.len() - 1];
    let accepted = trace.step.accepted();
    let mut svg = Svg::new(TOPS[4] + 50.0);
    for (index, act) in trace.frames.iter().enumerate() {
        svg.step(index, |svg| draw_act(svg, TOPS[index], *act, &trace.step));
    }
    svg.legend(Kind::Reused, 0.0, TOPS[4] + 4.0, "kept");
    svg.legend(Kind::New, 90.0, TOPS[4] + 4.0, "new");
    svg.legend(Kind::Stale, 180.0, TOPS[4] + 4.0, "rejected");
    svg.legend(Kind::Wasted, 0.0, TOPS[4] + 28.0, "computed, not used");

    let held = if accepted == 1 { "1 guess holds".into() } else { format!("{accepted} guesses hold") };
    Drawing {
        svg,
        label: format!(
            "One step in four acts. The text ends with {newest}. The draft model guesses {}. The target reads {newest} \
             and the guesses in one pass and answers {}. {held}, so the new tokens are {}. The target forgets {}, the \
             draft model {}.",
            listed(drafted),
            listed(choices),
            listed(new_tokens),
            listed(&target.forgotten),
            listed(&draft.forgotten)
        ),
        caption: format!(
            "{} new tokens for one pass of the target, and just the ones that it would have written alone. Recorded from \
             <code>Speculation::step</code> with <code>{}</code> as target and <code>{}</code> as draft model, greedy, \
             <em>k</em> = {}; the text was \u{201c}{}\u{201d}.",
            new_tokens.len(),
            trace.target,
            trace.draft,
            drafted.len(),
            joined(text)
        ),
        steps: vec![
            format!(
                "Draft: after \u{201c}{}\u{201d} the draft model guesses <em>{}</em>, in {} passes.",
                joined(text),
                drafted.join(" "),
                draft.passes.len()
            ),
            format!(
                "Verify: the target reads <em>{newest} {}</em> in one pass, and says what it would choose after each: \
                 {}.",
                drafted.join(" "),
                listed(&choices.iter().map(|word| format!("\u{201c}{word}\u{201d}")).collect::<Vec<_>>())
            ),
            format!(
                "Accept: {held}. The first choice that differs, <em>{}</em>, is the target\u{2019}s own token and ends the \
                 step; the rows behind it answer a text that there is not.",
                new_tokens[accepted]
            ),
            format!(
                "Rewind: the target forgets <em>{}</em>, the draft model <em>{}</em>. Both remember the text as far \
                 as <em>{}</em>: all but the newest token.",
                target.forgotten.join(" "),
                draft.forgotten.join(" "),
                new_tokens[accepted - 1]
            ),
        ],
    }
}

/// Tokens as text.
pub fn joined(words: &[String]) -> String {
    let mut text = String::new();
    for word in words {
        if !text.is_empty() && word.chars().any(char::is_alphanumeric) {
            text.push(' ');
        }
        text.push_str(word);
    }
    text
}

fn area(column: usize, y: f64) -> Area {
    Area { x: LEFT + column as f64 * PITCH, y, width: CELL, height: HEIGHT }
}

fn draw_act(svg: &mut Svg, y: f64, act: Frame, step: &Step) {
    let Step { text, drafted, choices, new_tokens, target, draft } = step;
    let newest = &text[text.len() - 1];
    let accepted = step.accepted();
    let top = y + TITLE;
    let title = |svg: &mut Svg, name: &str, told: &str| {
        svg.bold(0.0, y + 16.0, Anchor::Start, name);
        svg.text(358.0, y + 16.0, Anchor::End, told);
    };
    let label = |svg: &mut Svg, y: f64, name: &str| svg.text(0.0, y + 19.0, Anchor::Start, name);
    match act {
        Frame::Draft => {
            title(svg, "1 draft", &format!("{} passes of the draft model", draft.passes.len()));
            label(svg, top, "draft");
            svg.cell(Kind::Reused, area(0, top), newest, newest);
            for (index, word) in drafted.iter().enumerate() {
                svg.cell(Kind::New, area(index + 1, top), word, word);
            }
        }
        Frame::Verify => {
            title(svg, "2 verify", &format!("1 pass of the target over {} tokens", target.passes[0]));
            label(svg, top, "reads");
            label(svg, top + FALL, "answers");
            for (index, word) in [newest].into_iter().chain(drafted).enumerate() {
                let area = area(index, top);
                svg.cell(Kind::Reused, area, word, word);
                let from = (area.x + CELL / 2.0, top + HEIGHT + 2.0);
                svg.arrow(from, (from.0 + PITCH, top + FALL - 2.0));
            }
            for (index, word) in choices.iter().enumerate() {
                svg.cell(Kind::New, area(index + 1, top + FALL), word, word);
            }
        }
        Frame::Accept => {
            let guesses = if accepted == 1 { "guess holds" } else { "guesses hold" };
            title(svg, "3 accept", &format!("{accepted} {guesses}, {} new tokens", new_tokens.len()));
            label(svg, top, "draft");
            label(svg, top + ROW, "target");
            for (index, word) in drafted.iter().enumerate() {
                let kind = if index < accepted { Kind::Reused } else { Kind::Stale };
                svg.cell(kind, area(index + 1, top), word, word);
            }
            for (index, word) in choices.iter().enumerate() {
                let kind = if index < new_tokens.len() { Kind::New } else { Kind::Wasted };
                svg.cell(kind, area(index + 1, top + ROW), word, word);
            }
        }
        Frame::Rewind => {
            title(svg, "4 rewind", &format!("both remember … {newest} {}", new_tokens[..accepted].join(" ")));
            for (line, (name, memory)) in [("target", target), ("draft", draft)].into_iter().enumerate() {
                let y = top + line as f64 * ROW;
                label(svg, y, name);
                let kept = [newest].into_iter().chain(&new_tokens[..accepted]);
                for (column, word) in kept.enumerate() {
                    svg.cell(Kind::Reused, area(column, y), word, word);
                }
                for (index, word) in memory.forgotten.iter().enumerate() {
                    svg.cell(Kind::Stale, area(accepted + 1 + index, y), word, word);
                }
            }
        }
    }
}
