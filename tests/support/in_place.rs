//! Caches whose rows lie side by side: what they lend, that a write moves nothing and changes nothing else, and which
//! writes it must not accept.

use std::borrow::Cow;

use page_by_page::cache::KvCache;

use super::asking::{asking, granted, quietly};
use super::limits::allocated;
use super::rows::{self, KINDS};

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

/// Fills an empty cache with rows of zeros, some of them -0.0, which any sum with zero turns into 0.0. Then writes behind
/// them: they must keep every bit.
#[track_caller]
pub fn write_behind_zeros(cache: &mut dyn KvCache) {
    let layout = cache.layout();
    let [negative, positive] = [-0.0, 0.0].map(|zero| vec![zero; layout.kv_width()]);
    let (k, v) = ([&*negative, &positive].concat(), [positive, negative].concat());
    granted("extend(2) on no tokens", || cache.extend(2));
    for layer in 0..layout.n_layers {
        let _question = asking(format!("write of 2 rows to layer {layer}, 2 tokens held"));
        cache.write(layer, &k, &v);
    }
    for n in [1, 2] {
        granted(format!("extend({n}) on {} tokens", cache.len()), || cache.extend(n));
        write(cache, &(1..=n).collect::<Vec<_>>());
    }
}

/// Offers rows that an empty cache with room for three cannot take. Each such write must panic, as `KvCache::write` says.
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
    granted("extend(2) on no tokens", || cache.extend(2));
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
