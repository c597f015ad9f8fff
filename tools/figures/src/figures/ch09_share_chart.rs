//! Chapter 9: guesses accepted by the match rule and by the sample rule, and what was to be expected.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::ch08_k_chart::{LONGEST, NEW_TOKENS, PROMPTS};
use crate::chart::{Chart, Dashes, Series};
use crate::fragment::Drawing;
use crate::guesses::{Counts, DRAFT, Models, TARGET, count_by_chance};
use crate::svg::{Kind, grouped};

const TEMPERATURE: f32 = 0.8;

#[derive(Serialize)]
pub struct Trace {
    target: &'static str,
    draft: &'static str,
    prompts: [&'static str; 4],
    temperature: f32,
    frames: Vec<Frame>,
}

/// All texts with drafts of one length.
#[derive(Serialize)]
struct Frame {
    k: usize,
    matched: Counts,
    sampled: Counts,
    /// Guesses that the sample rule is to accept, of those drafted.
    to_expect: f64,
}

impl Frame {
    fn matched_per_100(&self) -> u64 {
        per_100(self.matched.accepted as f64, self.matched.drafted)
    }

    fn sampled_per_100(&self) -> u64 {
        per_100(self.sampled.accepted as f64, self.sampled.drafted)
    }

    fn to_expect_per_100(&self) -> u64 {
        per_100(self.to_expect, self.sampled.drafted)
    }
}

fn per_100(some: f64, all: u64) -> u64 {
    (100.0 * some / all as f64).round_ties_even() as u64
}

pub fn record() -> Result<Trace> {
    let models = Models::open()?;
    let mut frames = Vec::new();
    for k in 1..=LONGEST {
        let (matched, sampled, to_expect) = count_by_chance(&models, &PROMPTS, TEMPERATURE, k, NEW_TOKENS)?;
        let to_expect = (to_expect * 1000.0).round() / 1000.0;
        ensure!(sampled.accepted > matched.accepted, "the sample rule accepts more");
        frames.push(Frame { k, matched, sampled, to_expect });
    }
    Ok(Trace { target: TARGET, draft: DRAFT, prompts: PROMPTS, temperature: TEMPERATURE, frames })
}

pub fn draw(trace: &Trace) -> Drawing {
    let frames = &trace.frames;
    let (first, last) = (&frames[0], &frames[frames.len() - 1]);
    let series = |number: fn(&Frame) -> u64, kind, dashes, labels: [&str; 2], (up, down)| Series {
        points: frames.iter().map(|frame| (frame.k, number(frame))).collect(),
        kind,
        dashes,
        labels: labels.map(String::from).into(),
        label_at: (8, up, down),
    };
    let chart = Chart {
        title: "accepted of 100 guesses",
        across: "guesses in a draft, k",
        ticks_across: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        ticks_up: &[0, 20, 40, 60],
        below: 46.0,
        series: vec![
            series(
                Frame::sampled_per_100,
                Kind::New,
                Dashes::None,
                ["sample rule,", "the guess is drawn"],
                (frames[2].sampled_per_100(), -12.0),
            ),
            series(
                Frame::matched_per_100,
                Kind::Wasted,
                Dashes::Long,
                ["match rule,", "the likeliest is guessed"],
                (0, 38.0),
            ),
        ],
    };
    Drawing {
        svg: chart.svg(),
        label: format!(
            "Chart against the guesses in a draft. Of 100 guesses the sample rule accepts {} with drafts of one and {} with \
             drafts of {}; the match rule {} and {}.",
            first.sampled_per_100(),
            last.sampled_per_100(),
            last.k,
            first.matched_per_100(),
            last.matched_per_100()
        ),
        caption: format!(
            "The same models and prompts, with dice. Counted for {} texts of {NEW_TOKENS} new tokens with <code>{}</code> as \
             target and <code>{}</code> as draft model, temperature {TEMPERATURE}, top-p 0.95. In the steps: what \
             <code>share_to_expect</code> says.",
            trace.prompts.len(),
            trace.target,
            trace.draft
        ),
        steps: frames
            .iter()
            .map(|frame| {
                format!(
                    "<em>k</em> = {}: the sample rule accepts {} of {} guesses ({} of 100; {} are to be expected), the match \
                     rule {} of {} ({} of 100).",
                    frame.k,
                    frame.sampled.accepted,
                    grouped(frame.sampled.drafted),
                    frame.sampled_per_100(),
                    frame.to_expect_per_100(),
                    frame.matched.accepted,
                    grouped(frame.matched.drafted),
                    frame.matched_per_100()
                )
            })
            .collect(),
    }
}
