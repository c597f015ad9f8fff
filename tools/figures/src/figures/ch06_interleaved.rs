//! Chapter 6: two sequences that grow by turns in the pages of one slab.

use anyhow::Result;

use super::Figure;
use crate::rows;
use crate::slab::{self, PAGE_SIZE};

const TURNS: [(char, usize); 6] = [('a', 3), ('b', 2), ('a', 2), ('b', 5), ('a', 4), ('b', 1)];

pub fn figure() -> Result<Figure> {
    let states = slab::of_two(&TURNS, |cache, name, n| (format!("extend({n})"), rows::append(cache, name, n)))?;
    let message = "Two sequences share one pool.".into();
    let setup = format!(
        "Each takes a page of {PAGE_SIZE} slots when it needs one, in any order, and wastes at most the end of its last page."
    );
    Ok(slab::figure(&states, message, setup))
}
