//! Chapter 8: one step, as four acts: draft, verify, accept, rewind.

use anyhow::Result;

use super::Figure;
use crate::picture::{CELL, Cell, Fate, Picture, blank, free, held, stale};
use crate::speculation::{K, Step, italic, one_step, passes, text};
use crate::words::{count, joined, listed};

const DRAFT: char = 'b';
const TARGET: char = 'a';

pub fn figure() -> Result<Figure> {
    let step = &one_step()?;
    let Step { tokens, drafted, choices, new_tokens, target, draft } = step;
    let (newest, accepted) = (step.newest(), step.accepted());
    let mut figure = Figure {
        label: format!(
            "One step in four acts: the draft model proposes {}, the target answers {}, and the new tokens are {}.",
            listed(drafted),
            listed(choices),
            listed(new_tokens)
        ),
        message: format!(
            "One pass of the target gives {} new tokens, the very ones that it would have generated alone.",
            new_tokens.len()
        ),
        setup: format!("The prompt and output so far: \u{201c}{}\u{201d}, with <em>k</em> = {K}.", text(tokens)),
        owners: vec![(held(DRAFT, ""), "the draft model\u{2019}s"), (held(TARGET, ""), "the target\u{2019}s")],
        legend: vec![(Fate::Stale, "rejected, or forgotten"), (Fate::Free, "")],
        ..Figure::default()
    };
    let says = [
        format!(
            "Draft: after <em>{newest}</em>, the draft model proposes {}, in {}.",
            italic(drafted),
            passes(draft.passes.len())
        ),
        format!(
            "Verify: the target computes <em>{newest} {}</em> in one pass, and chooses a token after each: {}.",
            joined(drafted, " "),
            italic(choices)
        ),
        format!(
            "Accept: {} accepted. The first choice that differs, <em>{}</em>, is the target\u{2019}s own token and ends the \
             step. The choices after it continue a sequence that does not exist.",
            count(accepted, "draft token"),
            new_tokens[accepted]
        ),
        format!(
            "Rewind: the target forgets {}, the draft model {}. Both caches hold the sequence up to <em>{}</em>: all but the \
             newest token.",
            italic(&target.forgotten),
            italic(&draft.forgotten),
            new_tokens[accepted - 1]
        ),
    ];
    for (act, says) in says.into_iter().enumerate() {
        figure.frame(says, |picture| draw(picture, act, step));
    }
    Ok(figure)
}

/// The first acts, up to `act`.
fn draw(picture: &mut Picture, act: usize, step: &Step) {
    let Step { drafted, choices, new_tokens, target, draft, .. } = step;
    let (newest, accepted) = (step.newest(), step.accepted());
    // A row of words from `first` on, or places for it if its act has not come.
    let row = |picture: &mut Picture, label: &str, has_come: bool, first: usize, words: Vec<Cell>| {
        let rest = K + 2 - first - words.len().min(K + 2 - first);
        let words = words.into_iter().map(|cell| if has_come { cell } else { free("") });
        let cells = (0..first).map(|_| blank()).chain(words).chain((0..rest).map(|_| blank()));
        picture.row(label, "", K + 2, cells)
    };
    let judged = |owner, words: &[String], kept: usize| -> Vec<Cell> {
        let is_over = act >= 2;
        words
            .iter()
            .enumerate()
            .map(|(i, word)| if is_over && i >= kept { stale(word) } else { held(owner, word) })
            .collect()
    };
    picture.labelled(&["the target", "the draft"]);
    let input = [vec![held(TARGET, newest)], judged(DRAFT, drafted, accepted)].concat();
    let grid = row(picture, "the draft\nproposes", true, 0, input);
    if act >= 1 {
        for i in 0..=K {
            picture.arrow((grid.middle(i), grid.y + CELL + 3.0), (grid.middle(i + 1), grid.y + CELL + 21.0));
        }
    }
    picture.space(18.0);
    row(picture, "the target\nchooses", act >= 1, 1, judged(TARGET, choices, new_tokens.len()));
    picture.space(6.0);
    let new = |i: usize, word| held(if i < accepted { DRAFT } else { TARGET }, word);
    row(picture, "new\ntokens", act >= 2, 1, new_tokens.iter().enumerate().map(|(i, word)| new(i, word)).collect());
    picture.space(10.0);
    picture.heading("in the caches after the step", "");
    for (label, owner, memory) in [("target", TARGET, target), ("draft", DRAFT, draft)] {
        let kept = [newest].into_iter().chain(&new_tokens[..accepted]).map(|word| held(owner, word));
        row(picture, label, act >= 3, 0, kept.chain(memory.forgotten.iter().map(stale)).collect());
    }
}
