//! Chapter 6: two sequences that grow by turns in the pages of one slab.

use super::prelude::*;
use crate::slab::{self, Operation, PAGE_SIZE};

const TURNS: [(char, usize); 6] = [('a', 3), ('b', 2), ('a', 2), ('b', 5), ('a', 4), ('b', 1)];
/// Turns before the first frame, in which both have pages.
const EARLIER: usize = 2;

pub fn figure() -> Result<Figure> {
    let headline = "Two sequences share one pool.";
    let setup = format!(
        "a is Silda\u{2019}s story, b the wolf\u{2019}s. Each takes a page of {PAGE_SIZE} slots when it needs one, and wastes at most the \
         end of its last page."
    );
    slab::figure(headline, setup, &TURNS.map(|(name, n)| (name, Operation::Extend(name, n))), EARLIER)
}
