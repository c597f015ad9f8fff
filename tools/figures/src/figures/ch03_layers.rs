//! Chapter 3: one reservation, all layers in it, and where each row lies.

use anyhow::Result;
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;

use super::Figure;
use crate::layout::Grid;
use crate::rows::{LAYOUT, address, append, of_layer};
use crate::svg::{Anchor, Kind, cell, named};
use crate::words::{count, joined, listed};

const CAPACITY: usize = 8;
const ROWS: usize = LAYOUT.n_layers * CAPACITY;
const EXTENDS: [usize; 4] = [3, 1, 5, 2];

/// What each row of the tensor holds. A row's address says where it lies.
fn tensor(cache: &ContiguousCache) -> Result<Vec<Option<String>>> {
    let mut tensor = vec![None; ROWS];
    for layer in 0..LAYOUT.n_layers {
        let first = (address(cache, layer) - address(cache, 0)) / (LAYOUT.kv_width() * size_of::<f32>());
        for (row, name) in (first..).zip(of_layer(cache, layer)?) {
            tensor[row] = name;
        }
    }
    Ok(tensor)
}

pub fn figure() -> Result<Figure> {
    let grid = Grid::across(0.0, ROWS, CAPACITY);
    let mut figure = Figure::default();
    figure.svg.group_names(grid, (0..LAYOUT.n_layers).map(|layer| format!("rows of layer {layer}")));
    for row in 0..ROWS {
        figure.svg.text(grid.middle(row), figure.svg.y + 8.0, Anchor::Middle, &row.to_string());
    }
    figure.svg.y += 18.0;

    let mut cache = ContiguousCache::new(LAYOUT, CAPACITY);
    let mut rows = tensor(&cache)?;
    let empty = (0..ROWS).map(|_| cell(Kind::Wasted, ""));
    let (title, note) = (format!("new, capacity {CAPACITY}"), format!("0 of {CAPACITY} slots filled"));
    figure.line(format!("{title}: {}, all empty.", count(ROWS, "row")), [&title, &note], grid, empty);
    for n in EXTENDS {
        let (held, operation) = (cache.len(), format!("extend({n})"));
        let outcome = append(&mut cache, 't', n);
        rows = tensor(&cache)?;
        let places = |position: usize| {
            let at: Vec<usize> = (position..ROWS).step_by(CAPACITY).collect();
            format!("{} in rows {}", rows[position].as_deref().unwrap_or("nothing"), listed(&at))
        };
        let (note, says) = match outcome {
            Err(error) => {
                ("refused: nothing changes".into(), format!(" is refused, <code>{error:?}</code>: nothing changes."))
            }
            Ok(()) => {
                let new: Vec<String> = (held..cache.len()).map(places).collect();
                let note = format!("{} of {CAPACITY} slots filled", cache.len());
                (note, format!(" and <code>write</code>: {}.", joined(&new, ", ")))
            }
        };
        let says = format!("<code>{operation}</code>{says}");
        let cells = rows.iter().enumerate().map(|(row, name)| match name {
            Some(name) => named(if row % CAPACITY < held { Kind::Reused } else { Kind::New }, name),
            None => cell(Kind::Wasted, ""),
        });
        figure.line(says, [&operation, &note], grid, cells);
    }
    figure.svg.legend(&[(Kind::New, "new"), (Kind::Reused, "where it was"), (Kind::Wasted, "reserved, empty")]);
    figure.label = format!(
        "The same {ROWS} cells {} times, one line for each step: the rows of one tensor. Tokens fill the halves of both layers from \
         the left, and no row ever moves.",
        1 + EXTENDS.len(),
    );
    let t3 = rows.iter().skip(CAPACITY).position(|row| row.as_deref() == Some("t3")).unwrap_or(0) + CAPACITY;
    figure.caption = format!(
        "<strong>One tensor of {ROWS} rows is made once, and no row ever moves.</strong> Layer 0 has the first {CAPACITY} rows, \
         layer 1 the others: token 3 lies in row 3 and in row {CAPACITY} + 3 = {t3}. A refused <code>extend</code> changes \
         nothing; rows copied: {}. Recorded from <code>ContiguousCache</code>; the tensor of the values looks the same.",
        cache.usage().rows_copied
    );
    Ok(figure)
}
