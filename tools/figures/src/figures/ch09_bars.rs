//! Chapter 9: two rows of probabilities as bars: what is accepted, what is rejected, what is left.

use anyhow::{Result, ensure};
use page_by_page::chapters::ch09_chance::{accept_sampled, residual, share_to_expect};
use page_by_page::decode::Draft;

use super::Figure;
use crate::layout::CELL;
use crate::svg::{Anchor, Area, Kind, Svg, cell};
use crate::words::joined;

const P: [f32; 3] = [0.5, 0.375, 0.125];
const Q: [f32; 3] = [0.25, 0.25, 0.5];
/// A random number stands for each of this many equal parts. No threshold lies within a part, so counting is exact.
const PARTS: usize = 24;

/// Counts the first new tokens over all draft tokens and random numbers, in shares of all: accepted drafts, and replacements.
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

/// From a token's bars to the next token's.
const TOKEN: f64 = 128.0;

pub fn figure() -> Result<Figure> {
    let [accepted, replaced] = counted()?;
    let (left, expected) = (residual(&P, &Q), share_to_expect(&P, &Q));
    ensure!(accepted.iter().sum::<f64>() == expected, "the accepted share is the expected one");
    let mut figure = Figure::default();
    for token in 0..3 {
        figure.svg.bold(0.0, token as f64 * TOKEN + 16.0, Anchor::Start, &format!("token {token}"));
    }
    let rejected = 1.0 - expected;
    let [p, q, rest] = [&P[..], &Q, &left].map(|row| joined(row, ", "));
    let [kept, new] = [accepted, replaced].map(|row| joined(&row, ", "));
    let smaller = |token: usize| f64::from(P[token].min(Q[token]));
    let drafted = |token| [(Kind::Reused, smaller(token)), (Kind::Stale, f64::from(Q[token]) - smaller(token))];
    let says = format!(
        "The draft model samples from <em>q</em>: {q}. Token 0 or 1 is always accepted. Token 2 has four times the probability that \
         the target gives it, so it is accepted once in four times; {rejected} is rejected."
    );
    figure.step(says, |svg| draw_bars(svg, 0, "draft q", drafted));
    let wanted = |token| [(Kind::Reused, smaller(token)), (Kind::New, f64::from(left[token]))];
    let says = format!(
        "The target needs <em>p</em>: {p}. The draft gives it {kept}. What is left is {rest}, in all {rejected}: just what was \
         rejected."
    );
    figure.step(says, |svg| draw_bars(svg, 1, "target p", wanted));
    let result = |token: usize| [(Kind::Reused, accepted[token]), (Kind::New, replaced[token])];
    let says =
        format!("Counted: accepted {kept}, sampled in place of a rejected token {new}. Together they are <em>p</em>.");
    figure.step(says, |svg| draw_bars(svg, 2, "result", result));
    figure.svg.y = 3.0 * TOKEN;
    figure.svg.legend(&[
        (Kind::Reused, "accepted: the smaller of both"),
        (Kind::Stale, "drafted and rejected"),
        (Kind::New, "left: sampled in its place"),
    ]);
    figure.label = format!(
        "Bars for three tokens: their probabilities in the draft, {q}, and in the target, {p}, and the result, in which accepted and \
         replaced tokens together have the target\u{2019}s probabilities."
    );
    figure.caption = format!(
        "<strong>Accepting and replacing together give each token the target\u{2019}s probability.</strong> In all, {expected} of \
         the draft tokens are accepted. The rest, {rejected}, is distributed again according to <code>residual</code>. Recorded \
         from <code>accept_sampled</code>: every draft token, with {PARTS} times {PARTS} pairs of random numbers."
    );
    Ok(figure)
}

/// A bar for each token, in the same line of each. `shares`: what a token's bar consists of.
fn draw_bars(svg: &mut Svg, line: usize, name: &str, shares: impl Fn(usize) -> [(Kind, f64); 2]) {
    for token in 0..3 {
        svg.y = token as f64 * TOKEN + 24.0 + line as f64 * (CELL + 4.0);
        svg.label(name);
        let mut area = Area { x: 66.0, y: svg.y, width: 0.0, height: CELL };
        for (kind, share) in shares(token).into_iter().filter(|(_, share)| *share > 0.0) {
            area.width = share * 500.0;
            let word = if area.width > 50.0 { share.to_string() } else { String::new() };
            svg.cell(area, &cell(kind, word));
            area.x += area.width;
        }
        let all: f64 = shares(token).iter().map(|(_, share)| share).sum();
        svg.text(area.x + 6.0, area.baseline(), Anchor::Start, &all.to_string());
    }
}
