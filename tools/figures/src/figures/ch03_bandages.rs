//! Chapter 3: rows at `layer * len + position`, as the prompt is written and as they are read one token later.

use page_by_page::experiments::mistakes::{self, Effect, Scenario};
use page_by_page::generation::read_checker::RowAddress;

use super::prelude::*;

/// Two layers in colour.
const SHOWN: [(usize, char); 2] = [(1, 'b'), (5, 'd')];

/// A length, the layer that wrote each row of the tensor, and the row at which each layer begins.
type Strip = (usize, Vec<Option<usize>>, Vec<usize>);

pub fn figure() -> Result<Figure> {
    let mistake = mistakes::all().into_iter().find(|mistake| mistake.name == "layer-times-len").context("a mistake")?;
    let Effect::Story(Scenario { prompts, .. }, rule) = mistake.effect else { anyhow::bail!("no story shows it") };
    let (prompt, n_layers) = (tokenizer()?.encode(prompts[0].0)?.len(), model(STORYTELLER)?.config().n_layers);
    let row = |layer, position, len| (rule.write)(RowAddress { sequence: 0, layer, position }, len).position;
    let mut rows = vec![None; n_layers * (prompt + 1)];
    let strips = [(0, prompt), (prompt, prompt + 1)].map(|(held, len)| {
        (0..n_layers).for_each(|layer| (held..len).for_each(|position| rows[row(layer, position, len)] = Some(layer)));
        (len, rows.clone(), (0..n_layers).map(|layer| row(layer, 0, len)).collect())
    });
    let (n, last) = (rows.len(), SHOWN[1].0);
    let never = span(&(0..n).filter(|row| rows[*row].is_none()).collect::<Vec<_>>());
    let [was, is] = [prompt, prompt + 1].map(|len| row(last, 0, len));
    let figure = Figure {
        label: format!(
            "The same {n} rows twice. Above, {n_layers} layers are written, {prompt} rows each; layer {last} begins at row \
             {was}. Below, they are read, a row more each; layer {last} begins at row {is}, and rows {never} were never written."
        ),
        headline: "No row has moved, and every layer but the first is looked for in the wrong place.".into(),
        setup: "In each cell, the layer that wrote it. The new token\u{2019}s row is the last of each layer below."
            .into(),
        legend: vec![(free(""), "never written")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| draw(picture, &strips)))
}

fn draw(picture: &mut Picture, strips: &[Strip; 2]) {
    let pitch = (picture.width - 2.0) / strips[0].1.len() as f64;
    let x = |row: usize| 1.0 + row as f64 * pitch;
    let places = [[15.0, 36.0, 46.0, -4.0, 50.0, 95.0], [238.0, 217.0, 200.0, 4.0, 166.0, 160.0]];
    for (what, (strip, places)) in ["written", "read"].into_iter().zip(strips.iter().zip(places)) {
        let ((len, rows, firsts), [title, names, bracket, tick, y, numbers]) = (strip, places);
        picture.bold(0.0, title, Anchor::Start, format!("len = {len}: where rows are {what}"));
        for (row, layer) in rows.iter().enumerate() {
            let colour = SHOWN.iter().find(|(shown, _)| Some(*shown) == *layer);
            let cell = layer.map_or(free(""), |layer| colour.map_or(part(layer), |(_, colour)| held(*colour, layer)));
            picture.cell(Area { x: x(row), y, width: pitch - 1.0, height: CELL }, cell);
        }
        for (layer, first) in firsts.iter().enumerate() {
            let class = if SHOWN.iter().any(|(shown, _)| *shown == layer) { "mark" } else { "line" };
            let (from, to) = (x(*first) + 1.0, x(first + len) - 2.0);
            picture.path(class, format!("M{from:.1} {bracket:.1}v{tick}H{to:.1}v{}", -tick));
            picture.text((from + to) / 2.0, names, Anchor::Middle, format!("layer {layer}"));
            picture.text(x(*first) + pitch / 2.0, numbers, Anchor::Middle, first);
        }
    }
    for ((layer, _), anchor) in SHOWN.into_iter().zip([Anchor::Start, Anchor::End]) {
        let [from, to] = [0, 1].map(|strip| strips[strip].2[layer]);
        picture.arrow((x(from) + pitch / 2.0, 99.0), (x(to) + pitch / 2.0, 147.0));
        let at = if anchor == Anchor::Start { x(to) + pitch + 4.0 } else { x(from) + 4.0 };
        picture.text(at, 128.0, anchor, format!("{} late", plural(to - from, "row")));
    }
    picture.y = 242.0;
}
