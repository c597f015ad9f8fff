//! Chapter 5: pages are taken at boundaries only; then a token is found.

use anyhow::Result;
use page_by_page::chapters::ch05_page_table::{PageTable, Slot};

use super::Figure;
use super::ch05_table::{PAGE_SIZE, pool_that_gives, slots};
use crate::picture::{Anchor, Picture, blank, held};
use crate::words::{count, page_numbers, pages};

const PAGES: [u32; 4] = [12, 5, 3, 9];
const GROWS: [usize; 4] = [5, 1, 5, 3];
const POSITION: usize = 6;

pub fn figure() -> Result<Figure> {
    let mut pool = pool_that_gives(&PAGES)?;
    let mut table = PageTable::new(PAGE_SIZE)?;
    let mut figure =
        Figure { message: "A page is taken when a token has no slot, and not before.".into(), ..Figure::default() };
    for n in GROWS {
        let (before, left) = (table.pages().len(), table.slots() - table.len());
        table.grow(n, &mut pool)?;
        let taken = page_numbers(&table.pages()[before..]);
        let says = match (left, &taken[..]) {
            (left, []) => format!("takes no page, because the last one had {} left", count(left, "slot")),
            (0, taken) => format!("takes {} for {}", pages(taken), count(n, "token")),
            (left, taken) => {
                let (filling, others) = (count(left, "token"), count(n - left, "token"));
                format!("puts {filling} into the last page and takes {} for the other {others}", pages(taken))
            }
        };
        let left = count(table.slots() - table.len(), "slot");
        let says = format!("<code>grow({n})</code> {says}. Now the last page has {left} left.");
        figure.frame(says, |picture| draw(picture, &table, None));
    }
    let Slot { page, slot } = table.locate(POSITION)?;
    let entry = table.pages().iter().take_while(|entry| **entry != page).count();
    let says = format!(
        "<code>locate({POSITION})</code> divides {POSITION} by {PAGE_SIZE}: the quotient, {entry}, is the entry of the table, and the \
         remainder, {slot}, is the slot. So position {POSITION} lies in slot {slot} of page {}.",
        page.0
    );
    figure.frame(says, |picture| draw(picture, &table, Some((entry, POSITION))));
    figure.label = format!(
        "A page table that grows to {} tokens in {}, and the slots of its pages. In the end position {POSITION} is marked.",
        table.len(),
        count(table.pages().len(), "page"),
    );
    figure.setup = format!("Cells show positions; below each are its slot, 0 to {}.", PAGE_SIZE - 1);
    Ok(figure)
}

/// `found`: an entry of the table and a position that the figure points at.
fn draw(picture: &mut Picture, table: &PageTable, found: Option<(usize, usize)>) {
    let pages = page_numbers(table.pages());
    picture.heading("page table", "");
    let lit = |place| found.is_some_and(|(entry, _)| entry == place);
    let entry = |place| pages.get(place).map_or(blank(), |page| held('a', page).lit(lit(place)));
    let names: Vec<String> = (0..PAGES.len()).map(|place| format!("entry {place}")).collect();
    picture.pages(&names, 1, (0..PAGES.len()).map(entry));
    picture.space(10.0);
    picture.heading("slots", "");
    let mut cells: Vec<_> = slots(table, PAGES.len()).collect();
    if let Some((_, position)) = found {
        cells[position].is_lit = true;
    }
    let per_line = if picture.is_wide() { PAGES.len() } else { 2 };
    for (line, cells) in cells.chunks(per_line * PAGE_SIZE).enumerate() {
        let place = |n| pages.get(line * per_line + n).map_or("not yet".to_string(), |page| format!("page {page}"));
        let grid = picture.pages(&(0..per_line).map(place).collect::<Vec<_>>(), PAGE_SIZE, cells.to_vec());
        for slot in 0..cells.len() {
            picture.text(grid.middle(slot), grid.y + 45.0, Anchor::Middle, slot % PAGE_SIZE);
        }
        picture.space(22.0);
    }
}
