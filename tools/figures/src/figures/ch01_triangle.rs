//! Chapter 1: without a cache every new token computes all rows before it again.

use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::decode::{LanguageModel, Limits};
use page_by_page::model::StepError;

use super::prelude::*;

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

    let mut lines: Vec<(Vec<String>, String, u64)> = Vec::new();
    for ((input, in_all), new_token) in watched.inputs.iter().zip(&new_tokens) {
        let texts = input.iter().map(|token| match prompt.contains(token) {
            true => Ok("start".into()),
            false => Ok(tokenizer.decode(&[*token])?.trim().to_string()),
        });
        lines.push((texts.collect::<Result<_>>()?, tokenizer.decode(&[*new_token])?.trim().to_string(), *in_all));
    }
    let (n, total) = (new_tokens.len(), watched.model.rows_projected());
    let figure = Figure {
        label: format!(
            "A triangle of cells. Line 1 has one cell, line {n} has {n}: the rows that are projected to choose each new token. In \
             each line only the last cell is new. {total} rows in all."
        ),
        message: "Without a cache, each new token projects a row for every token before it.".into(),
        setup: format!(
            "{n} new tokens cost {total} rows, of which {n} were needed; <em>start</em> is the mark that begins every sequence."
        ),
        legend: vec![
            (held('a', ""), "needed: the newest token’s row"),
            (again('a', ""), "projected before: the same work again"),
        ],
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        picture.heading("rows projected", "so far");
        picture.noted("so far");
        for (texts, new_token, in_all) in &lines {
            let last = texts.len() - 1;
            let cell = |column| match texts.get(column) {
                Some(text) if column == last => held('a', text),
                Some(text) => again('a', text),
                None => blank(),
            };
            let grid = picture.row("", &in_all.to_string(), n + 1, (0..=n).map(cell));
            let (end, middle) = (grid.cell(last).x + grid.cell(last).width, grid.y + CELL / 2.0);
            picture.arrow((end + 3.0, middle), (end + 15.0, middle));
            picture.text(end + 19.0, middle + 4.5, Anchor::Start, new_token);
        }
    }))
}
