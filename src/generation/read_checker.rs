//! Who wrote the rows that attention reads, and mistakes about that.
//!
//! A [`CheckedCache`] lets a cache keep *labels* in place of rows: each number says of which row it is which one.
//! A cache moves numbers and never computes with them, so it can't tell. When attention reads, the labels come back, and
//! the checker puts the numbers of the rows that they stand for in their places. So whatever a cache returns, the checker
//! knows who wrote it.
//!
//! ```text
//!   model ── rows ──► check ── labels ──► cache      write: token 12 of sequence 0, layer 3, is label 87
//!   model ◄── rows ── check ◄── labels ── cache      read: label 87, as token 12 of sequence 0? Right.
//! ```
//!
//! A row is right if it was written for the same layer and position after the same tokens, whoever wrote it: sequences
//! share the pages of what they have in common. A [`CacheFault`] makes a right cache wrong in one place.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::cache::attention::{AttentionCache, Rows};
use crate::cache::{CacheError, CacheUsage, KvCache, KvLayout, Rewind};
use crate::english::plural;

/// Where the row of a token belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowAddress {
    pub sequence: u64,
    pub layer: usize,
    pub position: usize,
}

impl RowAddress {
    /// No slot of any sequence: nobody writes there, and what is read is zeros.
    pub const NOWHERE: RowAddress = RowAddress { sequence: u64::MAX, layer: 0, position: 0 };

    pub fn at(self, position: usize) -> Self {
        RowAddress { position, ..self }
    }

    pub fn of(self, sequence: u64) -> Self {
        RowAddress { sequence, ..self }
    }
}

/// What a wrong cache does with rows: where they lie and how they are stored, for a sequence that holds `len` tokens.
#[derive(Clone, Copy)]
pub struct CacheFault {
    /// Where a row is written.
    pub write: fn(RowAddress, usize) -> RowAddress,
    /// Where it is read.
    pub read: fn(RowAddress, usize) -> RowAddress,
    /// How many rows are read of a sequence of so many tokens.
    pub rows: fn(u64, usize) -> usize,
    /// How a row is stored: the row, the first one of its page of 16 slots, and the numbers of a head.
    pub store: fn(&mut [f32], &[f32], usize),
}

impl CacheFault {
    pub const NONE: CacheFault =
        CacheFault { write: |address, _| address, read: |address, _| address, rows: |_, len| len, store: |_, _, _| {} };

    /// Rows are written and read there.
    pub const fn at(place: fn(RowAddress, usize) -> RowAddress) -> Self {
        CacheFault { write: place, read: place, ..Self::NONE }
    }

    /// Rows are read there, and written where they belong.
    pub const fn read_at(place: fn(RowAddress, usize) -> RowAddress) -> Self {
        CacheFault { read: place, ..Self::NONE }
    }
}

/// Attention has read a row that is not the one that it should have read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongRead {
    /// The newest token of the sequence that reads.
    pub reader: RowAddress,
    /// The token whose row it should have been; at the end of the sequence or beyond, there is none.
    pub position: usize,
    /// Whose row it was, if anybody's.
    pub found: Option<RowAddress>,
    /// Whether the cache returned so few rows that none was read for it.
    pub is_missing: bool,
    /// The slot in which a [`CacheFault`] looked for it.
    pub address: Option<RowAddress>,
}

impl WrongRead {
    /// In words. `name`: of a sequence, as `the wolf`.
    pub fn describe(&self, name: impl Fn(u64) -> String) -> String {
        let RowAddress { sequence, layer, position: newest } = self.reader;
        let (reader, whose) =
            (name(sequence), |address: RowAddress| format!("{}'s token {}", name(address.sequence), address.position));
        let expected = match self.position {
            _ if self.is_missing => format!("for {}", plural(newest + 1, "token")),
            position if position > newest => format!("beyond its {} tokens", newest + 1),
            position => format!("in place of its token {position}"),
        };
        let found = match self.found {
            _ if self.is_missing => format!("only {}", plural(self.position, "row")),
            None => "a slot that nobody has written".into(),
            Some(address) if address == self.reader.at(self.position) => "numbers of that row from other places".into(),
            Some(address) if address.layer == layer => whose(address),
            Some(address) => format!("{} of layer {}", whose(address), address.layer),
        };
        format!("attention of {reader}'s token {newest} in layer {layer} reads {found}, {expected}")
    }

    /// The same for somebody who knows no layers: `In place of its own "wolf", the wolf read the princess's "princess"`.
    /// `token`: its words.
    pub fn in_short(&self, name: impl Fn(u64) -> String, token: impl Fn(RowAddress) -> String) -> String {
        let place = match self.position > self.reader.position {
            _ if self.is_missing => format!("Of its {}", plural(self.reader.position + 1, "token")),
            true => "Beyond its end".into(),
            false => format!("In place of its own {}", token(self.reader.at(self.position))),
        };
        let found = match self.found {
            _ if self.is_missing => format!("only the first {}", self.position),
            None => "memory that nobody has written".into(),
            Some(found) if found.sequence == self.reader.sequence => format!("its own {}", token(found)),
            Some(found) => format!("{}'s {}", name(found.sequence), token(found)),
        };
        format!("{place}, {} read {found}", name(self.reader.sequence))
    }
}

impl fmt::Display for WrongRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(|sequence| format!("sequence {sequence}")))
    }
}

/// Knows who wrote which row.
pub struct ReadChecker {
    fault: Option<CacheFault>,
    memory: RefCell<Memory>,
}

#[derive(Default)]
struct Memory {
    /// All rows that were ever written. Label 1 is the first.
    written: Vec<Written>,
    /// What was written last where; kept only if there is a mistake.
    slots: HashMap<RowAddress, u32>,
    n_reads: u64,
    wrong: Vec<WrongRead>,
    /// Tokens that have read wrongly already, and what: once is enough.
    reported: HashSet<(u64, usize, usize)>,
}

struct Written {
    address: RowAddress,
    /// Stands for the tokens up to this one.
    prefix: u64,
    /// Its key and its value, `[kv_width]` each.
    rows: [Vec<f32>; 2],
}

impl ReadChecker {
    pub fn new(fault: Option<CacheFault>) -> Self {
        ReadChecker { fault, memory: RefCell::default() }
    }

    /// A sequence's cache, checked while it computes. `tokens`: the sequence, to its newest token or further.
    pub fn checked<'a>(&'a self, sequence: u64, tokens: &[u32], cache: &'a mut dyn AttentionCache) -> CheckedCache<'a> {
        let prefixes = tokens.iter().scan(0, |prefix, token| {
            let mut hasher = DefaultHasher::new();
            (*prefix, token).hash(&mut hasher);
            *prefix = hasher.finish();
            Some(*prefix)
        });
        CheckedCache { checker: self, cache, sequence, prefixes: prefixes.collect() }
    }

    /// Rows that were read, each a key and its value.
    pub fn n_reads(&self) -> u64 {
        self.memory.borrow().n_reads
    }

    /// The wrong reads since the last call, in order; for each token and position only the first.
    pub fn take_wrong_reads(&self) -> Vec<WrongRead> {
        std::mem::take(&mut self.memory.borrow_mut().wrong)
    }
}

/// A cache that holds labels, and the numbers that they stand for.
pub struct CheckedCache<'a> {
    checker: &'a ReadChecker,
    cache: &'a mut dyn AttentionCache,
    sequence: u64,
    /// For each position a number that stands for the tokens up to it.
    prefixes: Vec<u64>,
}

/// What stands for a row's key (`kind` 0) or value (1): a number for each of its own. A copy keeps their bits.
fn label(row: u32, kind: u32, width: usize) -> impl Iterator<Item = f32> {
    let first = row.checked_mul(width as u32).filter(|first| *first < 1 << 30);
    let first = first.expect("a checker has labels for a billion numbers, and more have been written");
    (first..first + width as u32).map(move |number| f32::from_bits(number << 1 | kind))
}

impl CheckedCache<'_> {
    /// Notes a row, and returns its label.
    fn note(&self, memory: &mut Memory, address: RowAddress, mut rows: [Vec<f32>; 2]) -> u32 {
        if let Some(CacheFault { write, store, .. }) = self.checker.fault {
            let first = address.at(address.position / 16 * 16);
            let first = memory.slots.get(&first).map(|row| memory.written[*row as usize - 1].rows.clone());
            for (row, first) in rows.iter_mut().zip(first.unwrap_or_default()) {
                store(row, &first, self.layout().head_dim);
            }
            memory.slots.insert(write(address, self.len()), memory.written.len() as u32 + 1);
        }
        memory.written.push(Written { address, prefix: self.prefixes[address.position], rows });
        memory.written.len() as u32
    }

    /// The numbers for the labels that a layer's rows consist of. `k`, `v`: `[rows, kv_width]`.
    fn numbers(&self, layer: usize, k: &[f32], v: &[f32]) -> [Vec<f32>; 2] {
        let (width, newest) = (self.layout().kv_width(), self.len().saturating_sub(1));
        let memory = &mut *self.checker.memory.borrow_mut();
        let own = RowAddress { sequence: self.sequence, layer, position: 0 };
        let mut numbers = [Vec::new(), Vec::new()];
        let (fault, held) = (self.checker.fault, k.len() / width);
        let rows = fault.map_or(held, |fault| (fault.rows)(self.sequence, held));
        for position in 0..rows {
            let address = fault.map(|fault| (fault.read)(own.at(position), self.len()));
            let labels: [Vec<u32>; 2] = match address {
                None => [k, v].map(|all| all[position * width..][..width].iter().map(|n| n.to_bits()).collect()),
                Some(address) => {
                    let held = || k.get(position * width).map(|n| (n.to_bits() >> 1) / width as u32);
                    // A prefix that it shares was written by a different sequence.
                    let is_shared = |row: &u32| {
                        let written = memory.written.get((*row as usize).wrapping_sub(1));
                        address == own.at(position)
                            && written.is_some_and(|written| written.address.sequence != self.sequence)
                    };
                    let row = memory.slots.get(&address).copied().or_else(|| held().filter(is_shared));
                    [0, 1].map(|kind| match row {
                        Some(row) => label(row, kind, width).map(f32::to_bits).collect(),
                        None => vec![0; width],
                    })
                }
            };
            memory.n_reads += 1;
            let prefix = self.prefixes.get(position).filter(|_| position <= newest);
            for (kind, (labels, numbers)) in labels.iter().zip(&mut numbers).enumerate() {
                for (index, bits) in labels.iter().enumerate() {
                    let (row, number) = ((bits >> 1) as usize / width, (bits >> 1) as usize % width);
                    let written = memory.written.get(row.wrapping_sub(1));
                    let is_right = written.is_some_and(|written| {
                        let Written { address, prefix: found, .. } = written;
                        (address.layer, address.position, bits & 1, number) == (layer, position, kind as u32, index)
                            && prefix == Some(found)
                    });
                    numbers.push(written.map_or(0.0, |written| written.rows[(bits & 1) as usize][number]));
                    if !is_right && memory.reported.insert((self.sequence, newest, position)) {
                        let (reader, found) = (own.at(newest), written.map(|written| written.address));
                        memory.wrong.push(WrongRead { reader, position, found, is_missing: false, address });
                    }
                }
            }
        }
        if rows < self.len() && memory.reported.insert((self.sequence, newest, rows)) {
            let reader = own.at(newest);
            memory.wrong.push(WrongRead { reader, position: rows, found: None, is_missing: true, address: None });
        }
        numbers
    }
}

impl KvCache for CheckedCache<'_> {
    fn layout(&self) -> KvLayout {
        self.cache.layout()
    }

    fn len(&self) -> usize {
        self.cache.len()
    }

    fn extend(&mut self, n: usize) -> Result<(), CacheError> {
        self.cache.extend(n)
    }

    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        let width = self.layout().kv_width();
        let first = self.len() - k.len() / width;
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (position, (k, v)) in (first..).zip(k.chunks(width).zip(v.chunks(width))) {
            let address = RowAddress { sequence: self.sequence, layer, position };
            let row = self.note(&mut self.checker.memory.borrow_mut(), address, [k.to_vec(), v.to_vec()]);
            keys.extend(label(row, 0, width));
            values.extend(label(row, 1, width));
        }
        self.cache.write(layer, &keys, &values);
    }

    fn gather(&self, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
        let (k, v) = self.cache.gather(layer);
        let [k, v] = self.numbers(layer, &k, &v);
        (k.into(), v.into())
    }

    fn usage(&self) -> CacheUsage {
        self.cache.usage()
    }
}

impl Rewind for CheckedCache<'_> {
    fn rewind(&mut self, n: usize) -> Result<(), CacheError> {
        self.cache.rewind(n)
    }
}

impl AttentionCache for CheckedCache<'_> {
    fn rows(&self, layer: usize) -> Rows<'_> {
        let rows = self.cache.rows(layer);
        let (lent, width) = (rows.sequence_rows(0), self.layout().kv_width());
        let in_runs = |numbers: &[f32]| -> Vec<f32> {
            lent.runs.iter().flat_map(|run| &numbers[run.start..][..run.rows * width]).copied().collect()
        };
        let [k, v] = self.numbers(layer, &in_runs(lent.keys), &in_runs(lent.values));
        Rows::dense((k.into(), v.into()), self.layout())
    }
}
