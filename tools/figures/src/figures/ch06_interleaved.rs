//! Chapter 6: two sequences that grow by turns in the pages of one slab.

use anyhow::Result;

use super::Figure;
use crate::rows;
use crate::slab::{self, PAGE_SIZE};
use crate::svg::Kind;

const TURNS: [(char, usize); 6] = [('a', 3), ('b', 2), ('a', 2), ('b', 5), ('a', 4), ('b', 1)];

pub fn figure() -> Result<Figure> {
    let caption = format!(
        "<strong>Two sequences share one pool.</strong> Each takes a page when it needs one, in any order, and wastes at most the \
         end of its last page. On the right, the page tables. The slots are those of one layer; each page holds the same tokens \
         in every layer. Recorded from <code>PagedCache</code>, page size {PAGE_SIZE}."
    );
    let legend = [
        (Kind::New, "written now"),
        (Kind::Reused, "written before"),
        (Kind::Wasted, "taken, empty"),
        (Kind::Free, "free page"),
    ];
    let states = slab::of_two(&TURNS, |cache, name, n| (format!("extend({n})"), rows::append(cache, name, n)))?;
    Ok(slab::figure(&states, &legend, caption))
}
