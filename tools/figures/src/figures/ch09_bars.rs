//! Chapter 9: two rows of probabilities as bars: what is accepted, what is rejected, what is left.

use anyhow::{Result, ensure};
use page_by_page::chapters::ch09_chance::{accept_sampled, residual, share_to_expect};
use page_by_page::decode::Draft;
use serde::Serialize;

use crate::fragment::Drawing;
use crate::svg::{Anchor, Area, Kind, Svg};

const P: [f32; 3] = [0.5, 0.375, 0.125];
const Q: [f32; 3] = [0.25, 0.25, 0.5];
/// A random number stands for each of so many equal parts. No threshold lies within a part, so that counting is exact.
const PARTS: usize = 24;

#[derive(Serialize)]
pub struct Trace {
    p: [f32; 3],
    q: [f32; 3],
    residual: Vec<f32>,
    share_to_expect: f64,
    /// First new tokens by all guesses and random numbers, in shares of all: accepted guesses, and replacements.
    accepted: [f64; 3],
    replaced: [f64; 3],
    frames: Vec<Frame>,
}

#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Frame {
    Draft,
    Target,
    Together,
}

pub fn record() -> Result<Trace> {
    let (mut accepted, mut replaced) = ([0.0; 3], [0.0; 3]);
    for (guess, q) in Q.iter().enumerate() {
        let draft = Draft { tokens: vec![guess as u32], probabilities: vec![Q.to_vec()] };
        for both in 0..PARTS * PARTS {
            let mut numbers = [both / PARTS, both % PARTS].map(|part| (part as f64 + 0.5) / PARTS as f64).into_iter();
            let rows = [P.to_vec(), P.to_vec()];
            let new_tokens = accept_sampled(&draft, &rows, &mut || numbers.next().unwrap_or(0.5));
            // One new token: it stands in the place of the guess. Two: the guess and the bonus token.
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
    ensure!(accepted.iter().sum::<f64>() == share_to_expect(&P, &Q), "what is accepted is what is to be expected");
    let frames = vec![Frame::Draft, Frame::Target, Frame::Together];
    let residual = residual(&P, &Q);
    Ok(Trace { p: P, q: Q, residual, share_to_expect: share_to_expect(&P, &Q), accepted, replaced, frames })
}

const LEFT: f64 = 66.0;
/// The width of probability 1.
const UNIT: f64 = 520.0;
const HEIGHT: f64 = 24.0;
const ROW: f64 = 30.0;
const TOKEN: f64 = 3.0 * ROW + 34.0;

pub fn draw(trace: &Trace) -> Drawing {
    let bottom = 3.0 * TOKEN;
    let mut svg = Svg::new(bottom + 72.0);
    for (index, frame) in trace.frames.iter().enumerate() {
        svg.step(index, |svg| {
            for token in 0..3 {
                draw_line(svg, token as f64 * TOKEN, token, index, *frame, trace);
            }
        });
    }
    svg.legend(Kind::Reused, 0.0, bottom + 2.0, "accepted: the smaller of both");
    svg.legend(Kind::Stale, 0.0, bottom + 26.0, "guessed and rejected");
    svg.legend(Kind::New, 0.0, bottom + 50.0, "left: drawn in its place");
    let each = |row: &[f64]| row.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
    let wide = |row: &[f32]| each(&row.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
    let (p, q, left) = (wide(&trace.p), wide(&trace.q), wide(&trace.residual));
    let rejected = 1.0 - trace.share_to_expect;
    Drawing {
        svg,
        label: format!(
            "Bars for three tokens. The draft model gives them {q}, the target {p}. Accepted are {}, rejected of token 2 \
             {rejected}, left are {left}. Accepted and left together are the target\u{2019}s probabilities.",
            each(&trace.accepted)
        ),
        caption: format!(
            "In all, {} of the guesses are accepted. The rest, {rejected}, is dealt out again as <code>residual</code> says, and \
             every token ends up with its <em>p</em>. Recorded from <code>accept_sampled</code>: every guess, with {PARTS} times \
             {PARTS} pairs of random numbers.",
            trace.share_to_expect
        ),
        steps: vec![
            format!(
                "The draft model draws its guess from <em>q</em>: {q}. A guess of token 0 or 1 is always accepted. Token 2 has \
                 four times the probability that the target gives it, so a quarter of its guesses is accepted; {rejected} is \
                 rejected."
            ),
            format!(
                "The target wants <em>p</em>: {p}. The draft gives it {}. What is left are {left}, in all {rejected}: just what \
                 was rejected.",
                each(&trace.accepted)
            ),
            format!(
                "Counted: accepted {}, drawn in the place of a rejected guess {}. Together they are <em>p</em>.",
                each(&trace.accepted),
                each(&trace.replaced)
            ),
        ],
    }
}

fn draw_line(svg: &mut Svg, y: f64, token: usize, line: usize, frame: Frame, trace: &Trace) {
    let top = y + 24.0 + line as f64 * ROW;
    if frame == Frame::Draft {
        svg.bold(0.0, y + 16.0, Anchor::Start, &format!("token {token}"));
    }
    let (p, q) = (f64::from(trace.p[token]), f64::from(trace.q[token]));
    let left = f64::from(trace.residual[token]);
    let (name, value, bars) = match frame {
        Frame::Draft => ("draft q", q, [(Kind::Reused, p.min(q)), (Kind::Stale, q - p.min(q))]),
        Frame::Target => ("target p", p, [(Kind::Reused, p.min(q)), (Kind::New, left)]),
        Frame::Together => (
            "result",
            trace.accepted[token] + trace.replaced[token],
            [(Kind::Reused, trace.accepted[token]), (Kind::New, trace.replaced[token])],
        ),
    };
    svg.text(0.0, top + 17.0, Anchor::Start, name);
    let mut x = LEFT;
    for (kind, share) in bars.into_iter().filter(|(_, share)| *share > 0.0) {
        let width = share * UNIT;
        let word = if width > 50.0 { share.to_string() } else { String::new() };
        svg.cell(kind, Area { x, y: top, width, height: HEIGHT }, "", &word);
        x += width;
    }
    svg.text(x + 6.0, top + 17.0, Anchor::Start, &value.to_string());
}
