//! Chapter 1: without a cache every new token computes all rows before it again.

use anyhow::Result;
use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::decode::{LanguageModel, Limits};
use page_by_page::model::StepError;

use super::Figure;
use crate::layout::{CELL, Grid};
use crate::models::{STORYTELLER, model, sampler, tokenizer};
use crate::svg::{Anchor, Kind, WIDTH, cell};
use crate::words::escaped;

const NEW_TOKENS: usize = 6;

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

pub fn figure() -> Result<Figure> {
    let (model, tokenizer) = (model(STORYTELLER)?, tokenizer()?);
    // An empty prompt is one token: the mark that begins every sequence.
    let prompt = tokenizer.encode("")?;
    let mut watched = Watched { model: Recompute::new(&model), inputs: Vec::new() };
    let mut sampler = sampler(10);
    let limits = Limits { max_new_tokens: NEW_TOKENS, end_of_text: &prompt };
    let new_tokens = generate(&mut watched, &prompt, limits, &mut |logits| sampler.pick(logits), &mut |_| {})?;

    let grid = Grid::between(0.0, 280.0, NEW_TOKENS, NEW_TOKENS);
    let mut figure = Figure::default();
    figure.svg.text(0.0, 15.0, Anchor::Start, "rows projected");
    figure.svg.text(WIDTH, 15.0, Anchor::End, "in all");
    figure.svg.y = 28.0;
    for ((input, in_all), new_token) in watched.inputs.iter().zip(&new_tokens) {
        let new_token = tokenizer.decode(&[*new_token])?.trim().to_string();
        let texts = input.iter().map(|token| match prompt.contains(token) {
            true => Ok("start".into()),
            false => tokenizer.decode(&[*token]),
        });
        let texts: Vec<String> = texts.collect::<Result<_, _>>()?;
        let rows = match input.len() {
            1 => "1 row, not projected before".to_string(),
            rows => format!("{rows} rows, {} of them projected before", rows - 1),
        };
        figure.step(format!("<em>{}</em> takes {rows}: {in_all} in all.", escaped(&new_token)), |svg| {
            let (end, middle) = (grid.cell(input.len(), 0.0).x, svg.y + CELL / 2.0);
            svg.arrow((end, middle), (end + 11.0, middle));
            svg.text(end + 15.0, middle + 5.0, Anchor::Start, &new_token);
            svg.bold(WIDTH, middle + 5.0, Anchor::End, &in_all.to_string());
            let kind = |column| if column + 1 == input.len() { Kind::New } else { Kind::Wasted };
            let cells = texts.iter().enumerate();
            svg.row(grid, cells.map(|(column, text)| cell(kind(column), text.trim()).key(format!("t{column}"))));
        });
        figure.svg.y += 4.0;
    }
    figure.svg.legend(&[
        (Kind::New, "needed: the newest token’s row"),
        (Kind::Wasted, "projected before: the same work again"),
    ]);
    let (n, total) = (new_tokens.len(), watched.model.rows_projected());
    figure.label = format!(
        "A triangle of cells. Line 1 has one cell, line {n} has {n}: the rows that are projected to choose each new token. In each \
         line only the last cell is new."
    );
    figure.caption = format!(
        "<strong>Each new token projects a row for every token before it.</strong> {n} new tokens after a prompt of one cost \
         {total} rows; {n} of them were needed. <em>start</em> is the mark that begins every sequence. Recorded from \
         <code>generate</code> with <code>Recompute</code> and the bundled storyteller."
    );
    Ok(figure)
}
