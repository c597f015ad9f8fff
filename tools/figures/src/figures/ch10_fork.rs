//! Chapter 10: two sequences share pages; one grows, copies the rows of the shared tail, and the other stays.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch10_fork::ForkCache;

use super::Figure;
use crate::rows;
use crate::slab::{self, State, new_slab};

const OPERATIONS: [(&str, Operation); 6] = [
    ("a.extend(6)", |sequences| extend(sequences, 'a', 6)),
    ("b = a.fork()", |sequences| {
        let fork = sequences.get(&'a').context("no such sequence")?.fork()?;
        sequences.insert('b', fork);
        Ok(())
    }),
    ("b.extend(1)", |sequences| extend(sequences, 'b', 1)),
    ("a.extend(1)", |sequences| extend(sequences, 'a', 1)),
    ("b.extend(2)", |sequences| extend(sequences, 'b', 2)),
    ("drop(a)", |sequences| {
        sequences.remove(&'a');
        Ok(())
    }),
];
type Operation = fn(&mut Sequences) -> Result<()>;
type Sequences = BTreeMap<char, ForkCache>;

fn extend(sequences: &mut Sequences, name: char, n: usize) -> Result<()> {
    Ok(rows::append(sequences.get_mut(&name).context("no such sequence")?, name, n)?)
}

fn record() -> Result<Vec<State>> {
    let slab = new_slab(4)?;
    let mut sequences = Sequences::from([('a', ForkCache::new(&slab)?)]);
    let copied = |sequences: &Sequences| sequences.values().map(|cache| cache.usage().rows_copied).sum::<u64>();
    let mut frames = vec![State::default()];
    for (name, run) in OPERATIONS {
        let before = copied(&sequences);
        run(&mut sequences)?;
        let tables: Vec<_> = sequences.iter().map(|(name, cache)| (*name, cache.table())).collect();
        let mut state = State::of(name.into(), Ok(()), &slab, &tables)?;
        state.rows_copied = copied(&sequences).saturating_sub(before);
        frames.push(state);
    }
    Ok(frames)
}

pub fn figure() -> Result<Figure> {
    let message = "A fork shares its pages until it writes.".into();
    let setup = "Sequence b is forked from a, and copies the two rows of the shared tail before it grows. What b has written itself \
                 is called b."
        .into();
    Ok(slab::figure(&record()?, message, setup, State::draw))
}
