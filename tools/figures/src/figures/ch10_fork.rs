//! Chapter 10: two sequences share pages; one grows, copies the rows of the shared tail, and the other stays.

use std::collections::BTreeMap;

use page_by_page::cache::KvCache;
use page_by_page::chapters::ch10_fork::ForkCache;

use super::prelude::*;
use crate::rows;
use crate::slab::{PAGE_SIZE, State, new_slab};

/// What runs, and what to notice in it (HTML): `{b}` stands for the pages of b, `{copied}` for rows.
/// The first is where the figure starts.
const OPERATIONS: [(&str, Operation, &str); 6] = [
    ("a.extend(6)", |sequences| extend(sequences, 'a', 6), ""),
    (
        "b = a.fork()",
        |sequences| {
            let fork = sequences.get(&'a').context("no such sequence")?.fork()?;
            sequences.insert('b', fork);
            Ok(())
        },
        "copies {copied}. Both tables now name {b}, so each of these pages has two owners.",
    ),
    (
        "b.extend(1)",
        |sequences| extend(sequences, 'b', 1),
        "copies {copied}. The next slot is in a page that a also owns, so b moves into a page of its own before it writes b6. \
         It now has {b}.",
    ),
    (
        "a.extend(1)",
        |sequences| extend(sequences, 'a', 1),
        "copies {copied}. Since b has left, a is the tail\u{2019}s only owner and writes a6 in place.",
    ),
    (
        "b.extend(2)",
        |sequences| extend(sequences, 'b', 2),
        "copies {copied}. b fills its tail and takes a new page, so it has {b}. Page 0 stays shared, because it is full.",
    ),
    (
        "drop(a)",
        |sequences| {
            sequences.remove(&'a');
            Ok(())
        },
        "gives up a\u{2019}s pages. Page 0 stays, because b still owns it, and page 1 is free again.",
    ),
];
type Operation = fn(&mut Sequences) -> Result<()>;
type Sequences = BTreeMap<char, ForkCache>;

fn extend(sequences: &mut Sequences, name: char, n: usize) -> Result<()> {
    Ok(rows::append(sequences.get_mut(&name).context("no such sequence")?, name, n)?)
}

fn frames(figure: &mut Figure) -> Result<()> {
    let slab = new_slab(4)?;
    let mut sequences = Sequences::from([('a', ForkCache::new(&slab)?)]);
    let copied = |sequences: &Sequences| sequences.values().map(|cache| cache.usage().rows_copied).sum::<u64>();
    for (name, run, notice) in OPERATIONS {
        let before = copied(&sequences);
        run(&mut sequences)?;
        let rows = match copied(&sequences).saturating_sub(before) {
            0 => "no row".into(),
            rows => count(rows as usize, "row"),
        };
        let tables: Vec<_> = sequences.iter().map(|(name, cache)| (*name, cache.table())).collect();
        let of_b = tables.last().map_or(String::new(), |(_, table)| pages(table.pages()));
        let state = State::read(&slab, &tables)?;
        if !notice.is_empty() {
            let notice = notice.replace("{copied}", &rows).replace("{b}", &of_b);
            figure.frame(format!("<code>{name}</code> {notice}"), |picture| state.draw(picture));
        }
    }
    Ok(())
}

pub fn figure() -> Result<Figure> {
    let mut figure = Figure {
        label: format!(
            "A pool of 4 pages of {PAGE_SIZE} slots, and the tables of sequence a and of its fork b, after each operation on one of \
             them."
        ),
        message: "A fork copies rows only when it would write into a shared page.".into(),
        setup: format!(
            "Sequence a has six tokens in pages of {PAGE_SIZE} slots when b is forked from it. The tokens that b adds are called \
             b6, b7 and b8."
        ),
        ..Figure::default()
    };
    frames(&mut figure)?;
    Ok(figure)
}
