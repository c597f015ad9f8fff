//! Caches whose rows lie side by side: what they lend, where a row goes, that a write moves nothing and changes nothing else,
//! and which writes they must not accept. The caches are empty and of [`LAYOUT`], with room for 80 tokens.

use std::borrow::Cow;

use page_by_page::cache::{CacheError, KvCache, KvLayout};

use super::asking::{asking, granted, quietly};
use super::limits::allocated;
use super::oracle::{self, Dice, Oracle, fresh, seeds};
use super::rows::{self, KINDS, row};

/// Three different numbers, so that none can stand in for a different one.
pub const LAYOUT: KvLayout = KvLayout { n_layers: 3, n_kv_heads: 2, head_dim: 4 };

/// Numbers that a tensor keeps only if it keeps every bit.
pub const TELLING: [f32; 8] = [-0.0, 0.1, -3.5, 1e-40, f32::MAX, -1e-30, 1.0 + f32::EPSILON, 16_777_215.0];

pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

#[track_caller]
fn extend(cache: &mut dyn KvCache, n: usize) {
    granted(format!("extend({n}) on {} tokens", cache.len()), || cache.extend(n));
}

/// New rows go after the older ones.
#[track_caller]
pub fn new_rows_go_after_the_old_ones(cache: &mut dyn KvCache) {
    let mut oracle = Oracle::default();
    for tokens in [&[10, 11, 12][..], &[13], &[14, 15]] {
        oracle.append(cache, tokens);
        oracle.check(cache);
    }
}

/// A row that is written to layer 1 is in no other.
#[track_caller]
pub fn a_row_lands_in_its_layer_only(cache: &mut dyn KvCache) {
    extend(cache, 1);
    let [keys, values] = KINDS.map(|kind| row(LAYOUT, 1, 1, kind));
    let question = asking("write of 1 row to layer 1, 1 token held");
    cache.write(1, &keys, &values);
    drop(question);
    for layer in 0..LAYOUT.n_layers {
        let question = asking(format!("gather({layer}) of 1 token"));
        let (k, v) = cache.gather(layer);
        drop(question);
        for (kind, found, written) in [("keys", k, &keys), ("values", v, &values)] {
            let expected = if layer == 1 { written.clone() } else { vec![0.0; 8] };
            same!(*found, *expected, "{kind} of layer {layer} after a write to layer 1 only");
        }
    }
}

/// Any number of the newest rows can be written, those of earlier calls of `extend` too.
#[track_caller]
pub fn any_number_of_the_newest_rows(cache: &mut dyn KvCache) {
    extend(cache, 2);
    extend(cache, 3);
    let mut oracle = Oracle::default();
    oracle.tokens = vec![1, 2, 3, 4, 5];
    oracle.note("extend(2); extend(3); write of 5 rows".into());
    oracle::write(cache, &[1, 2, 3, 4, 5]);
    oracle.check(cache);
    for tokens in [&[6][..], &[7, 8], &[9, 10, 11, 12]] {
        oracle.note(format!("write of {}", rows::count(tokens.len() * 8, 8)));
        oracle::write(cache, tokens);
        oracle.tokens.splice(5 - tokens.len().., tokens.iter().copied());
        oracle.check(cache);
    }
}

/// Every bit of a row is kept, also when the cache is extended.
#[track_caller]
pub fn every_bit_is_kept(cache: &mut dyn KvCache) {
    let values = TELLING.map(|number| -number);
    extend(cache, 1);
    for layer in 0..LAYOUT.n_layers {
        let _question = asking(format!("write of {TELLING:?} to layer {layer}"));
        cache.write(layer, &TELLING, &values);
    }
    extend(cache, 1);
    for layer in 0..LAYOUT.n_layers {
        let _question = asking(format!("gather({layer}) of 2 tokens"));
        let (k, v) = cache.gather(layer);
        for (kind, found, written) in [("keys", k, TELLING), ("values", v, values)] {
            same!(rows::count(found.len(), 8), "2 rows", "{kind} that gather({layer}) gives, 2 tokens held");
            same!(
                bits(&found[..8]),
                bits(&written),
                "bits of the {kind} {written:?} in layer {layer}, after one more extend"
            );
        }
    }
}

/// A row of zeros is a row like any other.
#[track_caller]
pub fn rows_of_zeros_are_rows(cache: &mut dyn KvCache) {
    let mut oracle = Oracle::default();
    oracle.append(cache, &[1, 2]);
    let names = |cache: &dyn KvCache, layer: usize| {
        let _question = asking(format!("gather({layer}) of {} tokens", cache.len()));
        let (k, v) = cache.gather(layer);
        [k, v].map(|found| found.chunks(8).map(|row| row.to_vec()).collect::<Vec<_>>())
    };
    let named = |found: &[Vec<f32>], layer, kind| -> Vec<String> {
        found.iter().map(|row| rows::name(LAYOUT, row, layer, kind)).collect()
    };
    for layer in 0..LAYOUT.n_layers {
        let question = asking(format!("write of a row of zeros over t2 in layer {layer}"));
        cache.write(layer, &[0.0; 8], &[0.0; 8]);
        drop(question);
        for (kind, found) in KINDS.into_iter().zip(names(cache, layer)) {
            let what = "when zeros were written over t2";
            same!(named(&found, layer, kind), ["t1", "zeros"], "{kind} of layer {layer}, {what}");
        }
    }
    extend(cache, 1);
    oracle::write(cache, &[3]);
    for layer in 0..LAYOUT.n_layers {
        for (kind, found) in KINDS.into_iter().zip(names(cache, layer)) {
            let what = "when a row of zeros came before t3";
            same!(named(&found, layer, kind), ["t1", "zeros", "t3"], "{kind} of layer {layer}, {what}");
        }
    }
}

/// Writes that move nothing and change nothing else.
#[track_caller]
pub fn write_moves_nothing(cache: &mut dyn KvCache) {
    let mut next = 0;
    for n in [3, 1, 2, 1, 70, 1] {
        extend(cache, n);
        write(cache, &(next..next + n).collect::<Vec<_>>());
        next += n;
    }
}

/// Gathers every layer: its keys and its values must be lent, and lending asks for no memory.
#[track_caller]
pub fn check_lent(cache: &dyn KvCache) {
    let (layout, len) = (cache.layout(), cache.len());
    for layer in 0..layout.n_layers {
        let question = asking(format!("gather({layer}) of {len} tokens"));
        let ((k, v), taken) = allocated(|| cache.gather(layer));
        drop(question);
        let width = layout.kv_width();
        for (kind, found) in KINDS.into_iter().zip([&k, &v]) {
            same!(
                rows::count(found.len(), width),
                rows::count(len * width, width),
                "{kind} that gather({layer}) gives, {len} tokens held"
            );
            assert!(
                matches!(found, Cow::Borrowed(_)),
                "gather copied the {kind}: layer {layer}, {len} tokens held; they lie side by side and can be borrowed"
            );
        }
        same!(
            taken.bytes,
            0,
            "bytes that gather({layer}) of {len} tokens asks the allocator for: it lends what is there"
        );
    }
}

/// Writes the rows of the newest tokens, layer by layer, and once more from the last layer to the first. No single write
/// may ask for memory, move a tensor, or change anything but these rows.
#[track_caller]
pub fn write(cache: &mut dyn KvCache, tokens: &[usize]) {
    let layout = cache.layout();
    for layer in (0..layout.n_layers).chain((0..layout.n_layers).rev()) {
        let [k, v] = KINDS.map(|kind| rows::rows(layout, tokens, layer, kind));
        let what = format!(
            "write of {} to layer {layer}, {} tokens held",
            rows::count(k.len(), layout.kv_width()),
            cache.len()
        );
        let (before, usage) = (Tensors::of(cache), cache.usage());
        let question = asking(&what);
        let ((), taken) = allocated(|| cache.write(layer, &k, &v));
        drop(question);
        Tensors::of(cache).check(&before, layer, tokens.len(), &what);
        same!(cache.usage(), usage, "usage after a {what}: writing changes none of it");
        same!(taken.bytes, 0, "bytes that a {what}, asks the allocator for: the room is there");
    }
}

/// Fills an empty cache with rows of zeros, some of them -0.0, which any sum with zero turns into 0.0. Then writes after
/// them: they must keep every bit.
#[track_caller]
pub fn write_after_zeros(cache: &mut dyn KvCache) {
    let layout = cache.layout();
    let [negative, positive] = [-0.0, 0.0].map(|zero| vec![zero; layout.kv_width()]);
    let (k, v) = ([&*negative, &positive].concat(), [positive, negative].concat());
    extend(cache, 2);
    for layer in 0..layout.n_layers {
        let _question = asking(format!("write of 2 rows to layer {layer}, 2 tokens held"));
        cache.write(layer, &k, &v);
    }
    for n in [1, 2] {
        extend(cache, n);
        write(cache, &(1..=n).collect::<Vec<_>>());
    }
}

/// Extends a cache by pieces, writes some of each piece's newest rows, and looks at all rows that were written at the end.
/// `pieces`: (tokens, rows).
#[track_caller]
pub fn rows_of_large_caches(cache: &mut dyn KvCache, pieces: &[(usize, usize)]) {
    let layout = cache.layout();
    let width = layout.kv_width();
    let numbers = |layer: usize, first: usize, rows: usize| -> [Vec<f32>; 2] {
        let keys: Vec<f32> = (0..rows * width).map(|i| (layer * 7 + 1 + first * width + i) as f32).collect();
        let values = keys.iter().map(|number| -number).collect();
        [keys, values]
    };
    let mut written = 0;
    for (tokens, rows) in pieces {
        extend(cache, *tokens);
        for layer in 0..layout.n_layers {
            let [k, v] = numbers(layer, written, *rows);
            let rows = rows::count(k.len(), width);
            let _question =
                asking(format!("write of {rows} to layer {layer}, {} tokens held, with {layout:?}", cache.len()));
            cache.write(layer, &k, &v);
        }
        written += rows;
    }
    let held = cache.len();
    for layer in 0..layout.n_layers {
        let question = asking(format!("gather({layer}) of {held} tokens, with {layout:?}"));
        let (k, v) = cache.gather(layer);
        drop(question);
        for (kind, (found, expected)) in KINDS.into_iter().zip([k, v].iter().zip(numbers(layer, 0, written))) {
            let (found_rows, held_rows) = (rows::count(found.len(), width), rows::count(held * width, width));
            same!(found_rows, held_rows, "{kind} that gather({layer}) gives, with {layout:?}");
            let newest = found[(held - written) * width..].chunks(width).zip(expected.chunks(width));
            let wrong = newest.enumerate().find(|(_, (found, expected))| found != expected);
            let what = "the first row that does not hold what was written";
            let row = wrong.map(|(row, _)| held - written + row);
            same!(row, None, "{what}, {kind} of layer {layer}, {held} tokens held, {layout:?}");
        }
    }
}

/// Caches of random layouts grow by random pieces. `new(layout, capacity)` makes one; it has that capacity if `is_bounded`.
#[track_caller]
pub fn oracle(is_bounded: bool, new: impl Fn(KvLayout, usize) -> Box<dyn KvCache>) {
    for seed in seeds(60) {
        let mut dice = Dice::new(seed);
        let (layout, capacity) = (oracle::any_layout(&mut dice), dice.roll(1, 40));
        let mut cache = new(layout, capacity);
        let mut oracle = Oracle::of(format!("seed {seed}, {layout:?}"));
        let mut next = 0;
        for _ in 0..dice.roll(1, 14) {
            let (n, free) = (dice.roll(0, 9), capacity.saturating_sub(oracle.tokens.len()));
            if n <= free || !is_bounded {
                oracle.append(&mut *cache, &fresh(&mut next, n));
            } else {
                let expected = Err(CacheError::OutOfSlots { needed: n, free, capacity });
                same!(cache.extend(n), expected, "seed {seed}: extend({n}) with {free} of {capacity} slots free");
                oracle.note(format!("extend({n}) refused"));
            }
            oracle.check(&*cache);
        }
    }
}

/// Offers rows that an empty cache cannot take. Each such write must panic, as `KvCache::write` says.
#[track_caller]
pub fn refuse_rows_that_do_not_fit(cache: &mut dyn KvCache) {
    let layout = cache.layout();
    let rows = |n: usize| vec![1.0; n * layout.kv_width()];
    let half = vec![1.0; layout.kv_width() / 2];
    for n in [1, 70_000] {
        let outcome = quietly(|| cache.write(0, &rows(n), &rows(n)));
        let found = rows::count(n, 1);
        assert!(outcome.is_none(), "write of {found} when no token is held did not panic: extend has made no room");
    }
    extend(cache, 2);
    for (k, v, what) in [
        (rows(3), rows(3), "3 rows when 2 tokens are held: extend has made no room for them"),
        (rows(2), rows(1), "2 key rows and 1 value row"),
        (rows(1), rows(2), "1 key row and 2 value rows"),
        (rows(1), vec![], "1 key row and no value row"),
        (half.clone(), half, "half a row"),
    ] {
        let outcome = quietly(|| cache.write(0, &k, &v));
        assert!(outcome.is_none(), "write did not panic, given {what}");
    }
}

/// The keys and the values of every layer, and where they lie.
struct Tensors {
    width: usize,
    layers: Vec<[Tensor; 2]>,
}

struct Tensor {
    /// Where it begins; 0 if gather gave a copy.
    address: usize,
    rows: Vec<f32>,
}

impl Tensors {
    fn of(cache: &dyn KvCache) -> Self {
        let tensor = |gathered: Cow<[f32]>| Tensor {
            address: if matches!(gathered, Cow::Borrowed(_)) { gathered.as_ptr() as usize } else { 0 },
            rows: gathered.into_owned(),
        };
        let layers = (0..cache.layout().n_layers).map(|layer| {
            let _question = asking(format!("gather({layer}) of {} tokens", cache.len()));
            let (k, v) = cache.gather(layer);
            [tensor(k), tensor(v)]
        });
        Tensors { width: cache.layout().kv_width(), layers: layers.collect() }
    }

    /// Compares with the tensors before `what`, which wrote the last `written` rows of a layer.
    #[track_caller]
    fn check(&self, before: &Tensors, written_layer: usize, written: usize, what: &str) {
        for (layer, (now, before)) in self.layers.iter().zip(&before.layers).enumerate() {
            for (kind, (now, before)) in KINDS.into_iter().zip(now.iter().zip(before)) {
                same!(
                    rows::count(now.rows.len(), self.width),
                    rows::count(before.rows.len(), self.width),
                    "{kind} of layer {layer} after a {what}"
                );
                let moved = now.address as isize - before.address as isize;
                same!(moved, 0, "bytes by which the {kind} of layer {layer} have moved after a {what}");
                let older = before.rows.len() / self.width - if layer == written_layer { written } else { 0 };
                let row = |tensor: &'_ Tensor, row: usize| tensor.rows[row * self.width..][..self.width].to_vec();
                for index in 0..older {
                    let (now, before) = (row(now, index), row(before, index));
                    let same = now.iter().zip(&before).all(|(now, before)| now.to_bits() == before.to_bits());
                    assert!(
                        same,
                        "{kind} of layer {layer}, row {index}, after a {what}: it is an older row, and must keep every bit\n  \
                         expected: {before:?}\n  yours:    {now:?}"
                    );
                }
            }
        }
    }
}
