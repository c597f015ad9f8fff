//! Chapter 14: the numbers of a key of the storyteller, and how far each is off in each format.

use page_by_page::chapters::ch03_contiguous::ContiguousCache;
use page_by_page::chapters::ch14_half_the_bytes::{decode, encode, words};
use page_by_page::kernels::RowFormat;

use super::prelude::*;

const PROMPT: &str = "Once upon a time";
const SUPERSCRIPTS: [char; 8] =
    ['\u{2070}', '\u{b9}', '\u{b2}', '\u{b3}', '\u{2074}', '\u{2075}', '\u{2076}', '\u{2077}'];

/// A key of the prompt's newest token, in layer 0 and head 0, as it is computed.
fn key() -> Result<Vec<f32>> {
    let (model, prompt) = (model(STORYTELLER)?, tokenizer()?.encode(PROMPT)?);
    let (layout, head_dim) = (model.config().kv_layout(), model.config().head_dim);
    let mut cache = ContiguousCache::new(layout, prompt.len());
    model.step(&prompt, Some(&mut cache))?;
    let newest = (prompt.len() - 1) * layout.kv_width();
    Ok(cache.gather(0).0[newest..newest + head_dim].to_vec())
}

struct Packed {
    format: RowFormat,
    words: Vec<f32>,
    /// The numbers that are read, less those that were written.
    errors: Vec<f32>,
}

fn packed(format: RowFormat, key: &[f32]) -> Packed {
    let (mut words, mut again) = (vec![0.0; words(format, key.len())], vec![0.0; key.len()]);
    encode(format, key, &mut words);
    decode(format, &words, &mut again);
    Packed { format, words, errors: again.iter().zip(key).map(|(again, number)| again - number).collect() }
}

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |largest, x| largest.max(x.abs()))
}

pub fn figure() -> Result<Figure> {
    let key = key()?;
    let [f32, rounded @ ..] = RowFormat::ALL.map(|format| packed(format, &key));
    ensure!(largest(&f32.errors) == 0.0, "f32 reads the numbers that were written");
    let bytes = |packed: &Packed| size_of_val(&packed.words[..]);
    let (n, in_f32) = (key.len(), bytes(&f32));
    let sizes = rounded.each_ref().map(|packed| format!("{} as {}", bytes(packed), packed.format.name()));
    let told = rounded
        .each_ref()
        .map(|Packed { format, errors, .. }| format!("{} is off by {:.5} at most", format.name(), largest(errors)));
    let (sizes, told) = (listed(&sizes), listed(&told));
    let figure = Figure {
        label: format!(
            "A chart of {n} numbers and the error of each in three formats, both axes logarithmic. {told}. The errors \
             of f16 and bf16 fall with the numbers, those of int8 do not."
        ),
        message: "f16 and bf16 round small numbers more finely, while int8 rounds all numbers of a head alike.".into(),
        setup: format!(
            "A key after \u{201c}{PROMPT}\u{201d}, {n} numbers in {in_f32} bytes as f32, {sizes}. A point is a number \
             and its error, a circle in f16, a square in bf16, a triangle in int8, and a line is the bound. Errors \
             below 10\u{207b}\u{2077} are drawn at the bottom."
        ),
        ..Figure::default()
    };
    Ok(figure.still(|picture| draw(picture, &key, &rounded)))
}

fn draw(picture: &mut Picture, key: &[f32], formats: &[Packed]) {
    /// Exponents of ten at the ends of the axes.
    const ACROSS: [f64; 2] = [-2.4, 1.0];
    const UP: [f64; 2] = [-7.0, -1.0];
    const LOOKS: [&str; 3] = ["plot dot", "plot dash", "plot"];
    picture.heading("error", "");
    let (left, right, top, bottom) = (44.0, picture.right() - 6.0, picture.y + 4.0, picture.y + 264.0);
    let scale = |x: f32, [from, to]: [f64; 2]| ((f64::from(x).log10() - from) / (to - from)).clamp(0.0, 1.0);
    let at =
        |x: f32, error: f32| (left + scale(x, ACROSS) * (right - left), bottom - scale(error, UP) * (bottom - top));
    for exponent in -7..=-1 {
        let (_, y) = at(1.0, 10f32.powi(exponent));
        picture.path("tick", format!("M{left:.1} {y:.1}H{right:.1}"));
        let power = SUPERSCRIPTS[exponent.unsigned_abs() as usize];
        picture.text(left - 8.0, y + 4.5, Anchor::End, format!("10\u{207b}{power}"));
    }
    for exponent in -2..=1 {
        let number = 10f32.powi(exponent);
        let anchor = if exponent == 1 { Anchor::End } else { Anchor::Middle };
        picture.text(at(number, 1.0).0, bottom + 18.0, anchor, number);
    }
    picture.text((left + right) / 2.0, bottom + 38.0, Anchor::Middle, "size of the number");
    for (place, Packed { format, words, errors }) in formats.iter().enumerate() {
        // Bits of precision, where each number is rounded by itself. The first word of int8 is the step of all.
        let bits = match format {
            RowFormat::F16 => Some(11),
            RowFormat::Bf16 => Some(8),
            RowFormat::F32 | RowFormat::Int8 => None,
        };
        let bound = |x: f32| bits.map_or(words[0] / 2.0, |bits| x * 2f32.powi(-bits));
        let [first, last] = ACROSS.map(|exponent| 10f32.powf(exponent as f32));
        let last = if bits.is_some() { last } else { largest(key) };
        let [(x1, y1), (x2, y2)] = [first, last].map(|x| at(x, bound(x)));
        picture.path(format!("{} o{place}", LOOKS[place]), format!("M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}"));
        // Clear of the line, which rises.
        let under = 6.0 + text_width(format.name());
        let y = y1 + (y2 - y1) * under / (x2 - x1) - 6.0;
        picture.bold(x1 + 6.0, y, Anchor::Start, format.name());
        let points = key.iter().zip(errors).map(|(number, error)| point(place, at(number.abs(), error.abs())));
        picture.path(format!("fill o{place}"), points.collect());
    }
    picture.y += 312.0;
}

/// A circle, a square or a triangle.
fn point(look: usize, (x, y): (f64, f64)) -> String {
    match look {
        0 => format!("M{:.1} {y:.1}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z", x - 3.5),
        1 => format!("M{:.1} {:.1}h6v6h-6z", x - 3.0, y - 3.0),
        _ => format!("M{x:.1} {:.1}l4 7h-8z", y - 4.5),
    }
}
