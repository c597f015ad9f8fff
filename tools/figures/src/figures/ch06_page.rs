//! Chapter 6: three strides, from the first number of the slab to a row.

use page_by_page::chapters::ch06_paged::{PageSlab, PagedCache};

use super::prelude::*;
use crate::rows::{self, LAYOUT};
use crate::slab::PAGE_SIZE;

/// The page, layer and slot that the figure points at.
const PAGE: usize = 2;
const LAYER: usize = 1;
const SLOT: usize = 1;

/// Where a slot begins in the tensor of keys.
fn number(page: usize, layer: usize, slot: usize) -> usize {
    ((page * LAYOUT.n_layers + layer) * PAGE_SIZE + slot) * LAYOUT.kv_width()
}

pub fn figure() -> Result<Figure> {
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, PAGE + 1)?;
    let (mut other, mut wolf) = (PagedCache::new(&slab)?, PagedCache::new(&slab)?);
    other.extend(PAGE * PAGE_SIZE)?;
    rows::append(&mut wolf, 'b', PAGE_SIZE)?;
    let (keys, values) = (slab.borrow().keys().to_vec(), slab.borrow().values().to_vec());
    let (first, found, width) = (number(PAGE, 0, 0), number(PAGE, LAYER, SLOT), LAYOUT.kv_width());
    let there = rows::names(LAYOUT, LAYER, &keys[found..found + width], &values[found..found + width])?;
    ensure!(there == [Some(format!("b{SLOT}"))], "number {found} begins the row of the slot, not {there:?}");
    let figure = Figure {
        label: format!(
            "The tensor of keys as a strip, with page {PAGE} from number {first} on. Below, the page is magnified, with a line of \
             {PAGE_SIZE} slots for each layer. Slot {SLOT} of layer {LAYER} begins at number {found}."
        ),
        headline: "A page holds its tokens\u{2019} rows in every layer, and three strides lead to one.".into(),
        setup: format!(
            "The tensor of keys, and below it page {PAGE}: each slot is a row of {width} numbers. The values lie in the same \
             places of a tensor of their own."
        ),
        outline: Some("slot 1 of page 2 in layer 1"),
        ..Figure::default()
    };
    Ok(figure.still(draw))
}

/// From a place to another along a row, above or below it.
fn hop(picture: &mut Picture, [from, to]: [f64; 2], y: f64, away: f64, text: String) {
    picture.path("line", format!("M{from:.1} {y:.1}v{away}H{to:.1}"));
    picture.arrow((to, y + away), (to, y));
    picture.text(from, y + 2.0 * away + 4.5, Anchor::Start, text);
}

fn draw(picture: &mut Picture) {
    let stride = |n, what, stride, to| format!("{} \u{d7} {stride} = {to}", plural(n, what));
    let (end, right) = (number(PAGE + 1, 0, 0), picture.right() - 1.0);
    let x = |page: usize| 1.0 + page as f64 * (right - 1.0) / (PAGE + 1) as f64;
    for page in 0..=PAGE {
        let name = format!("page {page}");
        let cell = if page < PAGE { part(name) } else { held('b', name) };
        picture.cell(Area { x: x(page), y: 30.0, width: x(1) - 3.5, height: CELL }, cell);
        picture.text(x(page), 76.0, Anchor::Start, number(page, 0, 0));
    }
    picture.text(right, 76.0, Anchor::End, end - 1);
    hop(picture, [4.0, x(PAGE) + 4.0], 27.0, -10.0, stride(PAGE, "page", number(1, 0, 0), number(PAGE, 0, 0)));
    picture.labelled("from 32");
    picture.y = 122.0;
    let grid = picture.grid(PAGE_SIZE, PAGE_SIZE);
    let at = [0, 1].map(|slot| grid.cell(slot).x + 10.0);
    picture.path("tick", format!("M{:.1} 60L{:.1} 120M{:.1} 60L{right:.1} 120", x(PAGE), at[0] - 10.0, right - 2.5));
    for slot in 0..PAGE_SIZE {
        picture.text(grid.middle(slot), 116.0, Anchor::Middle, format!("slot {slot}"));
    }
    for layer in 0..LAYOUT.n_layers {
        let first = |slot| number(PAGE, layer, slot);
        let numbers = |slot| listed(&(first(slot)..first(slot + 1)).collect::<Vec<_>>());
        let cells = (0..PAGE_SIZE).map(|slot| held('b', numbers(slot)).outlined((layer, slot) == (LAYER, SLOT)));
        picture.row(&format!("layer {layer},\nfrom {}", first(0)), "", PAGE_SIZE, cells);
        picture.y += 26.0;
    }
    picture.arrow((at[0], 155.0), (at[0], 181.0));
    let text = stride(LAYER, "layer", number(0, 1, 0), number(PAGE, LAYER, 0));
    picture.text(at[0] + 10.0, 172.0, Anchor::Start, format!("+ {text}"));
    hop(picture, at, 217.0, 10.0, format!("+ {}", stride(SLOT, "slot", number(0, 0, 1), number(PAGE, LAYER, SLOT))));
}
