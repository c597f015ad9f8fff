//! Chapter 8: the questions of one step to the target, its answers, and what the draft model had proposed.

use super::prelude::*;
use crate::speculation::{self, K, Step};

/// Some draft tokens are accepted in it, and some are not.
const PLACE: usize = 1;
const DRAFT: char = 'b';
const TARGET: char = 'a';

pub fn figure() -> Result<Figure> {
    let step = &speculation::step(PLACE)?;
    ensure!((1..K).contains(&step.accepted()) && step.draft.computed.len() == K, "a part of the draft is accepted");
    let Step { text, drafted, choices, new_tokens, .. } = step;
    let ([proposed, answers, new], n) = ([drafted, choices, new_tokens].map(|words| listed(words)), new_tokens.len());
    let figure = Figure {
        label: format!(
            "A ladder with a rung for each question. The target answers {answers}, and the draft model has proposed \
             {proposed}. Below the first rung where they differ, all is cut off. The new tokens are {new}."
        ),
        headline: format!("One pass of the target gives {n} tokens, the very ones that it would have generated alone."),
        setup: format!("A step after \u{201c}{text}\u{201d}, with <em>k</em> = {K}."),
        legend: vec![(stale(None, "a"), "rejected, wasted or forgotten")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| draw(picture, step)))
}

/// Words of which the first ones count.
fn judged(owner: char, words: &[String], kept: usize) -> impl Iterator<Item = Cell> {
    words.iter().enumerate().map(move |(i, word)| if i < kept { held(owner, word) } else { stale(None, word) })
}

fn draw(picture: &mut Picture, step: &Step) {
    let Step { drafted, choices, new_tokens, target, draft, .. } = step;
    let (n, width, pitch) = (new_tokens.len(), 0.16 * picture.full, if picture.is_wide() { 180.0 } else { 79.0 });
    let read = |i: usize| [&[step.newest().clone()], &drafted[..i]].concat().join(" ");
    let x = |column: usize| text_width(&read(K)) + 12.0 + column as f64 * pitch;
    let y = |i: usize| 20.0 + 36.0 * i as f64 + if i < n { 0.0 } else { 14.0 };
    picture.bold(0.0, 13.0, Anchor::Start, "read");
    for (i, choice) in choices.iter().enumerate() {
        picture.text(0.0, y(i) + 19.5, Anchor::Start, read(i));
        if let Some(drafted) = drafted.get(i) {
            let sign = if drafted == choice { "=" } else { "\u{2260}" };
            picture.bold((x(0) + width + x(1)) / 2.0, y(i) + 19.5, Anchor::Middle, sign);
        }
    }
    let columns = [("target", TARGET, choices, n), ("draft", DRAFT, drafted, n - 1), ("new:", TARGET, new_tokens, n)];
    for (column, (title, owner, words, kept)) in columns.into_iter().enumerate() {
        picture.bold(x(column) + width / 2.0, 13.0, Anchor::Middle, title);
        for (i, cell) in judged(owner, words, kept).enumerate() {
            picture.cell(Area { x: x(column), y: y(i), width, height: CELL }, cell);
        }
    }
    picture.path("mark", format!("M0 {:.1}H{:.1}", y(n) - 10.0, picture.right()));
    for (line, text) in [0.0, 16.0, 32.0].into_iter().zip(["follows a word", "that never", "happened"]) {
        picture.text(x(2), y(n) + 19.5 + line, Anchor::Start, text);
    }
    picture.y = y(K + 1) + 6.0;
    picture.heading("in the caches after the step", "");
    picture.labelled("target");
    for (label, owner, memory) in [("target", TARGET, target), ("draft", DRAFT, draft)] {
        let cells = judged(owner, &memory.computed, memory.kept).chain((0..).map(|_| blank()));
        let grid = picture.row(label, "", K + 1, cells.take(K + 1));
        picture.path("mark", format!("M{:.1} {:.1}v36", grid.cell(memory.kept).x - 1.25, grid.y - 3.0));
    }
}
