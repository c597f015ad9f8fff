//! Chapter 2: to grow by a row, the flat cache copies all the rows it has.

use anyhow::Result;
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch02_flat::FlatCache;

use super::Figure;
use crate::layout::{CELL, Grid};
use crate::rows::{LAYOUT, address, of_layer, write};
use crate::svg::{Anchor, Kind, WIDTH, named};
use crate::words::{count, joined};

const TOKENS: usize = 5;

/// The names of the rows: `t0`, `zeros`.
fn rows(cache: &FlatCache) -> Result<Vec<String>> {
    Ok(of_layer(cache, 0)?.into_iter().map(|row| row.unwrap_or("zeros".into())).collect())
}

pub fn figure() -> Result<Figure> {
    let grid = Grid::between(20.0, 280.0, TOKENS, TOKENS);
    let mut figure = Figure::default();
    figure.svg.text(0.0, 15.0, Anchor::Start, "the tensor after each extend(1) and write");
    figure.svg.text(WIDTH, 15.0, Anchor::End, "copied");
    figure.svg.y = 28.0;
    let mut cache = FlatCache::new(LAYOUT);
    for step in 1..=TOKENS {
        let (before, copied) = (address(&cache, 0), cache.usage().rows_copied);
        cache.extend(1)?;
        let after_extend = rows(&cache)?;
        write(&mut cache, 't', 1);
        let (after_write, in_all) = (rows(&cache)?, cache.usage().rows_copied);
        let (moved, copied) = (address(&cache, 0) != before, in_all - copied);
        let says = format!(
            "<code>extend(1)</code> takes a new tensor and copies {}: <code>{}</code>. After <code>write</code>: \
             <code>{}</code>. {} copied in all.",
            count(copied as usize, "row"),
            joined(&after_extend, " "),
            joined(&after_write, " "),
            count(in_all as usize, "row"),
        );
        figure.step(says, |svg| {
            // A row that has its content before the write came with the copy.
            let came_with_copy = |row: usize| after_extend[row] == after_write[row];
            svg.label(&step.to_string());
            for row in (0..step).filter(|row| came_with_copy(*row) && moved) {
                svg.arrow((grid.middle(row), svg.y - 25.0), (grid.middle(row), svg.y - 3.0));
            }
            svg.text(312.0, svg.y + CELL / 2.0 + 5.0, Anchor::End, &format!("+{copied}"));
            svg.bold(WIDTH, svg.y + CELL / 2.0 + 5.0, Anchor::End, &in_all.to_string());
            let kind = |row| if came_with_copy(row) { Kind::Reused } else { Kind::New };
            svg.row(grid, after_write.iter().enumerate().map(|(row, name)| named(kind(row), name)));
        });
        figure.svg.y += 22.0;
    }
    figure.svg.y -= 16.0;
    figure.svg.legend(&[(Kind::New, "new row"), (Kind::Reused, "row copied from the old tensor")]);
    figure.label = format!(
        "{TOKENS} tensors, one below the other, of 1 to {TOKENS} rows. Arrows lead from every row of one to the same row of the \
         next, which has one new row at its end."
    );
    figure.caption = format!(
        "<strong>A tensor cannot grow where it is.</strong> Each new token takes a new tensor and copies every row there is: \
         {TOKENS} tokens, one by one, copy {} rows. Recorded from <code>FlatCache</code>.",
        cache.usage().rows_copied
    );
    Ok(figure)
}
