//! Chapter 14: a key of the storyteller in each format, and how far each number is off.

use anyhow::{Result, ensure};
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch14_half_the_bytes::{decode, encode, words};
use page_by_page::kernels::RowFormat;

use super::Figure;
use crate::layout::Grid;
use crate::models::{STORYTELLER, model, tokenizer};
use crate::svg::{Area, Kind, Svg, WIDTH, cell, rounded};

const PROMPT: &str = "Once upon a time";

/// A key of the prompt's newest token, in layer 0 and head 0, as it is computed.
fn key() -> Result<Vec<f32>> {
    let (model, prompt) = (model(STORYTELLER)?, tokenizer()?.encode(PROMPT)?);
    let (layout, head_dim) = (model.config().kv_layout(), model.config().head_dim);
    let mut cache = ContiguousCache::new(layout, prompt.len());
    model.step(&prompt, Some(&mut cache))?;
    let newest = (prompt.len() - 1) * layout.kv_width();
    Ok(cache.gather(0).0[newest..newest + head_dim].to_vec())
}

/// The words of the key in a format, and the numbers that are read, less those that were written.
fn packed(format: RowFormat, key: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (mut packed, mut again) = (vec![0.0; words(format, key.len())], vec![0.0; key.len()]);
    encode(format, key, &mut packed);
    decode(format, &packed, &mut again);
    (packed, again.iter().zip(key).map(|(again, number)| again - number).collect())
}

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |largest, x| largest.max(x.abs()))
}

pub fn figure() -> Result<Figure> {
    let key = key()?;
    let formats = RowFormat::ALL.map(|format| (format, packed(format, &key)));
    ensure!(largest(&formats[0].1.1) == 0.0, "f32 reads the numbers that were written");
    let most = formats.iter().map(|(_, (_, errors))| largest(errors)).fold(0.0, f32::max);
    let all_words = formats[0].1.0.len();
    let mut figure = Figure::default();
    figure.svg.heading(&format!("a key: {} numbers, the largest {:.2}", key.len(), largest(&key)), "");
    draw_bars(&mut figure.svg, 74.0, &key, largest(&key), Kind::Reused);
    for (format, (words, errors)) in &formats {
        let off_by = match largest(errors) {
            0.0 => "exact".into(),
            error => format!("off by {error:.5} at most"),
        };
        let (name, bytes) = (format.name(), words.len() * size_of::<f32>());
        figure.svg.y += 12.0;
        figure.step(format!("<strong>{name}</strong>: {bytes} bytes, {off_by}."), |svg| {
            svg.heading(&format!("{name}: {bytes} bytes"), &off_by);
            for word in 0..words.len() {
                let is_scale = word == 0 && *format == RowFormat::Int8;
                let kind = if is_scale { Kind::Shared } else { Kind::New };
                let area = Grid::across(0.0, all_words, all_words).cell(word, svg.y);
                svg.cell(Area { height: 20.0, ..area }, &cell(kind, ""));
            }
            svg.y += 26.0;
            draw_bars(svg, 44.0, errors, most, Kind::Wasted);
        });
    }
    figure.svg.legend(&[
        (Kind::Reused, "a number"),
        (Kind::New, "a word"),
        (Kind::Shared, "scale"),
        (Kind::Wasted, "its error"),
    ]);
    figure.label = format!(
        "Bars for the {} numbers of a key. Below, a panel for each of {} formats, with the words of the key and a bar for the error \
         of each number.",
        key.len(),
        formats.len()
    );
    let scale = packed(RowFormat::Int8, &key).0[0];
    figure.caption = format!(
        "<strong>Half or a quarter of the bytes cost little accuracy.</strong> A key of the storyteller after \
         \u{201c}{PROMPT}\u{201d}, in each format: its words of 4 bytes, and how far each of its numbers is off when it is read. \
         All errors are drawn to the same scale. In int8 a byte counts {scale:.4}, so a number is off by at most {:.4}. Recorded \
         from <code>encode</code> and <code>decode</code>.",
        scale / 2.0
    );
    Ok(figure)
}

/// A bar for each number, up or down from the middle. `most`: the number whose bar takes all the height.
fn draw_bars(svg: &mut Svg, height: f64, numbers: &[f32], most: f32, kind: Kind) {
    let (middle, grid) = (svg.y + height / 2.0, Grid::across(0.0, numbers.len(), numbers.len()));
    svg.line(&format!("M2 {}H{}", rounded(middle), WIDTH - 2.0));
    for (i, number) in numbers.iter().enumerate().filter(|(_, number)| **number != 0.0) {
        let length = f64::from(number.abs() / most) * height / 2.0;
        let y = if *number > 0.0 { middle - length } else { middle };
        svg.cell(Area { height: length.max(0.3), ..grid.cell(i, y) }, &cell(kind, ""));
    }
    svg.y += height;
}
