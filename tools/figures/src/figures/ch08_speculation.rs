//! Chapter 8: a few steps in a row, with the first rejected token in each place.

use anyhow::{Result, ensure};

use super::Figure;
use crate::layout::Grid;
use crate::speculation::{K, Memory, PROMPT, Step, italic, passes, recorded, steps, text};
use crate::svg::{Anchor, Kind, Svg, named};
use crate::words::count;

pub fn figure() -> Result<Figure> {
    let frames = &steps(4)?;
    let mut accepted: Vec<usize> = frames.iter().map(Step::accepted).collect();
    accepted.sort_unstable();
    ensure!(accepted == [0, 1, 2, 3], "draft tokens accepted: {accepted:?}, expected every number once");
    let mut figure = Figure::default();
    for (index, step) in frames.iter().enumerate() {
        let (passes, tokens) = (passes(index + 1), generated(&frames[..=index]));
        figure.step(step_text(step, &passes, tokens), |svg| draw_step(svg, &passes, tokens, step));
        figure.svg.y += 10.0;
    }
    figure.svg.legend(&[
        (Kind::New, "new token"),
        (Kind::Reused, "accepted"),
        (Kind::Stale, "rejected"),
        (Kind::Wasted, "computed, not used"),
    ]);
    let last = &frames[frames.len() - 1];
    let draft_passes: usize = frames.iter().map(|step| step.draft.passes.len()).sum();
    figure.label = format!(
        "{} steps of speculative decoding after \u{201c}{PROMPT}\u{201d}, each with a row of {K} draft tokens over a row of the \
         target\u{2019}s choices.",
        frames.len(),
    );
    figure.caption = format!(
        "<strong>{} new tokens take {} passes of the target and {draft_passes} of the draft model.</strong> \u{201c}{}\u{201d} {}",
        generated(frames),
        frames.len(),
        text(&[&last.tokens[..], &last.new_tokens].concat()),
        recorded()
    );
    Ok(figure)
}

fn generated(steps: &[Step]) -> usize {
    steps.iter().map(|step| step.new_tokens.len()).sum()
}

/// `passes`, `tokens`: of the target so far.
fn draw_step(svg: &mut Svg, passes: &str, tokens: usize, step: &Step) {
    let grid = Grid::across(52.0, K + 1, K + 1);
    let newest = text(&step.tokens[step.tokens.len() - 3..]);
    svg.heading(&format!("… {newest}"), &format!("{passes}, {tokens} tokens"));
    let kind = |i, held, kinds: [Kind; 2]| if i < held { kinds[0] } else { kinds[1] };
    svg.label("draft");
    let drafted = step.drafted.iter().enumerate();
    svg.row(grid, drafted.map(|(i, word)| named(kind(i, step.accepted(), [Kind::Reused, Kind::Stale]), word)));
    svg.label("target");
    let choices = step.choices.iter().enumerate();
    svg.row(grid, choices.map(|(i, word)| named(kind(i, step.new_tokens.len(), [Kind::New, Kind::Wasted]), word)));
    let did = |memory: &Memory| match memory.forgotten.len() {
        0 if is_behind(step, memory) => "computes 1".into(),
        n => format!("forgets {n}"),
    };
    let did = format!("target {}, draft {}", did(&step.target), did(&step.draft));
    svg.text(52.0, svg.y + 12.0, Anchor::Start, &did);
    svg.y += 16.0;
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
        "Drafted: {}. Accepted: {} of {K}. New tokens: {}. Then {}, {}. So far {} for {passes} of the target.",
        italic(&step.drafted),
        step.accepted(),
        italic(&step.new_tokens),
        memory("target", &step.target),
        memory("draft model", &step.draft),
        count(tokens, "new token"),
    )
}
