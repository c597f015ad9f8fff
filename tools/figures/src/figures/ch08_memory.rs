//! Chapter 8: a step in which the whole draft is accepted: what each model's cache holds before it, when all is
//! computed, and after it.

use super::prelude::*;
use crate::speculation::{self, K, Step, italic};

/// The whole draft is accepted in it.
const PLACE: usize = 3;
/// The target, and the draft model: its name, its owner's letter, and how many draft tokens it computes at first. The
/// draft model leaves out its last one.
const MODELS: [(&str, char, usize); 2] = [("target", 'a', K), ("draft", 'b', K - 1)];

pub fn figure() -> Result<Figure> {
    let step = &speculation::step(PLACE)?;
    let Step { drafted, target, draft, .. } = step;
    ensure!([step.accepted(), target.kept, draft.kept] == [K, K + 1, K + 1], "all is accepted");
    ensure!(draft.computed.len() == K + 1, "the draft model computes one more, and nothing is forgotten");
    let last = italic(&drafted[K - 1..]);
    let figure = Figure {
        label: format!(
            "The tokens in the caches of target and draft model at three moments of one step. Before: all but the \
             newest token. In between the target has computed {} more tokens and the draft model {K}. After: the draft \
             model has computed one more, and both hold all but the newest token again.",
            K + 1,
        ),
        headline: "Before and after a step, both caches hold all but the newest token.".into(),
        setup: format!(
            "In this step, the whole draft is accepted. Nothing is forgotten, but the draft model needs one more pass, \
             for {last}."
        ),
        legend: vec![
            (held('a', ""), "in the target\u{2019}s cache"),
            (held('b', ""), "in the draft model\u{2019}s cache"),
            (free(""), "not in the cache"),
        ],
        outline: Some("just computed"),
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        picture.labelled("target");
        for moment in 0..3 {
            draw_moment(picture, moment, step);
        }
    }))
}

/// The sequence's newest tokens, a column each, in the row of each cache.
fn draw_moment(picture: &mut Picture, moment: usize, step: &Step) {
    const BEFORE: usize = 2;
    const COLUMNS: usize = BEFORE + K + 1;
    let Step { tokens, drafted, new_tokens, .. } = step;
    let last = &drafted[K - 1];
    let title = ["before the step", "drafted and verified", "after the step"][moment];
    let note = [
        format!("both lack \u{201c}{}\u{201d}", step.newest()),
        format!("the draft model lacks \u{201c}{last}\u{201d}"),
        format!("it computes \u{201c}{last}\u{201d} now"),
    ];
    picture.heading(title, &note[moment]);
    let words: Vec<&String> = tokens[tokens.len() - BEFORE..].iter().chain(new_tokens).collect();
    for (name, owner, computed) in MODELS {
        // How many of the columns were in the cache, are in it now, and have a token.
        let (had, holds, all) = [
            (BEFORE - 1, BEFORE - 1, BEFORE),
            (BEFORE - 1, BEFORE + computed, BEFORE + K),
            (BEFORE + computed, BEFORE + K, COLUMNS),
        ][moment];
        let cell = |column: usize| match words[column] {
            word if column < holds => held(owner, word).outlined(column >= had),
            word if column < all => free(word),
            _ => blank(),
        };
        picture.row(name, "", COLUMNS, (0..COLUMNS).map(cell));
    }
}
