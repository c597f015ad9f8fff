//! Chapter 10: two sequences share pages; one grows, copies the rows of the shared tail, and the other stays.

use page_by_page::chapters::ch10_fork::ForkCache;

use super::prelude::*;
use crate::rows;
use crate::slab::{PAGE_SIZE, SlabState, new_slab};

pub fn figure() -> Result<Figure> {
    let mut figure = Figure {
        label: format!(
            "A pool of 4 pages of {PAGE_SIZE} slots, and the tables of sequence a and of its fork b, after each \
             operation on one of them."
        ),
        message: "A fork copies rows only when it would write into a shared page.".into(),
        setup: format!(
            "Sequence a has six tokens in pages of {PAGE_SIZE} slots when b is forked from it. The tokens that b adds \
             are called b6, b7 and b8."
        ),
        ..Figure::default()
    };
    let slab = new_slab(4)?;
    let mut a = ForkCache::new(&slab)?;
    rows::append(&mut a, 'a', 6)?;
    let mut copied = a.usage().rows_copied;
    // A frame for what has just run, and what to notice in it (HTML): `{b}` stands for the pages of b, `{copied}` for
    // rows.
    let mut frame = |sequences: &[(char, &ForkCache)], call: &str, notice: &str| -> Result<()> {
        let before = std::mem::replace(&mut copied, sequences.iter().map(|(_, cache)| cache.usage().rows_copied).sum());
        let rows = match copied.saturating_sub(before) {
            0 => "no row".into(),
            rows => count(rows as usize, "row"),
        };
        let tables: Vec<_> = sequences.iter().map(|(name, cache)| (*name, cache.table())).collect();
        let of_b = tables.last().map_or(String::new(), |(_, table)| pages(table.pages()));
        let state = SlabState::read(&slab, &tables)?;
        let notice = notice.replace("{copied}", &rows).replace("{b}", &of_b);
        figure.frame(format!("<code>{call}</code> {notice}"), |picture| state.draw(picture));
        Ok(())
    };

    let mut b = a.fork()?;
    let notice = "copies {copied}. Both tables now name {b}, so each of these pages has two owners.";
    frame(&[('a', &a), ('b', &b)], "b = a.fork()", notice)?;

    rows::append(&mut b, 'b', 1)?;
    let notice = "copies {copied}. The next slot is in a page that a also owns, so b moves into a page of its own \
                  before it writes b6. It now has {b}.";
    frame(&[('a', &a), ('b', &b)], "b.extend(1)", notice)?;

    rows::append(&mut a, 'a', 1)?;
    let notice = "copies {copied}. Since b has left, a is the tail\u{2019}s only owner and writes a6 in place.";
    frame(&[('a', &a), ('b', &b)], "a.extend(1)", notice)?;

    rows::append(&mut b, 'b', 2)?;
    let notice = "copies {copied}. b fills its tail and takes a new page, so it has {b}. Page 0 stays shared, because \
                  it is full.";
    frame(&[('a', &a), ('b', &b)], "b.extend(2)", notice)?;

    drop(a);
    let notice = "gives up a\u{2019}s pages. Page 0 stays, because b still owns it, and page 1 is free again.";
    frame(&[('b', &b)], "drop(a)", notice)?;
    Ok(figure)
}
