//! Chapter 3: one reservation, all layers in it, and where each row lies.

use anyhow::{Result, ensure};
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;

use super::Figure;
use crate::layout::Grid;
use crate::rows::{LAYOUT, address, of_layer, write};
use crate::svg::{Anchor, Kind, Svg, cell, named};
use crate::words::{count, listed};

const CAPACITY: usize = 8;
const ROWS: usize = LAYOUT.n_layers * CAPACITY;
const EXTENDS: [usize; 4] = [3, 1, 5, 2];

/// One `extend`, and `write` if there was room.
struct Frame {
    operation: String,
    /// The refusal in words.
    refused: Option<String>,
    /// Tokens held, and how many of them are new.
    tokens: usize,
    new_tokens: usize,
    /// What each row of the tensor holds; `null` if nothing.
    tensor: Vec<Option<String>>,
    rows_copied: u64,
}

fn record() -> Result<Vec<Frame>> {
    let mut cache = ContiguousCache::new(LAYOUT, CAPACITY);
    let mut frames = vec![frame(&cache, format!("new, capacity {CAPACITY}"), None, 0)?];
    for n in EXTENDS {
        let outcome = cache.extend(n);
        if outcome.is_ok() {
            write(&mut cache, 't', n);
        }
        let refused = outcome.as_ref().err().map(|error| format!("{error:?}"));
        let frame = frame(&cache, format!("extend({n})"), refused, if outcome.is_ok() { n } else { 0 })?;
        let changed = frame.tensor != frames[frames.len() - 1].tensor;
        ensure!(changed == outcome.is_ok(), "after extend({n}) {outcome:?} the tensor holds {:?}", frame.tensor);
        frames.push(frame);
    }
    Ok(frames)
}

/// Reads the cache. A row's address says where it lies in the tensor.
fn frame(cache: &ContiguousCache, operation: String, refused: Option<String>, new_tokens: usize) -> Result<Frame> {
    let mut tensor = vec![None; ROWS];
    for layer in 0..LAYOUT.n_layers {
        let first = (address(cache, layer) - address(cache, 0)) / (LAYOUT.kv_width() * size_of::<f32>());
        for (row, name) in (first..).zip(of_layer(cache, layer)?) {
            tensor[row] = name;
        }
    }
    let rows_copied = cache.usage().rows_copied;
    Ok(Frame { operation, refused, tokens: cache.len(), new_tokens, tensor, rows_copied })
}

pub fn figure() -> Result<Figure> {
    let frames = &record()?;
    let grid = Grid::across(0.0, ROWS, CAPACITY);
    let mut svg = Svg::new();
    svg.group_names(grid, (0..LAYOUT.n_layers).map(|layer| format!("rows of layer {layer}")));
    for row in 0..ROWS {
        svg.text(grid.middle(row), svg.y + 8.0, Anchor::Middle, &row.to_string());
    }
    svg.y += 18.0;
    for frame in frames {
        svg.step(|svg| {
            let outcome = match frame.refused {
                Some(_) => "refused: nothing changes".to_string(),
                None => format!("{} of {CAPACITY} slots filled", frame.tokens),
            };
            svg.heading(&frame.operation, &outcome);
            let kind = |row| if row % CAPACITY < frame.tokens - frame.new_tokens { Kind::Reused } else { Kind::New };
            let cells = frame.tensor.iter().enumerate();
            svg.row(
                grid,
                cells.map(|(row, name)| match name {
                    Some(name) => named(kind(row), name),
                    None => cell(Kind::Wasted, ""),
                }),
            );
        });
        svg.y += 4.0;
    }
    svg.legend(&[(Kind::New, "new"), (Kind::Reused, "where it was"), (Kind::Wasted, "reserved, empty")]);
    let last = &frames[frames.len() - 1];
    let t3 = last.tensor.iter().skip(CAPACITY).position(|row| row.as_deref() == Some("t3")).unwrap_or(0) + CAPACITY;
    Ok(Figure {
        svg,
        label: format!(
            "The same {ROWS} cells {} times, one line for each step: the rows of one tensor. Tokens fill the halves of both \
             layers from the left, and no row ever moves.",
            frames.len(),
        ),
        caption: format!(
            "<strong>One tensor of {ROWS} rows is made once, and no row ever moves.</strong> Layer 0 has the first {CAPACITY} \
             rows, layer 1 the others: token 3 lies in row 3 and in row {CAPACITY} + 3 = {t3}. A refused <code>extend</code> \
             changes nothing; rows copied: {}. Recorded from <code>ContiguousCache</code>; the tensor of the values looks the \
             same.",
            last.rows_copied
        ),
        steps: frames.iter().map(step_text).collect(),
        ..Figure::default()
    })
}

fn step_text(frame: &Frame) -> String {
    let Frame { operation, refused, tokens, new_tokens, tensor, .. } = frame;
    if let Some(error) = refused {
        return format!("<code>{operation}</code> is refused, <code>{error}</code>: nothing changes.");
    }
    let places = |position: usize| {
        let rows: Vec<usize> = (position..ROWS).step_by(CAPACITY).collect();
        format!("{} in rows {}", tensor[position].as_deref().unwrap_or("nothing"), listed(&rows))
    };
    let new: Vec<String> = (tokens - new_tokens..*tokens).map(places).collect();
    match new.is_empty() {
        true => format!("{operation}: {}, all empty.", count(ROWS, "row")),
        false => format!("<code>{operation}</code> and <code>write</code>: {}.", new.join(", ")),
    }
}
