//! Chapter 1: without a cache every new token computes all tokens before it again.

use page_by_page::chapters::ch01_recompute::{Recompute, generate};
use page_by_page::generation::StopConditions;

use super::prelude::*;

const NEW_TOKENS: usize = 6;

pub fn figure() -> Result<Figure> {
    let (model, tokenizer) = (model(STORYTELLER)?, tokenizer()?);
    // An empty prompt is one token: the mark that begins every sequence.
    let prompt = tokenizer.encode("")?;
    let mut model = Recompute::new(&model);
    let mut sampler = sampler(10);
    let stop = StopConditions { max_new_tokens: NEW_TOKENS, end_of_text: &prompt };
    let new_tokens = generate(&mut model, &prompt, stop, &mut |logits| sampler.sample(logits), &mut |_| {})?;
    let word = |token: &u32| tokenizer.decode(&[*token]).map(|word| word.trim().to_string());
    let words: Vec<String> = new_tokens.iter().map(word).collect::<Result<_, _>>()?;
    let (n, total) = (words.len(), model.computed_tokens());
    ensure!(total as usize == n * (n + 1) / 2, "each step computes all tokens before it again, and the newest one");
    let figure = Figure {
        label: format!(
            "A triangle of cells. Line 1 has one cell, line {n} has {n}: the tokens that are computed to choose each \
             new token. In each line only the last cell is new. {total} in all."
        ),
        headline: "Without a cache, each new token has every token before it computed again.".into(),
        setup: format!(
            "For {n} new tokens, {total} are computed, and {n} were needed; <em>start</em> is the mark that begins every \
             sequence."
        ),
        legend: vec![
            (held('a', ""), "needed: the newest token’s row"),
            (again('a', ""), "computed before: the same work again"),
        ],
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        picture.heading("tokens computed", "so far");
        picture.noted("so far");
        for (last, new_word) in words.iter().enumerate() {
            let text = |column: usize| if column == 0 { "start" } else { &words[column - 1] };
            let cell = |column| match column {
                _ if column > last => blank(),
                _ if column == last => held('a', text(column)),
                _ => again('a', text(column)),
            };
            let rows_so_far = (last + 1) * (last + 2) / 2;
            let grid = picture.row("", &rows_so_far.to_string(), n + 1, (0..=n).map(cell));
            let (end, middle) = (grid.cell(last).x + grid.cell(last).width, grid.y + CELL / 2.0);
            picture.arrow((end + 3.0, middle), (end + 15.0, middle));
            picture.text(end + 19.0, middle + 4.5, Anchor::Start, new_word);
        }
    }))
}
