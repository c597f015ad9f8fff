//! Chapter 8: one step, as three acts: draft and verify, accept, rewind.

use anyhow::Result;

use super::Figure;
use crate::picture::{CELL, Cell, Fate, Picture, blank, free, held, stale};
use crate::speculation::{K, Step, italic, one_step, passes, text};
use crate::words::{joined, listed};

const DRAFT: char = 'b';
const TARGET: char = 'a';

pub fn figure() -> Result<Figure> {
    let step = &one_step()?;
    let Step { tokens, drafted, choices, new_tokens, target, draft } = step;
    let (newest, accepted) = (step.newest(), step.accepted());
    let mut figure = Figure {
        label: format!(
            "One step in three acts: the draft model proposes {}, the target answers {}, and the new tokens are {}.",
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
            "Draft and verify. After <em>{newest}</em>, the draft model proposes {} in {}. The target computes <em>{newest} {}</em> in \
             one pass and chooses the token that follows each: {}.",
            italic(drafted),
            passes(draft.passes.len()),
            joined(drafted, " "),
            italic(choices)
        ),
        format!(
            "Accept. The draft and the target agree on {}. Where they first differ, the target\u{2019}s own <em>{}</em> ends the step, \
             and the rows after it were computed in vain.",
            italic(&drafted[..accepted]),
            new_tokens[accepted]
        ),
        format!(
            "Rewind. The target forgets {}, and the draft model forgets {}. Both caches now end with <em>{}</em>, and the newest \
             token, <em>{}</em>, waits for the next step.",
            italic(&target.forgotten),
            italic(&draft.forgotten),
            new_tokens[accepted - 1],
            new_tokens[accepted]
        ),
    ];
    for (act, says) in says.into_iter().enumerate() {
        figure.frame(says, |picture| draw(picture, act, step));
    }
    Ok(figure)
}

/// The state after an act.
fn draw(picture: &mut Picture, act: usize, step: &Step) {
    let Step { drafted, choices, new_tokens, target, draft, .. } = step;
    let (newest, accepted) = (step.newest(), step.accepted());
    // A row of words from column `first` on.
    let row = |picture: &mut Picture, label: &str, first: usize, words: Vec<Cell>| {
        let cells = (0..first).map(|_| blank()).chain(words).chain((0..).map(|_| blank()));
        picture.row(label, "", K + 2, cells.take(K + 2))
    };
    // The first ones count; the others do so only until `act`.
    let judged = |owner, words: &[String], kept: usize, judged_in: usize| -> Vec<Cell> {
        let cell = |(i, word)| if act >= judged_in && i >= kept { stale(word) } else { held(owner, word) };
        words.iter().enumerate().map(cell).collect()
    };
    picture.labelled(&["the target", "the draft"]);
    let input = [vec![held(TARGET, newest)], judged(DRAFT, drafted, accepted, 1)].concat();
    let grid = row(picture, "the draft\nproposes", 0, input);
    for i in 0..=K {
        picture.arrow((grid.middle(i), grid.y + CELL + 3.0), (grid.middle(i + 1), grid.y + CELL + 21.0));
    }
    picture.space(18.0);
    row(picture, "the target\nchooses", 1, judged(TARGET, choices, new_tokens.len(), 1));
    picture.space(6.0);
    let new = |(i, word)| if act == 0 { free("") } else { held(if i < accepted { DRAFT } else { TARGET }, word) };
    row(picture, "new\ntokens", 1, new_tokens.iter().enumerate().map(new).collect());
    picture.space(10.0);
    picture.heading(["in the caches before the rewind", "in the caches after the step"][act / 2], "");
    for (label, owner, memory) in [("target", TARGET, target), ("draft", DRAFT, draft)] {
        let computed: Vec<String> =
            [newest].into_iter().chain(&new_tokens[..accepted]).chain(&memory.forgotten).cloned().collect();
        row(picture, label, 0, judged(owner, &computed, computed.len() - memory.forgotten.len(), 2));
    }
}
