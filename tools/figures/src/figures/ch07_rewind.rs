//! Chapter 7: a sequence goes back over a page boundary, and the other sequence takes the page, by `chapters::ch07_rewind`.

use anyhow::Result;
use page_by_page::cache::{CacheError, Rewind};

use super::Figure;
use crate::rows;
use crate::slab::{self, State};

/// The letter of rows written after a rewind, so that they differ from those before.
const AGAIN: char = 'n';
const OPERATIONS: [(char, Operation); 6] = [
    ('a', Operation::Extend('a', 9)),
    ('b', Operation::Extend('b', 4)),
    ('b', Operation::Extend('b', 1)),
    ('a', Operation::Rewind(3)),
    ('a', Operation::Extend(AGAIN, 1)),
    ('b', Operation::Extend('b', 1)),
];

#[derive(Clone, Copy)]
pub enum Operation {
    /// `extend`, and `write` if there was room. The rows get the letter as a name.
    Extend(char, usize),
    Rewind(usize),
}

impl Operation {
    pub fn name(self) -> String {
        match self {
            Operation::Extend(_, n) => format!("extend({n})"),
            Operation::Rewind(n) => format!("rewind({n})"),
        }
    }

    pub fn run(self, cache: &mut dyn Rewind) -> Result<(), CacheError> {
        match self {
            Operation::Extend(letter, n) => rows::append(cache, letter, n),
            Operation::Rewind(n) => cache.rewind(n),
        }
    }
}

pub fn figure() -> Result<Figure> {
    let states = slab::of_two(&OPERATIONS, |cache, _, operation| (operation.name(), operation.run(cache)))?;
    let message = "A page that a rewind empties goes back to the pool, and the other sequence takes it.".into();
    let setup = format!(
        "What a writes after its rewind is called {AGAIN}. A stale row stays in its slot until the next write there."
    );
    // The first frame has a full pool.
    Ok(slab::figure(&states[1..], message, setup, State::draw))
}
