//! Chapter 6: a page as it lies in memory, number by number.

use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};

use super::prelude::*;
use crate::rows::{self, LAYOUT};
use crate::slab::{PAGE_SIZE, SlabState, pages_of_words};

/// The page, layer and slot that the figure points at.
const PAGE: usize = 2;
const LAYER: usize = 1;
const SLOT: usize = 1;

pub fn figure() -> Result<Figure> {
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, 4)?;
    let mut others = (0..PAGE).map(|_| PagedCache::new(&slab)).collect::<Result<Vec<_>, _>>()?;
    others.iter_mut().try_for_each(|other| other.extend(1))?;
    let mut wolf = PagedCache::new(&slab)?;
    rows::append(&mut wolf, 'b', PAGE_SIZE)?;
    let [a, d] = [&others[0], &others[1]].map(PagedCache::table);
    let state = SlabState::read(&slab, &[('a', a), ('d', d), ('b', wolf.table())])?;
    let page: Vec<Cell> = state.slab[PAGE].cells().collect();
    let (n_layers, width) = (LAYOUT.n_layers, LAYOUT.kv_width());
    // Where a slot of the page begins in the tensor of keys.
    let number = |layer: usize, slot: usize| ((PAGE * n_layers + layer) * PAGE_SIZE + slot) * width;
    let [found, first] = [(LAYER, SLOT), (0, 0)].map(|(layer, slot)| number(layer, slot));
    let (keys, values) = (slab.borrow().keys().to_vec(), slab.borrow().values().to_vec());
    let there = rows::names(LAYOUT, LAYER, &keys[found..found + width], &values[found..found + width])?;
    ensure!(there == [Some(format!("b{SLOT}"))], "number {found} begins the row of the slot, not {there:?}");
    let figure = Figure {
        label: format!(
            "Page {PAGE} in the tensor of keys, from number {first} on: a row of {width} numbers for each of {PAGE_SIZE} slots in \
             layer 0, then as many in layer 1. Slot {SLOT} in layer {LAYER} begins at number {found}."
        ),
        headline: "A page holds its tokens\u{2019} rows in every layer.".into(),
        setup: format!(
            "Page {PAGE} of the keys; each slot is a row of {width} numbers, and below it is the number at which it begins. The values \
             lie in the same places of a tensor of their own."
        ),
        outline: Some("slot 1 of page 2 in layer 1"),
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        picture.beside(n_layers, |picture, layer| {
            let cells = page.iter().enumerate().map(|(slot, cell)| {
                let is_found = (layer, slot) == (LAYER, SLOT);
                cell.clone().outlined(is_found)
            });
            let grid = pages_of_words(picture, |_| format!("page {PAGE}, layer {layer}"), PAGE_SIZE, cells);
            for slot in 0..PAGE_SIZE {
                let below = grid.cell(slot).bottom() + 15.0;
                picture.text(grid.middle(slot), below, Anchor::Middle, number(layer, slot));
            }
            picture.y += 20.0;
        });
    }))
}
