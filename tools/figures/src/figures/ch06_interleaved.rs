//! Chapter 6: two sequences that grow by turns in the pages of one slab.

use anyhow::Result;

use super::Figure;
use crate::rows::{self, LAYOUT};
use crate::slab::{self, PAGE_SIZE};

const TURNS: [(char, usize); 6] = [('a', 3), ('b', 2), ('a', 2), ('b', 5), ('a', 4), ('b', 1)];
/// Turns before the first frame, in which both have pages.
const BEFORE: usize = 2;
/// The page that is shown in all layers.
const OPENED: usize = 0;

pub fn figure() -> Result<Figure> {
    let states = slab::of_two(&TURNS, |cache, name, n| (format!("extend({n})"), rows::append(cache, name, n)))?;
    let message = "Two sequences share one pool, and a page holds its slots in every layer.".into();
    let setup = format!(
        "Each takes a page of {PAGE_SIZE} slots when it needs one, in any order. Below, page {OPENED} as it lies in memory: each \
         of its slots is a row of keys and a row of values in {} layers.",
        LAYOUT.n_layers
    );
    Ok(slab::figure(&states[BEFORE..], message, setup, |state, picture| {
        state.draw(picture);
        state.draw_opened(picture, OPENED);
    }))
}
