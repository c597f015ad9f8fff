//! Chapter 10: two sequences share pages; one grows, copies the rows of the shared tail, and the other stays.

use page_by_page::chapters::ch06_paged::PageSlab;
use page_by_page::chapters::ch10_fork::ForkCache;

use super::prelude::*;
use crate::rows::{self, LAYOUT};
use crate::slab::SlabState;

const PAGE_SIZE: usize = 2;
/// The tokens of both samples, and the letters of their words.
const PROMPT: usize = 3;
const SAMPLES: [char; 2] = ['i', 'j'];

pub fn figure() -> Result<Figure> {
    let mut figure = Figure {
        label: format!(
            "A pool of 4 pages of {PAGE_SIZE} slots, and the tables of sequence a and of its fork b, after each \
             operation on one of them."
        ),
        headline: "A fork copies rows only when it would write into a shared page.".into(),
        setup: format!(
            "Sequence a has \u{201c}the king had\u{201d} in pages of {PAGE_SIZE} slots when b is forked from it. The fourth \
             slot is next for both."
        ),
        ..Figure::default()
    };
    let slab = PageSlab::new(LAYOUT, PAGE_SIZE, 4)?;
    let mut a = ForkCache::new(&slab)?;
    rows::append(&mut a, SAMPLES[0], PROMPT)?;
    let mut copied = a.usage().copied_tokens;
    // A frame for what has just run, and what to notice in it (HTML): `{b}` stands for the pages of b, `{copied}` for
    // tokens.
    let mut frame = |sequences: &[(char, &ForkCache)], call: &str, notice: &str| -> Result<()> {
        let before =
            std::mem::replace(&mut copied, sequences.iter().map(|(_, cache)| cache.usage().copied_tokens).sum());
        let tokens = match copied.saturating_sub(before) {
            0 => "no token".into(),
            n => plural(n as usize, "token"),
        };
        let tables: Vec<_> = sequences.iter().map(|(name, cache)| (*name, cache.table())).collect();
        let of_b = tables.last().map_or(String::new(), |(_, table)| pages(table.pages()));
        let state = SlabState::read(&slab, &tables)?;
        let notice = notice.replace("{copied}", &tokens).replace("{b}", &of_b);
        // The slot that comes next in a tail which is shared still belongs to nobody.
        let is_shared = matches!(&tables[..], [(_, a), (_, b)] if a.pages().last() == b.pages().last());
        figure.frame(format!("<code>{call}</code> {notice}"), |picture| {
            state.draw(picture);
            for mark in picture.marks.iter_mut().filter(|_| is_shared) {
                if let Mark::Cell(_, cell) = mark
                    && cell.kind == Kind::Empty
                {
                    (cell.owners, cell.word) = (Vec::new(), "whose?".into());
                }
            }
        });
        Ok(())
    };

    let mut b = a.fork()?;
    let notice = "copies {copied}. Both tables now name {b}, so each of these pages has two owners.";
    frame(&[('a', &a), ('b', &b)], "b = a.fork()", notice)?;

    rows::append(&mut b, SAMPLES[1], 1)?;
    let notice = "copies {copied}. The next slot is in a page that a also owns, so b moves into a page of its own \
                  before it writes \u{201c}chattucked\u{201d}. It now has {b}.";
    frame(&[('a', &a), ('b', &b)], "b.extend(1)", notice)?;

    rows::append(&mut a, SAMPLES[0], 1)?;
    let notice = "copies {copied}. Since b has left, a is the tail\u{2019}s only owner and writes \u{201c}heard\u{201d} in \
                  place.";
    frame(&[('a', &a), ('b', &b)], "a.extend(1)", notice)?;

    rows::append(&mut b, SAMPLES[1], 2)?;
    let notice = "copies {copied}. b\u{2019}s tail is full, so it takes a new page. It has {b}. Page 0 stays shared, \
                  because nobody writes into a full page.";
    frame(&[('a', &a), ('b', &b)], "b.extend(2)", notice)?;

    drop(a);
    let notice = "gives up a\u{2019}s pages. Page 0 stays, because b still owns it, and page 1 is free again.";
    frame(&[('b', &b)], "drop(a)", notice)?;
    Ok(figure)
}
