//! The page on the model: what a token's row passes through in one layer, and what is kept of it.

use super::prelude::*;

const BUILT: char = 'b';
/// Room for the line that leads x past the boxes.
const PAST: f64 = 14.0;
const BETWEEN: f64 = 13.0;

pub fn figure() -> Result<Figure> {
    let model = model(STORYTELLER)?;
    let config = model.config();
    let (kv, n_layers) = (config.kv_layout().kv_width(), config.n_layers);
    // The widths of rows.
    let (x, inner) = (config.hidden_size, config.intermediate_size);
    let q = config.n_heads * config.head_dim;
    let figure = Figure {
        label: format!(
            "One layer as boxes. Attention: x is normed and becomes q, k and v; q and k are normed and turned; k and v \
             go into the KV cache; attention reads q and the cache; o leads back to a row of {x}, which is added to x. \
             Feed-forward: the sum is normed and becomes gate and up, down leads back to a row of {x}, and that is \
             added."
        ),
        headline: "Of all that a layer computes for a token, only k and v are kept.".into(),
        setup: format!(
            "One token in one of the storyteller\u{2019}s {n_layers} layers. Boxes are numbered as the steps are; \
             after a colon, how many numbers it gives."
        ),
        legend: vec![(held(BUILT, ""), "you build it"), (part(""), "given")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        let (full, top) = (picture.width, picture.y);
        let gutter = if picture.is_wide() { 28.0 } else { 8.0 };
        let width = (full - gutter) / 2.0;
        let mut bottom = top;
        for half in 0..2 {
            (picture.left, picture.width, picture.y) = (half as f64 * (width + gutter), width, top);
            picture.heading(["attention", "feed-forward"][half], "");
            picture.text(picture.left, picture.y + 7.0, Anchor::Start, ["rows meet here", "each row alone"][half]);
            picture.y += 16.0;
            (picture.left, picture.width) = (picture.left + PAST, picture.width - PAST);
            if half == 0 {
                attention(picture, x, q, kv);
            } else {
                feed_forward(picture, x, inner);
            }
            bottom = bottom.max(picture.y);
        }
        (picture.left, picture.width, picture.y) = (0.0, full, bottom - BETWEEN);
    }))
}

fn attention(picture: &mut Picture, x: usize, q: usize, kv: usize) {
    let [input] = boxes(picture, [(0.0, 1.0, part(format!("x: {x}")))]);
    let [norm] = boxes(picture, [(0.0, 1.0, part("1. norm"))]);
    let columns = [(0.0, 0.4, format!("2. q: {q}")), (0.4, 0.3, format!("k: {kv}")), (0.7, 0.3, format!("v: {kv}"))];
    let [q, k, v] = boxes(picture, columns.map(|(from, share, word)| (from, share, part(word))));
    let [turned_q, turned_k] = boxes(picture, [(0.0, 0.4, part("3. norm,\nturn")), (0.4, 0.3, part("norm,\nturn"))]);
    let [cache] = boxes(picture, [(0.4, 0.6, held(BUILT, "KV cache\nevery k and v"))]);
    let [attention] = boxes(picture, [(0.0, 1.0, part("4. attention"))]);
    let [o] = boxes(picture, [(0.0, 1.0, part("5. o"))]);
    let [sum] = boxes(picture, [(0.0, 1.0, part(format!("x + o: {x}")))]);
    down(picture, &[(input, norm), (norm, q), (norm, k), (norm, v), (q, turned_q), (k, turned_k), (turned_k, cache)]);
    down(picture, &[(v, cache), (turned_q, attention), (cache, attention), (attention, o), (o, sum)]);
    past(picture, input, sum);
}

fn feed_forward(picture: &mut Picture, x: usize, inner: usize) {
    let [input] = boxes(picture, [(0.0, 1.0, part(format!("x + o: {x}")))]);
    let [norm] = boxes(picture, [(0.0, 1.0, part("6. norm"))]);
    let columns = [(0.0, 0.5, part(format!("gate: {inner}"))), (0.5, 0.5, part(format!("up: {inner}")))];
    let [gate, up] = boxes(picture, columns);
    let [product] = boxes(picture, [(0.0, 1.0, part(format!("silu(gate) \u{b7} up: {inner}")))]);
    let [back] = boxes(picture, [(0.0, 1.0, part(format!("down: {x}")))]);
    let [sum] = boxes(picture, [(0.0, 1.0, part(format!("x + o + down: {x},\nthe next layer\u{2019}s x")))]);
    down(
        picture,
        &[(input, norm), (norm, gate), (norm, up), (gate, product), (up, product), (product, back), (back, sum)],
    );
    past(picture, input, sum);
}

/// Boxes in a line: where each begins and how wide it is, in shares of the width, and its cell.
fn boxes<const N: usize>(picture: &mut Picture, boxes: [(f64, f64, Cell); N]) -> [Area; N] {
    const APART: f64 = 8.0;
    let lines = boxes.iter().map(|(_, _, cell)| cell.word.lines().count()).max().unwrap_or(1);
    let (left, y, width, height) = (picture.left, picture.y, picture.width - 1.0 + APART, 16.0 * lines as f64 + 10.0);
    picture.y += height + BETWEEN;
    boxes.map(|(from, share, cell)| {
        let area = Area { x: left + from * width, y, width: share * width - APART, height };
        picture.cell(area, cell);
        area
    })
}

/// Arrows from a box to one below it, in the middle of what both have in common.
fn down(picture: &mut Picture, pairs: &[(Area, Area)]) {
    for (from, to) in pairs {
        let x = (from.x.max(to.x) + (from.x + from.width).min(to.x + to.width)) / 2.0;
        picture.arrow((x, from.bottom() + 1.0), (x, to.y - 2.0));
    }
}

/// A line from one box to another, left of those between them.
fn past(picture: &mut Picture, from: Area, to: Area) {
    let [from_y, to_y] = [from, to].map(|area| area.y + area.height / 2.0);
    let x = from.x - PAST + 4.0;
    picture.path("line", format!("M{:.1} {from_y:.1}H{x:.1}V{to_y:.1}", from.x - 1.0));
    picture.arrow((x, to_y), (to.x - 2.0, to_y));
}
