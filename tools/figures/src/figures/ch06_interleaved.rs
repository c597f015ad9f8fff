//! Chapter 6: two sequences that grow by turns in the pages of one slab.

use anyhow::Result;
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch06_paged::PagedCache;

use super::Figure;
use crate::rows;
use crate::slab::{self, PAGE_SIZE, State, new_slab};
use crate::svg::Kind;

/// The turns of the chapter's transcript.
const TURNS: [(char, usize); 6] = [('a', 3), ('b', 2), ('a', 2), ('b', 5), ('a', 4), ('b', 1)];

fn record() -> Result<Vec<State>> {
    let slab = new_slab(4)?;
    let mut sequences = [('a', PagedCache::new(&slab)?), ('b', PagedCache::new(&slab)?)];
    let mut frames = Vec::new();
    for (name, n) in TURNS {
        let mut outcome = Ok(());
        for (_, cache) in sequences.iter_mut().filter(|sequence| sequence.0 == name) {
            outcome = cache.extend(n);
            if outcome.is_ok() {
                rows::write(cache, name, n);
            }
        }
        let tables = sequences.each_ref().map(|(name, cache)| (*name, cache.table()));
        frames.push(State::of(format!("{name}.extend({n})"), outcome, &slab, &tables)?);
    }
    Ok(frames)
}

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
    Ok(slab::figure(&record()?, &legend, caption))
}
