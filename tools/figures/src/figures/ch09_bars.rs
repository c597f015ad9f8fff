//! Chapter 9: two rows of probabilities as bars: what is accepted, what is rejected, what is left.

use page_by_page::chapters::ch09_rejection::{accept_sampled, expected_acceptance, residual};
use page_by_page::generation::Draft;

use super::prelude::*;

const P: [f32; 3] = [0.5, 0.375, 0.125];
const Q: [f32; 3] = [0.25, 0.25, 0.5];
/// A random number stands for each of this many equal parts. No threshold lies within a part, so counting is exact.
const PARTS: usize = 24;

/// Counts the first new tokens over all draft tokens and random numbers, in shares of all: accepted drafts, and
/// replacements.
fn counted() -> Result<[[f64; 3]; 2]> {
    let (mut accepted, mut replaced) = ([0.0; 3], [0.0; 3]);
    for (drafted, q) in Q.iter().enumerate() {
        let draft = Draft { tokens: vec![drafted as u32], probabilities: vec![Q.to_vec()] };
        for both in 0..PARTS * PARTS {
            let mut numbers = [both / PARTS, both % PARTS].map(|part| (part as f64 + 0.5) / PARTS as f64).into_iter();
            let rows = [P.to_vec(), P.to_vec()];
            let new_tokens = accept_sampled(&draft, &rows, &mut || numbers.next().unwrap_or(0.5));
            // One new token replaces the draft token. Two are the draft token and the bonus token.
            let outcome = if new_tokens.len() == 1 { &mut replaced } else { &mut accepted };
            outcome[new_tokens[0] as usize] += f64::from(*q) / (PARTS * PARTS) as f64;
        }
    }
    for share in accepted.iter_mut().chain(&mut replaced) {
        *share = (*share * 1e9).round() / 1e9;
    }
    for token in 0..3 {
        ensure!(accepted[token] + replaced[token] == f64::from(P[token]), "token {token} has the target's probability");
    }
    Ok([accepted, replaced])
}

pub fn figure() -> Result<Figure> {
    let [accepted, replaced] = counted()?;
    let (left, expected) = (residual(&P, &Q), expected_acceptance(&P, &Q));
    ensure!((0..3).all(|token| replaced[token] == f64::from(left[token])), "replacements fill the residual");
    ensure!(accepted.iter().sum::<f64>() == expected, "the accepted share is the expected one");
    let rejected = 1.0 - expected;
    let [p, q] = [P, Q].map(|row| joined(&row, ", "));
    let figure = Figure {
        label: format!(
            "Bars for three tokens: their probabilities in the draft, {q}, and the result, in which accepted and \
             replaced tokens together have the target\u{2019}s probabilities, {p}. Arrows lead from what is rejected \
             to what replaces it."
        ),
        headline: "Accepting and replacing together give each token the target\u{2019}s probability.".into(),
        setup: format!(
            "The draft proposes token 2 too often, so {rejected} is rejected there and goes to the tokens that it \
             proposes too rarely. Counted over {PARTS} × {PARTS} pairs of random numbers, one to judge a draft token \
             and one to replace it."
        ),
        legend: vec![
            (held(DRAFTED, ""), "accepted"),
            (held(REPLACED, ""), "sampled after a rejection"),
            (stale(None, ""), "rejected"),
        ],
        ..Figure::default()
    };
    // The draft and the result of each token, as what the bar of each consists of.
    let bars = [0, 1, 2].map(|token| {
        let both = f64::from(P[token].min(Q[token]));
        let draft = [(held(DRAFTED, ""), both), (stale(None, ""), f64::from(Q[token]) - both)];
        [draft, [(held(DRAFTED, ""), accepted[token]), (held(REPLACED, ""), replaced[token])]]
    });
    Ok(figure.still(|picture| draw(picture, &bars)))
}

const DRAFTED: char = 'b';
const REPLACED: char = 'a';

/// The bars of each token, and arrows from what is rejected to what replaces it.
fn draw(picture: &mut Picture, bars: &[[[(Cell, f64); 2]; 2]; 3]) {
    const NAMES: [&str; 2] = ["draft q", "result = p"];
    let labels = text_width(NAMES[1]) + 8.0;
    let scale = (picture.width - labels - 48.0) / 0.5;
    let mut seconds = [Vec::new(), Vec::new()];
    for (token, bars) in bars.iter().enumerate() {
        picture.heading(&format!("token {token}"), "");
        for (line, (name, bar)) in NAMES.iter().zip(bars).enumerate() {
            let mut area = Area { x: picture.left + labels, y: picture.y, width: 0.0, height: CELL - 4.0 };
            picture.text(picture.left, area.baseline(), Anchor::Start, name);
            picture.y += CELL - 2.0;
            let all: f64 = bar.iter().map(|(_, share)| share).sum();
            for (second, (cell, share)) in bar.iter().enumerate().filter(|(_, (_, share))| *share > 0.0) {
                area.width = share * scale;
                let word = if area.width > 50.0 { share.to_string() } else { String::new() };
                picture.cell(area, Cell { word, ..cell.clone() });
                if second == 1 {
                    seconds[line].push(area);
                }
                area.x += area.width;
            }
            picture.text(area.x + 6.0, area.baseline(), Anchor::Start, all);
        }
        picture.y += 8.0;
    }
    let [rejected, replacements] = seconds;
    for (from, to) in rejected.iter().flat_map(|from| replacements.iter().map(move |to| (from, to))) {
        let x = to.x + to.width - 8.0;
        picture.arrow((x, from.y - 2.0), (x, to.bottom() + 3.0));
    }
}
