//! The page on the model: the engine as boxes, from a prompt to its output, with the numbers of the chapters that build them.

use anyhow::{Result, ensure};
use page_by_page::chapters;

use super::Figure;
use crate::picture::{Anchor, Area, Cell, Fate, Picture, held, part};
use crate::words::listed;

/// A part of the engine, and the chapters that build it; given if there are none.
type Part = (&'static str, &'static [usize]);

/// From the outside to the disk. Band [`FLOW`] runs from left to right.
const BANDS: [&[Part]; 6] = [
    &[("server", &[])],
    &[("one request: generation loop", &[1, 8]), ("many requests: scheduler", &[12, 15])],
    &[("tokenizer", &[]), ("embedding", &[]), ("layers with\nattention", &[13]), ("logits", &[]), ("sampler", &[9])],
    &[
        ("flat cache", &[2]),
        ("contiguous", &[3]),
        ("paged cache", &[6]),
        ("rewind", &[7]),
        ("fork", &[10]),
        ("small rows", &[14]),
    ],
    &[("page table", &[5]), ("page pool", &[4]), ("prefix cache", &[11])],
    &[("pages on disk", &[16])],
];
const FLOW: usize = 2;
/// What passes between a band and the next.
const BETWEEN: [&str; 5] =
    ["prompts in, tokens out", "tokens of a step", "rows of keys and values", "slots in pages", "pages kept for later"];
const BUILT: char = 'b';

pub fn figure() -> Result<Figure> {
    let parts = || BANDS.into_iter().flatten();
    let mut numbers: Vec<usize> = parts().flat_map(|(_, chapters)| *chapters).copied().collect();
    numbers.sort_unstable();
    let titles: Vec<(usize, &str)> = chapters::all().iter().map(|chapter| (chapter.number, chapter.title)).collect();
    ensure!(titles.iter().map(|(number, _)| *number).eq(numbers), "each chapter builds one part");
    let told: Vec<String> = parts()
        .filter(|(_, chapters)| !chapters.is_empty())
        .map(|(name, chapters)| format!("{} ({})", name.replace('\n', " "), listed(chapters)))
        .collect();
    let figure = Figure {
        label: format!(
            "The engine as boxes, from the server at the top to the disk at the bottom. With the chapters that build them: {}. \
             Tokenizer, embedding, logits and the server are given.",
            listed(&told)
        ),
        message: "The model is given; you build the memory in its middle and the loop around it.".into(),
        setup: "The numbers are chapters.".into(),
        owners: vec![(held(BUILT, ""), "you build it"), (part(""), "given")],
        legend: vec![(Fate::Held, "")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        for (band, parts) in BANDS.iter().enumerate() {
            draw_band(picture, parts, band == FLOW);
            if let Some(between) = BETWEEN.get(band) {
                let (x, y) = (picture.left + picture.width / 2.0, picture.y + 2.0);
                picture.arrow((x - 6.0, y), (x - 6.0, y + 17.0));
                picture.arrow((x + 6.0, y + 17.0), (x + 6.0, y));
                picture.text(x + 18.0, y + 13.0, Anchor::Start, between);
                picture.space(22.0);
            }
        }
        picture.space(14.0);
        draw_names(picture, &titles);
    }))
}

/// Three boxes in a line on a phone, all of them where there is room.
fn draw_band(picture: &mut Picture, parts: &[Part], is_flow: bool) {
    const BETWEEN: f64 = 16.0;
    let per_line = if picture.is_wide() { parts.len() } else { parts.len().min(if parts.len() == 2 { 1 } else { 3 }) };
    for line in parts.chunks(per_line) {
        let width = (picture.width - 2.0 - (line.len() - 1) as f64 * BETWEEN) / line.len() as f64;
        let lines = |(name, chapters): &Part| name.lines().count() + usize::from(!chapters.is_empty());
        let height = 16.0 * line.iter().map(lines).max().unwrap_or(1) as f64 + 12.0;
        for (n, (name, chapters)) in line.iter().enumerate() {
            let x = picture.left + 1.0 + n as f64 * (width + BETWEEN);
            let numbers: Vec<String> = chapters.iter().map(usize::to_string).collect();
            let cell: Cell =
                if chapters.is_empty() { part(name) } else { held(BUILT, format!("{name}\n{}", numbers.join(", "))) };
            let area = Area { x, y: picture.y, width, height };
            picture.cell(area, cell);
            if is_flow && n > 0 {
                picture.arrow((x - BETWEEN + 2.0, area.y + height / 2.0), (x - 2.0, area.y + height / 2.0));
            }
        }
        picture.space(height + 6.0);
    }
    picture.space(-4.0);
}

/// The chapters' titles, in columns.
fn draw_names(picture: &mut Picture, titles: &[(usize, &str)]) {
    let columns = if picture.is_wide() { 3 } else { 2 };
    let lines = titles.len().div_ceil(columns);
    let width = picture.width / columns as f64;
    for (n, (number, title)) in titles.iter().enumerate() {
        let (x, y) = (picture.left + (n / lines) as f64 * width, picture.y + (n % lines) as f64 * 19.0 + 12.0);
        picture.words((x + 18.0, y), Anchor::End, "b", number);
        picture.text(x + 25.0, y, Anchor::Start, title);
    }
    picture.space(lines as f64 * 19.0);
}
