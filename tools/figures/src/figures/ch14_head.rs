//! Chapter 14: a key of the storyteller in each format, and how far each number is off.

use anyhow::{Result, ensure};
use page_by_page::cache::KvCache;
use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch14_half_the_bytes::{decode, encode, words};
use page_by_page::kernels::RowFormat;

use super::Figure;
use crate::models::{STORYTELLER, model, tokenizer};
use crate::picture::{Area, Fate, Mark, Picture, held};

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
    let scale = packed(RowFormat::Int8, &key).0[0];
    let told: Vec<String> = formats
        .iter()
        .map(|(format, (words, errors))| {
            format!("{}: {} bytes, {}", format.name(), size_of_val(&words[..]), off_by(errors))
        })
        .collect();
    let figure = Figure {
        label: format!(
            "Bars for the {} numbers of a key, and for the error of each number in four formats. {}.",
            key.len(),
            told.join("; ")
        ),
        message: "Half or a quarter of the bytes cost little accuracy.".into(),
        setup: format!(
            "A key after \u{201c}{PROMPT}\u{201d} in each format: its words of 4 bytes, and the error of each number when it is \
             read, drawn larger. One step of int8 is {scale:.4}."
        ),
        owners: vec![
            (held('b', ""), "a word of numbers"),
            (held('d', ""), "the scale"),
            (held('c', ""), "error of a number"),
        ],
        legend: vec![(Fate::Held, "")],
        ..Figure::default()
    };
    Ok(figure.still(|picture| {
        picture.heading(&format!("a key: {} numbers, the largest {:.2}", key.len(), largest(&key)), "");
        draw_bars(picture, 60.0, &key, 'b');
        picture.space(12.0);
        for pair in formats.chunks(2) {
            picture.beside(pair.len(), |picture, n| draw_format(picture, &pair[n], key.len()));
            picture.space(12.0);
        }
    }))
}

fn off_by(errors: &[f32]) -> String {
    match largest(errors) {
        0.0 => "exact".into(),
        error => format!("off by {error:.5} at most"),
    }
}

fn draw_format(picture: &mut Picture, (format, (words, errors)): &(RowFormat, (Vec<f32>, Vec<f32>)), most: usize) {
    let bytes = size_of_val(&words[..]);
    picture.heading(&format!("{}: {bytes} bytes", format.name()), &off_by(errors));
    let grid = picture.grid(most, most);
    for word in 0..words.len() {
        let is_scale = word == 0 && *format == RowFormat::Int8;
        picture.cell(Area { height: 16.0, ..grid.cell(word) }, held(if is_scale { 'd' } else { 'b' }, ""));
    }
    picture.space(22.0);
    draw_bars(picture, 40.0, errors, 'c');
}

/// A bar for each number, up or down from the middle. The largest takes all the height.
fn draw_bars(picture: &mut Picture, height: f64, numbers: &[f32], owner: char) {
    let (middle, grid, most) = (picture.y + height / 2.0, picture.grid(numbers.len(), numbers.len()), largest(numbers));
    picture.line(format!("M{:.1} {middle:.1}H{:.1}", picture.left, picture.right()));
    let bar = |(i, number): (usize, &f32)| {
        let (area, length) = (grid.cell(i), f64::from(number / most) * height / 2.0);
        format!("M{:.1} {middle:.1}h{:.1}v{:.1}h{:.1}z", area.x, area.width, -length, -area.width)
    };
    let bars: String = numbers.iter().enumerate().filter(|(_, number)| **number != 0.0).map(bar).collect();
    let colour = owner as usize - 'a' as usize;
    picture.marks.push(Mark::Line(bars, Some(colour), "fill"));
    picture.space(height);
}
