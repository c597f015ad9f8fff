//! Chapter 5: pages are taken at boundaries only; then a token is found.

use anyhow::Result;
use page_by_page::chapters::ch05_page_table::{PageTable, Slot};

use super::Figure;
use super::ch05_table::{PAGE_SIZE, pool_that_gives};
use crate::layout::Grid;
use crate::svg::{Anchor, Cell, Kind, cell};
use crate::words::{count, page_numbers, pages};

const PAGES: [u32; 4] = [12, 5, 3, 9];
const GROWS: [usize; 5] = [3, 1, 1, 5, 3];
const POSITION: usize = 6;

pub fn figure() -> Result<Figure> {
    let n_slots = PAGES.len() * PAGE_SIZE;
    let grid = Grid::across(0.0, n_slots, PAGE_SIZE);
    let mut figure = Figure::default();
    figure.svg.group_names(grid, PAGES.iter().map(|page| format!("page {page}")));
    for i in 0..n_slots {
        figure.svg.text(grid.middle(i), figure.svg.y + 9.0, Anchor::Middle, &(i % PAGE_SIZE).to_string());
    }
    figure.svg.y += 20.0;

    let mut pool = pool_that_gives(&PAGES)?;
    let mut table = PageTable::new(PAGE_SIZE)?;
    for n in GROWS {
        let (held, before, needed) = (table.len(), table.pages().len(), table.pages_needed(n));
        table.grow(n, &mut pool)?;
        let taken = match &table.pages()[before..] {
            [] => "takes no page".into(),
            new => format!("takes {}", pages(&page_numbers(new))),
        };
        let says = format!(
            "<code>grow({n})</code> needs {} and {taken}: {} in {}. {} free.",
            count(needed, "page"),
            count(table.len(), "token"),
            pages(&page_numbers(table.pages())),
            count(pool.n_free(), "page")
        );
        figure.line(says, [&format!("grow({n})"), &taken], grid, cells(&table, held));
    }
    let Slot { page, slot } = table.locate(POSITION)?;
    let place = format!("page {}, slot {slot}", page.0);
    let says = format!("<code>locate({POSITION})</code>: position {POSITION} is in {place}.");
    let cells = cells(&table, table.len()).enumerate().map(|(position, cell)| cell.lit(position == POSITION));
    figure.line(says, [&format!("locate({POSITION})"), &place], grid, cells);

    figure.svg.legend(&[(Kind::New, "new token"), (Kind::Reused, "held before"), (Kind::Wasted, "empty slot")]);
    figure.label = format!(
        "A page table growing, one line for each step, to {} tokens in {}. In the last line position {POSITION} is marked.",
        table.len(),
        count(table.pages().len(), "page"),
    );
    figure.caption = format!(
        "<strong>A page is taken when a token has no slot, and not before.</strong> Cells show positions, with the pages above and \
         the slots 0 to {} below their names. Position {POSITION} is entry {POSITION} / {PAGE_SIZE} = {} of the table, page {}, \
         and slot {POSITION} mod {PAGE_SIZE} = {slot}. Recorded from <code>PageTable</code>.",
        PAGE_SIZE - 1,
        table.pages().iter().take_while(|entry| **entry != page).count(),
        page.0
    );
    Ok(figure)
}

/// The slots of a table whose first `held` tokens are not new.
fn cells(table: &PageTable, held: usize) -> impl Iterator<Item = Cell> {
    let tokens = table.len();
    (0..table.slots()).map(move |position| match position {
        _ if position < held => cell(Kind::Reused, position).key(format!("t{position}")),
        _ if position < tokens => cell(Kind::New, position).key(format!("t{position}")),
        _ => cell(Kind::Wasted, ""),
    })
}
