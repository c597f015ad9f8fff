//! Chapter 2: to grow by a row, the flat cache copies all the rows it has.

use page_by_page::chapters::ch02_flat::FlatCache;

use super::ch02_bill::{COMPUTED, COPIED};
use super::prelude::*;
use crate::rows::{LAYOUT, address, layer_rows, write};

const TOKENS: usize = 5;

pub fn figure() -> Result<Figure> {
    let mut cache = FlatCache::new(LAYOUT);
    // The rows of each tensor, how many of them were copied into it, and how many were copied so far.
    let mut tensors = Vec::new();
    for _ in 0..TOKENS {
        let before = address(&cache, 0);
        cache.extend(1)?;
        let after_extend = layer_rows(&cache, 0)?;
        write(&mut cache, 't', 1);
        let rows = layer_rows(&cache, 0)?;
        // A row that has its content before the write came with the copy.
        let copied = after_extend.iter().zip(&rows).filter(|(before, after)| before == after).count();
        let copied = if address(&cache, 0) == before { 0 } else { copied };
        tensors.push((rows, copied, cache.usage().copied_tokens));
    }
    let in_all = cache.usage().copied_tokens;
    let figure = Figure {
        label: format!(
            "{TOKENS} tensors, one below the other, of 1 to {TOKENS} rows. Arrows lead from every row of one to the \
             same row of the next, which has one new row at its end. {in_all} tokens are copied in all."
        ),
        headline: "A tensor without spare room cannot grow, so each new token copies every row.".into(),
        setup: format!(
            "Each line is the tensor after one more <code>extend(1)</code> and <code>write</code>; {TOKENS} tokens \
             cost {in_all} copies."
        ),
        legend: vec![(held(COMPUTED, ""), "computed: the new row"), (held(COPIED, ""), "copied from the tensor above")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        picture.labelled("5 tokens");
        picture.heading("the tensor", "tokens copied");
        picture.notes = 86.0;
        for (n, (rows, copied, in_all)) in tensors.iter().enumerate() {
            let cell = |row: usize| match rows.get(row) {
                None => blank(),
                Some(name) => held(if row < *copied { COPIED } else { COMPUTED }, name.as_deref().unwrap_or("zeros")),
            };
            let label = if n == 0 { "1 token".into() } else { format!("{} tokens", n + 1) };
            let note = if n == 0 { "0".into() } else { format!("+{copied} = {in_all}") };
            let grid = picture.row(&label, &note, TOKENS, (0..TOKENS).map(cell));
            for row in 0..*copied {
                picture.arrow((grid.middle(row), grid.y - 22.0), (grid.middle(row), grid.y - 3.0));
            }
            picture.y += 18.0;
        }
        picture.y -= 18.0;
    }))
}
