//! Chapter 8: one step, as three acts: draft and verify, accept, rewind.

use super::prelude::*;
use crate::speculation::{self, K, Step, italic};

/// Some draft tokens are accepted in it, and some are not.
const PLACE: usize = 1;
const DRAFT: char = 'b';
const TARGET: char = 'a';

pub fn figure() -> Result<Figure> {
    let step = &speculation::step(PLACE)?;
    ensure!((1..K).contains(&step.accepted()) && step.draft.computed.len() == K, "a part of the draft is accepted");
    let Step { text, drafted, choices, new_tokens, target, draft, .. } = step;
    let (newest, accepted) = (step.newest(), step.accepted());
    let [proposed, answers, new] = [drafted, choices, new_tokens].map(|words| listed(words));
    let n = new_tokens.len();
    let mut figure = Figure {
        label: format!(
            "One step in three acts: the draft model proposes {proposed}, the target answers {answers}, and the new \
             tokens are {new}."
        ),
        headline: format!("One pass of the target gives {n} tokens, the very ones that it would have generated alone."),
        setup: format!("A step after \u{201c}{text}\u{201d}, with <em>k</em> = {K}."),
        legend: vec![
            (held(DRAFT, ""), "the draft model\u{2019}s"),
            (held(TARGET, ""), "the target\u{2019}s"),
            (stale(None, "a"), "rejected, or forgotten"),
        ],
        ..Figure::default()
    };
    let (agreed, passes) = (italic(&drafted[..accepted]), draft.computed.len());
    let [of_target, of_draft] = [target, draft].map(|memory| italic(&memory.computed[memory.kept..]));
    let (last, own) = (&new_tokens[accepted - 1], &new_tokens[accepted]);
    let text = [
        format!(
            "Draft and verify. The draft model takes {passes} passes. In one pass, the target chooses what follows \
             each token."
        ),
        format!(
            "Accept. Both agree on {agreed}. Then the target\u{2019}s own <em>{own}</em> ends the step, and the rows \
             after it are wasted."
        ),
        format!(
            "Rewind. The target forgets {of_target}, the draft model {of_draft}. Both caches now end with \
             <em>{last}</em>, and <em>{own}</em> is the newest token."
        ),
    ];
    figure.starts_from(|picture| {
        draw_sequence(picture, vec![part(newest)]);
    });
    for (act, text) in text.into_iter().enumerate() {
        figure.frame(text, |picture| draw(picture, act, step));
    }
    Ok(figure)
}

/// A row of words from column `first` on.
fn row(picture: &mut Picture, label: &str, first: usize, words: Vec<Cell>) -> Grid {
    let cells = (0..first).map(|_| blank()).chain(words).chain((0..).map(|_| blank()));
    picture.row(label, "", K + 2, cells.take(K + 2))
}

/// The newest token, which both models have yet to compute, and the draft.
fn draw_sequence(picture: &mut Picture, words: Vec<Cell>) -> Grid {
    picture.labelled("then draft");
    row(picture, "newest,\nthen draft", 0, words)
}

fn draw(picture: &mut Picture, act: usize, step: &Step) {
    let Step { drafted, choices, new_tokens, target, draft, .. } = step;
    let (newest, accepted) = (step.newest(), step.accepted());
    // The first ones count; the others do so only until `act`.
    let judged = |owner, words: &[String], kept: usize, judged_in: usize| -> Vec<Cell> {
        let cell = |(i, word)| if act >= judged_in && i >= kept { stale(None, word) } else { held(owner, word) };
        words.iter().enumerate().map(cell).collect()
    };
    let grid = draw_sequence(picture, [vec![part(newest)], judged(DRAFT, drafted, accepted, 1)].concat());
    for i in 0..=K {
        picture.arrow((grid.middle(i), grid.y + CELL + 3.0), (grid.middle(i + 1), grid.y + CELL + 21.0));
    }
    picture.y += 18.0;
    row(picture, "the target\nchooses", 1, judged(TARGET, choices, new_tokens.len(), 1));
    let new = |(i, word)| held(if i < accepted { DRAFT } else { TARGET }, word);
    let known = if act == 0 { &[] } else { &new_tokens[..] };
    row(picture, ["", "new\ntokens"][act.min(1)], 1, known.iter().enumerate().map(new).collect());
    picture.y += 4.0;
    picture.heading(["in the caches before the rewind", "in the caches after the step"][act / 2], "");
    for (label, owner, memory) in [("target", TARGET, target), ("draft", DRAFT, draft)] {
        row(picture, label, 0, judged(owner, &memory.computed, memory.kept, 2));
    }
}
