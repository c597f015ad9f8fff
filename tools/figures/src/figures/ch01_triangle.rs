//! Chapter 1: without a cache every new token computes all rows before it again.

use anyhow::Result;
use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::decode::sampler::{Sampler, Sampling};
use page_by_page::decode::{LanguageModel, Limits};
use page_by_page::model::StepError;

use super::Figure;
use crate::layout::{CELL, Grid};
use crate::models::{STORYTELLER, model, tokenizer};
use crate::svg::{Anchor, Kind, Svg, WIDTH, cell};
use crate::words::escaped;

const NEW_TOKENS: usize = 6;
const SAMPLING: Sampling = Sampling { temperature: 0.8, top_k: 0, top_p: 0.95, seed: 10 };

/// One new token.
struct Frame {
    /// The tokens whose rows are projected, as text.
    rows: Vec<String>,
    /// The token chosen, as text.
    new_token: String,
    /// Since the start.
    rows_projected: u64,
}

/// A model that notes its inputs, and what was counted after each.
struct Watched<'m> {
    model: Recompute<'m>,
    inputs: Vec<(Vec<u32>, u64)>,
}

impl LanguageModel for Watched<'_> {
    fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, StepError> {
        let logits = self.model.next_logits(tokens)?;
        self.inputs.push((tokens.to_vec(), self.model.rows_projected()));
        Ok(logits)
    }
}

fn record() -> Result<Vec<Frame>> {
    let (model, tokenizer) = (model(STORYTELLER)?, tokenizer()?);
    // An empty prompt is one token: the mark that begins every sequence.
    let prompt = tokenizer.encode("")?;
    let mut watched = Watched { model: Recompute::new(&model), inputs: Vec::new() };
    let mut sampler = Sampler::new(SAMPLING);
    let limits = Limits { max_new_tokens: NEW_TOKENS, end_of_text: &prompt };
    let new_tokens = generate(&mut watched, &prompt, limits, &mut |logits| sampler.pick(logits), &mut |_| {})?;

    let text = |token: &u32| match prompt.contains(token) {
        true => Ok("start".to_string()),
        false => tokenizer.decode(&[*token]).map(|text| text.trim().to_string()),
    };
    let mut frames = Vec::new();
    for ((input, rows_projected), new_token) in watched.inputs.iter().zip(&new_tokens) {
        let rows = input.iter().map(text).collect::<Result<_, _>>()?;
        frames.push(Frame { rows, new_token: text(new_token)?, rows_projected: *rows_projected });
    }
    Ok(frames)
}

pub fn figure() -> Result<Figure> {
    let frames = &record()?;
    let mut svg = Svg::new();
    svg.text(0.0, 15.0, Anchor::Start, "rows projected");
    svg.text(WIDTH, 15.0, Anchor::End, "in all");
    svg.y = 28.0;
    for frame in frames {
        svg.step(|svg| draw_line(svg, frame));
        svg.y += 4.0;
    }
    svg.legend(&[
        (Kind::New, "needed: the newest token’s row"),
        (Kind::Wasted, "projected before: the same work again"),
    ]);
    let (n, total) = (frames.len(), frames[frames.len() - 1].rows_projected);
    Ok(Figure {
        svg,
        label: format!(
            "A triangle of cells. Line 1 has one cell, line {n} has {n}: the rows that are projected to choose each new token. \
             In each line only the last cell is new."
        ),
        caption: format!(
            "<strong>Each new token projects a row for every token before it.</strong> {n} new tokens after a prompt of one cost \
             {total} rows; {n} of them were needed. <em>start</em> is the mark that begins every sequence. Recorded from \
             <code>generate</code> with <code>Recompute</code> and the bundled storyteller."
        ),
        steps: frames.iter().map(step_text).collect(),
        ..Figure::default()
    })
}

fn draw_line(svg: &mut Svg, frame: &Frame) {
    let grid = Grid::between(0.0, 280.0, NEW_TOKENS, NEW_TOKENS);
    let newest = frame.rows.len() - 1;
    let (end, middle) = (grid.cell(newest + 1, 0.0).x, svg.y + CELL / 2.0);
    svg.arrow((end, middle), (end + 11.0, middle));
    svg.text(end + 15.0, middle + 5.0, Anchor::Start, &frame.new_token);
    svg.bold(WIDTH, middle + 5.0, Anchor::End, &frame.rows_projected.to_string());
    let kind = |column| if column == newest { Kind::New } else { Kind::Wasted };
    let cells = frame.rows.iter().enumerate();
    svg.row(grid, cells.map(|(column, text)| cell(kind(column), text).key(format!("t{column}"))));
}

fn step_text(frame: &Frame) -> String {
    let rows = match frame.rows.len() {
        1 => "1 row, not projected before".to_string(),
        rows => format!("{rows} rows, {} of them projected before", rows - 1),
    };
    format!("<em>{}</em> takes {rows}: {} in all.", escaped(&frame.new_token), frame.rows_projected)
}
