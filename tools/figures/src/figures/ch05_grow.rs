//! Chapter 5: pages are taken at boundaries only.

use page_by_page::chapters::ch05_page_table::PageTable;

use super::ch05_table::{PAGE_SIZE, PAGES, pool, slots};
use super::prelude::*;

const GROWS: [usize; 4] = [5, 1, 5, 3];

pub fn figure() -> Result<Figure> {
    let mut pool = pool()?;
    let mut table = PageTable::new(PAGE_SIZE)?;
    let mut figure =
        Figure { headline: "A page is taken when a token has no slot, and not before.".into(), ..Figure::default() };
    figure.starts_from(|picture| draw(picture, &table));
    for (step, n) in GROWS.into_iter().enumerate() {
        let (before, left) = (table.pages().len(), table.slots() - table.len());
        table.grow(n, &mut pool)?;
        let taken = &table.pages()[before..];
        let text = match (left, taken) {
            (left, []) => format!("takes no page, because the last one had {} left", plural(left, "slot")),
            (0, taken) => format!("takes {} for {}", pages(taken), plural(n, "token")),
            (left, taken) => {
                let filling = plural(left, "token");
                format!("puts {filling} into the last page and takes {} for the other {}", pages(taken), n - left)
            }
        };
        let left = plural(table.slots() - table.len(), "slot");
        let next = GROWS.get(step + 1).map_or(String::new(), |n| format!(" Next: <code>grow({n})</code>."));
        let text = format!("<code>grow({n})</code> {text}. That leaves {left}.{next}");
        figure.frame(text, |picture| draw(picture, &table));
    }
    let (n, taken) = (table.len(), plural(table.pages().len(), "page"));
    figure.label = format!("A page table that grows to {n} tokens in {taken}, and the slots of its pages.");
    figure.setup = format!("Cells show positions; below each is its slot, 0 to {}.", PAGE_SIZE - 1);
    Ok(figure)
}

fn draw(picture: &mut Picture, table: &PageTable) {
    let pages = table.pages();
    picture.heading("page table", "");
    let entry = |place| pages.get(place).map_or(blank(), |page| held('a', page));
    picture.pages(|place| format!("entry {place}"), 1, (0..PAGES.len()).map(entry));
    picture.y += 10.0;
    picture.heading("slots", "");
    let cells: Vec<_> = slots(table, PAGES.len()).collect();
    let per_line = if picture.is_wide() { PAGES.len() } else { 2 };
    for (line, cells) in cells.chunks(per_line * PAGE_SIZE).enumerate() {
        let name = |n| pages.get(line * per_line + n).map_or("not yet".to_string(), |page| format!("page {page}"));
        let grid = picture.pages(name, PAGE_SIZE, cells.to_vec());
        for slot in 0..cells.len() {
            picture.text(grid.middle(slot), grid.y + 45.0, Anchor::Middle, slot % PAGE_SIZE);
        }
        picture.y += 22.0;
    }
}
