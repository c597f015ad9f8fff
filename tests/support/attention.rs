//! Attention of queries over dense rows: what it gives, and what it gives if something goes wrong, in words.

use page_by_page::cache::in_place::{Run, SequenceRows};
use page_by_page::kernels::{Heads, RowFormat, add_scaled, attend, dot, softmax_scaled};

use super::packed::{self, PACKED};

/// What lies in the output before: no sum of weighted values comes near it.
pub const BEFORE: f32 = 7.5;

/// Numbers in a row of queries.
pub fn q_width(heads: Heads) -> usize {
    heads.n_heads * heads.head_dim
}

/// Numbers in a row of keys, or of values.
pub fn kv_width(heads: Heads) -> usize {
    heads.n_kv_heads * heads.head_dim
}

/// What a gather and the engine's kernel give: the newest `queries` tokens of some dense rows.
pub fn of_dense(heads: Heads, dense: [&[f32]; 2], queries: usize, q: &[f32]) -> Vec<f32> {
    let runs = [Run { start: 0, rows: dense[0].len() / kv_width(heads) }];
    let rows = SequenceRows { queries, keys: dense[0], values: dense[1], runs: &runs };
    let mut out = vec![0.0; q.len()];
    attend(heads, RowFormat::F32, &[rows], q, &mut out);
    out
}

/// The same for one query that sees the first positions only.
pub fn of_row(heads: Heads, dense: [&[f32]; 2], seen: usize, q: &[f32]) -> Vec<f32> {
    let numbers = seen * kv_width(heads);
    of_dense(heads, dense.map(|rows| &rows[..numbers]), 1, q)
}

/// One way to compute attention of one query, right or wrong.
#[derive(Clone, Copy)]
struct Way {
    scale: f32,
    kv_head: fn(usize, Heads) -> usize,
    seen: usize,
    /// What is taken for keys and for values: 0 the keys, 1 the values.
    kinds: [usize; 2],
    softmax: bool,
}

fn of_way(heads: Heads, dense: [&[f32]; 2], q: &[f32], way: Way) -> Vec<f32> {
    let Heads { n_heads, head_dim, .. } = heads;
    let width = kv_width(heads);
    let mut out = vec![0.0; q.len()];
    for head in 0..n_heads {
        let at = (way.kv_head)(head, heads) * head_dim;
        let row = |kind: usize, position: usize| &dense[way.kinds[kind]][position * width + at..][..head_dim];
        let query = &q[head * head_dim..][..head_dim];
        let mut weights: Vec<f32> = (0..way.seen).map(|position| dot(query, row(0, position))).collect();
        if way.softmax {
            softmax_scaled(&mut weights, way.scale);
        }
        for (position, weight) in weights.iter().enumerate() {
            add_scaled(&mut out[head * head_dim..][..head_dim], *weight, row(1, position));
        }
    }
    out
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// What a wrong output looks like, in words; nothing if like nothing known.
fn looks_like(heads: Heads, dense: [&[f32]; 2], seen: usize, q: &[f32], found: &[f32]) -> Option<String> {
    let expected = of_row(heads, dense, seen, q);
    if found.iter().all(|x| *x == BEFORE) {
        return Some(format!("nothing was written: it still holds {BEFORE}, as before"));
    }
    if found.iter().any(|x| x.is_nan()) {
        return Some("NaN lies where no row of these positions is, and a number of it was read".into());
    }
    let len = dense[0].len() / kv_width(heads);
    let scale = 1.0 / (heads.head_dim as f32).sqrt();
    let kv_head = |head: usize, heads: Heads| head / (heads.n_heads / heads.n_kv_heads);
    let right = Way { scale, kv_head, seen, kinds: [0, 1], softmax: true };
    let mut ways = vec![
        (Way { scale: 1.0, ..right }, "the scores are not scaled"),
        (Way { scale: 1.0 / heads.head_dim as f32, ..right }, "the scale is 1 / head_dim, without the root"),
        (
            Way { scale: 1.0 / (kv_width(heads) as f32).sqrt(), ..right },
            "the scale is that of a whole row of the cache, not of a head",
        ),
        (
            Way { scale: 1.0 / (q_width(heads) as f32).sqrt(), ..right },
            "the scale is that of a whole row of queries, not of a head",
        ),
        (Way { softmax: false, ..right }, "the scores are taken for weights, without a softmax"),
        (
            Way { kv_head: |head, heads| head % heads.n_kv_heads, ..right },
            "the key/value heads are handed out in turns: query head h reads h % n_kv_heads",
        ),
        (Way { kv_head: |_, _| 0, ..right }, "every query head reads key/value head 0"),
        (
            Way { kv_head: |head, heads| head.min(heads.n_kv_heads - 1), ..right },
            "query head h reads key/value head h, or the last one",
        ),
        (Way { kinds: [0, 0], ..right }, "the keys are taken for values"),
        (Way { kinds: [1, 1], ..right }, "the values are taken for keys"),
        (Way { kinds: [1, 0], ..right }, "keys and values are mixed up"),
    ];
    let sees: Vec<(usize, String)> = (0..=len.min(300))
        .filter(|n| *n != seen)
        .chain([len])
        .map(|n| (n, format!("it sees the first {n} positions, and should see {seen}")))
        .collect();
    ways.extend(sees.iter().map(|(n, words)| (Way { seen: *n, ..right }, words.as_str())));
    ways.extend(PACKED.map(|format| {
        let scale = 1.0 / (packed::words(format, heads.head_dim) as f32).sqrt();
        (Way { scale, ..right }, "the scale counts the words of a head, not its numbers")
    }));
    if let Some((_, words)) = ways.iter().find(|(way, _)| same_bits(&of_way(heads, dense, q, *way), found)) {
        return Some(words.to_string());
    }
    let all = |near: &dyn Fn(f32, f32) -> bool| found.iter().zip(&expected).all(|(found, right)| near(*found, *right));
    let largest = expected.iter().fold(1.0_f32, |largest, x| largest.max(x.abs()));
    if all(&|found, right| (found - right).abs() <= 3e-5 * largest) {
        return Some(
            "only the last bits differ, so a sum was taken in another order, or in pieces: all scores of a query \
             go through one softmax_scaled, and the values are added one by one, oldest first"
                .into(),
        );
    }
    if all(&|found, right| (found - right - BEFORE).abs() <= 1e-4) {
        return Some(format!("it is added to the {BEFORE} that the output held before"));
    }
    let factor = found[0] / expected[0];
    if factor.is_finite() && all(&|found, right| (found - factor * right).abs() <= 1e-3 * factor.abs()) {
        return Some(format!("it is {factor} times what it should be: the weights must be 1 in sum"));
    }
    None
}

/// Compares the output of one query that sees the first `seen` positions of dense rows.
#[track_caller]
pub fn check_row(heads: Heads, dense: [&[f32]; 2], seen: usize, q: &[f32], found: &[f32], what: &str) {
    let expected = of_row(heads, dense, seen, q);
    let Some(at) = found.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits()) else { return };
    let like = looks_like(heads, dense, seen, q, found).map_or(String::new(), |words| format!("\n  {words}"));
    panic!(
        "{what}, number {} of query head {}{like}\n  expected: {:?} (bits {:08x})\n  yours:    {:?} (bits {:08x})",
        at % heads.head_dim,
        at / heads.head_dim,
        expected[at],
        expected[at].to_bits(),
        found[at],
        found[at].to_bits()
    );
}

/// Compares the output of the newest `queries` tokens of dense rows, row by row.
#[track_caller]
pub fn check_rows(heads: Heads, dense: [&[f32]; 2], queries: usize, q: &[f32], found: &[f32], what: &str) {
    let (width, tokens) = (q_width(heads), dense[0].len() / kv_width(heads));
    for (i, (q, found)) in q.chunks_exact(width).zip(found.chunks_exact(width)).enumerate() {
        let seen = tokens - queries + i + 1;
        let what = format!("{what}, query {i} of {queries}, the token at position {}", seen - 1);
        check_row(heads, dense, seen, q, found, &what);
    }
}
