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

struct Trace {
    /// A key of the newest token, in layer 0 and head 0, as it was computed.
    key: Vec<f32>,
    /// One for each format.
    frames: Vec<Frame>,
}

struct Frame {
    format: &'static str,
    bytes: usize,
    /// The first word, if it is a scale.
    scale: Option<f32>,
    /// The numbers that are read, less those that were written.
    errors: Vec<f32>,
}

fn record() -> Result<Trace> {
    let (model, prompt) = (model(STORYTELLER)?, tokenizer()?.encode(PROMPT)?);
    let (layout, head_dim) = (model.config().kv_layout(), model.config().head_dim);
    let mut cache = ContiguousCache::new(layout, prompt.len());
    model.step(&prompt, Some(&mut cache))?;
    let newest = (prompt.len() - 1) * layout.kv_width();
    let key = cache.gather(0).0[newest..newest + head_dim].to_vec();
    let frames = RowFormat::ALL.map(|format| {
        let (mut packed, mut again) = (vec![0.0; words(format, head_dim)], vec![0.0; head_dim]);
        encode(format, &key, &mut packed);
        decode(format, &packed, &mut again);
        Frame {
            format: format.name(),
            bytes: packed.len() * size_of::<f32>(),
            scale: (format == RowFormat::Int8).then_some(packed[0]),
            errors: again.iter().zip(&key).map(|(again, number)| again - number).collect(),
        }
    });
    ensure!(frames[0].errors.iter().all(|error| *error == 0.0), "f32 reads the numbers that were written");
    Ok(Trace { key, frames: frames.into() })
}

fn largest(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0.0, |largest, x| largest.max(x.abs()))
}

pub fn figure() -> Result<Figure> {
    let trace = &record()?;
    let Trace { key, frames, .. } = trace;
    let most = frames.iter().map(|frame| largest(&frame.errors)).fold(0.0, f32::max);
    let mut svg = Svg::new();
    svg.heading(&format!("a key: {} numbers, the largest {:.2}", key.len(), largest(key)), "");
    draw_bars(&mut svg, 74.0, key, largest(key), Kind::Reused);
    for frame in frames {
        svg.y += 12.0;
        svg.step(|svg| {
            svg.heading(&format!("{}: {} bytes", frame.format, frame.bytes), &off_by(frame));
            let words = frames[0].bytes / 4;
            for word in 0..frame.bytes / 4 {
                let kind = if word == 0 && frame.scale.is_some() { Kind::Shared } else { Kind::New };
                svg.cell(Area { height: 20.0, ..Grid::across(0.0, words, words).cell(word, svg.y) }, &cell(kind, ""));
            }
            svg.y += 26.0;
            draw_bars(svg, 44.0, &frame.errors, most, Kind::Wasted);
        });
    }
    svg.legend(&[
        (Kind::Reused, "a number"),
        (Kind::New, "a word"),
        (Kind::Shared, "scale"),
        (Kind::Wasted, "its error"),
    ]);
    let scale = frames[frames.len() - 1].scale.unwrap_or_default();
    Ok(Figure {
        svg,
        label: format!(
            "Bars for the {} numbers of a key. Below, a panel for each of {} formats, with the words of the key and a bar for the \
             error of each number.",
            key.len(),
            frames.len()
        ),
        caption: format!(
            "<strong>Half or a quarter of the bytes cost little accuracy.</strong> A key of the storyteller after \
             \u{201c}{PROMPT}\u{201d}, in each format: its words of 4 bytes, and how far each of its numbers is off when it is \
             read. All errors are drawn to the same scale. In int8 a byte counts {scale:.4}, so a number is off by at most \
             {:.4}. Recorded from <code>encode</code> and <code>decode</code>.",
            scale / 2.0
        ),
        steps: (frames.iter())
            .map(|frame| format!("<strong>{}</strong>: {} bytes, {}.", frame.format, frame.bytes, off_by(frame)))
            .collect(),
        ..Figure::default()
    })
}

fn off_by(frame: &Frame) -> String {
    match largest(&frame.errors) {
        0.0 => "exact".into(),
        error => format!("off by {error:.5} at most"),
    }
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
