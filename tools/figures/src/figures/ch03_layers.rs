//! Chapter 3: one reservation, all layers in it, and where each row lies.

use page_by_page::chapters::ch03_contiguous::ContiguousCache;

use super::prelude::*;
use crate::rows::{LAYOUT, address, append, layer_rows};

const CAPACITY: usize = 8;
const ROWS: usize = LAYOUT.n_layers * CAPACITY;
const EXTENDS: [usize; 4] = [4, 2, 3, 2];

/// What each row of the tensor holds. A row's address says where it lies.
fn tensor(cache: &ContiguousCache) -> Result<Vec<Option<String>>> {
    let mut tensor = vec![None; ROWS];
    for layer in 0..LAYOUT.n_layers {
        let first = (address(cache, layer) - address(cache, 0)) / (LAYOUT.kv_width() * size_of::<f32>());
        for (row, name) in (first..).zip(layer_rows(cache, layer)?) {
            tensor[row] = name;
        }
    }
    Ok(tensor)
}

pub fn figure() -> Result<Figure> {
    let mut cache = ContiguousCache::new(LAYOUT, CAPACITY);
    let mut figure = Figure {
        headline: format!("One tensor of {ROWS} rows is made once, and no row ever moves."),
        legend: vec![(empty('a'), "reserved, empty")],
        ..Figure::default()
    };
    figure.starts_from(|picture| draw(picture, &vec![None; ROWS], 0));
    for n in EXTENDS {
        let (held, operation) = (cache.len(), format!("extend({n})"));
        let outcome = append(&mut cache, 't', n);
        let rows = tensor(&cache)?;
        let new: Vec<&String> = rows[held..cache.len()].iter().flatten().collect();
        let happened = match outcome {
            Err(error) => format!(
                "is refused with <code>{error:?}</code>: {} of {CAPACITY} slots are left, and none of them is taken.",
                CAPACITY - held
            ),
            Ok(()) => {
                let layers = (0..LAYOUT.n_layers).map(|layer| {
                    let first = layer * CAPACITY;
                    format!("rows {} for layer {layer}", span(&(first + held..first + cache.len()).collect::<Vec<_>>()))
                });
                let at: Vec<usize> = (0..ROWS).filter(|row| rows[*row].as_deref() == Some("t3")).collect();
                let [layers, at] = [listed(&layers.collect::<Vec<_>>()), listed(&at)];
                let still = if held > 0 { "still " } else { "" };
                format!("and <code>write</code> put {} into {layers}. Token t3 is {still}in rows {at}.", span(&new))
            }
        };
        let text = format!("<code>{operation}</code> {happened}");
        figure.frame(text, |picture| draw(picture, &rows, cache.len()));
    }
    figure.label = format!(
        "The {ROWS} rows of one tensor, {CAPACITY} for each of {} layers. Tokens fill the rows of both layers from the \
         left, and no row ever moves.",
        LAYOUT.n_layers
    );
    figure.setup = format!(
        "The keys of two layers, for {CAPACITY} tokens each. Layer 1 begins at row {CAPACITY}, however few rows layer \
         0 has filled. Tokens copied: {}.",
        cache.usage().copied_tokens
    );
    Ok(figure)
}

fn draw(picture: &mut Picture, rows: &[Option<String>], tokens: usize) {
    picture.heading("the tensor", &format!("{tokens} of {CAPACITY} slots filled"));
    let cells = rows.iter().map(|name| name.as_ref().map_or(empty('a'), |name| held('a', name)));
    for (layer, cells) in cells.collect::<Vec<_>>().chunks(CAPACITY).enumerate() {
        let grid = picture.pages(|_| format!("layer {layer}"), CAPACITY, cells.to_vec());
        let word = if picture.is_wide() { "row " } else { "" };
        for row in 0..CAPACITY {
            let number = format!("{word}{}", layer * CAPACITY + row);
            picture.text(grid.middle(row), grid.y + 46.0, Anchor::Middle, number);
        }
        picture.y += 24.0;
    }
}
