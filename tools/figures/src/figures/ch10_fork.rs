//! Chapter 10: two sequences share pages; one grows, copies the rows of the shared tail, and the other stays.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch10_fork::ForkCache;

use super::Figure;
use crate::rows;
use crate::slab::{self, PAGE_SIZE, State, new_slab};
use crate::svg::Kind;

const OPERATIONS: [Operation; 6] = [
    Operation::Extend('a', 6),
    Operation::Fork('a', 'b'),
    Operation::Extend('b', 1),
    Operation::Extend('a', 1),
    Operation::Extend('b', 2),
    Operation::Drop('a'),
];

#[derive(Clone, Copy)]
enum Operation {
    /// `extend` and `write`.
    Extend(char, usize),
    /// The second sequence becomes a fork of the first.
    Fork(char, char),
    Drop(char),
}

type Sequences = BTreeMap<char, ForkCache>;

impl Operation {
    fn name(self) -> String {
        match self {
            Operation::Extend(name, n) => format!("{name}.extend({n})"),
            Operation::Fork(from, to) => format!("{to} = {from}.fork()"),
            Operation::Drop(name) => format!("drop({name})"),
        }
    }

    fn run(self, sequences: &mut Sequences) -> Result<()> {
        match self {
            Operation::Extend(name, n) => {
                let cache = sequences.get_mut(&name).context("no such sequence")?;
                cache.extend(n)?;
                rows::write(cache, name, n);
            }
            Operation::Fork(from, to) => {
                let fork = sequences.get(&from).context("no such sequence")?.fork()?;
                sequences.insert(to, fork);
            }
            Operation::Drop(name) => drop(sequences.remove(&name)),
        }
        Ok(())
    }
}

fn record() -> Result<Vec<State>> {
    let slab = new_slab(4)?;
    let mut sequences = Sequences::from([('a', ForkCache::new(&slab)?)]);
    let copied = |sequences: &Sequences| sequences.values().map(|cache| cache.usage().rows_copied).sum::<u64>();
    let mut frames = Vec::new();
    for operation in OPERATIONS {
        let before = copied(&sequences);
        operation.run(&mut sequences)?;
        let tables: Vec<_> = sequences.iter().map(|(name, cache)| (*name, cache.table())).collect();
        let mut state = State::of(operation.name(), Ok(()), &slab, &tables)?;
        state.rows_copied = copied(&sequences).saturating_sub(before);
        frames.push(state);
    }
    Ok(frames)
}

pub fn figure() -> Result<Figure> {
    let caption = format!(
        "<strong>A fork shares its pages until it writes.</strong> Sequence b is forked from a, and copies the two rows of the \
         shared tail before it grows; copies count as written. What b has written itself is called b. Recorded from \
         <code>ForkCache</code> and its slab, page size {PAGE_SIZE}; keys, values and both layers look alike."
    );
    let legend = [
        (Kind::New, "written now"),
        (Kind::Shared, "shared"),
        (Kind::Reused, "held by one"),
        (Kind::Wasted, "taken, empty"),
        (Kind::Stale, "stale"),
        (Kind::Free, "free page"),
    ];
    Ok(slab::figure(&record()?, &legend, caption))
}
