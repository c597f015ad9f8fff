//! Chapter 6: a page as it lies in memory.

use page_by_page::chapters::ch06_paged::PagedCache;

use super::prelude::*;
use crate::rows::{self, LAYOUT};
use crate::slab::{PAGE_SIZE, SlabState, new_slab};

const PAGE: usize = 0;
/// The slot that the figure points at.
const SLOT: usize = 3;

pub fn figure() -> Result<Figure> {
    let slab = new_slab(4)?;
    let mut cache = PagedCache::new(&slab)?;
    rows::append(&mut cache, 'a', 6)?;
    let page: Vec<_> = SlabState::read(&slab, &[('a', cache.table())])?.slab[PAGE].cells().collect();
    let (token, n_layers) = (&page[SLOT].word, LAYOUT.n_layers);
    let figure = Figure {
        label: format!(
            "Page {PAGE} in memory: {PAGE_SIZE} rows of keys for each of {n_layers} layers, and as many rows of \
             values. Each layer\u{2019}s slot {SLOT} holds {token}."
        ),
        message: "A page holds its tokens\u{2019} rows in every layer.".into(),
        setup: format!(
            "Page {PAGE} as it lies in memory, in a model of {n_layers} layers: token {token} is in slot {SLOT} of \
             each, as a row of keys and a row of values."
        ),
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        picture.beside(2, |picture, tensor| {
            picture.heading(&format!("page {PAGE}: {}", ["keys", "values"][tensor]), "");
            let cells = (0..n_layers).flat_map(|_| page.clone());
            let grid = picture.pages(|layer| format!("layer {layer}"), PAGE_SIZE, cells);
            for layer in 0..n_layers {
                let under = grid.middle(layer * PAGE_SIZE + SLOT);
                picture.text(under, picture.y + 12.0, Anchor::Middle, format!("slot {SLOT}"));
            }
            picture.y += 20.0;
        });
    }))
}
