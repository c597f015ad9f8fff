//! Chapter 8: a few steps in a row, with the first rejected token in each place.

use anyhow::{Result, ensure};

use super::Figure;
use crate::picture::{Anchor, Area, Fate, Picture, blank, held, stale};
use crate::speculation::{K, Memory, PROMPT, Step, italic, passes, steps};
use crate::words::count;

pub fn figure() -> Result<Figure> {
    let frames = &steps(4)?;
    let mut accepted: Vec<usize> = frames.iter().map(Step::accepted).collect();
    accepted.sort_unstable();
    ensure!(accepted == [0, 1, 2, 3], "draft tokens accepted: {accepted:?}, expected every number once");
    let draft_passes: usize = frames.iter().map(|step| step.draft.passes.len()).sum();
    let mut figure = Figure {
        label: format!(
            "{} steps of speculative decoding after \u{201c}{PROMPT}\u{201d}: {K} draft tokens over the target\u{2019}s choices, and the \
             output so far.",
            frames.len(),
        ),
        message: format!(
            "{} new tokens take {} passes of the target and {draft_passes} of the draft model.",
            generated(frames),
            frames.len()
        ),
        setup: format!("The prompt is \u{201c}{PROMPT}\u{201d}, with <em>k</em> = {K}."),
        owners: vec![(held('b', ""), "the draft model\u{2019}s"), (held('a', ""), "the target\u{2019}s")],
        legend: vec![(Fate::Stale, "rejected, or computed and not used")],
        is_anew: true,
        ..Figure::default()
    };
    for (index, step) in frames.iter().enumerate() {
        let (passes, tokens) = (passes(index + 1), generated(&frames[..=index]));
        figure.frame(step_text(step, &passes, tokens), |picture| draw(picture, index + 1, tokens, step));
    }
    Ok(figure)
}

fn generated(steps: &[Step]) -> usize {
    steps.iter().map(|step| step.new_tokens.len()).sum()
}

/// `passes`, `tokens`: of the target so far.
fn draw(picture: &mut Picture, passes: usize, tokens: usize, step: &Step) {
    picture.labelled(&["the target", "the draft"]);
    let judged = |owner, words: &[String], kept: usize| -> Vec<_> {
        words.iter().enumerate().map(|(i, word)| if i < kept { held(owner, word) } else { stale(word) }).collect()
    };
    let mut drafted = judged('b', &step.drafted, step.accepted());
    drafted.push(blank());
    picture.row("the draft\nproposes", "", K + 1, drafted);
    picture.row("the target\nchooses", "", K + 1, judged('a', &step.choices, step.new_tokens.len()));
    picture.space(8.0);
    for (label, n) in [("passes of the target", passes), ("new tokens", tokens)] {
        picture.text(picture.left, picture.y + 15.0, Anchor::Start, label);
        picture.words((picture.left + 156.0, picture.y + 15.0), Anchor::End, "b", n);
        for i in 0..n {
            let area =
                Area { x: picture.left + 166.0 + 16.0 * i as f64, y: picture.y + 3.0, width: 13.0, height: 14.0 };
            picture.cell(area, held('a', ""));
        }
        picture.space(24.0);
    }
    picture.space(6.0);
    let is_new = |i: usize| i >= step.tokens.len();
    let words = step.tokens.iter().chain(&step.new_tokens).skip(1).enumerate();
    let words: Vec<(String, bool)> = words.map(|(i, word)| (word.clone(), is_new(i + 1))).collect();
    picture.paragraph(&words);
}

/// Whether a model had to compute one more token: the draft model has never computed its own last one.
fn is_behind(step: &Step, memory: &Memory) -> bool {
    memory.passes.len() > step.drafted.len()
}

fn step_text(step: &Step, passes: &str, tokens: usize) -> String {
    let memory = |name: &str, memory: &Memory| match &memory.forgotten[..] {
        [] if is_behind(step, memory) => {
            format!("the {name} computes its last draft token, {}", italic(&step.drafted[K - 1..]))
        }
        [] => format!("the {name} forgets nothing"),
        words => format!("the {name} forgets {}", italic(words)),
    };
    format!(
        "{} of {K} draft tokens accepted, new tokens {}. Then {}, and {}. So far {} for {passes} of the target.",
        step.accepted(),
        italic(&step.new_tokens),
        memory("target", &step.target),
        memory("draft model", &step.draft),
        count(tokens, "new token"),
    )
}
