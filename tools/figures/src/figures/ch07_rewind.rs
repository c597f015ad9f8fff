//! Chapter 7: a sequence goes back over a page boundary, and the other sequence takes the page, by
//! `chapters::ch07_rewind`.

use super::prelude::*;
use crate::slab::{self, Operation::*};

/// The letter of rows written after a rewind, so that they differ from those before.
const AGAIN: char = 'n';

pub fn figure() -> Result<Figure> {
    let operations = [
        ('a', Extend('a', 9)),
        ('b', Extend('b', 4)),
        ('b', Extend('b', 1)),
        ('a', Rewind(3)),
        ('a', Extend(AGAIN, 1)),
        ('b', Extend('b', 1)),
    ];
    let message = "A page that a rewind empties goes back to the pool, and the other sequence takes it.";
    let setup = format!(
        "What a writes after its rewind is called {AGAIN}. A stale row stays in its slot until the next write there."
    );
    slab::figure(message, setup, &operations, 1)
}
