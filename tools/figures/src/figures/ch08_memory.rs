//! Chapter 8: what each model remembers before a step, when all is read, and after it.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::ch08_step::{K, PROMPT, STEP};
use crate::fragment::Drawing;
use crate::guesses::{DRAFT, Step, TARGET, steps};
use crate::svg::{Anchor, Area, Kind, Svg};

#[derive(Serialize)]
pub struct Trace {
    target: &'static str,
    draft: &'static str,
    k: usize,
    frames: Vec<Frame>,
}

/// A moment of the step.
#[derive(Serialize)]
struct Frame {
    moment: Moment,
    /// The newest token of the text.
    newest: String,
    /// Target, then draft model.
    models: [Memory; 2],
}

#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Moment {
    Before,
    Read,
    After,
}

/// What a model holds, from the token before the newest one of the text on.
#[derive(Serialize)]
struct Memory {
    /// Tokens of the text that it remembered before this moment.
    kept: Vec<String>,
    /// Tokens that it has just read.
    read: Vec<String>,
    /// Tokens that it has not read: of the text, or of the draft.
    unread: Vec<String>,
    /// Tokens that it has forgotten since the moment before.
    forgotten: usize,
}

pub fn record() -> Result<Trace> {
    let step = steps(PROMPT, K, STEP + 1)?.swap_remove(STEP);
    let Step { text, drafted, new_tokens, target, draft, .. } = &step;
    let [before, newest] = [&text[text.len() - 2], &text[text.len() - 1]].map(Clone::clone);
    let accepted = &new_tokens[..step.accepted()];
    let after = &new_tokens[step.accepted()];
    let len = text.len() + accepted.len();
    ensure!(target.remembered == len && draft.remembered == len, "both remember all but the newest token");
    let models = [(target, drafted.len()), (draft, drafted.len() - 1)];
    let frame = |moment, newest: &String, memory: &dyn Fn(&crate::guesses::Memory, usize) -> Memory| Frame {
        moment,
        newest: newest.clone(),
        models: models.map(|(model, guesses_read)| memory(model, guesses_read)),
    };
    let frames = vec![
        frame(Moment::Before, &newest, &|_, _| Memory {
            kept: vec![before.clone()],
            read: Vec::new(),
            unread: vec![newest.clone()],
            forgotten: 0,
        }),
        frame(Moment::Read, &newest, &|_, guesses_read| Memory {
            kept: vec![before.clone()],
            read: [std::slice::from_ref(&newest), &drafted[..guesses_read]].concat(),
            unread: drafted[guesses_read..].to_vec(),
            forgotten: 0,
        }),
        frame(Moment::After, after, &|model, _| Memory {
            kept: [&[before.clone(), newest.clone()], accepted].concat(),
            read: Vec::new(),
            unread: vec![after.clone()],
            forgotten: model.forgotten.len(),
        }),
    ];
    for (model, guesses_read) in models {
        ensure!(
            model.forgotten.len() == guesses_read - accepted.len(),
            "it forgets the guesses that were not accepted"
        );
    }
    Ok(Trace { target: TARGET, draft: DRAFT, k: K, frames })
}

const LEFT: f64 = 52.0;
const PITCH: f64 = 62.0;
const CELL: f64 = 58.0;
const HEIGHT: f64 = 28.0;
const ROW: f64 = 34.0;
const FRAME: f64 = 24.0 + 2.0 * ROW + 14.0;

pub fn draw(trace: &Trace) -> Drawing {
    let Trace { frames, .. } = trace;
    let bottom = frames.len() as f64 * FRAME;
    let mut svg = Svg::new(bottom + 48.0);
    for (index, frame) in frames.iter().enumerate() {
        svg.step(index, |svg| draw_frame(svg, index as f64 * FRAME, frame));
    }
    svg.legend(Kind::Reused, 0.0, bottom + 2.0, "remembered");
    svg.legend(Kind::New, 130.0, bottom + 2.0, "just read");
    svg.legend_free(0.0, bottom + 26.0, "not read");
    let told: Vec<String> = frames.iter().map(|frame| told(frame, false)).collect();
    Drawing {
        svg,
        label: format!("What target and draft model remember in a step. {}", told.join(" ")),
        caption: format!(
            "Before and after, both remember the text up to the token before the newest. Recorded from \
             <code>Speculation::step</code> with <code>{}</code> as target and <code>{}</code> as draft model, greedy, \
             <em>k</em> = {}; it is the step of the first figure.",
            trace.target, trace.draft, trace.k
        ),
        steps: frames.iter().map(|frame| self::told(frame, true)).collect(),
    }
}

/// A moment in a sentence or two, for people (with markup) or for a label.
fn told(frame: &Frame, markup: bool) -> String {
    let quoted = |words: &[String]| {
        let words = words.join(" ");
        if markup { format!("<em>{words}</em>") } else { format!("\u{201c}{words}\u{201d}") }
    };
    let newest = quoted(std::slice::from_ref(&frame.newest));
    let [target, draft] = &frame.models;
    match frame.moment {
        Moment::Before => {
            format!("Before: the newest token is {newest}. Neither model has read it; both remember all before it.")
        }
        Moment::Read => format!(
            "Draft and verify: the target has read {}. The draft model has read {}; its last guess, {}, it has not read, \
             as nobody asks what follows that.",
            quoted(&target.read),
            quoted(&draft.read),
            quoted(&draft.unread)
        ),
        Moment::After => format!(
            "After: the target has forgotten {} tokens and the draft model {}. Both remember the same again: all but \
             the newest token, {newest}.",
            target.forgotten, draft.forgotten
        ),
    }
}

fn draw_frame(svg: &mut Svg, y: f64, frame: &Frame) {
    let title = match frame.moment {
        Moment::Before => "before the step",
        Moment::Read => "drafted and verified",
        Moment::After => "after the step",
    };
    svg.bold(0.0, y + 16.0, Anchor::Start, title);
    if frame.moment != Moment::Read {
        svg.text(358.0, y + 16.0, Anchor::End, &format!("newest token: {}", frame.newest));
    }
    for (line, (name, memory)) in ["target", "draft"].into_iter().zip(&frame.models).enumerate() {
        let y = y + 24.0 + line as f64 * ROW;
        svg.text(0.0, y + 19.0, Anchor::Start, name);
        let area = |column: usize| Area { x: LEFT + column as f64 * PITCH, y, width: CELL, height: HEIGHT };
        let kinds = [(&memory.kept, Some(Kind::Reused)), (&memory.read, Some(Kind::New)), (&memory.unread, None)];
        let words = kinds.iter().flat_map(|(words, kind)| words.iter().map(move |word| (word, *kind)));
        for (column, (word, kind)) in words.enumerate() {
            match kind {
                Some(kind) => svg.cell(kind, area(column), word, word),
                None => svg.free(area(column), word, word),
            }
        }
        if memory.forgotten > 0 {
            svg.text(358.0, y + 19.0, Anchor::End, &format!("forgot {}", memory.forgotten));
        }
    }
}
