//! Chapter 8: longer drafts: passes of the target, and guesses accepted.

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::chart::{Chart, Dashes, Series};
use crate::fragment::Drawing;
use crate::guesses::{Counts, DRAFT, Models, TARGET, count};
use crate::svg::{Kind, grouped};

/// Those of `bench speculation`.
pub const PROMPTS: [&str; 4] = ["Once upon a time", "There was a king", "In a small house", "The youngest daughter"];
pub const NEW_TOKENS: usize = 100;
pub const LONGEST: usize = 8;

#[derive(Serialize)]
pub struct Trace {
    target: &'static str,
    draft: &'static str,
    prompts: [&'static str; 4],
    frames: Vec<Frame>,
}

/// All texts with drafts of one length.
#[derive(Serialize)]
struct Frame {
    k: usize,
    #[serde(flatten)]
    counts: Counts,
}

impl Frame {
    fn passes_per_100(&self) -> u64 {
        per_100(self.counts.passes, self.counts.new_tokens)
    }

    fn accepted_per_100(&self) -> u64 {
        per_100(self.counts.accepted, self.counts.drafted)
    }
}

/// Halves go to the even number, as in the table of `bench speculation`.
fn per_100(some: u64, all: u64) -> u64 {
    (100.0 * some as f64 / all as f64).round_ties_even() as u64
}

pub fn record() -> Result<Trace> {
    let models = Models::open()?;
    let mut frames = Vec::new();
    for k in 0..=LONGEST {
        let counts = count(&models, &PROMPTS, k, NEW_TOKENS)?;
        ensure!(counts.passes + counts.accepted == counts.new_tokens, "a pass gives one token more than it accepts");
        frames.push(Frame { k, counts });
    }
    Ok(Trace { target: TARGET, draft: DRAFT, prompts: PROMPTS, frames })
}

pub fn draw(trace: &Trace) -> Drawing {
    let frames = &trace.frames;
    let (first, last) = (&frames[1], &frames[frames.len() - 1]);
    let chart = Chart {
        title: "for every 100",
        across: "guesses in a draft, k",
        ticks_across: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
        ticks_up: &[0, 25, 50, 75, 100],
        below: 0.0,
        series: vec![
            Series {
                points: frames.iter().map(|frame| (frame.k, frame.passes_per_100())).collect(),
                kind: Kind::New,
                dashes: Dashes::None,
                labels: vec!["passes of the target".into(), "for 100 new tokens".into()],
                label_at: (8, last.passes_per_100(), -12.0),
            },
            Series {
                points: frames[1..].iter().map(|frame| (frame.k, frame.accepted_per_100())).collect(),
                kind: Kind::Wasted,
                dashes: Dashes::Long,
                labels: vec!["accepted".into(), "of 100 guesses".into()],
                label_at: (8, first.accepted_per_100(), 14.0),
            },
        ],
    };
    Drawing {
        svg: chart.svg(),
        label: format!(
            "Chart against the guesses in a draft. Passes of the target for 100 new tokens fall from {} without guesses to \
             {} with one and {} with {}. Of 100 guesses {} are accepted with drafts of one, {} with drafts of {}.",
            frames[0].passes_per_100(),
            first.passes_per_100(),
            last.passes_per_100(),
            last.k,
            first.accepted_per_100(),
            last.accepted_per_100(),
            last.k
        ),
        caption: format!(
            "The first guess buys most; each further one is right only if all before it were. Counted for {} texts of \
             {NEW_TOKENS} new tokens with <code>{}</code> as target and <code>{}</code> as draft model, greedy.",
            trace.prompts.len(),
            trace.target,
            trace.draft
        ),
        steps: frames
            .iter()
            .map(|frame| {
                let Counts { passes, drafted, accepted, new_tokens } = frame.counts;
                format!(
                    "<em>k</em> = {}: {passes} passes of the target for {new_tokens} new tokens, {accepted} of {} guesses \
                     accepted.",
                    frame.k,
                    grouped(drafted)
                )
            })
            .collect(),
    }
}
