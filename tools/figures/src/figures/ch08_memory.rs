//! Chapter 8: what each model's cache holds before a step, when all is computed, and after it.

use anyhow::Result;

use super::Figure;
use crate::picture::{Anchor, Fate, Picture, blank, free, held, stale};
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
        picture.labelled(&["tokens"]);
        for moment in 0..3 {
            draw_moment(picture, moment, step);
            picture.space(8.0);
        }
    }))
}

/// The sequence's newest tokens, a column each, and under them what each cache holds.
fn draw_moment(picture: &mut Picture, moment: usize, step: &Step) {
    const BEFORE: usize = 2;
    let Step { tokens, drafted, new_tokens, .. } = step;
    let accepted = step.accepted();
    let before = &tokens[tokens.len() - BEFORE..];
    let title = ["before the step", "drafted and verified", "after the step"][moment];
    let newest = [step.newest(), step.newest(), &new_tokens[accepted]][moment];
    picture.heading(title, &format!("newest token: {newest}"));
    let grid = picture.grid(BEFORE + K, BEFORE + K);
    picture.text(picture.left, picture.y + 11.0, Anchor::Start, "tokens");
    for (place, word) in before.iter().chain([&[], &drafted[..], new_tokens][moment]).enumerate() {
        picture.text(grid.middle(place), picture.y + 11.0, Anchor::Middle, word);
    }
    picture.space(18.0);
    for (name, owner, computed) in MODELS {
        let cell = |(place, word): (usize, &String)| {
            let was_computed = place < BEFORE + computed;
            match moment {
                _ if place + 1 < BEFORE => held(owner, word),
                0 if place < BEFORE => free(""),
                1 if was_computed => held(owner, word).lit(true),
                1 => free(""),
                2 if place < BEFORE + accepted => held(owner, word),
                2 if was_computed => stale(word),
                _ => blank(),
            }
        };
        picture.row(name, "", BEFORE + K, before.iter().chain(drafted).enumerate().map(cell));
    }
}
