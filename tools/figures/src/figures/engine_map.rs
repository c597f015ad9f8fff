//! The page on the model: the engine as boxes, from a prompt to its output, with the numbers of the chapters that build
//! them.

use std::collections::BTreeSet;

use page_by_page::chapters;

use super::prelude::*;

/// A part of the engine, and the chapters that build it; given if there are none.
type Part = (&'static str, &'static [usize]);

/// From the outside to the disk. Band [`FLOW`] runs from left to right.
const BANDS: [&[Part]; 6] = [
    &[("server", &[])],
    &[("generation loop\nfor one request", &[1, 8, 9]), ("scheduler\nfor many requests", &[12, 15])],
    &[("tokenizer", &[]), ("embedding", &[]), ("attention\nin each layer", &[13]), ("logits", &[]), ("sampler", &[])],
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
/// What passes between a band and the next, and how far to the right, in shares of the width, narrow and wide: there is
/// a box on both sides. The words stand at the first.
const BETWEEN: [(&str, [&[f64]; 2]); 5] = [
    ("prompts in, tokens out", [&[0.75], &[0.75]]),
    ("tokens of a step in, the next one out", [&[0.75], &[]]),
    ("rows of keys and values", [&[0.2], &[0.45]]),
    ("slots in pages", [&[0.2], &[0.45]]),
    ("pages kept for later", [&[0.8], &[0.8]]),
];
/// The first chapter of each part of the book.
const STARTS: [usize; 6] = [1, 4, 7, 10, 13, 15];
const BUILT: char = 'b';

pub fn figure() -> Result<Figure> {
    let parts = || BANDS.into_iter().flatten();
    let mut numbers: Vec<usize> = parts().flat_map(|(_, chapters)| *chapters).copied().collect();
    numbers.sort_unstable();
    ensure!(chapters::all().iter().map(|chapter| chapter.number).eq(numbers), "each chapter builds one part");
    let told: Vec<String> = parts()
        .filter(|(_, chapters)| !chapters.is_empty())
        .map(|(name, chapters)| format!("{} ({})", name.replace('\n', " "), listed(chapters)))
        .collect();
    let figure = Figure {
        label: format!(
            "The engine as boxes, from the server at the top to the disk at the bottom. With the chapters that build \
             them: {}. Tokenizer, embedding, logits, sampler and the server are given.",
            listed(&told)
        ),
        headline:
            "The model and its sampler are given; you build the memory in the middle, what reads it, and the loop \
                  around it."
                .into(),
        setup: "The numbers are chapters.".into(),
        legend: vec![(held(BUILT, ""), "you build it"), (part(""), "given")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        for (band, parts) in BANDS.iter().enumerate() {
            draw_band(picture, parts, band == FLOW);
            if band + 1 == FLOW && picture.is_wide() {
                draw_step(picture);
            } else if let Some((between, shares)) = BETWEEN.get(band) {
                let shares = shares[usize::from(picture.is_wide())];
                let (x, y) = (|share: f64| picture.left + picture.width * share, picture.y + 2.0);
                let xs: Vec<f64> = shares.iter().copied().map(x).collect();
                for x in &xs {
                    picture.arrow((x - 6.0, y), (x - 6.0, y + 15.0));
                    picture.arrow((x + 6.0, y + 15.0), (x + 6.0, y));
                }
                let (side, anchor) = if shares[0] > 0.5 { (-18.0, Anchor::End) } else { (18.0, Anchor::Start) };
                picture.text(xs[0] + side, y + 12.0, anchor, between);
                picture.y += 20.0;
            }
        }
    }))
}

/// Where there is room: the step's tokens on their way to the embedding, and the next token on its way back.
fn draw_step(picture: &mut Picture) {
    let (left, width) = (picture.left, picture.width);
    let x = |share: f64| left + width * share;
    let (top, upper, lower, bottom) = (picture.y + 2.0, picture.y + 12.0, picture.y + 28.0, picture.y + 38.0);
    picture.arrow((x(0.22), top), (x(0.22), bottom));
    picture.path("line", format!("M{:.1} {top:.1}V{lower:.1}H{:.1}", x(0.54), x(0.36)));
    picture.arrow((x(0.36), lower), (x(0.36), bottom));
    picture.text(x(0.22) + 8.0, upper + 8.0, Anchor::Start, "tokens of a step");
    picture.arrow((x(0.96), bottom), (x(0.96), top));
    picture.path("line", format!("M{:.1} {bottom:.1}V{upper:.1}H{:.1}", x(0.88), x(0.46)));
    picture.arrow((x(0.46), upper), (x(0.46), top));
    picture.text(x(0.88) - 8.0, lower, Anchor::End, "the next token, appended");
    picture.y += 43.0;
}

/// At most three boxes in a line on a phone, all of them where there is room. The flow goes on in the next line.
fn draw_band(picture: &mut Picture, parts: &[Part], is_flow: bool) {
    const BETWEEN: f64 = 16.0;
    let per_line = if picture.is_wide() { parts.len() } else { 3 };
    let mut last: Option<Area> = None;
    // The last line is full.
    let (first, others) = parts.split_at(parts.len() % per_line);
    for line in [first].into_iter().chain(others.chunks(per_line)).filter(|line| !line.is_empty()) {
        let width = (picture.width - 2.0 - (line.len() - 1) as f64 * BETWEEN) / line.len() as f64;
        let words = line.iter().map(|(name, chapters)| {
            let apart = if picture.is_wide() || name.contains('\n') { "\n" } else { " " };
            if chapters.is_empty() { name.to_string() } else { format!("{name}{apart}{}", joined(chapters, ", ")) }
        });
        let words: Vec<String> = words.collect();
        let height = 16.0 * words.iter().map(|word| word.lines().count()).max().unwrap_or(1) as f64 + 12.0;
        for (n, (word, (_, chapters))) in words.iter().zip(line).enumerate() {
            let x = picture.left + 1.0 + n as f64 * (width + BETWEEN);
            let part_of_book = |chapter: &usize| STARTS.iter().filter(|first| *first <= chapter).count();
            let classes: BTreeSet<String> = chapters.iter().map(|n| format!("p{}", part_of_book(n))).collect();
            let cell = if chapters.is_empty() { part(word) } else { held(BUILT, word) };
            let area = Area { x, y: picture.y, width, height };
            picture.cell(area, Cell { class: Vec::from_iter(classes).join(" "), ..cell });
            if let Some(last) = last.filter(|_| is_flow) {
                if n > 0 {
                    picture.arrow((x - BETWEEN + 2.0, area.y + height / 2.0), (x - 2.0, area.y + height / 2.0));
                } else {
                    let between = last.bottom() + 5.0;
                    let (from, to) = (last.middle(), area.middle());
                    picture.path("line", format!("M{from:.1} {:.1}V{between:.1}H{to:.1}", last.bottom()));
                    picture.arrow((to, between), (to, area.y - 2.0));
                }
            }
            last = Some(area);
        }
        picture.y += height + if is_flow { 16.0 } else { 6.0 };
    }
    picture.y += if is_flow { -14.0 } else { -4.0 };
}
