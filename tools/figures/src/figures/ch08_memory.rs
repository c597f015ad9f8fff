//! Chapter 8: what each model's cache holds before a step, when all is computed, and after it.

use anyhow::Result;

use super::Figure;
use crate::picture::{Cell, Fate, Picture, blank, free, held, stale};
use crate::speculation::{K, Step, italic, one_step};

/// The target, and the draft model: its name, its owner's letter, and how many draft tokens it computes. The draft model never
/// computes its last one.
const MODELS: [(&str, char, usize); 2] = [("target", 'a', K), ("draft", 'b', K - 1)];

pub fn figure() -> Result<Figure> {
    let step = &one_step()?;
    let Step { drafted, target, draft, .. } = step;
    let figure = Figure {
        label: format!(
            "The tokens in the caches of target and draft model at three moments of one step. Before: all but the newest token. \
             In between the target has computed {} more tokens and the draft model {}. After: {} and {} are forgotten, and both \
             hold all but the newest token again.",
            K + 1,
            K,
            target.forgotten.len(),
            draft.forgotten.len()
        ),
        message: "Before and after a step, both caches hold all but the newest token.".into(),
        setup: format!(
            "The step of the figure above. The draft model never computes its last draft token, {}, because nothing comes after it.",
            italic(&drafted[K - 1..])
        ),
        owners: vec![
            (held('a', ""), "in the target\u{2019}s cache"),
            (held('b', ""), "in the draft model\u{2019}s cache"),
        ],
        legend: vec![(Fate::Free, "not in the cache"), (Fate::Stale, "computed and forgotten")],
        outline: "computed in this step",
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        picture.labelled(&["target"]);
        for moment in 0..3 {
            draw_moment(picture, moment, step);
            picture.space(8.0);
        }
    }))
}

/// The newest tokens, a column each: the sequence's above, what each cache holds of them below.
fn draw_moment(picture: &mut Picture, moment: usize, step: &Step) {
    let Step { tokens, drafted, new_tokens, .. } = step;
    let accepted = step.accepted();
    // The two newest tokens before the step, and what comes after them.
    let after = if moment == 2 { &new_tokens[accepted..=accepted] } else { &drafted[accepted..] };
    let words = [&tokens[tokens.len() - 2..], &drafted[..accepted], after].concat();
    let n_before = 2;
    let title = ["before the step", "drafted and verified", "after the step"][moment];
    let newest = [&words[1], &words[1], &new_tokens[accepted]][moment];
    picture.heading(title, &format!("newest token: {newest}"));
    for (name, owner, computed) in MODELS {
        let cell = |place: usize, word: &String| -> Cell {
            let drafted_place = place.checked_sub(n_before);
            match moment {
                0 if place + 1 < n_before => held(owner, word),
                0 if place + 1 == n_before => free(word),
                0 => blank(),
                1 if place + 1 < n_before => held(owner, word),
                1 if drafted_place.is_none_or(|place| place < computed) => held(owner, word).lit(true),
                1 => free(word),
                _ if place < n_before + accepted => held(owner, word),
                _ if place == n_before + accepted => free(word),
                _ => blank(),
            }
        };
        let mut cells: Vec<Cell> = words.iter().enumerate().map(|(place, word)| cell(place, word)).collect();
        cells.resize(n_before + K, blank());
        // What was forgotten stood here.
        if moment == 2 {
            for (place, word) in drafted.iter().enumerate().take(computed).skip(accepted) {
                let at = &mut cells[n_before + place];
                *at = if place == accepted { at.clone().over(word) } else { stale(word) };
            }
        }
        picture.row(name, "", n_before + K, cells);
    }
}
