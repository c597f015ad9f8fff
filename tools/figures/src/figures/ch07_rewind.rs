//! Chapter 7: a sequence goes back over a page boundary, and the other sequence takes the page, by
//! `chapters::ch07_rewind`.

use super::prelude::*;
use crate::slab::{self, Operation::*};

/// The letter of the rows written after the rewind: her story goes on with other words.
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
    let headline = "A page that a rewind empties goes back to the pool, and the other sequence takes it.";
    let setup =
        "a is Silda\u{2019}s story, b the wolf\u{2019}s. A stale row stays in its slot until the next write there.";
    slab::figure(headline, setup.into(), &operations, 1)
}
