//! Chapter 6: two sequences that grow by turns in the pages of one slab.

use anyhow::Result;

use super::Figure;
use crate::rows;
use crate::slab::{self, PAGE_SIZE, State};

const TURNS: [(char, usize); 6] = [('a', 3), ('b', 2), ('a', 2), ('b', 5), ('a', 4), ('b', 1)];
/// Turns before the first frame, in which both have pages.
const BEFORE: usize = 2;

pub fn figure() -> Result<Figure> {
    let states = slab::of_two(&TURNS, |cache, name, n| (format!("extend({n})"), rows::append(cache, name, n)))?;
    let message = "Two sequences share one pool.".into();
    let setup = format!(
        "Each takes a page of {PAGE_SIZE} slots when it needs one, and wastes at most the end of its last page."
    );
    Ok(slab::figure(&states[BEFORE..], message, setup, State::draw))
}
