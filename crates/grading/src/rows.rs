//! Rows that can be recognised: each number encodes its token, its layer, keys or values, and its place.

use page_by_page::cache::KvLayout;

use crate::words;

/// The kinds of rows, as failures name them.
pub const KINDS: [&str; 2] = ["keys", "values"];

/// The row of a token in a layer: `[kv_width]`, at most 50 numbers. Exact in `f32` for tokens below 16,000.
pub fn row(layout: KvLayout, token: usize, layer: usize, kind: &str) -> Vec<f32> {
    let first = token * 1000 + layer * 100 + if kind == KINDS[0] { 1 } else { 51 };
    (0..layout.kv_width()).map(|i| (first + i) as f32).collect()
}

/// The rows of some tokens, one after the other: `[tokens, kv_width]`.
pub fn rows(layout: KvLayout, tokens: &[usize], layer: usize, kind: &str) -> Vec<f32> {
    tokens.iter().flat_map(|token| row(layout, *token, layer, kind)).collect()
}

pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Compares numbers, every bit of them: how many there are, then the first that differs.
#[track_caller]
pub fn same_numbers(yours: &[f32], expected: &[f32], what: &str) {
    same!(yours.len(), expected.len(), "numbers in {what}");
    let differs = |at: &usize| yours[*at].to_bits() != expected[*at].to_bits();
    if let Some(at) = (0..yours.len()).find(differs) {
        let (yours, expected) = (yours[at], expected[at]);
        panic!("{what}, every bit of it: number {at}\n  expected: {expected:?}\n  yours:    {yours:?}");
    }
}

/// A count of numbers, in rows of `width`: `5 rows`, `1 row`, `2 rows and 3 numbers`.
pub fn count(numbers: usize, width: usize) -> String {
    let rows = words::plural(numbers / width, "row");
    match numbers % width {
        0 => rows,
        rest => format!("{rows} and {rest} of the next row's {width} numbers"),
    }
}

/// Says what a row is, to someone who expects the keys (or values) of some token in `layer`: `t7`, `zeros`,
/// `t7's values`, `t7 of layer 1`.
pub fn name(layout: KvLayout, found: &[f32], layer: usize, kind: &str) -> String {
    if found.iter().all(|x| *x == 0.0) {
        return "zeros".into();
    }
    let code = found[0] as usize;
    let (token, its_layer) = (code / 1000, code % 1000 / 100);
    let its_kind = KINDS[code % 100 / 50];
    if found != row(layout, token, its_layer, its_kind) {
        return format!("no row of any token ({} …)", found[0]);
    }
    let mut name = format!("t{token}");
    if its_kind != kind {
        name = format!("{name}'s {its_kind}");
    }
    if its_layer != layer {
        name = format!("{name} of layer {its_layer}");
    }
    name
}
