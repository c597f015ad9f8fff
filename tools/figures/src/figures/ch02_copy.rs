//! Chapter 2: to grow by a row, the flat cache copies all the rows it has.

use anyhow::Result;
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch02_flat::FlatCache;

use super::Figure;
use crate::layout::{CELL, Grid};
use crate::rows::{LAYOUT, address, of_layer, write};
use crate::svg::{Anchor, Kind, Svg, WIDTH, named};
use crate::words::{count, joined};

const TOKENS: usize = 5;

/// One token: `extend(1)`, then `write`.
struct Frame {
    /// `null` for a row of zeros.
    after_extend: Vec<Option<String>>,
    after_write: Vec<Option<String>>,
    /// Whether the rows have moved in memory.
    moved: bool,
    rows_copied: u64,
    /// Since the start.
    rows_copied_in_all: u64,
}

fn record() -> Result<Vec<Frame>> {
    let mut cache = FlatCache::new(LAYOUT);
    let mut frames = Vec::new();
    for _ in 0..TOKENS {
        let (before, copied) = (address(&cache, 0), cache.usage().rows_copied);
        cache.extend(1)?;
        let after_extend = of_layer(&cache, 0)?;
        write(&mut cache, 't', 1);
        let rows_copied_in_all = cache.usage().rows_copied;
        frames.push(Frame {
            after_extend,
            after_write: of_layer(&cache, 0)?,
            moved: address(&cache, 0) != before,
            rows_copied: rows_copied_in_all - copied,
            rows_copied_in_all,
        });
    }
    Ok(frames)
}

pub fn figure() -> Result<Figure> {
    let frames = &record()?;
    let mut svg = Svg::new();
    svg.text(0.0, 15.0, Anchor::Start, "the tensor after each extend(1) and write");
    svg.text(WIDTH, 15.0, Anchor::End, "copied");
    svg.y = 28.0;
    for (step, frame) in frames.iter().enumerate() {
        svg.step(|svg| draw_tensor(svg, step, frame));
        svg.y += 22.0;
    }
    svg.y -= 16.0;
    svg.legend(&[(Kind::New, "new row"), (Kind::Reused, "row copied from the old tensor")]);
    Ok(Figure {
        svg,
        label: format!(
            "{TOKENS} tensors, one below the other, of 1 to {TOKENS} rows. Arrows lead from every row of one to the same row of \
             the next, which has one new row at its end."
        ),
        caption: format!(
            "<strong>A tensor cannot grow where it is.</strong> Each new token takes a new tensor and copies every row there is: \
             {TOKENS} tokens, one by one, copy {} rows. Recorded from <code>FlatCache</code>.",
            frames[TOKENS - 1].rows_copied_in_all
        ),
        steps: frames.iter().map(step_text).collect(),
        ..Figure::default()
    })
}

fn draw_tensor(svg: &mut Svg, step: usize, frame: &Frame) {
    let grid = Grid::between(20.0, 280.0, TOKENS, TOKENS);
    // A row that has its content before the write came with the copy.
    let came_with_copy = |row: usize| frame.after_extend[row] == frame.after_write[row];
    svg.label(&(step + 1).to_string());
    for row in (0..frame.after_write.len()).filter(|row| came_with_copy(*row) && frame.moved) {
        svg.arrow((grid.middle(row), svg.y - 25.0), (grid.middle(row), svg.y - 3.0));
    }
    svg.text(312.0, svg.y + CELL / 2.0 + 5.0, Anchor::End, &format!("+{}", frame.rows_copied));
    svg.bold(WIDTH, svg.y + CELL / 2.0 + 5.0, Anchor::End, &frame.rows_copied_in_all.to_string());
    let cells = frame.after_write.iter().enumerate();
    svg.row(
        grid,
        cells.map(|(row, name)| {
            named(if came_with_copy(row) { Kind::Reused } else { Kind::New }, name.as_deref().unwrap_or("zeros"))
        }),
    );
}

fn step_text(frame: &Frame) -> String {
    let names = |rows: &[Option<String>]| {
        joined(&rows.iter().map(|row| row.as_deref().unwrap_or("zeros")).collect::<Vec<_>>(), " ")
    };
    format!(
        "<code>extend(1)</code> takes a new tensor and copies {}: <code>{}</code>. After <code>write</code>: <code>{}</code>. {} \
         copied in all.",
        count(frame.rows_copied as usize, "row"),
        names(&frame.after_extend),
        names(&frame.after_write),
        count(frame.rows_copied_in_all as usize, "row"),
    )
}
