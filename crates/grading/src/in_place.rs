//! Caches whose rows lie side by side: what they lend, where a row goes, that a write moves and changes nothing else,
//! and which writes they must not accept. The caches are empty and of [`LAYOUT`], with room for 1,200 tokens.

use std::borrow::Cow;

use page_by_page::cache::{CacheError, KvCache, KvLayout};

use crate::calls::{assert_panics, in_call};
use crate::limits::allocated;
use crate::oracle::{self, Oracle, extend, fresh, seeded};
use crate::rows::{self, KINDS, same_numbers};
use crate::words::plural;

/// Three different numbers, so that none can stand in for a different one.
pub const LAYOUT: KvLayout = KvLayout { n_layers: 3, n_kv_heads: 2, head_dim: 4 };

/// Numbers that a tensor keeps only if it keeps every bit.
pub const EDGE_VALUES: [f32; 8] = [-0.0, 0.1, -3.5, 1e-40, f32::MAX, -1e-30, 1.0 + f32::EPSILON, 16_777_215.0];

pub fn gather(cache: &dyn KvCache, layer: usize) -> (Cow<'_, [f32]>, Cow<'_, [f32]>) {
    in_call(format!("gather({layer}) of {}", plural(cache.len(), "token")), || cache.gather(layer))
}

pub fn new_rows_go_after_the_old_ones(cache: &mut dyn KvCache) {
    let mut oracle = Oracle::default();
    for tokens in [&[10, 11, 12][..], &[13], &[14, 15], &(16..1_100).collect::<Vec<_>>(), &[1_100]] {
        oracle.append(cache, tokens);
        oracle.check(cache);
    }
}

/// Any number of the newest rows can be written, those of earlier calls of `extend` too.
pub fn any_number_of_the_newest_rows(cache: &mut dyn KvCache) {
    extend(cache, 2);
    extend(cache, 3);
    let mut oracle = Oracle { tokens: vec![0; 5], ..Oracle::default() };
    oracle.history.record("extend(2); extend(3)");
    for tokens in [&[1, 2, 3, 4, 5][..], &[6], &[7, 8], &[9, 10, 11, 12]] {
        oracle.history.record(format!("write of {}", rows::count(tokens.len() * 8, 8)));
        oracle::write(cache, tokens);
        oracle.tokens.splice(5 - tokens.len().., tokens.iter().copied());
        oracle.check(cache);
    }
}

/// Every bit of a row is kept while others are written, the sign of -0.0 too.
pub fn every_bit_is_kept(cache: &mut dyn KvCache) {
    let values = EDGE_VALUES.map(|number| -number);
    extend(cache, 1);
    for layer in 0..LAYOUT.n_layers {
        in_call(format!("write of {EDGE_VALUES:?} to layer {layer}"), || cache.write(layer, &EDGE_VALUES, &values));
    }
    for n in [1, 2] {
        extend(cache, n);
        write(cache, &(1..=n).collect::<Vec<_>>());
    }
    for layer in 0..LAYOUT.n_layers {
        let (k, v) = gather(cache, layer);
        for (kind, found, written) in [("keys", k, EDGE_VALUES), ("values", v, values)] {
            let what = format!("row 0 of the {kind} that gather({layer}) gives after two more writes");
            same_numbers(found.get(..8).unwrap_or(&found), &written, &what);
        }
    }
}

pub fn write_moves_nothing(cache: &mut dyn KvCache) {
    let mut next = 0;
    for n in [3, 1, 2, 1, 70, 1] {
        extend(cache, n);
        write(cache, &fresh(&mut next, n));
    }
}

/// Gathers every layer: its keys and its values must be lent, and lending asks for no memory.
pub fn check_lent(cache: &dyn KvCache) {
    let (layout, len) = (cache.layout(), cache.len());
    let width = layout.kv_width();
    for layer in 0..layout.n_layers {
        let ((k, v), asked) = in_call(format!("gather({layer}) of {len} tokens"), || allocated(|| cache.gather(layer)));
        for (kind, found) in KINDS.into_iter().zip([&k, &v]) {
            let expected = rows::count(len * width, width);
            same!(rows::count(found.len(), width), expected, "{kind} that gather({layer}) gives, {len} tokens held");
            assert!(
                matches!(found, Cow::Borrowed(_)),
                "gather copied the {kind}: layer {layer}, {len} tokens held; they lie side by side and can be borrowed"
            );
        }
        same!(asked, 0, "bytes that gather({layer}) of {len} tokens asks the allocator for: it lends what is there");
    }
}

/// Writes the rows of the newest tokens, layer by layer, and again from the last layer to the first. No write may ask
/// for memory, move a tensor, or change anything but these rows.
fn write(cache: &mut dyn KvCache, tokens: &[usize]) {
    let layout = cache.layout();
    let width = layout.kv_width();
    for layer in (0..layout.n_layers).chain((0..layout.n_layers).rev()) {
        let [k, v] = KINDS.map(|kind| rows::rows(layout, tokens, layer, kind));
        let what = format!("write of {} to layer {layer}, {} tokens held", rows::count(k.len(), width), cache.len());
        let (before, usage) = (tensors(cache), cache.usage());
        let ((), asked) = in_call(&what, || allocated(|| cache.write(layer, &k, &v)));
        for (other, (now, before)) in tensors(cache).iter().zip(&before).enumerate() {
            for (kind, ((now_at, now), (at, before))) in KINDS.into_iter().zip(now.iter().zip(before)) {
                let tensor = format!("{kind} of layer {other}");
                same!(rows::count(now.len(), width), rows::count(before.len(), width), "{tensor} after a {what}");
                let moved = *now_at as isize - *at as isize;
                same!(moved, 0, "bytes by which the {tensor} have moved after a {what}");
                let older = before.len() - if other == layer { k.len() } else { 0 };
                let changed = (0..older).find(|at| now[*at].to_bits() != before[*at].to_bits());
                let told = "the first row that has changed, and that is not to be written";
                same!(changed.map(|at| at / width), None, "{tensor} after a {what}: {told}");
            }
        }
        same!(cache.usage(), usage, "usage after a {what}: writing changes none of it");
        same!(asked, 0, "bytes that a {what}, asks the allocator for: the room is there");
    }
}

/// The keys and the values of every layer, each with where it begins; 0 if gather gave a copy.
fn tensors(cache: &dyn KvCache) -> Vec<[(usize, Vec<f32>); 2]> {
    let tensor = |rows: Cow<[f32]>| {
        let address = if matches!(rows, Cow::Borrowed(_)) { rows.as_ptr() as usize } else { 0 };
        (address, rows.into_owned())
    };
    let layers = (0..cache.layout().n_layers).map(|layer| gather(cache, layer));
    layers.map(|(k, v)| [k, v].map(tensor)).collect()
}

/// Caches of random layouts grow by random pieces. `new(layout, capacity)` makes one, limited to it if `is_bounded`.
pub fn oracle(is_bounded: bool, new: impl Fn(KvLayout, usize) -> Box<dyn KvCache>) {
    for (seed, mut rng) in seeded(60) {
        let (layout, capacity) = (oracle::any_layout(&mut rng), rng.roll(1, 40));
        let mut cache = new(layout, capacity);
        let mut oracle = Oracle::new(format!("seed {seed}, {layout:?}"));
        let mut next = 0;
        for _ in 0..rng.roll(1, 14) {
            let (n, free) = (rng.roll(0, 9), capacity.saturating_sub(oracle.tokens.len()));
            if n <= free || !is_bounded {
                oracle.append(&mut *cache, &fresh(&mut next, n));
            } else {
                let expected = Err(CacheError::OutOfSlots { needed: n, free, capacity });
                same!(cache.extend(n), expected, "seed {seed}: extend({n}) with {free} of {capacity} slots free");
                oracle.history.record(format!("extend({n}) refused"));
            }
            oracle.check(&*cache);
        }
    }
}

/// Offers rows that an empty cache cannot take. In each layer such a write must panic, as `KvCache::write` says: in the
/// first one an index may do so by itself, and after it the rows would land in the layer before.
pub fn refuse_rows_that_do_not_fit(cache: &mut dyn KvCache) {
    let rows = |numbers: usize| vec![1.0; numbers];
    for (n, k, v, what) in [
        (0, 8, 8, "1 row when no token is held (extend has made no room)"),
        (2, 24, 24, "3 rows when 2 tokens are held (extend has made no room for them)"),
        (0, 16, 8, "2 key rows and 1 value row"),
        (0, 8, 16, "1 key row and 2 value rows"),
        (0, 8, 0, "1 key row and no value row"),
        (0, 4, 4, "half a row"),
    ] {
        extend(cache, n);
        for layer in 0..LAYOUT.n_layers {
            assert_panics(&format!("write to layer {layer} of {what}"), || cache.write(layer, &rows(k), &rows(v)));
        }
    }
}
