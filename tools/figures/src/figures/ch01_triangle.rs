//! Chapter 1: without a cache every new token computes all rows before it again.

use anyhow::Result;
use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::decode::{LanguageModel, Limits};
use page_by_page::model::tokenizer::Tokenizer;
use page_by_page::model::{Model, StepError};
use serde::Serialize;

use crate::fragment::Drawing;
use crate::runs::bundled;
use crate::svg::{Anchor, Area, Kind, Svg, escaped};

const MODEL: &str = "storyteller";
const NEW_TOKENS: usize = 6;
const SAMPLING: Sampling = Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed: 10 };

#[derive(Serialize)]
pub struct Trace {
    model: &'static str,
    /// Of the draws of new tokens.
    seed: u64,
    frames: Vec<Frame>,
}

/// One new token.
#[derive(Serialize)]
struct Frame {
    /// The token whose row each one is, as text.
    rows: Vec<String>,
    /// The token chosen, as text.
    new_token: String,
    /// Rows since the start.
    rows_projected: u64,
}

/// A model that notes the questions it is asked, and what was counted after each.
struct Watched<'m> {
    model: Recompute<'m>,
    questions: Vec<(Vec<u32>, u64)>,
}

impl LanguageModel for Watched<'_> {
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        let logits = self.model.next_logits(tokens)?;
        self.questions.push((tokens.to_vec(), self.model.rows_projected()));
        Ok(logits)
    }
}

pub fn record() -> Result<Trace> {
    let model = Model::open(&bundled(MODEL))?;
    let tokenizer = Tokenizer::open(&bundled(MODEL))?;
    // The empty text is one token: the mark that begins every text.
    let prompt = tokenizer.encode("")?;
    let mut watched = Watched { model: Recompute::new(&model), questions: Vec::new() };
    let mut sampler = Sampler::new(SAMPLING);
    let limits = Limits { max_new_tokens: NEW_TOKENS, end_of_text: &prompt };
    let new_tokens = generate(&mut watched, &prompt, limits, &mut |logits| sampler.pick(logits), &mut |_| {})?;

    let text = |token: &u32| match prompt.contains(token) {
        true => Ok("start".to_string()),
        false => tokenizer.decode(&[*token]).map(|text| text.trim().to_string()),
    };
    let mut frames = Vec::new();
    for ((asked, rows_projected), new_token) in watched.questions.iter().zip(&new_tokens) {
        let rows = asked.iter().map(text).collect::<Result<_, _>>()?;
        frames.push(Frame { rows, new_token: text(new_token)?, rows_projected: *rows_projected });
    }
    Ok(Trace { model: MODEL, seed: SAMPLING.seed, frames })
}

const PITCH: f64 = 46.0;
const LINE: f64 = 38.0;
const TOP: f64 = 28.0;

pub fn draw(trace: &Trace) -> Drawing {
    let lines = trace.frames.len();
    let bottom = TOP + lines as f64 * LINE;
    let mut svg = Svg::new(bottom + 58.0);
    svg.text(0.0, 15.0, Anchor::Start, "rows projected");
    svg.text(360.0, 15.0, Anchor::End, "in all");
    for (step, frame) in trace.frames.iter().enumerate() {
        svg.step(step, |svg| draw_line(svg, TOP + step as f64 * LINE, frame));
    }
    svg.legend(Kind::New, 0.0, bottom + 10.0, "needed: the newest token’s row");
    svg.legend(Kind::Wasted, 0.0, bottom + 36.0, "projected before: the same work again");

    let n = lines as u64;
    let total = trace.frames[lines - 1].rows_projected;
    let words: Vec<&str> = trace.frames.iter().map(|frame| frame.new_token.as_str()).collect();
    Drawing {
        svg,
        label: format!(
            "A triangle of cells. Line 1 has one cell, line {n} has {n}: the rows that were projected to choose each \
             new token of “{}”. In each line only the last cell is new. Running total: {}.",
            words.join(" "),
            trace.frames.iter().map(|frame| frame.rows_projected.to_string()).collect::<Vec<_>>().join(", "),
        ),
        caption: format!(
            "Each line chooses one token, and projects a row for every token before it. {n} new tokens after a \
             prompt of one cost {total} rows; {n} of them were needed. <em>start</em> is the mark that begins every \
             text. Recorded from <code>generate</code> with <code>Recompute</code> and the bundled story teller."
        ),
        steps: trace.frames.iter().map(step_text).collect(),
    }
}

fn draw_line(svg: &mut Svg, y: f64, frame: &Frame) {
    let newest = frame.rows.len() - 1;
    for (column, text) in frame.rows.iter().enumerate() {
        let kind = if column == newest { Kind::New } else { Kind::Wasted };
        let area = Area { x: 2.0 + column as f64 * PITCH, y, width: PITCH - 5.0, height: LINE - 10.0 };
        svg.cell(kind, area, &format!("t{column}"), text);
    }
    let (end, middle) = (frame.rows.len() as f64 * PITCH, y + (LINE - 10.0) / 2.0);
    svg.arrow((end + 2.0, middle), (end + 13.0, middle));
    svg.text(end + 17.0, middle + 5.0, Anchor::Start, &frame.new_token);
    svg.bold(360.0, middle + 5.0, Anchor::End, &frame.rows_projected.to_string());
}

fn step_text(frame: &Frame) -> String {
    let rows = match frame.rows.len() {
        1 => "1 row, not projected before".to_string(),
        rows => format!("{rows} rows, {} of them projected before", rows - 1),
    };
    format!("<em>{}</em> takes {rows}: {} in all.", escaped(&frame.new_token), frame.rows_projected)
}
